//! Phases add up whatever is missing or out of order.

use quorate_proto::control::PermitKind;
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

#[test]
fn the_sum_is_the_whole_even_if_the_winning_permit_came_before_the_death() {
    let t = BootTime(1_000_000_000_000);
    let suspicion = Suspicion { cause: Cause::Silence, was: None, since: t, found: t + MS(300) };
    let mut failovers = Failovers::default();
    failovers.permit(&permit(1), suspicion, t + MS(310));
    failovers.death(GroupId(2), suspicion, t + MS(400));
    failovers.permit(&permit(2), suspicion, t + MS(405));
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
    };
    failovers.marks(marks);
    let progress = failovers.progress[&GroupId(2)].clone();
    assert!(progress.routes.is_none(), "an older version does not count");
    failovers.routes_pushed(DirectoryVersion(9), t + MS(422));
    let mut directory = Directory::default();
    directory.apply_test_topic(GroupId(2), PartitionNo(0));
    let records = failovers.finished(&directory, LogTime(10_000_000), t + MS(500));
    let [record] = records.as_slice() else { panic!("one record") };
    let sum: u64 = record.phases.iter().map(|p| p.duration_us).sum();
    assert_eq!(sum, 440_000, "{:?}", record.phases);
    assert_eq!(record.at_us, 9_500_000);
    assert_eq!(record.phases[2].duration_us, 0, "the permit came before the death");
}
