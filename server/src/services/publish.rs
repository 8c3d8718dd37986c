//! `Publish` and `PublishOnce`: check on arrival, hand to the core, answer with the batch's fate.

use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use quorate_consensus::node::event::Publish;
use quorate_proto::batch::BatchView;
use quorate_proto::ids::{OperationId, Ticket};
use quorate_proto::limits::NAME_MAX;
use quorate_proto::refusal::{Reason, Refusal};
use quorate_proto::v1::{self, publish_request::Payload, publish_response};
use tokio::sync::oneshot;
use tonic::{Status, Streaming};

use super::outbox::Outbox;
use super::{records, Reply, Request, Shared};

/// A request that says nothing else waits this long at most.
const DEFAULT_DEADLINE: Duration = Duration::from_secs(15);
/// What a request costs beside its bytes: bounds the number of tiny ones.
const REQUEST_COST: u64 = 512;

/// Who publishes.
pub(super) struct Publisher {
    principal: Bytes,
    client_id: Bytes,
    connection: u64,
    /// Identity of requests: random per connection, counted within it.
    operation: u128,
}

impl Publisher {
    pub fn new<E>(shared: &Shared<E>, principal: String) -> Self {
        Self {
            principal: cut(&principal),
            client_id: Bytes::new(),
            connection: shared.connections.fetch_add(1, Ordering::Relaxed) + 1,
            operation: rand::random(),
        }
    }

    /// Checks a request and makes of it what the core takes.
    pub fn check<E>(&mut self, shared: &Shared<E>, request: v1::PublishRequest) -> Result<Publish, Refusal> {
        let view = shared.find(request.partition.as_ref())?;
        if !request.client_id.is_empty() {
            self.client_id = cut(&request.client_id);
        }
        let subject = || view.subject();
        let batch = match request.payload {
            Some(Payload::Batch(bytes)) => BatchView::parse(bytes).map_err(|bad| bad.refusal(subject()))?,
            Some(Payload::Records(records)) => records::build(records, &subject())?,
            None => {
                let what = "the request carries neither a batch nor records";
                return Err(Refusal::new(Reason::InvalidArgument, what, subject(), "set `batch` or `records`"));
            }
        };
        let wait = match request.deadline_ms {
            0 => DEFAULT_DEADLINE,
            ms => Duration::from_millis(ms.into()),
        };
        self.operation = self.operation.wrapping_add(1);
        Ok(Publish {
            ticket: Ticket::ZERO,
            group: view.assignment.group,
            batch: batch.bytes().clone(),
            principal: self.principal.clone(),
            client_id: self.client_id.clone(),
            connection: self.connection,
            operation: OperationId(self.operation),
            deadline: shared.clock.now() + wait,
        })
    }
}

/// Names are bounded where the entry is made; a longer one is cut at a character's end.
fn cut(name: &str) -> Bytes {
    let mut end = name.len().min(NAME_MAX);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    Bytes::copy_from_slice(&name.as_bytes()[..end])
}

/// Takes requests off a stream until it ends, the client stalls, or the node closes.
pub(super) async fn pump<E: From<Request> + Send + 'static>(
    shared: Arc<Shared<E>>,
    principal: String,
    mut requests: Streaming<v1::PublishRequest>,
    outbox: Arc<Outbox>,
) {
    let mut publisher = Publisher::new(&shared, principal);
    let mut closing = shared.closing.clone();
    let mut first = true;
    loop {
        let next = tokio::select! {
            biased;
            next = requests.message() => next,
            _ = closing.wait_for(|closing| *closing) => {
                going_away(&outbox);
                break;
            }
        };
        // An error of the stream itself: its answers have nowhere to go either.
        let Ok(Some(request)) = next else { break };
        let (tag, cost) = (request.tag, request.encoded_len() as u64 + REQUEST_COST);
        if !reserve(&shared, &outbox, cost).await {
            return;
        }
        if first {
            if let Err(refusal) = shared.check_cluster(&request.cluster_id) {
                outbox.answer(super::response(tag, Err(refusal)), cost);
                break;
            }
            first = false;
        }
        match publisher.check(&shared, request) {
            Ok(publish) => {
                let reply = Reply::Stream { outbox: Arc::clone(&outbox), tag, cost };
                // Never refused: what waits there is bounded by the reservation.
                shared.core.push(Request::Publish { publish, reply }.into());
            }
            Err(refusal) => outbox.answer(super::response(tag, Err(refusal)), cost),
        }
    }
    outbox.finish();
}

/// Waits for room; cuts a client off that takes no answers although there are some. `false`: it is gone.
async fn reserve<E>(shared: &Shared<E>, outbox: &Outbox, cost: u64) -> bool {
    loop {
        let (before, _) = outbox.progress();
        match tokio::time::timeout(shared.limits.client_stall, outbox.reserve(cost)).await {
            Ok(reserved) => return reserved,
            Err(_) => {
                let (after, waiting) = outbox.progress();
                if waiting && after == before {
                    tracing::warn!(stall = ?shared.limits.client_stall, "cut off a client that reads no answers");
                    outbox.cut(Status::resource_exhausted(
                        "the answers on this stream were not read; open another stream and read while you publish",
                    ));
                    return false;
                }
            }
        }
    }
}

fn going_away(outbox: &Outbox) {
    let going = v1::GoingAway { reason: "the node is closing".to_owned(), leader_node: 0 };
    outbox.tell(v1::PublishResponse { tag: 0, result: Some(publish_response::Result::GoingAway(going)) });
}

/// One batch, one answer.
pub(super) async fn once<E: From<Request> + Send + 'static>(
    shared: &Shared<E>,
    principal: String,
    request: v1::PublishRequest,
) -> Result<v1::PublishResponse, Refusal> {
    shared.check_cluster(&request.cluster_id)?;
    let tag = request.tag;
    let publish = Publisher::new(shared, principal).check(shared, request)?;
    let group = publish.group;
    let (reply, fate) = oneshot::channel();
    let request = Request::Publish { publish, reply: Reply::Once(reply) };
    shared.core.offer(request.into()).map_err(|_| {
        Refusal::new(
            Reason::Busy,
            "too many requests wait at this node",
            group.to_string(),
            "try again after the delay",
        )
        .retry_after(Duration::from_millis(50))
    })?;
    let receipt = fate.await.unwrap_or_else(|_| {
        Err(Refusal::new(
            Reason::Handoff,
            "the node closed before the batch's fate was known",
            group.to_string(),
            "send the same batch again, with the same producer id and sequence, to the leader",
        )
        .of_unknown_fate())
    })?;
    Ok(super::response(tag, Ok(receipt)))
}
