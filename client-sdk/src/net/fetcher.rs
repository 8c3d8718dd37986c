//! Fetches one partition ahead of the application, wherever its leader is.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use quorate_proto::batch::StoredBatchView;
use quorate_proto::ids::{Offset, PartitionNo};
use quorate_proto::refusal::{Reason, Refusal};
use quorate_proto::v1;
use tokio::sync::mpsc;

use super::consumer::{corrupt, FETCH_BYTES};
use super::leader::LeaderPath;

/// A long poll: the server answers as soon as there is a record.
const MAX_WAIT_MS: u32 = 10_000;
/// Damaged on the way is fetched again; so often in a row it is damaged at rest.
const DAMAGED_MAX: u32 = 3;

/// What was fetched: batches that begin at or below an offset, or why the partition ends.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) partition: PartitionNo,
    pub(crate) content: Result<(Offset, Vec<StoredBatchView>), Refusal>,
}

pub(crate) struct Fetcher {
    path: LeaderPath,
    offset: Offset,
    chunks: mpsc::Sender<Chunk>,
    high_watermark: Arc<AtomicU64>,
    damaged: u32,
}

impl Fetcher {
    pub(crate) fn new(
        path: LeaderPath,
        offset: Offset,
        chunks: mpsc::Sender<Chunk>,
        high_watermark: Arc<AtomicU64>,
    ) -> Self {
        Self { path, offset, chunks, high_watermark, damaged: 0 }
    }

    /// Runs until the consumer is gone or the partition ends with an error.
    pub(crate) async fn run(mut self) {
        let partition = self.path.partition;
        loop {
            // Room first: what was fetched must not wait here while it grows old and the fence of its leader with it.
            let Ok(room) = self.chunks.clone().reserve_owned().await else { return };
            match self.fetch().await {
                Ok(Some(batches)) => {
                    room.send(Chunk { partition, content: Ok(batches) });
                }
                Ok(None) => {}
                Err(refusal) => {
                    room.send(Chunk { partition, content: Err(refusal) });
                    return;
                }
            }
        }
    }

    /// One fetch. `None`: nothing new, or it must be tried again.
    async fn fetch(&mut self) -> Result<Option<(Offset, Vec<StoredBatchView>)>, Refusal> {
        let mut leader = self.path.leader().await;
        let request = v1::FetchRequest {
            partition: Some(self.path.wire_partition()),
            offset: self.offset.get(),
            max_wait_ms: MAX_WAIT_MS,
            min_bytes: 1,
            max_bytes: FETCH_BYTES,
            as_records: false,
            cluster_id: self.path.cluster_id(),
        };
        let answer = tokio::select! {
            answer = leader.log.fetch(request) => answer,
            () = self.path.moved() => return Ok(None),
        };
        let answer = match answer {
            Ok(answer) => answer.into_inner(),
            Err(status) => return self.path.failed(leader.node, &status).map(|()| None),
        };
        self.high_watermark.fetch_max(answer.high_watermark, Ordering::Relaxed);
        let batches = match parse(answer.payload) {
            Ok(batches) => batches,
            Err(what) => return self.damage(leader.node, &what).map(|()| None),
        };
        self.damaged = 0;
        self.path.succeeded();
        let from = self.offset;
        self.offset = Offset(answer.next_offset).max(from);
        Ok((!batches.is_empty()).then_some((from, batches)))
    }

    fn damage(&mut self, node: quorate_proto::ids::NodeId, what: &str) -> Result<(), Refusal> {
        self.damaged += 1;
        let refusal = corrupt(self.path.partition, what);
        if self.damaged >= DAMAGED_MAX {
            return Err(refusal);
        }
        self.path.refused(node, Refusal { reason: Reason::Unreachable, ..refusal });
        Ok(())
    }
}

fn parse(payload: Option<v1::fetch_response::Payload>) -> Result<Vec<StoredBatchView>, String> {
    let mut rest = match payload {
        None => return Ok(Vec::new()),
        Some(v1::fetch_response::Payload::Batches(bytes)) => bytes,
        Some(v1::fetch_response::Payload::Records(_)) => return Err("records came where batches were asked for".into()),
    };
    let mut batches = Vec::new();
    while !rest.is_empty() {
        let (batch, after) = StoredBatchView::parse(&rest).map_err(|bad| bad.to_string())?;
        batches.push(batch);
        rest = after;
    }
    Ok(batches)
}
