//! The services over a core that answers as told.

use std::sync::atomic::AtomicU64;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quorate_consensus::node::effect::{AppliedEntry, StoredBatch, View};
use quorate_host::clock::{Clock, ManualClock};
use quorate_host::turn::{mailbox, Mailbox};
use quorate_proto::batch::{BatchView, StoredPrefix, Suppressed};
use quorate_proto::control::{Assignment, Role};
use quorate_proto::ids::{
    ClusterId, ConfigVersion, GroupId, LogIndex, NodeId, Offset, PartitionNo, ReplicaId, Term, TopicId,
};
use quorate_proto::refusal::Reason;
use quorate_proto::time::{BootTime, LogTime};
use quorate_proto::v1::{self, publish_request::Payload, publish_response};
use tokio::sync::watch;

use super::*;
use crate::storage::{Storage, StorageSettings};
use crate::view::TailBudget;

const CLUSTER: ClusterId = ClusterId(0xc1);

/// A node that hosts partition 0 of `orders`.
struct Node {
    shared: Arc<Shared<Request>>,
    view: Arc<PartitionView>,
    clock: Arc<ManualClock>,
    requests: Mailbox<Request>,
    closing: watch::Sender<bool>,
    _dir: tempfile::TempDir,
}

fn node() -> Node {
    let dir = tempfile::tempdir().unwrap();
    let storage = Storage::open(StorageSettings { partitions: dir.path().join("p"), segment_bytes: 1 << 20 }).unwrap();
    let (storage, _) = storage.start(|_| {}).unwrap();
    storage.open(GroupId(5));
    let assignment = Assignment {
        group: GroupId(5),
        replica: ReplicaId(1),
        topic: "default/orders".into(),
        topic_id: TopicId(1),
        partition: PartitionNo(0),
        members: vec![(ReplicaId(1), NodeId(1)), (ReplicaId(2), NodeId(2))],
        config_version: ConfigVersion(1),
        change: None,
    };
    let view = Arc::new(PartitionView::new(assignment, GroupId(5), TailBudget::new(1 << 20)));
    let views = Arc::new(Views::default());
    views.insert(&view);
    let clock = Arc::new(ManualClock::new(BootTime(1_000), LogTime(0)));
    let (post, requests) = mailbox(100);
    let (closing, closed) = watch::channel(false);
    let shared = Arc::new(Shared {
        cluster: CLUSTER,
        node: NodeId(1),
        views,
        storage,
        core: post,
        clock: Arc::clone(&clock) as Arc<dyn Clock>,
        limits: ServiceLimits { connection_bytes: 1 << 20, client_stall: Duration::from_secs(30) },
        connections: AtomicU64::new(0),
        closing: closed,
    });
    Node { shared, view, clock, requests, closing, _dir: dir }
}

impl Node {
    fn lead(&self, high: u64) {
        self.view.set_view(View { high_watermark: Offset(high), term: Term(3), role: Role::Leader, ..View::default() });
        self.view.set_serve_until(BootTime(u64::MAX));
    }

    /// Applies a batch with these values; the storage gets it too.
    fn apply(&self, base: u64, values: &[&'static [u8]]) {
        let batch = batch(values);
        let prefix = StoredPrefix {
            base_offset: Offset(base),
            epoch: Term(3),
            log_time: LogTime(9),
            count: batch.count(),
            visible: batch.count(),
            body_len: u32::try_from(batch.bytes().len()).unwrap(),
        };
        let stored = StoredBatch {
            base_offset: Offset(base),
            end_offset: prefix.end_offset(),
            prefix: prefix.encode(&Suppressed::default()),
            body: batch.bytes().clone(),
        };
        let entry = AppliedEntry {
            index: LogIndex(base + 6),
            term: Term(3),
            log_time: LogTime(9),
            batches: vec![stored],
            keys: Bytes::new(),
        };
        self.view.append(std::slice::from_ref(&entry));
        self.shared.storage.append(GroupId(5), vec![entry], &self.view.storage_waiting);
        self.lead(prefix.end_offset().get());
    }

    async fn next_request(&self) -> Request {
        let mut taken = Vec::new();
        loop {
            self.requests.drain(&mut taken, 1);
            if let Some(request) = taken.pop() {
                return request;
            }
            self.requests.posted().await;
        }
    }
}

fn batch(values: &[&'static [u8]]) -> BatchView {
    let records = values.iter().map(|v| v1::Record { value: Bytes::from_static(v), ..v1::Record::default() });
    records::build(v1::Records { records: records.collect(), ..v1::Records::default() }, "t").unwrap()
}

fn partition() -> Option<v1::Partition> {
    Some(v1::Partition { topic: "orders".into(), partition: 0, group_id: 0 })
}

fn fetch_from(offset: u64) -> v1::FetchRequest {
    v1::FetchRequest { partition: partition(), offset, as_records: true, ..v1::FetchRequest::default() }
}

fn publish_of(payload: Payload) -> v1::PublishRequest {
    v1::PublishRequest { tag: 8, partition: partition(), payload: Some(payload), ..v1::PublishRequest::default() }
}

fn values(response: &v1::FetchResponse) -> Vec<(u64, Bytes)> {
    match &response.payload {
        Some(v1::fetch_response::Payload::Records(r)) => {
            r.records.iter().map(|r| (r.offset, r.value.clone())).collect()
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_fetch_reads_the_tail_cache_and_below_it_the_segments() {
    let node = node();
    // The first batch is applied before this replica leads: it is in the segments only.
    node.apply(0, &[b"a", b"b"]);
    node.view.forget();
    node.apply(2, &[b"c"]);
    let below = fetch::fetch(&node.shared, fetch_from(1)).await.unwrap();
    assert_eq!(values(&below)[0], (1, Bytes::from_static(b"b")));
    let cached = fetch::fetch(&node.shared, fetch_from(2)).await.unwrap();
    assert_eq!(values(&cached), [(2, Bytes::from_static(b"c"))]);
    assert_eq!((cached.next_offset, cached.high_watermark, cached.epoch), (3, 3, 3));
}

#[tokio::test]
async fn a_long_poll_answers_when_a_record_comes() {
    let node = node();
    node.lead(0);
    let request = v1::FetchRequest { max_wait_ms: 30_000, min_bytes: 1, ..fetch_from(0) };
    let polling = fetch::fetch(&node.shared, request);
    tokio::pin!(polling);
    assert!(futures::poll!(polling.as_mut()).is_pending());
    node.apply(0, &[b"a"]);
    assert_eq!(values(&polling.await.unwrap()).len(), 1);
}

#[tokio::test]
async fn a_long_poll_ends_with_a_refusal_when_the_leader_is_deposed() {
    let node = node();
    node.lead(0);
    let request = v1::FetchRequest { max_wait_ms: 30_000, min_bytes: 1, ..fetch_from(0) };
    let polling = fetch::fetch(&node.shared, request);
    tokio::pin!(polling);
    assert!(futures::poll!(polling.as_mut()).is_pending());
    node.view.set_serve_until(BootTime::ZERO);
    node.view.set_view(View { role: Role::Follower, leader: Some(NodeId(2)), term: Term(4), ..View::default() });
    let refusal = polling.await.unwrap_err();
    assert_eq!((refusal.reason, refusal.leader), (Reason::NotLeader, Some(NodeId(2))));
}

#[tokio::test]
async fn a_read_that_ends_after_the_fence_closed_is_not_answered() {
    let node = node();
    node.apply(0, &[b"a"]);
    node.view.forget();
    node.view.set_serve_until(BootTime(2_000));
    // The read goes to the segments, so it takes a turn; the clock moves on meanwhile.
    let reading = fetch::fetch(&node.shared, fetch_from(0));
    tokio::pin!(reading);
    assert!(futures::poll!(reading.as_mut()).is_pending(), "served at arrival");
    node.clock.advance(Duration::from_nanos(1_000));
    assert_eq!(reading.await.unwrap_err().reason, Reason::Fenced);
}

#[tokio::test]
async fn who_does_not_lead_says_so_and_who_does() {
    let node = node();
    let refused = fetch::fetch(&node.shared, fetch_from(0)).await.unwrap_err();
    assert_eq!((refused.reason, refused.leader), (Reason::NoLeader, None));
    assert!(refused.retry_after.is_some() && refused.decisive());
    node.view.set_view(View { leader: Some(NodeId(2)), ..View::default() });
    let refused = fetch::fetch(&node.shared, fetch_from(0)).await.unwrap_err();
    assert_eq!((refused.reason, refused.leader), (Reason::NotLeader, Some(NodeId(2))));
}

#[tokio::test]
async fn offsets_out_of_range_unknown_names_and_other_clusters_are_typed() {
    let node = node();
    node.apply(0, &[b"a"]);
    let reason = |request| async { fetch::fetch(&node.shared, request).await.unwrap_err().reason };
    assert_eq!(reason(fetch_from(2)).await, Reason::OffsetOutOfRange);
    let named = |topic: &str, partition, group_id| v1::FetchRequest {
        partition: Some(v1::Partition { topic: topic.into(), partition, group_id }),
        ..v1::FetchRequest::default()
    };
    assert_eq!(reason(named("nothing", 0, 0)).await, Reason::UnknownTopic);
    assert_eq!(reason(named("orders", 7, 0)).await, Reason::UnknownTopic);
    assert_eq!(reason(named("orders", 0, 99)).await, Reason::StaleIncarnation);
    assert_eq!(reason(named("or ders", 0, 0)).await, Reason::InvalidArgument);
    assert_eq!(reason(v1::FetchRequest::default()).await, Reason::InvalidArgument);
    let other = ClusterId(7).to_string();
    assert_eq!(reason(v1::FetchRequest { cluster_id: other, ..fetch_from(0) }).await, Reason::ClusterMismatch);
    assert!(fetch::fetch(&node.shared, v1::FetchRequest { cluster_id: CLUSTER.to_string(), ..fetch_from(0) })
        .await
        .is_ok());
}

#[tokio::test]
async fn damaged_truncated_and_empty_batches_are_refused_before_the_core_sees_them() {
    let node = node();
    let good = batch(&[b"a"]).bytes().clone();
    let mut flipped = good.to_vec();
    *flipped.last_mut().unwrap() ^= 1;
    for bytes in [Bytes::from(flipped), good.slice(..good.len() - 1), Bytes::new(), Bytes::from_static(b"garbage")] {
        let request = publish_of(Payload::Batch(bytes));
        let refused = publish::once(&node.shared, "x".into(), request).await.unwrap_err();
        assert_eq!(refused.reason, Reason::BadBatch);
        assert!(refused.decisive());
    }
    let nothing = v1::PublishRequest { payload: None, ..publish_of(Payload::Batch(good)) };
    assert_eq!(publish::once(&node.shared, "x".into(), nothing).await.unwrap_err().reason, Reason::InvalidArgument);
    assert!(node.shared.core.is_empty());
}

#[tokio::test]
async fn a_publish_without_answer_at_the_end_is_of_unknown_fate() {
    let node = node();
    let request = publish_of(Payload::Batch(batch(&[b"a"]).bytes().clone()));
    let (answer, ()) = tokio::join!(publish::once(&node.shared, "x".into(), request), async {
        drop(node.next_request().await);
    });
    assert!(answer.unwrap_err().maybe_applied);
}

#[tokio::test]
async fn the_latest_offset_is_the_one_the_read_index_confirmed() {
    let node = node();
    node.lead(4);
    let ask = |at| v1::ListOffsetsRequest { partition: partition(), at: Some(at), cluster_id: String::new() };
    let service = log::list_offsets;
    let request = ask(v1::list_offsets_request::At::Latest(true));
    let (answer, ()) = tokio::join!(service(&node.shared, &request), async {
        let Request::ReadLatest { reply, .. } = node.next_request().await else { panic!("a read") };
        reply.send(Ok((Offset(4), Term(3)))).unwrap();
    });
    assert_eq!(answer.unwrap().offset, 4);
    let nothing = v1::ListOffsetsRequest { at: None, ..request };
    assert_eq!(service(&node.shared, &nothing).await.unwrap_err().reason, Reason::InvalidArgument);
}

#[tokio::test]
async fn an_offset_by_time_waits_for_the_read_index_and_is_never_below_the_low_watermark() {
    let node = node();
    node.apply(0, &[b"a", b"b"]);
    node.apply(2, &[b"c"]);
    for (time, low, offset) in [(9, 0, 0), (8, 1, 1), (10, 0, 3), (i64::MAX, 0, 3), (i64::MIN, 0, 0)] {
        let at = Some(v1::list_offsets_request::At::LogTimeUs(time));
        let request = v1::ListOffsetsRequest { partition: partition(), at, cluster_id: String::new() };
        node.view.set_view(View { low_watermark: Offset(low), ..node.view.view() });
        let (answer, ()) = tokio::join!(log::list_offsets(&node.shared, &request), async {
            let Request::ReadLatest { reply, .. } = node.next_request().await else { panic!("a read") };
            reply.send(Ok((Offset(3), Term(3)))).unwrap();
        });
        assert_eq!(answer.unwrap().offset, offset, "at {time}");
    }
}

/// A client connected to the service over loopback.
async fn connect(node: &Node) -> v1::log_client::LogClient<tonic::transport::Channel> {
    let (address, incoming) = quorate_host::listen::incoming("test listener", "127.0.0.1:0".parse().unwrap()).unwrap();
    let service = LogService::server(Arc::clone(&node.shared));
    let server = tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming);
    tokio::spawn(server);
    let channel = tonic::transport::Endpoint::from_shared(format!("http://{address}")).unwrap();
    v1::log_client::LogClient::new(channel.connect().await.unwrap())
}

#[tokio::test]
async fn a_stream_answers_each_request_with_its_tag_and_says_when_the_node_goes_away() {
    let node = node();
    let mut client = connect(&node).await;
    let (requests, stream) = tokio::sync::mpsc::channel(10);
    let batch = batch(&[b"a", b"b"]).bytes().clone();
    requests.send(v1::PublishRequest { tag: 1, ..publish_of(Payload::Batch(batch.clone())) }).await.unwrap();
    let bad = Bytes::from_static(b"garbage");
    requests.send(v1::PublishRequest { tag: 2, ..publish_of(Payload::Batch(bad)) }).await.unwrap();
    let stream = tokio_stream::wrappers::ReceiverStream::new(stream);
    let mut answers = client.publish(stream).await.unwrap().into_inner();
    let Request::Publish { publish, reply } = node.next_request().await else { panic!("a publish") };
    assert_eq!(publish.batch, batch);
    assert!(publish.principal.starts_with(b"anonymous@127.0.0.1"));
    let refused = answers.message().await.unwrap().unwrap();
    assert_eq!(refused.tag, 2);
    let Some(publish_response::Result::Error(error)) = refused.result else { panic!("a refusal") };
    assert_eq!(error.reason(), Reason::BadBatch);
    reply.send(Ok(Receipt { base_offset: 7, count: 2, ..Receipt::default() }));
    let receipt = answers.message().await.unwrap().unwrap();
    assert_eq!((receipt.tag, matches!(receipt.result, Some(publish_response::Result::Receipt(_)))), (1, true));
    node.closing.send_replace(true);
    let going = answers.message().await.unwrap().unwrap();
    assert!(matches!(going.result, Some(publish_response::Result::GoingAway(_))));
    assert!(answers.message().await.unwrap().is_none(), "the stream ends");
}

#[tokio::test]
async fn a_stream_meant_for_another_cluster_gets_one_answer_and_ends() {
    let node = node();
    let mut client = connect(&node).await;
    let wrong = v1::PublishRequest {
        cluster_id: ClusterId(7).to_string(),
        ..publish_of(Payload::Batch(batch(&[b"a"]).bytes().clone()))
    };
    let mut answers = client.publish(tokio_stream::iter([wrong])).await.unwrap().into_inner();
    let Some(publish_response::Result::Error(error)) = answers.message().await.unwrap().unwrap().result else {
        panic!("a refusal")
    };
    assert_eq!(error.reason(), Reason::ClusterMismatch);
    assert!(answers.message().await.unwrap().is_none());
}

#[tokio::test]
async fn a_subscription_pushes_as_far_as_the_credits_go() {
    use v1::subscribe_request::Kind;
    let node = node();
    node.apply(0, &[b"a"]);
    node.apply(1, &[b"b"]);
    let mut client = connect(&node).await;
    let (requests, stream) = tokio::sync::mpsc::channel(10);
    let say = |kind| v1::SubscribeRequest { kind: Some(kind) };
    requests.send(say(Kind::Start(fetch_from(0)))).await.unwrap();
    let stream = tokio_stream::wrappers::ReceiverStream::new(stream);
    let mut pushes = client.subscribe(stream).await.unwrap().into_inner();
    requests.send(say(Kind::CreditBytes(1))).await.unwrap();
    let Some(v1::subscribe_response::Kind::Data(data)) = pushes.message().await.unwrap().unwrap().kind else {
        panic!("data")
    };
    assert_eq!(data.next_offset, 1, "one batch, although the credit is smaller");
    requests.send(say(Kind::CreditBytes(1 << 20))).await.unwrap();
    let Some(v1::subscribe_response::Kind::Data(data)) = pushes.message().await.unwrap().unwrap().kind else {
        panic!("data")
    };
    assert_eq!(data.next_offset, 2);
}
