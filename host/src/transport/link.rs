//! One peer: its lanes' queues on the turn's side, and the tasks that keep the connections.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::task::AtomicWaker;
use prost::Message as _;
use quorate_consensus::envelope::{Envelope, Lane};
use quorate_proto::control::LastHeard;
use quorate_proto::convert::PROTOCOL_VERSION;
use quorate_proto::ids::NodeId;
use quorate_proto::internal::peer_client::PeerClient;
use quorate_proto::internal::{self, Frame, PeerHello};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio_stream::Stream;
use tonic::transport::{Channel, Endpoint};

use super::{codec, snapshot, LaneStatus, PeerSink, SnapshotPart, TransportConfig};
use super::{FRAME_BYTES, MESSAGE_LIMIT};

/// The peer's answer to our hello must come within this.
const HELLO_TIMEOUT: Duration = Duration::from_secs(2);
/// A silent connection is pinged after this, and given up after `KEEP_ALIVE_TIMEOUT` more.
pub(super) const KEEP_ALIVE: Duration = Duration::from_millis(500);
/// See [`KEEP_ALIVE`].
pub(super) const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(1);
/// HTTP/2 windows, sized for bulk.
pub(super) const WINDOW: u32 = 8 << 20;
/// While a lane is not connected its queue keeps only this part of its bound: what is older is of no use.
const DISCONNECTED_SHARE: usize = 16;

/// What the turn's thread and a lane's task share.
pub(super) struct LaneQueue {
    frames: Mutex<VecDeque<(Frame, usize)>>,
    limit: usize,
    bytes: AtomicUsize,
    waker: AtomicWaker,
    connected: AtomicBool,
    /// Counts connections: the stream of an earlier one, not yet dropped, must not take frames any more.
    connection: AtomicU64,
    dropped: AtomicU64,
    last_error: Mutex<Option<String>>,
}

impl LaneQueue {
    fn new(limit: usize) -> Self {
        Self {
            frames: Mutex::default(),
            limit,
            bytes: AtomicUsize::new(0),
            waker: AtomicWaker::new(),
            connected: AtomicBool::new(false),
            connection: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            last_error: Mutex::new(None),
        }
    }

    fn frames(&self) -> MutexGuard<'_, VecDeque<(Frame, usize)>> {
        // Critical sections are single queue operations.
        self.frames.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// False: the frame was dropped though the lane is connected.
    fn push(&self, frame: Frame, bytes: usize) -> bool {
        let connected = self.connected.load(Ordering::Relaxed);
        let limit = if connected { self.limit } else { self.limit / DISCONNECTED_SHARE };
        let mut frames = self.frames();
        // A single frame always fits an empty queue.
        if !frames.is_empty() && self.bytes.load(Ordering::Relaxed) + bytes > limit {
            drop(frames);
            self.dropped.fetch_add(1, Ordering::Relaxed);
            metrics::counter!("quorate_peer_frames_dropped_total").increment(1);
            return !connected;
        }
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        frames.push_back((frame, bytes));
        drop(frames);
        self.waker.wake();
        true
    }

    fn pop(&self) -> Option<Frame> {
        let (frame, bytes) = self.frames().pop_front()?;
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        Some(frame)
    }

    fn clear(&self) {
        self.frames().clear();
        self.bytes.store(0, Ordering::Relaxed);
    }

    fn set_error(&self, error: Option<String>) {
        *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = error;
    }
}

/// The frames of one connection: hello first, the rest once the peer accepted it.
struct Outbound {
    queue: Arc<LaneQueue>,
    connection: u64,
    hello: Option<Frame>,
}

impl Stream for Outbound {
    type Item = Frame;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Frame>> {
        if let Some(hello) = self.hello.take() {
            return Poll::Ready(Some(hello));
        }
        if self.queue.connection.load(Ordering::Relaxed) != self.connection {
            return Poll::Ready(None);
        }
        self.queue.waker.register(cx.waker());
        if !self.queue.connected.load(Ordering::Relaxed) {
            return Poll::Pending;
        }
        self.queue.pop().map_or(Poll::Pending, |frame| Poll::Ready(Some(frame)))
    }
}

/// One lane on the turn's side.
struct LaneOut {
    lane: Lane,
    queue: Arc<LaneQueue>,
    pending: Frame,
    pending_bytes: usize,
    task: JoinHandle<()>,
}

impl LaneOut {
    fn start(link: &Arc<Link>, lane: Lane, limit: usize) -> Self {
        let queue = Arc::new(LaneQueue::new(limit));
        let task = tokio::spawn(keep_connected(Arc::clone(link), lane, Arc::clone(&queue)));
        Self { lane, queue, pending: Frame::default(), pending_bytes: 0, task }
    }

    /// Whether all went into the queue.
    fn push(&mut self, envelope: &Envelope) -> bool {
        let envelope = codec::encode(envelope);
        let bytes = envelope.encoded_len() + 8;
        let sealed = self.pending_bytes == 0 || self.pending_bytes + bytes <= FRAME_BYTES || self.flush();
        self.pending_bytes += bytes;
        self.pending.envelopes.push(envelope);
        sealed
    }

    fn flush(&mut self) -> bool {
        if self.pending_bytes == 0 {
            return true;
        }
        let bytes = std::mem::take(&mut self.pending_bytes);
        self.queue.push(std::mem::take(&mut self.pending), bytes)
    }

    fn status(&self, peer: NodeId) -> LaneStatus {
        LaneStatus {
            peer,
            lane: self.lane,
            connected: self.queue.connected.load(Ordering::Relaxed),
            queued_bytes: self.queue.bytes.load(Ordering::Relaxed),
            dropped: self.queue.dropped.load(Ordering::Relaxed),
            last_error: self.queue.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }
}

impl Drop for LaneOut {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What every task of a peer needs.
pub(super) struct Link {
    pub(super) config: Arc<TransportConfig>,
    pub(super) sink: Arc<dyn PeerSink>,
    pub(super) peer: NodeId,
    pub(super) address: String,
    /// One snapshot at a time.
    pub(super) snapshots: Semaphore,
}

impl Link {
    pub(super) fn hello(&self) -> PeerHello {
        PeerHello {
            cluster_id: self.config.cluster.to_string(),
            node: self.config.node.get(),
            incarnation: self.config.incarnation.get(),
            protocol_version: PROTOCOL_VERSION,
            to_node: self.peer.get(),
        }
    }

    /// A new connection of our own settings.
    pub(super) async fn connect(&self) -> Result<PeerClient<Channel>, String> {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.address)).map_err(|error| error.to_string())?;
        let channel = endpoint
            .connect_timeout(self.config.connect_timeout)
            .tcp_nodelay(true)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
            .keep_alive_while_idle(true)
            .connect()
            .await
            .map_err(|error| chain(&error))?;
        Ok(PeerClient::new(channel).max_encoding_message_size(MESSAGE_LIMIT).max_decoding_message_size(MESSAGE_LIMIT))
    }
}

/// A peer as the turn's thread sees it.
pub(super) struct Peer {
    link: Arc<Link>,
    control: LaneOut,
    bulk: LaneOut,
    /// Overflow is reported once until the next flush that fits.
    overflowed: bool,
}

impl Peer {
    pub(super) fn connect(
        config: Arc<TransportConfig>,
        sink: Arc<dyn PeerSink>,
        peer: NodeId,
        address: String,
    ) -> Self {
        let (control_limit, bulk_limit) = (config.control_queue_bytes, config.bulk_queue_bytes);
        let link = Arc::new(Link { config, sink, peer, address, snapshots: Semaphore::new(1) });
        Self {
            control: LaneOut::start(&link, Lane::Control, control_limit),
            bulk: LaneOut::start(&link, Lane::Bulk, bulk_limit),
            link,
            overflowed: false,
        }
    }

    pub(super) fn address(&self) -> &str {
        &self.link.address
    }

    pub(super) fn push(&mut self, lane: Lane, envelope: &Envelope) {
        let out = if lane == Lane::Control { &mut self.control } else { &mut self.bulk };
        let fits = out.push(envelope);
        self.note_overflow(fits);
    }

    pub(super) fn gossip(&mut self, heard: &LastHeard) {
        let heard = internal::LastHeard::from(heard.clone());
        self.control.pending_bytes += heard.encoded_len() + 8;
        self.control.pending.last_heard = Some(heard);
    }

    pub(super) fn flush(&mut self) {
        let fits = self.control.flush() & self.bulk.flush();
        self.note_overflow(fits);
    }

    fn note_overflow(&mut self, fits: bool) {
        if !fits && !self.overflowed {
            self.link.sink.lost(self.link.peer);
        }
        // Reported again once it fitted in between.
        self.overflowed = !fits;
    }

    pub(super) fn send_snapshot(&self, envelope: Envelope, parts: Vec<SnapshotPart>) {
        tokio::spawn(snapshot::send(Arc::clone(&self.link), envelope, parts));
    }

    pub(super) fn status(&self) -> [LaneStatus; 2] {
        [self.control.status(self.link.peer), self.bulk.status(self.link.peer)]
    }
}

/// Connects, serves, connects again, for ever.
async fn keep_connected(link: Arc<Link>, lane: Lane, queue: Arc<LaneQueue>) {
    let mut pause = link.config.reconnect_min;
    loop {
        let ended = serve(&link, lane, &queue).await;
        let was_connected = queue.connected.swap(false, Ordering::Relaxed);
        let peer = link.peer;
        if was_connected {
            queue.clear();
            pause = link.config.reconnect_min;
            tracing::info!(%peer, ?lane, reason = %ended, "connection to peer lost");
            link.sink.lost(peer);
        } else {
            tracing::debug!(%peer, ?lane, reason = %ended, "peer not reachable");
        }
        queue.set_error(Some(ended));
        // Jitter, so that peers started together do not knock together.
        tokio::time::sleep(pause.mul_f64(rand::random_range(0.75..1.25))).await;
        pause = (pause * 2).min(link.config.reconnect_max);
    }
}

/// One connection from hello to its end; says why it ended.
async fn serve(link: &Link, lane: Lane, queue: &Arc<LaneQueue>) -> String {
    match converse(link, lane, queue).await {
        Ok(()) => "closed by the peer".into(),
        Err(reason) => reason,
    }
}

async fn converse(link: &Link, lane: Lane, queue: &Arc<LaneQueue>) -> Result<(), String> {
    let mut client = link.connect().await?;
    let hello = Frame { hello: Some(link.hello()), ..Frame::default() };
    let connection = queue.connection.fetch_add(1, Ordering::Relaxed) + 1;
    let outbound = Outbound { queue: Arc::clone(queue), connection, hello: Some(hello) };
    let opening = async {
        let response = match lane {
            Lane::Control => client.control(outbound).await,
            Lane::Bulk | Lane::Snapshot => client.bulk(outbound).await,
        };
        let mut acks = response.map_err(|status| status.to_string())?.into_inner();
        let ack =
            acks.message().await.map_err(|status| status.to_string())?.ok_or("closed before the hello's answer")?;
        Ok::<_, String>((acks, ack))
    };
    let opened = tokio::time::timeout(HELLO_TIMEOUT, opening).await;
    let (mut acks, ack) = opened.map_err(|_| "no answer to our hello")??;
    if !ack.error.is_empty() {
        return Err(format!("refused by the peer: {}", ack.error));
    }
    tracing::info!(peer = %link.peer, ?lane, "connected to peer");
    queue.set_error(None);
    queue.connected.store(true, Ordering::Relaxed);
    queue.waker.wake();
    // Nothing else is ever sent back; this waits for the end.
    while acks.message().await.map_err(|status| status.to_string())?.is_some() {}
    Ok(())
}

/// An error with its causes: tonic's own text is only "transport error".
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}
