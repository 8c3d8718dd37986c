//! The receiving side: hello check, frames to envelopes, snapshots to their staging.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quorate_consensus::envelope::{Envelope, Lane};
use quorate_proto::convert::{ConvertError, PROTOCOL_VERSION};
use quorate_proto::ids::{ClusterId, Incarnation, NodeId};
use quorate_proto::internal::peer_server::{Peer, PeerServer};
use quorate_proto::internal::{Frame, FrameAck, PeerHello, SnapshotChunk, SnapshotDone, StagedParts};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::Stream;
use tonic::{Request, Response, Status, Streaming};

use super::{codec, snapshot, PeerSink, SnapshotStaging, TransportConfig, MESSAGE_LIMIT};

/// Pause before the sink is asked again whether it has room.
const ROOM_PAUSE: Duration = Duration::from_millis(1);
/// A peer must say hello within this.
const HELLO_TIMEOUT: Duration = Duration::from_secs(2);

type Acks = Pin<Box<dyn Stream<Item = Result<FrameAck, Status>> + Send>>;

/// The gRPC service `internal.v1.Peer`.
#[derive(Clone)]
pub struct PeerService {
    inner: Arc<Inner>,
}

struct Inner {
    cluster: ClusterId,
    node: NodeId,
    incarnation: Incarnation,
    sink: Arc<dyn PeerSink>,
    staging: Arc<dyn SnapshotStaging>,
    /// Newest incarnation that said hello, per peer: an older one is a ghost.
    known: Mutex<BTreeMap<NodeId, Incarnation>>,
}

/// The service with its limits set, ready for `Server::add_service`.
#[must_use]
pub fn peer_server(
    config: &TransportConfig,
    sink: Arc<dyn PeerSink>,
    staging: Arc<dyn SnapshotStaging>,
) -> PeerServer<PeerService> {
    let inner = Inner {
        cluster: config.cluster,
        node: config.node,
        incarnation: config.incarnation,
        sink,
        staging,
        known: Mutex::default(),
    };
    PeerServer::new(PeerService { inner: Arc::new(inner) })
        .max_decoding_message_size(MESSAGE_LIMIT)
        .max_encoding_message_size(MESSAGE_LIMIT)
}

impl Inner {
    /// Who says hello, or why it is refused. One line for the operator of the other side.
    fn check_hello(&self, hello: Option<&PeerHello>) -> Result<(NodeId, Incarnation), String> {
        let hello = hello.ok_or("the first frame carries no hello")?;
        if hello.protocol_version != PROTOCOL_VERSION {
            let theirs = hello.protocol_version;
            return Err(format!("UNSUPPORTED_VERSION: peer protocol {theirs}, this node speaks {PROTOCOL_VERSION}"));
        }
        if ClusterId::from_hex(&hello.cluster_id) != Some(self.cluster) {
            return Err(format!("CLUSTER_MISMATCH: this node belongs to cluster {}", self.cluster));
        }
        if NodeId(hello.to_node) != self.node {
            return Err(format!("CLUSTER_MISMATCH: this is {}, not {}", self.node, NodeId(hello.to_node)));
        }
        let (node, incarnation) = (NodeId(hello.node), Incarnation(hello.incarnation));
        if node == self.node || node == NodeId::ZERO {
            return Err(format!("CLUSTER_MISMATCH: a peer can't be {node}"));
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let newest = known.entry(node).or_default();
        if incarnation < *newest {
            return Err(format!("STALE_INCARNATION: {incarnation} of {node} is over, {newest} has said hello"));
        }
        *newest = incarnation;
        Ok((node, incarnation))
    }

    fn is_stale(&self, node: NodeId, incarnation: Incarnation) -> bool {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&node).is_some_and(|&newest| incarnation < newest)
    }

    fn ack(&self, error: String) -> FrameAck {
        FrameAck { error, node: self.node.get(), incarnation: self.incarnation.get() }
    }

    fn envelopes(&self, frame: Frame, incarnation: Incarnation) -> Result<Vec<Envelope>, Status> {
        let envelopes = frame.envelopes.into_iter().map(|wire| {
            let envelope = codec::decode(wire).map_err(|error| error.to_string())?;
            if envelope.from_incarnation != incarnation {
                return Err("an envelope of another incarnation than the hello's".to_owned());
            }
            Ok(envelope)
        });
        envelopes.collect::<Result<_, _>>().map_err(Status::invalid_argument)
    }

    async fn receive(
        &self,
        mut frames: Streaming<Frame>,
        lane: Lane,
        acks: &mpsc::Sender<Result<FrameAck, Status>>,
    ) -> Result<(), Status> {
        let first = tokio::time::timeout(HELLO_TIMEOUT, frames.message()).await;
        let first = first.map_err(|_| Status::deadline_exceeded("no hello"))??;
        let hello = self.check_hello(first.as_ref().and_then(|frame| frame.hello.as_ref()));
        let (peer, incarnation) = match hello {
            Ok(hello) => hello,
            Err(reason) => {
                tracing::warn!(%reason, "peer refused");
                let _ = acks.send(Ok(self.ack(reason))).await;
                return Ok(());
            }
        };
        let _ = acks.send(Ok(self.ack(String::new()))).await;
        while let Some(mut frame) = frames.message().await? {
            if self.is_stale(peer, incarnation) {
                return Err(Status::failed_precondition("STALE_INCARNATION: a newer incarnation said hello"));
            }
            // Votes and heartbeats must get through also while appends wait for the disk.
            while lane == Lane::Bulk && !self.sink.has_room() {
                tokio::time::sleep(ROOM_PAUSE).await;
            }
            if let Some(heard) = frame.last_heard.take() {
                let heard =
                    heard.try_into().map_err(|error: ConvertError| Status::invalid_argument(error.to_string()))?;
                self.sink.last_heard(peer, heard);
            }
            let envelopes = self.envelopes(frame, incarnation)?;
            if !envelopes.is_empty() {
                self.sink.deliver(peer, lane, envelopes);
            }
        }
        Ok(())
    }

    fn open(self: Arc<Self>, frames: Streaming<Frame>, lane: Lane) -> Response<Acks> {
        let (acks, answers) = mpsc::channel(2);
        tokio::spawn(async move {
            if let Err(status) = self.receive(frames, lane, &acks).await {
                if status.code() == tonic::Code::InvalidArgument {
                    tracing::warn!(?lane, reason = status.message(), "peer sent a malformed frame");
                }
                let _ = acks.send(Err(status)).await;
            }
        });
        Response::new(Box::pin(ReceiverStream::new(answers)))
    }
}

#[tonic::async_trait]
impl Peer for PeerService {
    type ControlStream = Acks;
    type BulkStream = Acks;

    async fn control(&self, request: Request<Streaming<Frame>>) -> Result<Response<Acks>, Status> {
        Ok(Arc::clone(&self.inner).open(request.into_inner(), Lane::Control))
    }

    async fn bulk(&self, request: Request<Streaming<Frame>>) -> Result<Response<Acks>, Status> {
        Ok(Arc::clone(&self.inner).open(request.into_inner(), Lane::Bulk))
    }

    async fn snapshot_staged(&self, request: Request<SnapshotChunk>) -> Result<Response<StagedParts>, Status> {
        let first = request.into_inner();
        let staged = match self.inner.check_hello(first.hello.as_ref()) {
            Err(reason) => Err(reason),
            Ok((peer, _)) => snapshot::staged(&self.inner.staging, peer, first).await,
        };
        Ok(Response::new(match staged {
            Ok(parts) => StagedParts { error: String::new(), parts },
            Err(error) => StagedParts { error, parts: Vec::new() },
        }))
    }

    async fn snapshot(&self, request: Request<Streaming<SnapshotChunk>>) -> Result<Response<SnapshotDone>, Status> {
        let mut chunks = request.into_inner();
        let first = tokio::time::timeout(HELLO_TIMEOUT, chunks.message()).await;
        let first = first.map_err(|_| Status::deadline_exceeded("no hello"))??;
        let first = first.ok_or_else(|| Status::invalid_argument("an empty snapshot"))?;
        let done = match self.inner.check_hello(first.hello.as_ref()) {
            Err(reason) => Err(reason),
            Ok((peer, incarnation)) => {
                let staged = snapshot::receive(&self.inner.staging, peer, incarnation, first, chunks).await;
                staged.map(|envelope| self.inner.sink.deliver(peer, Lane::Snapshot, vec![envelope]))
            }
        };
        let error = done.err().unwrap_or_default();
        if !error.is_empty() {
            tracing::warn!(reason = %error, "snapshot refused");
        }
        Ok(Response::new(SnapshotDone { error }))
    }
}
