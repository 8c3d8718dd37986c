//! What is sent is what arrives; what means nothing is refused.

use proptest::prelude::*;

use super::*;
use crate::control::*;
use crate::ids::*;
use crate::internal as wire;
use crate::time::{BootTime, LogTime};
use bytes::Bytes;

fn span() -> impl Strategy<Value = Duration> {
    (0u64..1 << 50).prop_map(Duration::from_micros)
}

fn ended() -> impl Strategy<Value = Ended> {
    (any::<bool>(), 1u64.., any::<u64>()).prop_map(|(released, replica, number)| {
        let replica = ReplicaId(replica);
        if released {
            Ended::Released { replica, term: Term(number) }
        } else {
            Ended::Dead { replica, incarnation: Incarnation(number) }
        }
    })
}

fn permit() -> impl Strategy<Value = Permit> {
    let kind = prop_oneof![Just(PermitKind::Normal), Just(PermitKind::FullAttendance), Just(PermitKind::BreakGlass)];
    let ids = (1u64.., 1u64.., 1u64.., any::<u64>(), any::<u64>());
    let planned = prop::option::of((1u64.., any::<u64>(), any::<u64>()).prop_map(|(from, term, lease)| Planned {
        from: ReplicaId(from),
        term: Term(term),
        lease_from: BootTime(lease),
    }));
    let parts = (ids, prop::collection::vec(ended(), 0..4), any::<bool>(), kind, planned);
    parts.prop_map(|(ids, basis, clear, kind, planned)| Permit {
        group: GroupId(ids.0),
        epoch: PermitEpoch(ids.1),
        candidate: ReplicaId(ids.2),
        candidate_incarnation: Incarnation(ids.3),
        config_version: ConfigVersion(ids.4),
        basis,
        clear,
        kind,
        planned,
    })
}

fn report() -> impl Strategy<Value = ReplicaReport> {
    let role = prop_oneof![Just(Role::Follower), Just(Role::Candidate), Just(Role::Leader), Just(Role::Quarantined)];
    let ids = (1u64.., 1u64.., any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>());
    let flags = prop::array::uniform7(any::<bool>());
    let matched = prop::collection::vec((1u64.., any::<u64>()), 0..3);
    (ids, role, flags, span(), any::<[u8; 4]>(), matched).prop_map(|(ids, role, flags, span, digest, matched)| {
        ReplicaReport {
            group: GroupId(ids.0),
            replica: ReplicaId(ids.1),
            term: Term(ids.2),
            role,
            leader: ReplicaId(ids.3).non_zero(),
            won_epoch: PermitEpoch(ids.4),
            last_term: Term(ids.5),
            last_index: LogIndex(ids.6),
            committed: LogIndex(ids.2),
            applied: LogIndex(ids.3),
            hears_quorum: flags[0],
            fence_lost: flags[1],
            leader_silent: flags[2],
            suspect_log: flags[3],
            resigned_for_fence: flags[4],
            seen_epoch: PermitEpoch(ids.5),
            serving: flags[5],
            lease_remaining: span,
            high_watermark: Offset(ids.6),
            digest: Bytes::copy_from_slice(&digest),
            wants_permit: flags[6],
            matched: matched.into_iter().map(|(r, i)| (ReplicaId(r), LogIndex(i))).collect(),
            config_version: ConfigVersion(ids.4),
            learner: flags[0],
            change: flags[1].then(|| ChangeReport {
                task: TaskId(ids.0),
                phase: ChangePhase::Promote,
                voters: vec![ReplicaId(ids.0), ReplicaId(ids.1)],
                outgoing: vec![ReplicaId(ids.1)],
                learners: vec![ReplicaId(ids.0)],
                caught_up: flags[2],
            }),
        }
    })
}

fn hello() -> impl Strategy<Value = Hello> {
    (any::<(u128, u128)>(), 1u64.., 1u64.., "[a-z0-9.:-]{0,20}", any::<(u64, u64, u32)>()).prop_map(
        |(wide, node, incarnation, text, numbers)| Hello {
            cluster: ClusterId(wide.0),
            node: NodeId(node),
            name: text.clone(),
            incarnation: Incarnation(incarnation),
            disk: DiskId(wide.1),
            address: text.clone(),
            peer_address: text.clone(),
            fault_domain: text.clone(),
            lock: LockProof { boot_id: text.clone(), dev: numbers.0, ino: numbers.1 },
            supervisor_hash: text.clone(),
            version: text,
            pid: numbers.2,
            fresh: numbers.2 % 2 == 0,
            knows: DirectoryVersion(u64::from(numbers.2)),
            knows_born: LogTime(i64::from(numbers.2) + 7),
        },
    )
}

fn lease_request() -> impl Strategy<Value = LeaseRequest> {
    let item = (1u64.., 1u64.., 1u64.., any::<u64>()).prop_map(|(g, r, t, e)| LeaseItem {
        group: GroupId(g),
        replica: ReplicaId(r),
        term: Term(t),
        permit_epoch: PermitEpoch(e),
    });
    (any::<u64>(), any::<bool>(), prop::collection::vec(item, 0..4))
        .prop_map(|(sent, write_proof, items)| LeaseRequest { sent: BootTime(sent), write_proof, items })
}

fn up() -> impl Strategy<Value = SessionUp> {
    let beat = (any::<(u64, u64, bool, bool, bool)>(), span(), prop::collection::vec(report(), 0..3)).prop_map(
        |(n, wal_age, reports)| Heartbeat {
            seq: n.0,
            sent: BootTime(n.1),
            wal_age,
            disk_ok: n.2,
            draining: n.3,
            reports,
            partial: n.4,
            room: Room::from_number(u32::try_from(n.0 % 3).expect("small")),
        },
    );
    let marks = (1u64.., any::<(u64, u64)>(), span(), span()).prop_map(|(g, n, a, b)| ElectionMarks {
        group: GroupId(g),
        term: Term(n.0),
        permit_epoch: PermitEpoch(n.1),
        elected: a,
        noop_committed: b,
        lease: a,
        first_ack: b,
        served: (n.0 % 3 > 0)
            .then_some(LastServed { last_us: 7 - i64::try_from(n.0 % 99).expect("small"), waited: n.1 % 2 > 0 }),
    });
    prop_oneof![
        hello().prop_map(SessionUp::Hello),
        beat.prop_map(SessionUp::Heartbeat),
        lease_request().prop_map(SessionUp::Lease),
        (1u64.., 1u64.., any::<u64>(), any::<bool>(), any::<u32>()).prop_map(|(g, r, t, for_fence, us)| {
            SessionUp::Release {
                group: GroupId(g),
                replica: ReplicaId(r),
                term: Term(t),
                for_fence,
                stood: Duration::from_micros(us.into()),
            }
        }),
        (1u64.., 1u64..).prop_map(|(g, r)| SessionUp::AskPermit { group: GroupId(g), replica: ReplicaId(r) }),
        marks.prop_map(SessionUp::Phases),
    ]
}

fn down() -> impl Strategy<Value = SessionDown> {
    let verdict = prop_oneof![Just(LeaseVerdict::Granted), Just(LeaseVerdict::Superseded), Just(LeaseVerdict::NotNow)];
    let answer =
        (any::<(u64, i64)>(), prop::collection::vec((1u64.., any::<u64>(), verdict), 0..4)).prop_map(|(n, results)| {
            LeaseAnswer {
                sent: BootTime(n.0),
                cluster_time: LogTime(n.1),
                results: results.into_iter().map(|(g, t, v)| (GroupId(g), Term(t), v)).collect(),
            }
        });
    let assignments = (any::<(u64, u128, u32)>(), 1u64.., 1u64.., "[a-z/]{1,9}").prop_map(|(n, g, r, text)| {
        let peer = PeerInfo {
            node: NodeId(r),
            name: text.clone(),
            peer_address: text.clone(),
            address: text.clone(),
            incarnation: Incarnation(g),
        };
        let one = Assignment {
            group: GroupId(g),
            replica: ReplicaId(r),
            topic: text,
            topic_id: TopicId(n.1),
            partition: PartitionNo(n.2),
            members: vec![(ReplicaId(r), NodeId(g))],
            config_version: ConfigVersion(n.0),
            change: (n.2 % 2 == 0).then_some(Change {
                task: TaskId(g),
                add: ReplicaId(r),
                node: NodeId(g),
                remove: ReplicaId(g),
                phase: ChangePhase::Cancel,
            }),
        };
        let retired = vec![(GroupId(g), ReplicaId(r))];
        Assignments { version: DirectoryVersion(n.0), peers: vec![peer], replicas: vec![one], retired }
    });
    prop_oneof![
        (1u64.., any::<u64>(), any::<i64>()).prop_map(|(o, l, t)| SessionDown::Welcome {
            observer: NodeId(o),
            observer_leader: NodeId(l).non_zero(),
            cluster_time: LogTime(t)
        }),
        ("[a-z ]{0,20}", any::<bool>(), any::<u64>()).prop_map(|(reason, fatal, above)| SessionDown::Refused {
            reason,
            fatal,
            raise_above: Incarnation(above).non_zero(),
        }),
        prop::collection::vec(permit(), 0..3).prop_map(SessionDown::Permits),
        answer.prop_map(SessionDown::Lease),
        assignments.prop_map(SessionDown::Assignments),
        any::<(u64, u64, i64, u64, bool)>().prop_map(|(seq, sent, time, leader, nobody_else)| {
            SessionDown::HeartbeatAck {
                seq,
                sent: BootTime(sent),
                cluster_time: LogTime(time),
                observer_leader: NodeId(leader).non_zero(),
                nobody_else,
            }
        }),
    ]
}

proptest! {
    #[test]
    fn a_permit_survives_the_wire(permit in permit()) {
        prop_assert_eq!(Permit::try_from(wire::Permit::from(permit.clone())), Ok(permit));
    }

    #[test]
    fn what_a_node_says_survives_the_wire(message in up()) {
        prop_assert_eq!(SessionUp::try_from(wire::SessionUp::from(message.clone())), Ok(message));
    }

    #[test]
    fn what_an_observer_says_survives_the_wire(message in down()) {
        prop_assert_eq!(SessionDown::try_from(wire::SessionDown::from(message.clone())), Ok(message));
    }

    #[test]
    fn a_last_heard_table_survives_the_wire(
        observer in 1u64.., wall in any::<i64>(), nodes in prop::collection::vec((1u64.., any::<u64>(), span()), 0..4),
        (disk, term, memory) in (any::<u128>(), any::<u64>(), 0u32..4)
    ) {
        let nodes = nodes.into_iter().map(|(n, i, age)| (NodeId(n), Incarnation(i), age)).collect();
        let memory = Memory::from_number(memory);
        let observer =
            ObserverInfo { node: NodeId(observer), pid: 7, room: Room::Scarce, stalled: true, memory, ..Default::default() };
        let life = Life { node: NodeId(9), incarnation: Incarnation(term), disk: DiskId(disk) };
        let last = (Term(term), LogIndex(7));
        let attendance = Attendance { disk: DiskId(disk), term: Term(term), last, heard: vec![life] };
        let table = LastHeard { observer, wall: LogTime(wall), nodes, attendance };
        prop_assert_eq!(LastHeard::try_from(wire::LastHeard::from(table.clone())), Ok(table));
    }
}

#[test]
fn messages_without_meaning_are_refused_by_field() {
    let empty = Permit::try_from(wire::Permit::default()).expect_err("no ids");
    assert_eq!((empty.message, empty.field), ("Permit", "group_id"));
    assert!(SessionUp::try_from(wire::SessionUp::default()).is_err());
    assert!(Ended::try_from(wire::Ended::default()).is_err());
    let report = wire::ReplicaReport { group_id: 1, replica: 1, role: 9, ..Default::default() };
    assert_eq!(ReplicaReport::try_from(report).expect_err("role").field, "role");
    let hello = wire::Hello { protocol_version: PROTOCOL_VERSION + 1, ..Default::default() };
    assert_eq!(Hello::try_from(hello).expect_err("newer").field, "protocol_version");
}

#[test]
fn an_exit_notice_survives_the_wire_and_a_keep_alive_is_none() {
    let notice = ExitNotice { node: NodeId(2), incarnation: Incarnation(7), secret: "s".to_owned(), status: -9 };
    let raw = exit_notice_to_wire(ClusterId(5), notice.clone());
    assert_eq!(exit_notice_from_wire(raw.clone()), Ok((ClusterId(5), Some(notice))));
    assert_eq!(exit_notice_from_wire(wire::ExitNoticeRequest { hello_only: true, ..raw }), Ok((ClusterId(5), None)));
}
