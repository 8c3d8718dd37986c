//! `Subscribe`: pushed records, as far as the client's credits go. Each push is a fetch, with all its tests.

use std::sync::Arc;

use prost::Message;
use quorate_proto::refusal::{Reason, Refusal};
use quorate_proto::v1::{self, subscribe_request, subscribe_response};
use tokio::sync::mpsc;
use tonic::{Status, Streaming};

use super::fetch;
use super::{Request, Shared};

/// One push waits for the connection at most; the next fetch begins when it is taken.
const PUSHES_WAITING: usize = 1;
/// A fetch with nothing to say is repeated this often, so that a node about to close is noticed.
const POLL_MS: u32 = 30_000;

type Out = mpsc::Sender<Result<v1::SubscribeResponse, Status>>;

/// Makes the channel that a subscription pushes into.
pub(super) fn channel() -> (Out, mpsc::Receiver<Result<v1::SubscribeResponse, Status>>) {
    mpsc::channel(PUSHES_WAITING)
}

fn said(kind: subscribe_response::Kind) -> Result<v1::SubscribeResponse, Status> {
    Ok(v1::SubscribeResponse { kind: Some(kind) })
}

/// Serves one subscription to its end.
pub(super) async fn pump<E: From<Request> + Send + 'static>(
    shared: Arc<Shared<E>>,
    mut requests: Streaming<v1::SubscribeRequest>,
    out: Out,
) {
    let mut start: Option<v1::FetchRequest> = None;
    let mut credit = 0_u64;
    let mut closing = shared.closing.clone();
    loop {
        let ready = start.as_ref().filter(|_| credit > 0);
        let pushed = async {
            match ready {
                Some(fetch) => {
                    let max = fetch.max_bytes.min(u32::try_from(credit).unwrap_or(u32::MAX));
                    let max_bytes =
                        if fetch.max_bytes == 0 { u32::try_from(credit).unwrap_or(u32::MAX).min(1 << 20) } else { max };
                    let poll = v1::FetchRequest { max_bytes, max_wait_ms: POLL_MS, min_bytes: 1, ..fetch.clone() };
                    fetch::fetch(&shared, poll).await
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            request = requests.message() => match request {
                Ok(Some(v1::SubscribeRequest { kind: Some(subscribe_request::Kind::Start(fetch)) })) => start = Some(fetch),
                Ok(Some(v1::SubscribeRequest { kind: Some(subscribe_request::Kind::CreditBytes(more)) })) => {
                    credit = credit.saturating_add(more);
                }
                Ok(Some(v1::SubscribeRequest { kind: None })) => {
                    let refusal = Refusal::new(
                        Reason::InvalidArgument,
                        "the message is empty",
                        shared.node.to_string(),
                        "send `start` first, then `credit_bytes`",
                    );
                    let _ = out.send(said(subscribe_response::Kind::Error(refusal.into()))).await;
                    return;
                }
                Ok(None) | Err(_) => return,
            },
            pushed = pushed => match pushed {
                Ok(data) => {
                    if *closing.borrow_and_update() {
                        let going = v1::GoingAway { reason: "the node is closing".to_owned(), leader_node: 0 };
                        let _ = out.send(said(subscribe_response::Kind::GoingAway(going))).await;
                        return;
                    }
                    let Some(fetch) = start.as_mut() else { return };
                    if data.next_offset == fetch.offset {
                        continue;
                    }
                    fetch.offset = data.next_offset;
                    credit = credit.saturating_sub(data.encoded_len() as u64);
                    if out.send(said(subscribe_response::Kind::Data(data))).await.is_err() {
                        return;
                    }
                }
                Err(refusal) => {
                    let _ = out.send(said(subscribe_response::Kind::Error(refusal.into()))).await;
                    return;
                }
            },
        }
    }
}
