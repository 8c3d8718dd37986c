//! Frames between nodes of one kind (data nodes among themselves, observers among themselves).
//!
//! ```text
//!  turn:  send(node, lane, envelope)*  flush()       one frame per lane and peer and turn
//!            │                            │
//!            ▼                            ▼
//!  per peer: control ─ bounded queue ─ task ─ HTTP/2 connection 1 ─▶ Peer.Control   ┐
//!            bulk    ─ bounded queue ─ task ─ HTTP/2 connection 2 ─▶ Peer.Bulk      ├─▶ PeerService ─▶ PeerSink
//!            snapshot (when needed)  ─ task ─ HTTP/2 connection 3 ─▶ Peer.Snapshot  ┘
//! ```
//!
//! A connection carries frames one way only; the other side opens its own for what it sends. Nothing here blocks:
//! a lane whose queue is full drops the frame and reports the peer lost, which Raft repairs. Order is kept within
//! a lane. A connection that is silent for 500 ms is pinged and given up 1 s later, so a half-open one is noticed.

mod codec;
mod link;
mod scan;
mod service;
mod snapshot;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quorate_consensus::envelope::{Envelope, Lane};
use quorate_proto::control::LastHeard;
use quorate_proto::ids::{ClusterId, GroupId, Incarnation, NodeId, ReplicaId};

pub use codec::{decode, encode, CodecError};
pub use service::{peer_server, PeerService};
pub use snapshot::{InMemorySnapshots, SnapshotStaging, StagedSnapshot, BUSY};

/// Largest message of the peer service. A frame holds whole envelopes up to [`FRAME_BYTES`], one at least.
pub const MESSAGE_LIMIT: usize = 8 << 20;
/// Envelopes are gathered into a frame up to this size.
pub const FRAME_BYTES: usize = 3 << 20;
/// Largest chunk of a snapshot.
pub const SNAPSHOT_CHUNK: usize = 256 << 10;

/// Who we are, and the bounds.
#[derive(Clone, Debug)]
pub struct TransportConfig {
    /// Peers of another cluster are refused.
    pub cluster: ClusterId,
    /// This node.
    pub node: NodeId,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// Queue of a control lane in bytes; 1 MiB is thousands of small messages.
    pub control_queue_bytes: usize,
    /// Queue of a bulk lane in bytes; what a follower may lag in flight before frames are dropped.
    pub bulk_queue_bytes: usize,
    /// Snapshot pace in bytes per second, so that publishing does not suffer (M2).
    pub snapshot_bytes_per_second: u64,
    /// Give a connection attempt up after this.
    pub connect_timeout: Duration,
    /// First pause before connecting again; doubles up to `reconnect_max`.
    pub reconnect_min: Duration,
    /// Longest pause.
    pub reconnect_max: Duration,
}

impl TransportConfig {
    /// The defaults.
    #[must_use]
    pub fn new(cluster: ClusterId, node: NodeId, incarnation: Incarnation) -> Self {
        Self {
            cluster,
            node,
            incarnation,
            control_queue_bytes: 1 << 20,
            bulk_queue_bytes: 32 << 20,
            snapshot_bytes_per_second: 64 << 20,
            connect_timeout: Duration::from_secs(1),
            reconnect_min: Duration::from_millis(50),
            // A peer that is back must be reached before the next leader dies: its vote or its flush may be the majority.
            reconnect_max: Duration::from_millis(100),
        }
    }
}

/// Receives what comes in. Called on the runtime's threads; must not block: post into a mailbox.
pub trait PeerSink: Send + Sync + 'static {
    /// The envelopes of one frame, in order.
    fn deliver(&self, from: NodeId, lane: Lane, envelopes: Vec<Envelope>);

    /// An observer's last-heard table.
    fn last_heard(&self, from: NodeId, heard: LastHeard) {
        let _ = (from, heard);
    }

    /// Our connection to the peer broke, or frames to it had to be dropped (S2: suspicion, not proof).
    fn lost(&self, peer: NodeId);

    /// A snapshot that was sent ended. `ok`: it arrived whole and was taken.
    fn snapshot_sent(&self, peer: NodeId, group: GroupId, to: ReplicaId, ok: bool) {
        let _ = (peer, group, to, ok);
    }

    /// A snapshot that broke off goes on: this many bytes were there already.
    fn snapshot_resumed(&self, peer: NodeId, bytes: u64) {
        let _ = (peer, bytes);
    }

    /// While false, incoming bulk streams are not read: HTTP/2 windows fill and the senders' queues take over.
    fn has_room(&self) -> bool {
        true
    }
}

/// A part of a snapshot beside the Raft message.
#[derive(Debug)]
pub struct SnapshotPart {
    /// "machine", "segment/<base offset>", "keys" …
    pub name: String,
    /// Its bytes.
    pub source: PartSource,
}

/// Where a part's bytes are.
#[derive(Debug)]
pub enum PartSource {
    /// In memory.
    Bytes(Bytes),
    /// In a file, from its beginning, this many bytes.
    File {
        /// Opened for reading.
        file: File,
        /// How many bytes.
        len: u64,
    },
}

/// A gRPC server with the settings that peers rely on: windows of 8 MiB, frames of 1 MiB, keep-alive. Serve it on
/// [`crate::listen::incoming`], which sets `tcp_nodelay`.
#[must_use]
pub fn server() -> tonic::transport::Server {
    tonic::transport::Server::builder()
        .initial_stream_window_size(link::WINDOW)
        .initial_connection_window_size(link::WINDOW)
        .max_frame_size(Some(1 << 20))
        .http2_keepalive_interval(Some(link::KEEP_ALIVE))
        .http2_keepalive_timeout(Some(link::KEEP_ALIVE_TIMEOUT))
}

/// State of a lane, for operators and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneStatus {
    /// The peer.
    pub peer: NodeId,
    /// Which lane.
    pub lane: Lane,
    /// Connected, and the peer took our hello.
    pub connected: bool,
    /// Bytes waiting.
    pub queued_bytes: usize,
    /// Frames dropped since the start.
    pub dropped: u64,
    /// Why it is not connected.
    pub last_error: Option<String>,
}

/// The sending side of a node. Owned by the thread that runs the turns; needs a tokio runtime around it.
pub struct Transport {
    config: Arc<TransportConfig>,
    sink: Arc<dyn PeerSink>,
    peers: BTreeMap<NodeId, link::Peer>,
}

impl Transport {
    /// Without peers.
    #[must_use]
    pub fn new(config: TransportConfig, sink: Arc<dyn PeerSink>) -> Self {
        Self { config: Arc::new(config), sink, peers: BTreeMap::new() }
    }

    /// Sets the peers (`host:port`), this node itself left out. Connections to peers that stay at their address
    /// are kept. Call it within the runtime.
    pub fn set_peers(&mut self, peers: impl IntoIterator<Item = (NodeId, String)>) {
        let wanted: BTreeMap<NodeId, String> = peers.into_iter().filter(|(id, _)| *id != self.config.node).collect();
        self.peers.retain(|id, peer| wanted.get(id).is_some_and(|address| *address == *peer.address()));
        for (id, address) in wanted {
            let (config, sink) = (&self.config, &self.sink);
            self.peers
                .entry(id)
                .or_insert_with(|| link::Peer::connect(Arc::clone(config), Arc::clone(sink), id, address));
        }
    }

    /// Adds an envelope to the turn's frame. Unknown peers and full lanes lose it. A `MsgSnapshot` (lane
    /// [`Lane::Snapshot`]) starts a transfer whose data are those of the message itself.
    pub fn send(&mut self, node: NodeId, lane: Lane, envelope: Box<Envelope>) {
        if lane == Lane::Snapshot {
            self.send_snapshot(node, *envelope, Vec::new());
        } else if let Some(peer) = self.peers.get_mut(&node) {
            peer.push(lane, &envelope);
        }
    }

    /// Sends a last-heard table to every peer with the turn's control frame.
    pub fn gossip(&mut self, heard: &LastHeard) {
        for peer in self.peers.values_mut() {
            peer.gossip(heard);
        }
    }

    /// End of the turn: hands every lane its frame.
    pub fn flush(&mut self) {
        for peer in self.peers.values_mut() {
            peer.flush();
        }
    }

    /// Sends a snapshot with further parts, paced. Ends in [`PeerSink::snapshot_sent`].
    pub fn send_snapshot(&mut self, node: NodeId, envelope: Envelope, parts: Vec<SnapshotPart>) {
        match self.peers.get(&node) {
            Some(peer) => peer.send_snapshot(envelope, parts),
            None => self.sink.snapshot_sent(node, envelope.group, envelope.to, false),
        }
    }

    /// State of all lanes.
    #[must_use]
    pub fn status(&self) -> Vec<LaneStatus> {
        self.peers.values().flat_map(link::Peer::status).collect()
    }
}
