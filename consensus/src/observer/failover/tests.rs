//! Phases add up whatever is missing or out of order.

use quorate_proto::control::{LastServed, PermitKind};
use quorate_proto::ids::{ConfigVersion, Incarnation, PartitionNo, ReplicaId, Term};

use super::*;
use crate::arbiter::Cause;

const MS: fn(u64) -> Duration = Duration::from_millis;

fn permit(epoch: u64) -> Permit {
    Permit {
        group: GroupId(2),
        epoch: PermitEpoch(epoch),
        candidate: ReplicaId(1),
        candidate_incarnation: Incarnation(1),
        config_version: ConfigVersion(1),
        basis: Vec::new(),
        clear: false,
        kind: PermitKind::Normal,
        planned: None,
    }
}

fn view(started: BootTime) -> ClusterView {
    ClusterView::new(3, &crate::timing::Timing::default(), started)
}

fn finished(failovers: &mut Failovers, directory: &Directory, view: &ClusterView, now: BootTime) -> Vec<Failover> {
    failovers.finished(&Recorder { directory, view, time: LogTime(10_000_000), now })
}

#[test]
fn the_sum_is_the_whole_even_if_the_winning_permit_came_before_the_death() {
    let t = BootTime(1_000_000_000_000);
    let suspicion = Suspicion { cause: Cause::Silence, was: None, since: t, found: t + MS(300) };
    let mut directory = Directory::default();
    directory.apply_test_topic(GroupId(2), PartitionNo(0));
    let mut failovers = Failovers::default();
    failovers.permit(&permit(1), suspicion, &directory, t + MS(310));
    failovers.death(GroupId(2), suspicion, &directory, t + MS(400));
    failovers.permit(&permit(2), suspicion, &directory, t + MS(405));
    let lease = Lease { replica: ReplicaId(1), term: Term(3), epoch: PermitEpoch(1), incarnation: Incarnation(1) };
    failovers.lease(GroupId(2), NodeId(1), lease, DirectoryVersion(9), t + MS(420));
    failovers.routes_pushed(DirectoryVersion(8), t + MS(421));
    let marks = ElectionMarks {
        group: GroupId(2),
        term: Term(3),
        permit_epoch: PermitEpoch(1),
        elected: MS(100),
        noop_committed: MS(105),
        lease: MS(112),
        first_ack: MS(130),
        served: None,
    };
    failovers.marks(marks);
    let progress = failovers.progress[&GroupId(2)].clone();
    assert!(progress.routes.is_none(), "an older version does not count");
    failovers.routes_pushed(DirectoryVersion(9), t + MS(422));
    let records = finished(&mut failovers, &directory, &view(t), t + MS(500));
    let [record] = records.as_slice() else { panic!("one record") };
    let sum: u64 = record.phases.iter().map(|p| p.duration_us).sum();
    assert_eq!(sum, 440_000, "{:?}", record.phases);
    assert_eq!(record.at_us, 9_500_000);
    assert_eq!(record.phases[2].duration_us, 0, "the permit came before the death");
}

#[test]
fn a_permit_after_which_the_old_leader_goes_on_is_recorded_as_withdrawn_once_it_cannot_elect_any_more() {
    let t = BootTime(1_000_000_000_000);
    let mut directory = Directory::default();
    directory.apply_test_topic(GroupId(2), PartitionNo(0));
    let node = directory.partition(GroupId(2)).expect("there").replicas[0].1;
    let was = Some(crate::arbiter::Leader { node, replica: ReplicaId(1), term: Term(3) });
    let suspicion = Suspicion { cause: Cause::Silence, was, since: t, found: t + MS(1_500) };
    let mut view = view(t);
    let mut failovers = Failovers::default();
    failovers.permit(&permit(1), suspicion, &directory, t + MS(1_510));
    view.session_opened(node, Incarnation(1), quorate_proto::ids::Ticket(1), t + MS(1_600));
    failovers.withdraw(GroupId(2), t + MS(1_600));
    assert!(finished(&mut failovers, &directory, &view, t + MS(6_000)).is_empty(), "its permit may still elect");
    let at = t + MS(1_600) + PATIENCE;
    view.heartbeat(node, quorate_proto::control::Heartbeat::default(), at);
    let records = finished(&mut failovers, &directory, &view, at);
    let [record] = records.as_slice() else { panic!("one record") };
    assert!(record.withdrawn && record.new_term == 3 && record.new_leader_node == node.get(), "{record:?}");
    assert_eq!(record.old_process, "alive");
    let sum: u64 = record.phases.iter().map(|p| p.duration_us).sum();
    assert_eq!(sum, 1_600_000, "{:?}", record.phases);
    assert!(finished(&mut failovers, &directory, &view, at + PATIENCE).is_empty(), "once");
}

#[test]
fn a_permit_that_elects_after_all_is_a_failover_and_the_next_suspicion_begins_anew() {
    let t = BootTime(1_000_000_000_000);
    let mut directory = Directory::default();
    directory.apply_test_topic(GroupId(2), PartitionNo(0));
    let suspicion = Suspicion { cause: Cause::Silence, was: None, since: t, found: t + MS(300) };
    let mut failovers = Failovers::default();
    failovers.permit(&permit(1), suspicion, &directory, t + MS(310));
    failovers.withdraw(GroupId(2), t + MS(320));
    let later = Suspicion { since: t + MS(60_000), found: t + MS(60_300), ..suspicion };
    failovers.permit(&permit(2), later, &directory, t + MS(60_310));
    let progress = &failovers.progress[&GroupId(2)];
    assert_eq!((progress.suspicion.since, progress.withdrawn), (later.since, None), "nothing of the first one is left");
    let records = finished(&mut failovers, &directory, &view(t), t + MS(60_311));
    assert!(matches!(records.as_slice(), [record] if record.withdrawn), "the first one is on record: {records:?}");
    let lease = Lease { replica: ReplicaId(1), term: Term(4), epoch: PermitEpoch(2), incarnation: Incarnation(1) };
    failovers.lease(GroupId(2), NodeId(1), lease, DirectoryVersion(9), t + MS(60_320));
    failovers.withdraw(GroupId(2), t + MS(60_330));
    let records = finished(&mut failovers, &directory, &view(t), t + MS(60_320) + PATIENCE);
    assert!(matches!(records.as_slice(), [record] if !record.withdrawn && record.new_term == 4), "{records:?}");
}

/// The target of a planned handoff serves on the lease that its permit carries: its first acknowledgement may be told
/// before its own lease is applied.
#[test]
fn marks_that_come_before_the_lease_are_kept() {
    let t = BootTime(1_000_000_000_000);
    let mut directory = Directory::default();
    directory.apply_test_topic(GroupId(2), PartitionNo(0));
    let suspicion = Suspicion { cause: Cause::Handoff, was: None, since: t, found: t };
    let mut failovers = Failovers::default();
    failovers.permit(&permit(7), suspicion, &directory, t);
    let marks = |term, epoch| ElectionMarks {
        group: GroupId(2),
        term: Term(term),
        permit_epoch: PermitEpoch(epoch),
        elected: MS(6),
        noop_committed: MS(10),
        lease: MS(0),
        first_ack: MS(13),
        served: None,
    };
    failovers.marks(marks(3, 6));
    failovers.marks(marks(4, 7));
    failovers.marks(marks(3, 6));
    assert!(finished(&mut failovers, &directory, &view(t), t + MS(14)).is_empty(), "nobody holds a lease yet");
    let lease = Lease { replica: ReplicaId(1), term: Term(4), epoch: PermitEpoch(7), incarnation: Incarnation(1) };
    failovers.lease(GroupId(2), NodeId(1), lease, DirectoryVersion(9), t + MS(20));
    failovers.routes_pushed(DirectoryVersion(9), t + MS(20));
    let records = finished(&mut failovers, &directory, &view(t), t + MS(21));
    let [record] = records.as_slice() else { panic!("one record: {records:?}") };
    let named = |name: &str| record.phases.iter().find(|p| p.name == name).map(|p| p.duration_us);
    assert_eq!((named("elected"), named("first_acknowledgement")), (Some(6_000), Some(3_000)), "{:?}", record.phases);
}

#[test]
fn a_failover_that_the_next_one_overtakes_is_recorded_all_the_same() {
    let t = BootTime(1_000_000_000_000);
    let mut directory = Directory::default();
    directory.apply_test_topic(GroupId(2), PartitionNo(0));
    let first = Suspicion { cause: Cause::Handoff, was: None, since: t, found: t };
    let mut failovers = Failovers::default();
    failovers.permit(&permit(7), first, &directory, t);
    let lease = Lease { replica: ReplicaId(1), term: Term(4), epoch: PermitEpoch(7), incarnation: Incarnation(1) };
    failovers.lease(GroupId(2), NodeId(1), lease, DirectoryVersion(9), t + MS(20));
    let next = Suspicion { since: t + MS(900), found: t + MS(900), ..first };
    failovers.permit(&permit(8), next, &directory, t + MS(900));
    let records = finished(&mut failovers, &directory, &view(t), t + MS(901));
    assert!(matches!(records.as_slice(), [record] if record.new_term == 4), "{records:?}");
}

/// Where the record of a failover begins: `since` is the last sign of the old leader, 400 ms before the permit.
#[test]
fn a_failover_begins_when_the_old_leader_last_served() {
    let t = BootTime(1_000_000_000_000);
    let began = |cause: Cause, last_us: i64, waited: bool| {
        let suspicion = Suspicion { cause, was: None, since: t, found: t + MS(390) };
        let mut directory = Directory::default();
        directory.apply_test_topic(GroupId(2), PartitionNo(0));
        let mut failovers = Failovers::default();
        failovers.permit(&permit(1), suspicion, &directory, t + MS(400));
        let lease = Lease { replica: ReplicaId(1), term: Term(3), epoch: PermitEpoch(1), incarnation: Incarnation(1) };
        failovers.lease(GroupId(2), NodeId(1), lease, DirectoryVersion(9), t + MS(410));
        failovers.routes_pushed(DirectoryVersion(9), t + MS(410));
        failovers.marks(ElectionMarks {
            group: GroupId(2),
            term: Term(3),
            permit_epoch: PermitEpoch(1),
            elected: MS(5),
            noop_committed: MS(7),
            lease: MS(10),
            first_ack: MS(20),
            served: Some(LastServed { last_us, waited }),
        });
        let records = finished(&mut failovers, &directory, &view(t), t + MS(500));
        let [record] = records.as_slice() else { panic!("one record: {records:?}") };
        let sum: u64 = record.phases.iter().map(|p| p.duration_us).sum();
        assert_eq!(record.at_us, 10_000_000 - 80_000 - i64::try_from(sum).expect("short"), "{record:?}");
        sum / 1_000
    };
    assert_eq!(began(Cause::Silence, -300_000, false), 320, "it served after its last heartbeat");
    assert_eq!(began(Cause::Silence, -450_000, false), 420, "nobody published for a while");
    assert_eq!(began(Cause::Unheard, -900_000, true), 920, "publishes waited although it was heard");
    assert_eq!(began(Cause::Unheard, -650_000, false), 670, "it was heard for 230 ms after it heard nothing any more");
    assert_eq!(began(Cause::Handoff, 3_000, false), 17, "it served until after the permit");
    assert_eq!(began(Cause::ExitNotice, -470_000, false), 490, "its session broke when it had been dead for 70 ms");
    assert_eq!(began(Cause::ExitNotice, -900_000, false), 420, "it had nothing to do");
    assert_eq!(began(Cause::Released, -1_700_000, false), 1_720, "its fence had been closed");
    assert_eq!(began(Cause::Disk, -300_000, true), 420, "its followers commit what it cannot flush");
}
