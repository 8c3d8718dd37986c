//! Bad input of every kind: a typed error in four parts or a closed connection, nothing lost, memory bounded, others
//! undisturbed. The tests share one cluster, which ends with this process.

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use bytes::Bytes;
use common::{binary, runtime};
use futures::stream::{self, StreamExt};
use prost::Message;
use quorate_chaos::cluster::{Cluster, View};
use quorate_client::{Client, Offset, PartitionNo, Record, StartAt};
use quorate_proto::batch;
use quorate_proto::v1::log_client::LogClient;
use quorate_proto::v1::publish_request::Payload;
use quorate_proto::v1::publish_response::Result as Answer;
use quorate_proto::v1::subscribe_request::Kind as Ask;
use quorate_proto::v1::{self, PublishRequest, Reason, SubscribeRequest};
use tonic::transport::{Channel, Endpoint};

const TOPIC: &str = "orders";

fn cluster() -> &'static Cluster {
    static SHARED: OnceLock<Cluster> = OnceLock::new();
    SHARED.get_or_init(|| {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bad-input");
        Cluster::start_in(binary(), &directory).unwrap_or_else(|e| panic!("{e}"))
    })
}

/// The parties of a test: a well-behaved client, and where the leader and another node listen.
struct Scene {
    client: Client,
    leader: u64,
    leader_at: SocketAddr,
    follower_at: SocketAddr,
    leader_pid: quorate_chaos::proc::ProcessId,
}

async fn scene() -> Scene {
    let cluster = cluster();
    let client = cluster.client().await.unwrap_or_else(|e| panic!("{e}"));
    let view = View::new(&client);
    let whole = view.healthy(TOPIC, 0).await.unwrap_or_else(|e| panic!("{e}"));
    let leader = whole.leader_node;
    let follower = whole.replicas.iter().find(|r| r.node != leader).expect("three replicas").node;
    let leader_pid = view.pid("server", leader).await.unwrap_or_else(|e| panic!("{e}"));
    let ports = cluster.ports();
    Scene { client, leader, leader_at: ports.node(leader), follower_at: ports.node(follower), leader_pid }
}

impl Scene {
    /// A well-behaved client is served, and everything that it got a receipt for can be read.
    async fn others_are_undisturbed(&self) {
        let producer = self.client.producer(TOPIC).build().await.unwrap_or_else(|e| panic!("{e}"));
        let pending = producer.send(Record::new("still here").key("k")).await.unwrap_or_else(|e| panic!("{e}"));
        let receipt = pending.await.unwrap_or_else(|e| panic!("{e}"));
        let offset = receipt.offset.expect("a place");
        let consumer = self.client.consumer(TOPIC).from(StartAt::Offset(offset)).partitions([receipt.partition]);
        let mut consumer = consumer.build().await.unwrap_or_else(|e| panic!("{e}"));
        let record = consumer.next().await.expect("a record").unwrap_or_else(|e| panic!("{e}"));
        assert_eq!((record.offset, record.value), (offset, Bytes::from("still here")));
    }
}

async fn channel(address: SocketAddr) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
    endpoint.connect().await.unwrap_or_else(|e| panic!("{address}: {e}"))
}

fn partition_zero() -> Option<v1::Partition> {
    Some(v1::Partition { topic: TOPIC.to_owned(), partition: 0, group_id: 0 })
}

fn request(payload: Payload) -> PublishRequest {
    PublishRequest { tag: 9, partition: partition_zero(), payload: Some(payload), ..PublishRequest::default() }
}

/// Publishes one request on a stream that stays open, and gives the refusal.
async fn refusal(address: SocketAddr, request: PublishRequest) -> v1::Error {
    let mut client = LogClient::new(channel(address).await).max_encoding_message_size(16 << 20);
    let requests = stream::iter([request]).chain(stream::pending());
    let mut answers = client.publish(requests).await.unwrap_or_else(|e| panic!("{e}")).into_inner();
    let answer = answers.message().await.unwrap_or_else(|e| panic!("{e}")).expect("an answer");
    match answer.result {
        Some(Answer::Error(error)) => error,
        other => panic!("not refused: {other:?}"),
    }
}

#[track_caller]
fn has_four_parts(error: &v1::Error, reason: Reason) {
    assert_eq!(error.reason(), reason, "{error:?}");
    assert!(!error.what.is_empty() && !error.subject.is_empty() && !error.action.is_empty(), "{error:?}");
    assert!(!error.maybe_applied, "decisive: {error:?}");
}

/// The refusal in the details of a status.
fn typed(status: &tonic::Status) -> v1::Error {
    #[derive(Message)]
    struct Any {
        #[prost(string, tag = "1")]
        type_url: String,
        #[prost(bytes = "vec", tag = "2")]
        value: Vec<u8>,
    }
    #[derive(Message)]
    struct RpcStatus {
        #[prost(int32, tag = "1")]
        code: i32,
        #[prost(string, tag = "2")]
        message: String,
        #[prost(message, repeated, tag = "3")]
        details: Vec<Any>,
    }
    let details = RpcStatus::decode(status.details()).unwrap_or_else(|e| panic!("{e}: {status:?}"));
    let ours = details.details.iter().find(|any| any.type_url.ends_with("quorate.v1.Error"));
    let ours = ours.unwrap_or_else(|| panic!("no typed error in {status:?}"));
    v1::Error::decode(ours.value.as_slice()).expect("an error")
}

fn good_batch(value: &'static [u8]) -> Vec<u8> {
    let mut builder = batch::BatchBuilder::new(batch::BatchOptions::default());
    let record = batch::Record { key: Some("k".into()), value: value.into(), ..batch::Record::default() };
    builder.push(&record).expect("a small record");
    builder.finish(batch::BatchIdentity::default()).to_vec()
}

#[test]
fn a_malformed_batch_is_refused() {
    runtime().block_on(async {
        let scene = scene().await;
        for bytes in [Bytes::new(), Bytes::from_static(b"this is no batch"), Bytes::from(vec![0; 4096])] {
            has_four_parts(&refusal(scene.leader_at, request(Payload::Batch(bytes))).await, Reason::BadBatch);
        }
        scene.others_are_undisturbed().await;
    });
}

#[test]
fn a_truncated_batch_is_refused() {
    runtime().block_on(async {
        let scene = scene().await;
        let batch = good_batch(b"a payload of some length");
        for length in [1, 20, 100, batch.len() - 1] {
            let cut = Bytes::copy_from_slice(&batch[..length]);
            has_four_parts(&refusal(scene.leader_at, request(Payload::Batch(cut))).await, Reason::BadBatch);
        }
        scene.others_are_undisturbed().await;
    });
}

#[test]
fn a_batch_with_a_wrong_checksum_is_refused() {
    runtime().block_on(async {
        let scene = scene().await;
        let mut batch = good_batch(b"a payload of some length");
        let last = batch.len() - 1;
        batch[last] ^= 0x40;
        let error = refusal(scene.leader_at, request(Payload::Batch(batch.into()))).await;
        has_four_parts(&error, Reason::BadBatch);
        assert!(error.what.contains("checksum"), "{error:?}");
        scene.others_are_undisturbed().await;
    });
}

#[test]
fn a_decompression_bomb_is_refused_by_its_header() {
    runtime().block_on(async {
        let scene = scene().await;
        let mut bomb = good_batch(b"a payload of some length");
        // docs/format.md: codec at 22, uncompressed size at 64, CRC32C at 8 over everything from 12 on.
        bomb[22] = 1;
        bomb[64..68].copy_from_slice(&u32::MAX.to_le_bytes());
        let crc = crc32c(&bomb[12..]);
        bomb[8..12].copy_from_slice(&crc.to_le_bytes());
        let error = refusal(scene.leader_at, request(Payload::Batch(bomb.into()))).await;
        has_four_parts(&error, Reason::BadBatch);
        assert!(!error.what.contains("checksum"), "the bomb itself was seen: {error:?}");
        scene.others_are_undisturbed().await;
    });
}

/// CRC32C, bit by bit: the test must not lean on the code under test.
fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0x82F6_3B78 } else { crc >> 1 };
        }
    }
    !crc
}

#[test]
fn a_record_over_the_limit_is_refused_by_client_and_server() {
    runtime().block_on(async {
        let scene = scene().await;
        let large = vec![7_u8; (1 << 20) + 1];
        let producer = scene.client.producer(TOPIC).build().await.unwrap_or_else(|e| panic!("{e}"));
        let by_client = match producer.send(Record::new(large.clone())).await {
            Err(error) => error,
            Ok(pending) => pending.await.expect_err("too large"),
        };
        assert_eq!(by_client.reason(), Reason::TooLarge);
        assert!(by_client.decisive());
        let record = v1::Record { value: large.into(), ..v1::Record::default() };
        let records = v1::Records { records: vec![record], ..v1::Records::default() };
        has_four_parts(&refusal(scene.leader_at, request(Payload::Records(records))).await, Reason::TooLarge);
        scene.others_are_undisturbed().await;
    });
}

#[test]
fn an_unknown_topic_is_refused() {
    runtime().block_on(async {
        let scene = scene().await;
        let mut wrong = request(Payload::Batch(good_batch(b"x").into()));
        wrong.partition = Some(v1::Partition { topic: "no-such-topic".to_owned(), ..v1::Partition::default() });
        has_four_parts(&refusal(scene.leader_at, wrong).await, Reason::UnknownTopic);
        let by_client = scene.client.producer("no-such-topic").build().await.expect_err("unknown");
        assert_eq!(by_client.reason, Reason::UnknownTopic);
        scene.others_are_undisturbed().await;
    });
}

#[test]
fn an_offset_out_of_range_is_a_typed_error_and_moves_nothing() {
    runtime().block_on(async {
        let scene = scene().await;
        let beyond = scene.client.consumer(TOPIC).from(StartAt::Offset(Offset(1 << 40))).partitions([PartitionNo(0)]);
        let refused = match beyond.build().await {
            Err(refusal) => refusal,
            Ok(mut consumer) => consumer.next().await.expect("an answer").expect_err("out of range"),
        };
        assert_eq!(refused.reason, Reason::OffsetOutOfRange, "{refused}");
        let fetch = v1::FetchRequest { partition: partition_zero(), offset: 1 << 40, ..v1::FetchRequest::default() };
        let status = LogClient::new(channel(scene.leader_at).await).fetch(fetch).await.expect_err("out of range");
        has_four_parts(&typed(&status), Reason::OffsetOutOfRange);
        scene.others_are_undisturbed().await;
    });
}

#[test]
fn a_request_to_a_follower_is_answered_with_the_leader() {
    runtime().block_on(async {
        let scene = scene().await;
        let publish = request(Payload::Batch(good_batch(b"to the wrong one").into()));
        let error = refusal(scene.follower_at, publish).await;
        has_four_parts(&error, Reason::NotLeader);
        assert_eq!(error.leader_node, scene.leader, "{error:?}");
        let fetch = v1::FetchRequest { partition: partition_zero(), ..v1::FetchRequest::default() };
        let status = LogClient::new(channel(scene.follower_at).await).fetch(fetch).await.expect_err("not the leader");
        has_four_parts(&typed(&status), Reason::NotLeader);
        scene.others_are_undisturbed().await;
    });
}

#[test]
fn a_client_of_another_cluster_is_refused() {
    runtime().block_on(async {
        let scene = scene().await;
        let mut foreign = request(Payload::Batch(good_batch(b"for somebody else").into()));
        foreign.cluster_id = "0123456789abcdef0123456789abcdef".to_owned();
        let mut client = LogClient::new(channel(scene.leader_at).await);
        let status = client.publish_once(foreign).await.expect_err("another cluster");
        has_four_parts(&typed(&status), Reason::ClusterMismatch);
        let stranger = Client::builder()
            .observers(cluster().observers())
            .cluster(quorate_client::ClusterId(77))
            .connect_timeout(Duration::from_secs(2))
            .build()
            .await
            .expect_err("another cluster");
        assert!(stranger.to_string().contains("CLUSTER_MISMATCH"), "{stranger}");
        scene.others_are_undisturbed().await;
    });
}

/// Every listener of the cluster but the metrics'.
fn listeners() -> Vec<SocketAddr> {
    let ports = cluster().ports();
    (1..=3).flat_map(|id| [ports.node(id), ports.node_peer(id), ports.observer(id), ports.observer_peer(id)]).collect()
}

#[test]
fn garbage_on_any_port_closes_the_connection() {
    // One runtime for the whole test: the client's connections live on the one that opened them.
    let runtime = runtime();
    let scene = runtime.block_on(scene());
    for address in listeners() {
        let mut socket = TcpStream::connect(address).expect("connects");
        socket.set_read_timeout(Some(Duration::from_secs(60))).expect("a time-out");
        let mut garbage = vec![0_u8; 256 << 10];
        garbage.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at * 131 + at / 251) as u8);
        // The server may close before it has taken everything.
        let _ = socket.write_all(&garbage);
        let mut answer = Vec::new();
        match socket.read_to_end(&mut answer) {
            Ok(_) => {}
            Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::ConnectionReset, "{address}: {e}"),
        }
    }
    runtime.block_on(scene.others_are_undisturbed());
}

#[test]
fn half_open_connections_disturb_nobody() {
    // One runtime for the whole test: the client's connections live on the one that opened them.
    let runtime = runtime();
    let scene = runtime.block_on(scene());
    let mut open = Vec::new();
    for address in listeners() {
        for number in 0..20 {
            let mut socket = TcpStream::connect(address).expect("connects");
            // Some say nothing at all, some stop in the middle of the HTTP/2 preface, some behind it.
            let said: &[u8] = match number % 3 {
                0 => b"",
                1 => b"PRI * HTTP/2.0\r\n",
                _ => b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
            };
            socket.write_all(said).expect("writes");
            open.push(socket);
        }
    }
    runtime.block_on(scene.others_are_undisturbed());
    drop(open);
    runtime.block_on(scene.others_are_undisturbed());
}

/// Resident memory of a process in bytes.
fn resident(pid: quorate_chaos::proc::ProcessId) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/status", pid.0)).expect("it runs");
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

#[test]
fn clients_that_never_read_cost_bounded_memory_and_disturb_nobody() {
    runtime().block_on(async {
        let scene = scene().await;
        let producer = scene.client.producer(TOPIC).build().await.unwrap_or_else(|e| panic!("{e}"));
        // 24 MiB to be sent to each of those that will not read it; one key, so that one partition holds it.
        let leading = leading_key(&scene).await;
        let value = Bytes::from(vec![0x42; 64 << 10]);
        let mut last = None;
        for _ in 0..384 {
            let record = Record::new(value.clone()).key(leading.clone());
            last = Some(producer.send(record).await.unwrap_or_else(|e| panic!("{e}")));
        }
        last.expect("sent").await.unwrap_or_else(|e| panic!("{e}"));
        let before = resident(scene.leader_pid);
        let mut unread = Vec::new();
        for _ in 0..20 {
            let fetch = v1::FetchRequest { partition: partition_zero(), ..v1::FetchRequest::default() };
            let asks = [
                SubscribeRequest { kind: Some(Ask::Start(fetch)) },
                SubscribeRequest { kind: Some(Ask::CreditBytes(1 << 30)) },
            ];
            let mut client = LogClient::new(channel(scene.leader_at).await);
            let stream = client.subscribe(stream::iter(asks).chain(stream::pending())).await;
            unread.push(stream.unwrap_or_else(|e| panic!("{e}")));
        }
        for _ in 0..20 {
            scene.others_are_undisturbed().await;
        }
        let grown = resident(scene.leader_pid).saturating_sub(before);
        // 20 × 24 MiB would be 480 MiB.
        assert!(grown < 128 << 20, "{grown} bytes for 20 clients that read nothing");
        drop(unread);
    });
}

/// A key whose slot lies in partition 0.
async fn leading_key(scene: &Scene) -> String {
    let producer = scene.client.producer(TOPIC).build().await.unwrap_or_else(|e| panic!("{e}"));
    for number in 0..100 {
        let key = format!("probe-{number}");
        let pending = producer.send(Record::new("probe").key(key.clone())).await.unwrap_or_else(|e| panic!("{e}"));
        if pending.await.unwrap_or_else(|e| panic!("{e}")).partition == PartitionNo(0) {
            return key;
        }
    }
    panic!("no key of a hundred lies in partition 0");
}
