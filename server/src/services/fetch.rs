//! `Fetch`: long poll for committed records. R1: only what is applied is served. R2, F2: serving is tested at arrival
//! and again after the read, in the term of the read, before the answer is sent.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quorate_consensus::node::effect::View;
use quorate_proto::ids::Offset;
use quorate_proto::refusal::{Reason, Refusal};
use quorate_proto::v1::{self, fetch_response::Payload};
use tokio::time::Instant;

use super::{records, Shared};
use crate::storage::StorageError;
use crate::view::{PartitionView, Tail};

/// Longest long poll.
const MAX_WAIT: Duration = Duration::from_secs(30);
/// Bytes of an answer if the client says nothing.
const DEFAULT_BYTES: usize = 1 << 20;
/// Most bytes of an answer: a stock client's receive limit of 4 MiB holds.
const MAX_BYTES: usize = (4 << 20) - (64 << 10);
/// The same for records in the clear, which take a little more room than in a batch.
const MAX_RECORD_BYTES: usize = 3 << 20;

/// Answers one fetch.
pub(super) async fn fetch<E>(shared: &Shared<E>, request: v1::FetchRequest) -> Result<v1::FetchResponse, Refusal> {
    shared.check_cluster(&request.cluster_id)?;
    let view = shared.find(request.partition.as_ref())?;
    shared.check_serving(&view)?;
    let offset = Offset(request.offset);
    let until = Instant::now() + Duration::from_millis(request.max_wait_ms.into()).min(MAX_WAIT);
    let limit = if request.as_records { MAX_RECORD_BYTES } else { MAX_BYTES };
    let max = match request.max_bytes as usize {
        0 => DEFAULT_BYTES,
        bytes => bytes.min(limit),
    };
    // Not more than an answer may hold, else the wait would never be satisfied.
    let min = (request.min_bytes as usize).min(max);
    let mut closing = shared.closing.clone();
    let (seen, found) = loop {
        let changed = view.changed.notified();
        tokio::pin!(changed);
        // From here on no change is missed.
        changed.as_mut().enable();
        let (seen, found) = read(shared, &view, offset, max).await?;
        let late = Instant::now() >= until || *closing.borrow();
        if late || found.as_ref().is_some_and(|(bytes, _)| bytes.len() >= min) {
            break (seen, found);
        }
        tokio::select! {
            () = changed => {}
            () = tokio::time::sleep_until(until) => {}
            _ = closing.wait_for(|closing| *closing) => {}
        }
        // A deposed or fenced leader lets nobody wait.
        shared.check_serving(&view)?;
    };
    let response = answer(&view, seen, found, &request, max)?;
    // F2: after the state was read, before the answer leaves.
    if view.serves(shared.clock.now(), seen.term) {
        Ok(response)
    } else {
        Err(shared.not_serving(&view))
    }
}

/// What lies at `offset`: from the tail cache, else from the segments. `None`: nothing yet.
async fn read<E>(
    shared: &Shared<E>,
    view: &Arc<PartitionView>,
    offset: Offset,
    max: usize,
) -> Result<(View, Option<(Bytes, Offset)>), Refusal> {
    let (seen, tail) = view.read(offset, max);
    if offset > seen.high_watermark || offset < seen.low_watermark {
        return Err(out_of_range(view, offset, seen));
    }
    match tail {
        Tail::Found(bytes, next) => Ok((seen, Some((bytes, next)))),
        Tail::Empty => Ok((seen, None)),
        Tail::Miss => {
            let found = shared.storage.read(view.key, offset, max).await;
            let found = found.map_err(|error| match error {
                StorageError::BelowFirst { .. } => out_of_range(view, offset, seen),
                error => unreadable(view, &format!("at {offset}"), &error),
            })?;
            // Everything appended is committed and applied, so records beyond `seen` are no less true; the offset
            // after them is what counts.
            Ok((seen, found.next.map(|next| (found.bytes.freeze(), next))))
        }
    }
}

fn answer(
    view: &PartitionView,
    seen: View,
    found: Option<(Bytes, Offset)>,
    request: &v1::FetchRequest,
    max: usize,
) -> Result<v1::FetchResponse, Refusal> {
    let offset = Offset(request.offset);
    let (payload, next) = match found {
        Some((bytes, _)) if request.as_records => {
            let (records, next) = records::open(&bytes, offset, max, &view.subject())?;
            (Payload::Records(records), next)
        }
        Some((bytes, next)) => (Payload::Batches(bytes), next),
        None if request.as_records => (Payload::Records(v1::Records::default()), offset),
        None => (Payload::Batches(Bytes::new()), offset),
    };
    Ok(v1::FetchResponse {
        payload: Some(payload),
        next_offset: next.get(),
        high_watermark: seen.high_watermark.max(next).get(),
        low_watermark: seen.low_watermark.get(),
        epoch: seen.term.get(),
    })
}

fn out_of_range(view: &PartitionView, offset: Offset, seen: View) -> Refusal {
    Refusal::new(
        Reason::OffsetOutOfRange,
        format!("{offset} is outside {} to {}", seen.low_watermark.get(), seen.high_watermark.get()),
        view.subject(),
        "ask for the earliest or latest offset, or one by time (ListOffsets), and decide where to go on",
    )
}

/// `place` says where in the partition.
pub(super) fn unreadable(view: &PartitionView, place: &str, error: &StorageError) -> Refusal {
    match error {
        StorageError::Corrupt { .. } => {
            tracing::error!(group = %view.assignment.group, place, %error, "a damaged range was asked for; not served");
            Refusal::new(
                Reason::Corrupt,
                error.to_string(),
                format!("{} {place}", view.subject()),
                "move the leader to another replica and have this one repaired",
            )
        }
        StorageError::Io { .. }
        | StorageError::Newer { .. }
        | StorageError::BelowFirst { .. }
        | StorageError::UnknownGroup(_)
        | StorageError::Stopped => Refusal::new(
            Reason::Degraded,
            format!("the storage cannot be read: {error}"),
            format!("{} {place}", view.subject()),
            "try again after the delay, or at another leader",
        )
        .retry_after(Duration::from_millis(500)),
    }
}
