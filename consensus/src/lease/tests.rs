//! L1–L5 on the observer leader's side, item by item.

use quorate_proto::ids::{ConfigVersion, PartitionNo, PermitEpoch, ReplicaId, Term};

use super::*;
use crate::directory::{CommandKind, Death, DirectoryCommand};
use quorate_proto::control::{Permit, PermitKind};
use quorate_proto::ids::OperationId;
use quorate_proto::time::LogTime;

const LEASE: Duration = Duration::from_secs(8);
const GROUP: GroupId = GroupId(2);

fn apply(directory: &mut Directory, kind: CommandKind) {
    let index = directory.applied().0.next();
    let command = DirectoryCommand { at: LogTime(1), operation: OperationId::NONE, kind };
    directory.apply(index, Term(1), command).result.expect("taken");
}

fn permit(directory: &mut Directory, epoch: u64, node: u64) {
    let candidate = directory.partition(GROUP).and_then(|p| p.replica_on(NodeId(node))).expect("member");
    let permit = Permit {
        group: GROUP,
        epoch: PermitEpoch(epoch),
        candidate,
        candidate_incarnation: Incarnation(1),
        config_version: ConfigVersion(1),
        basis: Vec::new(),
        clear: false,
        kind: PermitKind::Normal,
        planned: None,
    };
    apply(directory, CommandKind::IssuePermits { death: None, permits: vec![permit] });
}

fn item(directory: &Directory, node: u64, term: u64, epoch: u64) -> LeaseItem {
    let replica = directory.partition(GROUP).and_then(|p| p.replica_on(NodeId(node))).expect("member");
    LeaseItem { group: GROUP, replica, term: Term(term), permit_epoch: PermitEpoch(epoch) }
}

fn asker(node: u64) -> Asker {
    Asker { node: NodeId(node), incarnation: Incarnation(1), write_proof: true, permit_pending: false }
}

/// Node 1 leads term 4 by epoch 1, with a full lease.
fn led() -> (Directory, LeaseTable, BootTime) {
    let mut directory = Directory::default();
    directory.apply_test_topic(GROUP, PartitionNo(0));
    permit(&mut directory, 1, 1);
    let mut table = LeaseTable::default();
    let now = BootTime(1_000_000_000_000);
    let first = item(&directory, 1, 4, 1);
    let Judgement::Grant(lease) = table.judge(&directory, asker(1), &first, now) else { panic!("L1: at once") };
    apply(&mut directory, CommandKind::GrantLease { group: GROUP, lease });
    table.extend(GROUP, now, LEASE);
    (directory, table, now)
}

#[test]
fn the_winner_is_granted_at_once_and_its_renewals_whatever_later_permits_exist() {
    let (mut directory, table, now) = led();
    permit(&mut directory, 2, 2);
    let renewal = item(&directory, 1, 4, 1);
    assert_eq!(table.judge(&directory, asker(1), &renewal, now + LEASE / 2), Judgement::Renew);
}

#[test]
fn a_lapsed_lease_is_taken_again_only_while_no_later_permit_is_committed() {
    let (mut directory, table, now) = led();
    let late = now + LEASE;
    let renewal = item(&directory, 1, 4, 1);
    assert!(table.lapsed(GROUP, late));
    assert_eq!(table.judge(&directory, asker(1), &renewal, late), Judgement::Renew);
    let pending = Asker { permit_pending: true, ..asker(1) };
    assert_eq!(table.judge(&directory, pending, &renewal, late), Judgement::NotNow, "a permit is on its way");
    permit(&mut directory, 2, 2);
    assert_eq!(table.judge(&directory, asker(1), &renewal, late), Judgement::Superseded);
}

#[test]
fn an_older_or_released_term_is_superseded_for_good() {
    let (mut directory, table, now) = led();
    permit(&mut directory, 2, 2);
    let winner = item(&directory, 2, 5, 2);
    let Judgement::Grant(lease) = table.judge(&directory, asker(2), &winner, now) else { panic!("greater term") };
    apply(&mut directory, CommandKind::GrantLease { group: GROUP, lease });
    let old = item(&directory, 1, 4, 1);
    assert_eq!(table.judge(&directory, asker(1), &old, now), Judgement::Superseded);
    let replica = winner.replica;
    apply(&mut directory, CommandKind::Release { group: GROUP, replica, term: Term(5), for_fence: false });
    assert_eq!(table.judge(&directory, asker(2), &winner, now), Judgement::Superseded);
}

#[test]
fn no_proof_of_life_no_lease() {
    let (mut directory, table, now) = led();
    let without = Asker { write_proof: false, ..asker(1) };
    let renewal = item(&directory, 1, 4, 1);
    assert_eq!(table.judge(&directory, without, &renewal, now), Judgement::NotNow);
    permit(&mut directory, 2, 2);
    let first = item(&directory, 2, 5, 2);
    assert_eq!(table.judge(&directory, Asker { node: NodeId(2), ..without }, &first, now), Judgement::NotNow);
}

#[test]
fn who_is_dead_unknown_or_no_member_gets_nothing() {
    let (mut directory, table, now) = led();
    let renewal = item(&directory, 1, 4, 1);
    assert_eq!(table.judge(&directory, asker(2), &renewal, now), Judgement::NotNow, "not its replica");
    assert_eq!(table.judge(&directory, asker(9), &renewal, now), Judgement::NotNow);
    let foreign = LeaseItem { replica: ReplicaId(99), ..renewal };
    assert_eq!(table.judge(&directory, asker(1), &foreign, now), Judgement::NotNow);
    let death = Death { node: NodeId(1), incarnation: Incarnation(1), how: String::new() };
    apply(&mut directory, CommandKind::Death(death));
    assert_eq!(table.judge(&directory, asker(1), &renewal, now), Judgement::NotNow);
}

#[test]
fn a_new_observer_leader_treats_all_leases_as_full() {
    let (directory, _, now) = led();
    let mut table = LeaseTable::default();
    assert_eq!(table.remaining(GROUP, now), None);
    table.take_over(&directory, now, LEASE);
    assert_eq!(table.remaining(GROUP, now), Some(LEASE));
    assert!(!table.lapsed(GROUP, now + LEASE / 2));
}
