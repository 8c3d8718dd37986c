//! The client against a cluster in this process.

mod fake;

use std::time::Duration;

use bytes::Bytes;
use quorate_proto::ids::{ClusterId, Offset, PartitionNo};
use quorate_proto::refusal::Reason;

use super::blocking::BlockingClient;
use super::{Client, Consumer, Pending, Producer, StartAt};
use crate::core::record::Record;
use fake::{Fake, CLUSTER};

const LIMIT: Duration = Duration::from_secs(60);

async fn client(fake: &Fake) -> Client {
    Client::builder().observers(fake.observers.clone()).client_id("test").build().await.expect("an observer answers")
}

fn record(n: u64) -> Record {
    Record::new(Bytes::copy_from_slice(&n.to_be_bytes())).key(format!("key {}", n % 7))
}

async fn send(producer: &Producer, numbers: std::ops::Range<u64>) -> Vec<Pending> {
    let mut pending = Vec::new();
    for n in numbers {
        pending.push(producer.send(record(n)).await.expect("admitted"));
    }
    pending
}

async fn read(consumer: &mut Consumer, count: usize) -> Vec<(u64, u64)> {
    let mut read = Vec::new();
    while read.len() < count {
        let record = consumer.next().await.expect("it goes on").expect("readable");
        read.push((record.offset.get(), u64::from_be_bytes(record.value[..].try_into().expect("eight bytes"))));
    }
    read
}

#[tokio::test]
async fn what_is_published_is_read_back_in_order() {
    let fake = Fake::start(1).await;
    let client = client(&fake).await;
    assert_eq!(client.cluster_id(), CLUSTER);
    assert_eq!(client.partitions("orders"), Some(1));
    let mut consumer = client.consumer("orders").build().await.expect("known");
    let producer = client.producer("orders").build().await.expect("known");
    for (n, pending) in send(&producer, 0..500).await.into_iter().enumerate() {
        let receipt = pending.await.expect("committed");
        assert_eq!(receipt.offset, Some(Offset(n as u64)));
        assert_eq!(receipt.duplicate, None);
    }
    let report = producer.close(LIMIT).await;
    assert_eq!((report.committed, report.refused, report.unresolved), (500, 0, 0));
    assert_eq!(read(&mut consumer, 500).await, (0..500).map(|n| (n, n)).collect::<Vec<_>>());
    assert_eq!(consumer.high_watermark(PartitionNo(0)), Some(Offset(500)));
    assert_eq!(client.list_offset("orders", PartitionNo(0), StartAt::Latest).await, Ok(Offset(500)));
    let mut middle = client.consumer("orders").from(StartAt::Offset(Offset(123))).build().await.expect("known");
    assert_eq!(read(&mut middle, 2).await, [(123, 123), (124, 124)]);
}

#[tokio::test]
async fn order_and_outcomes_survive_failovers_with_many_in_flight() {
    let mut fake = Fake::start(2).await;
    let client = client(&fake).await;
    let producer = client.producer("orders").build().await.expect("known");
    let mut consumer = client.consumer("orders").build().await.expect("known");
    let mut pending = send(&producer, 0..200).await;
    fake.elect(2);
    pending.extend(send(&producer, 200..400).await);
    assert!(producer.flush(LIMIT).await);
    fake.elect(1);
    pending.extend(send(&producer, 400..600).await);
    fake.kill("node 1");
    fake.elect(2);
    pending.extend(send(&producer, 600..800).await);
    for pending in pending {
        pending.await.expect("committed");
    }
    assert_eq!(fake.state().partition.log, (0..800).collect::<Vec<_>>());
    assert_eq!(read(&mut consumer, 800).await, (0..800).map(|n| (n, n)).collect::<Vec<_>>());
}

#[tokio::test]
async fn losing_an_observer_costs_nothing_and_the_other_pushes_the_new_leader() {
    let mut fake = Fake::start(2).await;
    let client = client(&fake).await;
    let producer = client.producer("orders").build().await.expect("known");
    send(&producer, 0..1).await.remove(0).await.expect("committed");
    let gone = fake.observers[0].clone();
    fake.kill(&gone);
    fake.elect(2);
    send(&producer, 1..2).await.remove(0).await.expect("committed");
}

#[tokio::test]
async fn connecting_to_nobody_says_why_for_each_observer() {
    let tried = ["127.0.0.1:1", "127.0.0.1:2"];
    let builder = Client::builder().observers(tried).connect_timeout(Duration::from_millis(300));
    let error = builder.build().await.expect_err("nobody listens there");
    assert_eq!(error.tried.iter().map(|(address, _)| address.as_str()).collect::<Vec<_>>(), tried);
    assert!(error.tried.iter().all(|(_, why)| why.contains("refused")), "{error}");
}

#[tokio::test]
async fn another_cluster_than_the_one_asked_for_is_refused() {
    let fake = Fake::start(1).await;
    let builder = Client::builder().observers(fake.observers.clone()).cluster(ClusterId(1));
    let error = builder.connect_timeout(Duration::from_millis(500)).build().await.expect_err("another cluster");
    assert!(error.to_string().contains("cluster"), "{error}");
}

#[tokio::test]
async fn an_unknown_topic_and_an_offset_out_of_range_are_typed_errors() {
    let fake = Fake::start(1).await;
    let client = client(&fake).await;
    let unknown = client.producer("nothing").build().await.expect_err("unknown");
    assert_eq!(unknown.reason, Reason::UnknownTopic);
    let invalid = client.producer("no such/topic/name").build().await.expect_err("invalid");
    assert_eq!(invalid.reason, Reason::InvalidArgument);
    let mut consumer = client.consumer("orders").from(StartAt::Offset(Offset(9))).build().await.expect("known");
    let error = consumer.next().await.expect("an error").expect_err("out of range");
    assert_eq!(error.reason, Reason::OffsetOutOfRange);
    assert!(consumer.next().await.is_none(), "its only partition has ended");
}

#[tokio::test]
async fn a_full_buffer_rejects_at_once_or_waits() {
    let fake = Fake::start(1).await;
    let client = client(&fake).await;
    fake.elect(0);
    let producer = client.producer("orders").max_in_flight(2).build().await.expect("known");
    let first = producer.try_send(record(0)).expect("room");
    let second = producer.try_send(record(1)).expect("room");
    let rejected = producer.try_send(record(2)).expect_err("full");
    assert_eq!((rejected.record.value(), rejected.refusal.reason), (record(2).value(), Reason::Busy));
    let third = async { producer.send(record(2)).await.expect("admitted").await };
    let elect = async { fake.elect(1) };
    let (third, ()) = futures::future::join(third, elect).await;
    assert_eq!(first.await.expect("committed").offset, Some(Offset(0)));
    assert_eq!(second.await.expect("committed").offset, Some(Offset(1)));
    assert_eq!(third.expect("committed").offset, Some(Offset(2)));
}

#[tokio::test]
async fn closing_in_time_reports_what_was_not_sent() {
    let fake = Fake::start(1).await;
    let client = client(&fake).await;
    fake.elect(0);
    let producer = client.producer("orders").build().await.expect("known");
    let pending = send(&producer, 0..3).await;
    let report = producer.close(Duration::from_millis(50)).await;
    assert_eq!(report.committed, 0);
    assert_eq!(report.refused + report.unresolved, 3);
    for pending in pending {
        pending.await.expect_err("not committed");
    }
}

#[tokio::test]
async fn a_dropped_producer_gives_up_what_is_open() {
    let fake = Fake::start(1).await;
    let client = client(&fake).await;
    fake.elect(0);
    let producer = client.producer("orders").build().await.expect("known");
    let pending = send(&producer, 0..1).await.remove(0);
    drop(producer);
    pending.await.expect_err("given up");
}

#[tokio::test]
async fn admin_calls_find_the_observer_that_may_answer() {
    let fake = Fake::start(3).await;
    let client = client(&fake).await;
    let topic = client.admin().create_topic("payments", 3).await.expect("created");
    assert_eq!((topic.name.as_str(), topic.partitions), ("default/payments", 3));
    assert_eq!(fake.state().created, ["default/payments"], "once, by the leader");
    let unknown = client.admin().describe_topic("payments").await.expect_err("unknown");
    assert_eq!((unknown.reason, unknown.what.as_str()), (Reason::UnknownTopic, "there is no such topic"));
}

#[test]
fn the_blocking_form_publishes_and_reads() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let fake = runtime.block_on(Fake::start(1));
    let client = BlockingClient::connect(fake.observers.clone()).expect("an observer answers");
    let producer = client.producer("orders").expect("known");
    let pending: Vec<Pending> = (0..10).map(|n| producer.send(record(n)).expect("admitted")).collect();
    for pending in pending {
        pending.wait().expect("committed");
    }
    assert_eq!(producer.close(LIMIT).committed, 10);
    let consumer = client.consumer("orders", StartAt::Earliest).expect("known");
    let offsets: Vec<u64> = consumer.take(10).map(|record| record.expect("readable").offset.get()).collect();
    assert_eq!(offsets, (0..10).collect::<Vec<_>>());
}
