//! The transport over real loopback connections.

use std::net::SocketAddr;
use std::sync::Mutex;

use bytes::Bytes;
use protobuf::Message as _;
use quorate_consensus::envelope::{Forwarded, ForwardedAnswer, ForwardedPublish};
use quorate_proto::control::{Attendance, Ended, ObserverInfo, Permit, PermitKind, Planned};
use quorate_proto::ids::{ConfigVersion, LogIndex, OperationId, PermitEpoch, Term, Ticket};
use quorate_proto::internal::{Frame, FrameAck, SnapshotChunk};
use quorate_proto::refusal::{Reason, Refusal};
use quorate_proto::time::{BootTime, LogTime};
use quorate_proto::v1::Receipt;
use raft::eraftpb::{Entry, Message, MessageType, Snapshot};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Notify;

use super::link::Link;
use super::*;
use crate::listen;

mod snapshots;

const CLUSTER: ClusterId = ClusterId(9);

/// What a node received, and a way to wait for it.
#[derive(Default)]
struct Inbox {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    envelopes: Vec<(NodeId, Lane, Envelope)>,
    frames: usize,
    heard: Vec<LastHeard>,
    lost: Vec<NodeId>,
    sent: Vec<(ReplicaId, bool)>,
    full: bool,
}

impl Inbox {
    fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.state.lock().unwrap());
        self.changed.notify_one();
        result
    }

    async fn until(&self, condition: impl Fn(&State) -> bool) {
        while !condition(&self.state.lock().unwrap()) {
            self.changed.notified().await;
        }
    }
}

impl PeerSink for Inbox {
    fn deliver(&self, from: NodeId, lane: Lane, envelopes: Vec<Envelope>) {
        self.with(|state| {
            state.frames += 1;
            state.envelopes.extend(envelopes.into_iter().map(|envelope| (from, lane, envelope)));
        });
    }
    fn last_heard(&self, _: NodeId, heard: LastHeard) {
        self.with(|state| state.heard.push(heard));
    }
    fn lost(&self, peer: NodeId) {
        self.with(|state| state.lost.push(peer));
    }
    fn snapshot_sent(&self, _: NodeId, _: GroupId, to: ReplicaId, ok: bool) {
        self.with(|state| state.sent.push((to, ok)));
    }
    fn has_room(&self) -> bool {
        !self.with(|state| state.full)
    }
}

/// Parts as received; refuses a part named `unwanted`, and is busy once when it holds so many bytes of others.
#[derive(Clone, Default)]
struct Shelf(Arc<Mutex<Parts>>, Arc<Mutex<Option<usize>>>, Arc<Mutex<usize>>);
type Parts = Vec<(String, Vec<u8>)>;

impl SnapshotStaging for Shelf {
    fn begin(&self, _: NodeId, envelope: &Envelope) -> Result<Box<dyn StagedSnapshot>, String> {
        assert!(envelope.message.get_snapshot().data.is_empty());
        Ok(Box::new(self.clone()))
    }
    fn staged(&self, _: NodeId, _: &Envelope) -> Result<Vec<(String, u64)>, String> {
        let parts = self.0.lock().unwrap();
        Ok(parts.iter().map(|(name, bytes)| (name.clone(), bytes.len() as u64)).collect())
    }
}

impl StagedSnapshot for Shelf {
    fn write(&mut self, part: &str, offset: u64, data: Bytes) -> Result<(), String> {
        if part == "unwanted" {
            return Err("no such part".into());
        }
        let mut parts = self.0.lock().unwrap();
        let held: usize = parts.iter().map(|(_, bytes)| bytes.len()).sum();
        if self.1.lock().unwrap().take_if(|limit| held >= *limit).is_some() {
            return Err(format!("{BUSY}: enough for now"));
        }
        let known = parts.iter().find(|(name, _)| name == part).map_or(0, |(_, bytes)| bytes.len() as u64);
        assert_eq!(offset, known, "pieces of a part come in order, once");
        *self.2.lock().unwrap() += data.len();
        match parts.last_mut() {
            Some((name, bytes)) if name == part => bytes.extend_from_slice(&data),
            _ => parts.push((part.to_owned(), data.to_vec())),
        }
        Ok(())
    }
    fn finish(self: Box<Self>, _: &Envelope) -> Result<(), String> {
        Ok(())
    }
}

struct Node {
    config: TransportConfig,
    address: SocketAddr,
    inbox: Arc<Inbox>,
    shelf: Shelf,
    transport: Transport,
    server: tokio::task::JoinHandle<()>,
}

impl Node {
    fn start(id: u64) -> Self {
        Self::start_as(TransportConfig::new(CLUSTER, NodeId(id), Incarnation(3)))
    }

    fn start_as(config: TransportConfig) -> Self {
        let inbox = Arc::new(Inbox::default());
        let shelf = Shelf::default();
        let (address, incoming) = listen::incoming("test", "127.0.0.1:0".parse().unwrap()).unwrap();
        let service = peer_server(&config, Arc::clone(&inbox) as Arc<dyn PeerSink>, Arc::new(shelf.clone()));
        let serving = server().serve_with_incoming(service, incoming);
        let server = tokio::spawn(async move { serving.await.unwrap() });
        let transport = Transport::new(config.clone(), Arc::clone(&inbox) as Arc<dyn PeerSink>);
        Self { config, address, inbox, shelf, transport, server }
    }

    fn peers(&mut self, others: &[(u64, SocketAddr)]) {
        self.transport.set_peers(others.iter().map(|(id, address)| (NodeId(*id), address.to_string())));
    }

    async fn connected(&self) {
        while !self.transport.status().iter().all(|lane| lane.connected) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn refused(&self) -> String {
        loop {
            if let Some(error) = self.transport.status().into_iter().find_map(|lane| lane.last_error) {
                return error;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// Runs a test on a runtime of one thread, as nodes do.
fn run(test: impl std::future::Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
}

fn envelope(index: u64) -> Envelope {
    let message = Message { from: 11, to: 12, index, ..Message::default() };
    Envelope::bare(GroupId(5), Incarnation(3), message)
}

fn append(index: u64, bytes: usize) -> Box<Envelope> {
    let mut envelope = envelope(index);
    envelope.message.entries.push(Entry { index, data: vec![7; bytes].into(), ..Entry::default() });
    Box::new(envelope)
}

fn full_envelope() -> Envelope {
    let ended = vec![
        Ended::Released { replica: ReplicaId(1), term: Term(2) },
        Ended::Dead { replica: ReplicaId(3), incarnation: Incarnation(4) },
    ];
    let permit = Permit {
        group: GroupId(5),
        epoch: PermitEpoch(6),
        candidate: ReplicaId(7),
        candidate_incarnation: Incarnation(8),
        config_version: ConfigVersion(9),
        basis: ended.clone(),
        clear: true,
        kind: PermitKind::FullAttendance,
        planned: Some(Planned { from: ReplicaId(1), term: Term(2), lease_from: BootTime(3) }),
    };
    let publish = ForwardedPublish {
        ticket: Ticket(1),
        batch: Bytes::from_static(b"batch"),
        principal: Bytes::from_static(b"somebody"),
        client_id: Bytes::from_static(b"client"),
        connection: 2,
        operation: OperationId(3),
        deadline: Some(Duration::from_micros(4)),
    };
    let endless = ForwardedPublish { deadline: None, ..publish.clone() };
    let receipt = Receipt { base_offset: 7, count: 2, ..Receipt::default() };
    let refusal = Refusal::new(Reason::Busy, "what", "whom", "do").of_unknown_fate();
    let answers = vec![
        ForwardedAnswer { ticket: Ticket(5), result: Ok(receipt) },
        ForwardedAnswer { ticket: Ticket(6), result: Err(refusal) },
    ];
    Envelope {
        stamp: Some(BootTime(1)),
        echo: Some(BootTime(2)),
        won_epoch: PermitEpoch(3),
        permit: Some(permit),
        ended,
        veto_wait: Some(Duration::from_micros(5)),
        last: Some((Term(6), LogIndex(7))),
        forwarded: Some(Box::new(Forwarded { publishes: vec![publish, endless], answers })),
        room: quorate_proto::control::Room::Scarce,
        ..*append(9, 100)
    }
}

#[test]
fn envelopes_survive_the_wire_form() {
    for original in [envelope(1), full_envelope(), envelope(1).stale_answer(Incarnation(4))] {
        assert_eq!(decode(encode(&original)).unwrap(), original);
    }
}

#[test]
fn entries_share_the_buffer_that_they_came_in() {
    let wire = encode(&append(4, 1_000));
    let buffer = wire.message.as_ptr_range();
    let decoded = decode(wire.clone()).unwrap();
    let data = decoded.message.entries[0].data.as_ptr();
    assert!(buffer.contains(&data), "the entry was copied");
}

#[test]
fn contradictory_or_malformed_envelopes_are_refused() {
    let mut wrong_sender = encode(&envelope(1));
    wrong_sender.from_replica = 13;
    assert!(matches!(decode(wrong_sender), Err(CodecError::Field(_))));
    let mut no_group = encode(&envelope(1));
    no_group.group_id = 0;
    assert!(matches!(decode(no_group), Err(CodecError::Field(_))));
    let mut groups = encode(&envelope(1));
    groups.message = vec![0x23; 1_000].into();
    assert!(matches!(decode(groups), Err(CodecError::Scan(_))));
    let mut permit = encode(&full_envelope());
    permit.permit.as_mut().unwrap().kind = 99;
    assert!(matches!(decode(permit), Err(CodecError::Control(_))));
}

#[test]
fn frames_arrive_in_order_one_per_lane_and_turn() {
    run(async {
        let (mut a, b) = (Node::start(1), Node::start(2));
        a.peers(&[(2, b.address), (1, a.address)]);
        a.connected().await;
        for index in 0..100 {
            a.transport.send(NodeId(2), Lane::Bulk, append(index, 2_000));
            a.transport.send(NodeId(2), Lane::Control, Box::new(envelope(index)));
            a.transport.send(NodeId(77), Lane::Control, Box::new(envelope(index)));
        }
        let heard = LastHeard {
            observer: ObserverInfo { node: NodeId(1), name: "o1".into(), ..ObserverInfo::default() },
            wall: LogTime(-5),
            nodes: vec![(NodeId(4), Incarnation(5), Duration::from_millis(6))],
            attendance: Attendance::default(),
        };
        a.transport.gossip(&heard);
        a.transport.flush();
        a.transport.flush();
        b.inbox.until(|state| state.envelopes.len() == 200).await;
        let state = b.inbox.state.lock().unwrap();
        for lane in [Lane::Bulk, Lane::Control] {
            let indexes: Vec<_> =
                state.envelopes.iter().filter(|(_, l, _)| *l == lane).map(|e| e.2.message.index).collect();
            assert_eq!(indexes, (0..100).collect::<Vec<_>>());
        }
        assert!(state.envelopes.iter().all(|(from, ..)| *from == NodeId(1)));
        assert_eq!(state.frames, 2);
        assert_eq!(state.heard, [heard]);
        assert!(state.lost.is_empty());
    });
}

#[test]
fn a_peer_of_another_cluster_or_an_older_incarnation_is_refused_readably() {
    run(async {
        let b = Node::start(2);
        let mut stranger = Node::start_as(TransportConfig::new(ClusterId(10), NodeId(1), Incarnation(3)));
        stranger.peers(&[(2, b.address)]);
        stranger.transport.send(NodeId(2), Lane::Control, Box::new(envelope(1)));
        stranger.transport.flush();
        let error = stranger.refused().await;
        assert!(error.contains("CLUSTER_MISMATCH: this node belongs to cluster"), "{error}");

        let mut misled = Node::start(1);
        misled.peers(&[(3, b.address)]);
        let error = misled.refused().await;
        assert!(error.contains("this is node 2, not node 3"), "{error}");

        let mut newer = Node::start_as(TransportConfig::new(CLUSTER, NodeId(1), Incarnation(4)));
        newer.peers(&[(2, b.address)]);
        newer.connected().await;
        let mut older = Node::start(1);
        older.peers(&[(2, b.address)]);
        let error = older.refused().await;
        assert!(error.contains("STALE_INCARNATION"), "{error}");
        assert!(b.inbox.state.lock().unwrap().envelopes.is_empty());
    });
}

#[test]
fn an_envelope_of_another_incarnation_closes_the_stream() {
    run(async {
        let (mut a, b) = (Node::start(1), Node::start(2));
        a.peers(&[(2, b.address)]);
        a.connected().await;
        let forged = Envelope { from_incarnation: Incarnation(2), ..envelope(1) };
        a.transport.send(NodeId(2), Lane::Control, Box::new(forged));
        a.transport.flush();
        a.inbox.until(|state| !state.lost.is_empty()).await;
        assert!(b.inbox.state.lock().unwrap().envelopes.is_empty());
    });
}

#[test]
fn garbage_on_the_port_disturbs_nobody() {
    run(async {
        let (mut a, b) = (Node::start(1), Node::start(2));
        for garbage in [
            vec![0xff; 100_000],
            b"GET / HTTP/1.1\r\n\r\n".to_vec(),
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff".to_vec(),
        ] {
            let mut socket = tokio::net::TcpStream::connect(b.address).await.unwrap();
            // The server may have closed it already.
            let _ = socket.write_all(&garbage).await;
            let _ = socket.shutdown().await;
            let mut answer = Vec::new();
            let _ = socket.read_to_end(&mut answer).await;
        }
        a.peers(&[(2, b.address)]);
        a.connected().await;
        a.transport.send(NodeId(2), Lane::Control, Box::new(envelope(1)));
        a.transport.flush();
        b.inbox.until(|state| state.envelopes.len() == 1).await;
    });
}

#[test]
fn a_peer_that_answers_garbage_is_not_connected_to() {
    run(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let garbage = tokio::spawn(async move {
            loop {
                let (mut socket, _) = listener.accept().await.unwrap();
                let _ = socket.write_all(&[0x55; 4_096]).await;
            }
        });
        let mut a = Node::start(1);
        a.peers(&[(2, address)]);
        a.refused().await;
        assert!(a.transport.status().iter().all(|lane| !lane.connected));
        assert!(a.inbox.state.lock().unwrap().lost.is_empty(), "never connected, hence not lost");
        garbage.abort();
    });
}

/// Forwards bytes until told to be silent, then keeps the connections open without a byte.
async fn proxy(to: SocketAddr, silent: Arc<std::sync::atomic::AtomicBool>) -> SocketAddr {
    async fn copy(
        mut from: tokio::net::tcp::OwnedReadHalf,
        mut to: tokio::net::tcp::OwnedWriteHalf,
        silent: Arc<std::sync::atomic::AtomicBool>,
    ) {
        let mut block = vec![0; 16 << 10];
        while let Ok(read) = from.read(&mut block).await {
            if silent.load(std::sync::atomic::Ordering::SeqCst) {
                std::future::pending::<()>().await;
            }
            if read == 0 || to.write_all(&block[..read]).await.is_err() {
                return;
            }
        }
    }
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let far = tokio::net::TcpStream::connect(to).await.unwrap();
            let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
            tokio::spawn(copy(near_in, far_out, Arc::clone(&silent)));
            tokio::spawn(copy(far_in, near_out, Arc::clone(&silent)));
        }
    });
    address
}

#[test]
fn a_half_open_connection_is_noticed_and_replaced() {
    run(async {
        let (mut a, b) = (Node::start(1), Node::start(2));
        let silent = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let between = proxy(b.address, Arc::clone(&silent)).await;
        a.peers(&[(2, between)]);
        a.connected().await;
        silent.store(true, std::sync::atomic::Ordering::SeqCst);
        a.inbox.until(|state| state.lost.len() >= 2).await;
        assert!(a.transport.status().iter().all(|lane| !lane.connected));
        silent.store(false, std::sync::atomic::Ordering::SeqCst);
        a.connected().await;
        a.transport.send(NodeId(2), Lane::Control, Box::new(envelope(8)));
        a.transport.flush();
        b.inbox.until(|state| state.envelopes.iter().any(|(_, _, e)| e.message.index == 8)).await;
    });
}

#[test]
fn a_peer_that_never_reads_costs_bounded_memory_and_delays_no_other_lane() {
    run(async {
        let mut config = TransportConfig::new(CLUSTER, NodeId(1), Incarnation(3));
        config.bulk_queue_bytes = 4 << 20;
        let (mut a, b) = (Node::start_as(config), Node::start(2));
        a.peers(&[(2, b.address)]);
        a.connected().await;
        b.inbox.with(|state| state.full = true);
        let mut index = 0;
        let bulk = |a: &Node| a.transport.status().into_iter().find(|lane| lane.lane == Lane::Bulk).unwrap();
        while bulk(&a).dropped == 0 {
            a.transport.send(NodeId(2), Lane::Bulk, append(index, 1 << 20));
            a.transport.flush();
            index += 1;
            tokio::task::yield_now().await;
            assert!(bulk(&a).queued_bytes <= a.config.bulk_queue_bytes);
        }
        assert_eq!(a.inbox.state.lock().unwrap().lost, [NodeId(2)]);
        // Windows (8 MiB), the receiver's frame and the queue: nothing grows beyond.
        assert!(index < 64, "{index} MiB were taken");
        a.transport.send(NodeId(2), Lane::Control, Box::new(envelope(9)));
        a.transport.flush();
        b.inbox.until(|state| state.envelopes.iter().any(|(_, lane, _)| *lane == Lane::Control)).await;
    });
}

#[test]
fn a_stream_that_says_no_hello_is_refused() {
    run(async {
        let (a, b) = (Node::start(1), Node::start(2));
        let link = Link {
            config: Arc::new(a.config.clone()),
            sink: Arc::clone(&a.inbox) as Arc<dyn PeerSink>,
            peer: NodeId(2),
            address: b.address.to_string(),
            snapshots: tokio::sync::Semaphore::new(1),
        };
        let frame = Frame { envelopes: vec![encode(&envelope(1))], ..Frame::default() };
        let mut client = link.connect().await.unwrap();
        let mut acks = client.control(tokio_stream::iter([frame])).await.unwrap().into_inner();
        let ack: FrameAck = acks.message().await.unwrap().unwrap();
        assert!(ack.error.contains("no hello"), "{}", ack.error);
        assert!(b.inbox.state.lock().unwrap().envelopes.is_empty());
    });
}

#[test]
fn a_million_nested_group_tags_do_not_overflow_the_parser() {
    // Even without our own look over the bytes: RUSTSEC-2024-0437 is about the recursion in here.
    for tag in [0x23_u8, 0x0b, 0x3b] {
        assert!(Message::parse_from_bytes(&vec![tag; 1_000_000]).is_err());
    }
}
