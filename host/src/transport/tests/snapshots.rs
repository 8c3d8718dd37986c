//! Snapshots between nodes: whole, or reported.

use super::*;

fn snapshot_envelope(data: Vec<u8>) -> Envelope {
    let mut envelope = envelope(0);
    envelope.message.msg_type = MessageType::MsgSnapshot;
    let mut snapshot = Snapshot { data: data.into(), ..Snapshot::default() };
    snapshot.mut_metadata().index = 40;
    envelope.message.set_snapshot(snapshot);
    envelope
}

fn file_with(content: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut file, content).unwrap();
    std::io::Seek::rewind(&mut file).unwrap();
    file
}

#[test]
fn a_snapshot_arrives_with_all_its_parts() {
    run(async {
        let (mut a, b) = (Node::start(1), Node::start(2));
        a.peers(&[(2, b.address)]);
        let (data, segment) = (vec![1; 600_000], (0..700_001_u32).map(|i| i as u8).collect::<Vec<_>>());
        let parts = vec![
            SnapshotPart {
                name: "segment/0".into(),
                source: PartSource::File { file: file_with(&segment), len: segment.len() as u64 },
            },
            SnapshotPart { name: "keys".into(), source: PartSource::Bytes(Bytes::from_static(b"k")) },
        ];
        let envelope = snapshot_envelope(data);
        a.transport.send_snapshot(NodeId(2), envelope.clone(), parts);
        a.inbox.until(|state| !state.sent.is_empty()).await;
        assert_eq!(a.inbox.state.lock().unwrap().sent, [(ReplicaId(12), true)]);
        let received = b.inbox.with(|state| state.envelopes.pop()).unwrap();
        assert_eq!(received, (NodeId(1), Lane::Snapshot, envelope));
        let expected = vec![("segment/0".to_owned(), segment), ("keys".to_owned(), b"k".to_vec())];
        assert_eq!(*b.shelf.0.lock().unwrap(), expected);
    });
}

#[test]
fn a_snapshot_that_fails_is_reported_and_not_delivered() {
    run(async {
        let (mut a, b) = (Node::start(1), Node::start(2));
        a.peers(&[(2, b.address)]);
        let part = |name: &str, source| vec![SnapshotPart { name: name.into(), source }];
        let refused = part("unwanted", PartSource::Bytes(Bytes::from_static(b"x")));
        a.transport.send_snapshot(NodeId(2), snapshot_envelope(vec![]), refused);
        let too_short = part("segment/0", PartSource::File { file: file_with(b"short"), len: 100 });
        a.transport.send_snapshot(NodeId(2), snapshot_envelope(vec![]), too_short);
        a.transport.send(NodeId(44), Lane::Snapshot, Box::new(snapshot_envelope(vec![])));
        a.inbox.until(|state| state.sent.len() == 3).await;
        assert!(a.inbox.state.lock().unwrap().sent.iter().all(|(_, ok)| !ok));
        assert!(b.inbox.state.lock().unwrap().envelopes.is_empty());
    });
}

#[test]
fn a_snapshot_that_broke_off_is_taken_up_again_where_it_stopped() {
    run(async {
        let (mut a, b) = (Node::start(1), Node::start(2));
        a.peers(&[(2, b.address)]);
        let segment: Vec<u8> = (0..3_000_000_u32).map(|i| i as u8).collect();
        let keys = vec![7; 500_000];
        let file = |content: &[u8]| PartSource::File { file: file_with(content), len: content.len() as u64 };
        let parts = vec![
            SnapshotPart { name: "segment/0".into(), source: file(&segment) },
            SnapshotPart { name: "keys/0".into(), source: file(&keys) },
        ];
        *b.shelf.1.lock().unwrap() = Some(1_000_000);
        a.transport.send_snapshot(NodeId(2), snapshot_envelope(vec![1; 1_000]), parts);
        a.inbox.until(|state| !state.sent.is_empty()).await;
        assert_eq!(a.inbox.state.lock().unwrap().sent, [(ReplicaId(12), true)]);
        assert!(b.shelf.1.lock().unwrap().is_none(), "it broke off once");
        assert_eq!(*b.shelf.2.lock().unwrap(), segment.len() + keys.len(), "no byte was sent twice");
        assert_eq!(*b.shelf.0.lock().unwrap(), [("segment/0".to_owned(), segment), ("keys/0".to_owned(), keys)]);
        assert_eq!(b.inbox.state.lock().unwrap().envelopes.len(), 1);
    });
}

#[test]
fn a_damaged_chunk_ends_the_snapshot() {
    run(async {
        let (a, b) = (Node::start(1), Node::start(2));
        let link = Link {
            config: Arc::new(a.config.clone()),
            sink: Arc::clone(&a.inbox) as Arc<dyn PeerSink>,
            peer: NodeId(2),
            address: b.address.to_string(),
            snapshots: tokio::sync::Semaphore::new(1),
        };
        let first = SnapshotChunk {
            hello: Some(link.hello()),
            envelope: Some(encode(&snapshot_envelope(vec![]))),
            ..SnapshotChunk::default()
        };
        let damaged = SnapshotChunk {
            part: "keys".into(),
            data: Bytes::from_static(b"abc"),
            crc32c: 1,
            ..SnapshotChunk::default()
        };
        let last = SnapshotChunk { last: true, ..SnapshotChunk::default() };
        let mut client = link.connect().await.unwrap();
        let done = client.snapshot(tokio_stream::iter([first, damaged, last])).await.unwrap().into_inner();
        assert!(done.error.contains("CORRUPT"), "{}", done.error);
        assert!(b.inbox.state.lock().unwrap().envelopes.is_empty());
    });
}
