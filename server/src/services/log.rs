//! The gRPC face: every method is a few lines over its own file.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use quorate_proto::refusal::{Reason, Refusal};
use quorate_proto::time::LogTime;
use quorate_proto::v1::log_server::{Log, LogServer};
use quorate_proto::v1::{self, list_offsets_request::At};
use tokio::sync::oneshot;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::Stream;
use tonic::{Request as Call, Response, Status, Streaming};

use super::outbox::{Answers, Outbox};
use super::status::status;
use super::{fetch, publish, subscribe, Request, Shared};

/// Public messages are at most this long.
const MESSAGE_MAX: usize = 5 << 20;

/// The `Log` service of a data node.
pub struct LogService<E> {
    shared: Arc<Shared<E>>,
}

impl<E: From<Request> + Send + 'static> LogService<E> {
    /// The service over what the node shares, ready for a tonic router.
    pub fn server(shared: Arc<Shared<E>>) -> LogServer<Self> {
        LogServer::new(Self { shared }).max_decoding_message_size(MESSAGE_MAX).max_encoding_message_size(MESSAGE_MAX)
    }
}

#[tonic::async_trait]
impl<E: From<Request> + Send + 'static> Log for LogService<E> {
    type PublishStream = Answers;
    type SubscribeStream = Pin<Box<dyn Stream<Item = Result<v1::SubscribeResponse, Status>> + Send>>;

    async fn publish(&self, call: Call<Streaming<v1::PublishRequest>>) -> Result<Response<Answers>, Status> {
        let principal = super::principal(call.remote_addr());
        let outbox = Outbox::new(self.shared.limits.connection_bytes);
        tokio::spawn(publish::pump(Arc::clone(&self.shared), principal, call.into_inner(), Arc::clone(&outbox)));
        Ok(Response::new(Answers(outbox)))
    }

    async fn publish_once(&self, call: Call<v1::PublishRequest>) -> Result<Response<v1::PublishResponse>, Status> {
        let principal = super::principal(call.remote_addr());
        publish::once(&self.shared, principal, call.into_inner()).await.map(Response::new).map_err(status)
    }

    async fn fetch(&self, call: Call<v1::FetchRequest>) -> Result<Response<v1::FetchResponse>, Status> {
        fetch::fetch(&self.shared, call.into_inner()).await.map(Response::new).map_err(status)
    }

    async fn subscribe(
        &self,
        call: Call<Streaming<v1::SubscribeRequest>>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        let (out, pushes) = subscribe::channel();
        tokio::spawn(subscribe::pump(Arc::clone(&self.shared), call.into_inner(), out));
        Ok(Response::new(Box::pin(ReceiverStream::new(pushes))))
    }

    async fn list_offsets(
        &self,
        call: Call<v1::ListOffsetsRequest>,
    ) -> Result<Response<v1::ListOffsetsResponse>, Status> {
        list_offsets(&self.shared, &call.into_inner()).await.map(Response::new).map_err(status)
    }
}

/// Linearizable (R1), by read-index, in the core: an offset by time counts every record acknowledged before the call.
pub(super) async fn list_offsets<E: From<Request>>(
    shared: &Shared<E>,
    request: &v1::ListOffsetsRequest,
) -> Result<v1::ListOffsetsResponse, Refusal> {
    shared.check_cluster(&request.cluster_id)?;
    let view = shared.find(request.partition.as_ref())?;
    let at = request.at.ok_or_else(|| {
        let what = "the request does not say which offset it wants";
        Refusal::new(Reason::InvalidArgument, what, view.subject(), "ask for `earliest`, `latest` or `log_time_us`")
    })?;
    let (reply, answer) = oneshot::channel();
    let read = Request::ReadLatest { group: view.assignment.group, reply };
    shared.core.offer(read.into()).map_err(|_| {
        Refusal::new(Reason::Busy, "too many requests wait at this node", view.subject(), "try again after the delay")
            .retry_after(Duration::from_millis(50))
    })?;
    let (latest, term) = answer.await.unwrap_or_else(|_| Err(shared.not_serving(&view)))?;
    let offset = match at {
        At::Latest(_) => latest,
        // The low watermark only grows; it was read after the read-index confirmed this leader.
        At::Earliest(_) => view.view().low_watermark.min(latest),
        // Everything below `latest` was handed to the storage before the read-index was answered.
        At::LogTimeUs(time) => {
            let found = shared.storage.offset_at(view.key, LogTime(time)).await;
            let found = found.map_err(|error| fetch::unreadable(&view, &format!("at time {time} µs"), &error))?;
            let seen = view.view();
            found.min(seen.high_watermark.max(latest)).max(seen.low_watermark)
        }
    };
    if !view.serves(shared.clock.now(), term) {
        return Err(shared.not_serving(&view));
    }
    Ok(v1::ListOffsetsResponse { offset: offset.get(), epoch: term.get() })
}
