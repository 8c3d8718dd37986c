//! One `Publish` stream to one node, from connecting to its end, as a stream of events.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::Stream;
use quorate_proto::ids::NodeId;
use quorate_proto::v1;
use quorate_proto::v1::log_client::LogClient;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

use super::status::describe;

/// The stream must be accepted within this, else the node counts as unreachable.
const OPEN_LIMIT: Duration = Duration::from_secs(2);

/// Takes batches for the link. Unbounded, but never more than the producer's slots are in it: 4 batches a partition.
pub(crate) type LinkSender = mpsc::UnboundedSender<v1::PublishRequest>;

pub(crate) enum LinkEvent {
    Up(NodeId),
    Answer(NodeId, v1::PublishResponse),
    /// The last event of a link.
    Lost(NodeId, String),
}

enum State {
    Opening(BoxFuture<'static, Result<Streaming<v1::PublishResponse>, String>>),
    Open(Box<Streaming<v1::PublishResponse>>),
    Closed,
}

pub(crate) struct Link {
    node: NodeId,
    state: State,
}

impl Link {
    /// Begins to open a stream; the sender may be used as soon as the link is up.
    pub(crate) fn open(node: NodeId, address: String, log: Result<LogClient<Channel>, String>) -> (Self, LinkSender) {
        let (sender, requests) = mpsc::unbounded_channel();
        let open = async move {
            let mut log = log.map_err(|why| format!("{address}: {why}"))?;
            let open = log.publish(UnboundedReceiverStream::new(requests));
            match tokio::time::timeout(OPEN_LIMIT, open).await {
                Ok(Ok(answers)) => Ok(answers.into_inner()),
                Ok(Err(status)) => Err(format!("{address}: {}", describe(&status))),
                Err(_) => Err(format!("{address}: it did not accept a stream within {OPEN_LIMIT:?}")),
            }
        };
        (Self { node, state: State::Opening(Box::pin(open)) }, sender)
    }

    fn lost(&mut self, why: String) -> Poll<Option<LinkEvent>> {
        self.state = State::Closed;
        Poll::Ready(Some(LinkEvent::Lost(self.node, why)))
    }
}

fn ended(status: Option<&Status>) -> String {
    status.map_or_else(|| "the node closed the stream".to_owned(), describe)
}

impl Stream for Link {
    type Item = LinkEvent;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<LinkEvent>> {
        match &mut self.state {
            State::Opening(open) => match open.as_mut().poll(context) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(Ok(answers)) => {
                    self.state = State::Open(Box::new(answers));
                    Poll::Ready(Some(LinkEvent::Up(self.node)))
                }
                Poll::Ready(Err(why)) => self.lost(why),
            },
            State::Open(answers) => match Pin::new(answers.as_mut()).poll_next(context) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(Some(Ok(answer))) => Poll::Ready(Some(LinkEvent::Answer(self.node, answer))),
                Poll::Ready(Some(Err(status))) => self.lost(ended(Some(&status))),
                Poll::Ready(None) => self.lost(ended(None)),
            },
            State::Closed => Poll::Ready(None),
        }
    }
}
