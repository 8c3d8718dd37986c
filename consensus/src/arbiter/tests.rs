//! S1 and P2, fact by fact.

use std::collections::BTreeSet;

use quorate_proto::control::{Attendance, Heartbeat, LastHeard, ObserverInfo, PermitKind, ReplicaReport, Role, Room};
use quorate_proto::ids::{LogIndex, PartitionNo, Ticket};
use quorate_proto::time::LogTime;

use super::*;
use crate::directory::{CommandKind, Directory, DirectoryCommand};
use crate::lease::LeaseTable;

const GROUP: GroupId = GroupId(2);
const MS: fn(u64) -> Duration = Duration::from_millis;

struct Stage {
    directory: Directory,
    view: ClusterView,
    leases: LeaseTable,
    timing: Timing,
    now: BootTime,
}

impl Stage {
    /// Three nodes with a session and a follower's report each; the partition was permitted once.
    fn new() -> Self {
        let mut directory = Directory::default();
        directory.apply_test_topic(GROUP, PartitionNo(0));
        let timing = Timing::default();
        let now = BootTime(1_000_000_000_000);
        let view = ClusterView::new(3, &timing, now);
        let mut stage = Self { directory, view, leases: LeaseTable::default(), timing, now };
        for node in 1..=3 {
            stage.view.session_opened(NodeId(node), Incarnation(1), Ticket(node), now);
            stage.report(node, |_| {});
        }
        stage
    }

    fn replica(&self, node: u64) -> ReplicaId {
        self.directory.partition(GROUP).and_then(|p| p.replica_on(NodeId(node))).expect("member")
    }

    fn report(&mut self, node: u64, change: impl FnOnce(&mut ReplicaReport)) {
        let mut report = ReplicaReport {
            group: GROUP,
            replica: self.replica(node),
            term: Term(3),
            last_term: Term(3),
            last_index: LogIndex(10),
            hears_quorum: true,
            ..ReplicaReport::default()
        };
        change(&mut report);
        let beat = Heartbeat { disk_ok: true, reports: vec![report], ..Heartbeat::default() };
        self.view.heartbeat(NodeId(node), beat, self.now);
    }

    fn scene(&self) -> Scene<'_> {
        Scene {
            directory: &self.directory,
            view: &self.view,
            leases: &self.leases,
            timing: &self.timing,
            now: self.now,
            failed_last: true,
        }
    }

    fn choice(&self, failed: &[u64]) -> Option<u64> {
        let failed: Vec<ReplicaId> = failed.iter().map(|n| self.replica(*n)).collect();
        let partition = self.directory.partition(GROUP).expect("there");
        let permit = choose(&self.scene(), partition, None, |r| failed.contains(&r))?;
        partition.node_of(permit.candidate).map(NodeId::get)
    }

    fn leads(&mut self, node: u64) {
        let replica = self.replica(node);
        for other in 1..=3 {
            self.report(other, |r| {
                r.leader = Some(replica);
                r.role = if other == node { Role::Leader } else { Role::Follower };
                r.serving = other == node;
            });
        }
    }

    /// A permit and a lease of this node are on record.
    fn leases_to(&mut self, node: u64, term: Term) {
        let replica = self.replica(node);
        let permit = choose(&self.scene(), self.directory.partition(GROUP).expect("there"), None, |_| false);
        let permit = Permit { candidate: replica, ..permit.expect("three candidates") };
        let lease = crate::directory::Lease { replica, term, epoch: PermitEpoch(1), incarnation: Incarnation(1) };
        for kind in [
            CommandKind::IssuePermits { death: None, permits: vec![permit] },
            CommandKind::GrantLease { group: GROUP, lease },
        ] {
            let index = self.directory.applied().0.next();
            let command = DirectoryCommand { at: LogTime(1), operation: quorate_proto::ids::OperationId::NONE, kind };
            self.directory.apply(index, Term(1), command).result.expect("taken");
        }
    }

    fn health(&self) -> Health {
        let now = self.now;
        assess(&self.scene(), self.directory.partition(GROUP).expect("there"), |_| now)
    }

    fn cause(&self) -> Option<Cause> {
        match self.health() {
            Health::Leaderless { cause, .. } => Some(cause),
            _ => None,
        }
    }

    fn table(&mut self, observer: u64, ages: &[(u64, u64)]) {
        let nodes = ages.iter().map(|(n, age)| (NodeId(*n), Incarnation(1), MS(*age))).collect();
        let observer = ObserverInfo { node: NodeId(observer), ..ObserverInfo::default() };
        let table = LastHeard { observer, wall: LogTime(1), nodes, attendance: Attendance::default() };
        self.view.table(table, self.now);
    }
}

#[test]
fn candidates_are_ordered_by_quorum_term_failure_index_and_place() {
    let mut stage = Stage::new();
    let preferred = stage.directory.partition(GROUP).expect("there").replicas[0].1.get();
    assert_eq!(stage.choice(&[]), Some(preferred), "all equal: the preferred one");
    stage.report(3, |r| r.last_index = LogIndex(11));
    assert_eq!(stage.choice(&[]), Some(3), "longer log");
    assert_ne!(stage.choice(&[3]), Some(3), "but not if its permit ran out");
    stage.report(3, |r| {
        r.last_index = LogIndex(11);
        r.resigned_for_fence = true;
    });
    assert_ne!(stage.choice(&[]), Some(3), "nor if it resigned for a lost fence");
    stage.report(2, |r| r.last_term = Term(4));
    assert_eq!(stage.choice(&[2]), Some(2), "a greater last term goes before that");
    stage.report(2, |r| {
        r.last_term = Term(4);
        r.hears_quorum = false;
    });
    assert_ne!(stage.choice(&[]), Some(2), "one that hears no quorum comes last");
}

#[test]
fn stale_suspect_or_damaged_replicas_are_no_candidates() {
    let mut stage = Stage::new();
    stage.report(1, |r| r.suspect_log = true);
    stage.report(2, |r| r.role = Role::Quarantined);
    assert_eq!(stage.choice(&[]), Some(3));
    stage.now += MS(701);
    assert_eq!(stage.choice(&[]), None, "older than 700 ms");
    stage.report(3, |_| {});
    assert_eq!(stage.choice(&[]), Some(3));
    let beat = Heartbeat { disk_ok: false, partial: true, ..Heartbeat::default() };
    stage.view.heartbeat(NodeId(3), beat, stage.now);
    assert_eq!(stage.choice(&[]), None, "its disk fails");
}

#[test]
fn a_serving_leader_is_healthy() {
    let mut stage = Stage::new();
    stage.leads(2);
    assert!(matches!(stage.health(), Health::Led(leader) if leader.node == NodeId(2)));
}

#[test]
fn each_cause_of_suspicion_counts_by_itself() {
    let mut stage = Stage::new();
    stage.leads(2);
    let leader = stage.replica(2);
    stage.report(2, |r| {
        r.role = Role::Leader;
        r.fence_lost = true;
    });
    assert_eq!(stage.cause(), Some(Cause::FenceLost));
    stage.leads(2);
    stage.report(1, |r| {
        r.leader = Some(leader);
        r.leader_silent = true;
    });
    assert_eq!(stage.cause(), None, "one silent follower is no majority");
    stage.report(3, |r| {
        r.leader = Some(leader);
        r.leader_silent = true;
    });
    assert_eq!(stage.cause(), Some(Cause::Unheard));
    stage.leads(2);
    let stalled = Heartbeat { disk_ok: true, wal_age: MS(1_001), partial: true, ..Heartbeat::default() };
    stage.view.heartbeat(NodeId(2), stalled, stage.now);
    assert_eq!(stage.cause(), Some(Cause::Disk));
    stage.leads(2);
    let draining = Heartbeat { disk_ok: true, draining: true, partial: true, ..Heartbeat::default() };
    stage.view.heartbeat(NodeId(2), draining, stage.now);
    assert_eq!(stage.cause(), None, "it goes on until it has handed over");
}

#[test]
fn a_node_is_suspect_when_a_majority_of_all_observers_missed_three_beats() {
    let mut stage = Stage::new();
    stage.leads(2);
    stage.now += MS(1_600);
    assert!(!stage.view.suspect(NodeId(2), stage.now), "this observer alone");
    stage.table(102, &[(2, 1_500)]);
    assert!(stage.view.suspect(NodeId(2), stage.now));
    stage.table(102, &[(2, 300)]);
    assert!(!stage.view.suspect(NodeId(2), stage.now), "another one hears it");
    stage.table(102, &[(2, 1_499)]);
    assert!(!stage.view.suspect(NodeId(2), stage.now), "not yet");
    stage.now += MS(1);
    assert!(stage.view.suspect(NodeId(2), stage.now), "a table ages with its reader's clock");
    stage.now += MS(10_000);
    assert!(!stage.view.suspect(NodeId(2), stage.now), "an old table says nothing");
}

#[test]
fn a_lease_holder_that_this_observer_has_not_heard_yet_is_waited_for() {
    let mut stage = Stage::new();
    stage.leases_to(2, Term(4));
    stage.view = ClusterView::new(3, &stage.timing, stage.now);
    assert_eq!(stage.health(), Health::Unknown);
    stage.now += MS(1_600);
    stage.table(102, &[(2, 100)]);
    stage.table(103, &[(2, 100)]);
    assert_eq!(stage.health(), Health::Unknown, "others hear it");
    stage.table(102, &[(2, 1_600)]);
    assert_eq!(stage.cause(), Some(Cause::Silence));
}

#[test]
fn permits_for_one_partition_are_paced_and_reset_by_events() {
    let mut stage = Stage::new();
    let mut arbiter = Arbiter::default();
    let mut issued = Vec::new();
    let start = stage.now;
    let run = |arbiter: &mut Arbiter, stage: &mut Stage, issued: &mut Vec<Duration>, until: u64| {
        while stage.now.since(start) < MS(until) {
            stage.now += MS(10);
            for node in 1..=3 {
                stage.report(node, |_| {});
            }
            let permit = {
                let partition = stage.directory.partition(GROUP).expect("there");
                arbiter.examine(&stage.scene(), partition)
            };
            if let Some(permit) = permit {
                let index = stage.directory.applied().0.next();
                let kind = CommandKind::IssuePermits { death: None, permits: vec![permit] };
                let command =
                    DirectoryCommand { at: LogTime(1), operation: quorate_proto::ids::OperationId::NONE, kind };
                stage.directory.apply(index, Term(1), command).result.expect("taken");
                let newest = stage.directory.partition(GROUP).and_then(|p| p.newest.clone()).expect("issued");
                arbiter.issued(&newest, &stage.timing, stage.now);
                issued.push(stage.now.since(start));
            }
        }
    };
    run(&mut arbiter, &mut stage, &mut issued, 9_000);
    let gaps: Vec<u128> = issued.windows(2).map(|w| (w[1] - w[0]).as_millis()).collect();
    assert_eq!(issued[0], MS(10), "the first at once");
    assert!(gaps[0] >= 500 && gaps[1] >= 1_000 && gaps[2..].iter().all(|g| *g >= 2_000), "{gaps:?}");
    arbiter.event(GROUP);
    let before = issued.len();
    run(&mut arbiter, &mut stage, &mut issued, 10_000);
    assert!(issued.len() > before, "an event brings the next one within 500 ms of the last");
    let candidates: BTreeSet<u64> = (1..=3).collect();
    assert!(candidates.contains(&stage.choice(&[]).expect("there")));
}

#[test]
fn a_decision_on_its_way_is_not_undone_by_an_older_report() {
    let mut stage = Stage::new();
    stage.leads(2);
    let mut arbiter = Arbiter::default();
    let hit = arbiter.examine_death(&stage.scene(), NodeId(2), Incarnation(1));
    assert!(matches!(hit.as_slice(), [(GROUP, Some(_))]), "{hit:?}");
    arbiter.set_pending([GROUP], true);
    // The death is not applied yet, so the last report of the dead leader still counts as a leader's.
    let partition = stage.directory.partition(GROUP).expect("there");
    assert_eq!(arbiter.examine(&stage.scene(), partition), None);
    assert_eq!(arbiter.suspicion(GROUP).map(|s| s.cause), Some(Cause::ExitNotice));
}

#[test]
fn a_partition_without_leader_has_been_without_since_it_was_last_served() {
    let mut stage = Stage::new();
    stage.leads(2);
    let served = stage.now;
    stage.now += MS(100);
    stage.report(2, |_| {});
    assert_eq!(stage.view.last_served(GROUP), Some(stage.now), "the end of serving is reported at once");
    stage.now += MS(400);
    stage.report(2, |_| {});
    assert_eq!(stage.view.last_served(GROUP), Some(served + MS(100)));
}

#[test]
fn a_hanging_flush_is_the_cause_also_before_the_release_is_logged() {
    let mut stage = Stage::new();
    stage.leases_to(2, Term(4));
    stage.report(2, |r| r.term = Term(4));
    assert_eq!(stage.cause(), Some(Cause::NoLeader), "it says that it leads no more");
    let since = stage.now - MS(1_050);
    stage.view.hung(GROUP, Term(3), since);
    assert_eq!(stage.cause(), Some(Cause::NoLeader), "that was another leadership");
    stage.view.hung(GROUP, Term(4), since);
    let Health::Leaderless { cause: Cause::Disk, since: began, .. } = stage.health() else {
        panic!("{:?}", stage.health())
    };
    assert_eq!(began, since);
}

#[test]
fn draining_nodes_do_not_pass_a_partition_around() {
    let mut stage = Stage::new();
    let draining = Heartbeat { disk_ok: true, draining: true, partial: true, ..Heartbeat::default() };
    for node in 1..=3 {
        stage.view.heartbeat(NodeId(node), draining.clone(), stage.now);
    }
    let mut arbiter = Arbiter::default();
    let first = arbiter.examine(&stage.scene(), stage.directory.partition(GROUP).expect("there"));
    arbiter.issued(&first.expect("somebody must lead"), &stage.timing, stage.now);
    arbiter.urge(GROUP);
    stage.now += MS(10);
    let partition = stage.directory.partition(GROUP).expect("there");
    assert_eq!(arbiter.examine(&stage.scene(), partition), None, "it would be released again at once");
    stage.now += MS(490);
    let partition = stage.directory.partition(GROUP).expect("there");
    assert!(arbiter.examine(&stage.scene(), partition).is_some());
}

impl Stage {
    fn attendance(&self) -> Option<(u64, PermitKind)> {
        let partition = self.directory.partition(GROUP).expect("there");
        let permit = full_attendance(&self.scene(), partition)?;
        Some((partition.node_of(permit.candidate).map(NodeId::get)?, permit.kind))
    }
}

#[test]
fn when_too_few_logs_may_vote_the_longest_of_all_three_is_permitted() {
    let mut stage = Stage::new();
    stage.report(1, |r| r.suspect_log = true);
    assert_eq!(stage.attendance(), None, "two sound logs elect by themselves");
    stage.report(2, |r| {
        r.suspect_log = true;
        r.last_index = LogIndex(12);
    });
    assert_eq!(stage.attendance(), Some((2, PermitKind::FullAttendance)));
    stage.report(3, |r| r.last_term = Term(4));
    assert_eq!(stage.attendance(), Some((3, PermitKind::FullAttendance)), "a later term is longer than any index");
}

#[test]
fn full_attendance_wants_all_three_logs_fresh_and_whole() {
    let two_suspect = || {
        let mut stage = Stage::new();
        stage.report(1, |r| r.suspect_log = true);
        stage.report(2, |r| r.suspect_log = true);
        assert!(stage.attendance().is_some());
        stage
    };
    let mut stage = two_suspect();
    stage.report(3, |r| r.role = Role::Quarantined);
    assert_eq!(stage.attendance(), None, "one log is set aside");
    let mut stage = two_suspect();
    stage.view.session_closed(NodeId(3), Ticket(3), stage.now);
    assert_eq!(stage.attendance(), None, "one node is away");
    let mut stage = two_suspect();
    stage.now = stage.now + stage.timing.report_age + MS(1);
    assert_eq!(stage.attendance(), None, "old reports say nothing of the logs of now");
}

#[test]
fn what_no_attendance_can_mend_is_stuck_until_all_logs_are_there() {
    let mut stage = Stage::new();
    let mut arbiter = Arbiter::default();
    let first =
        arbiter.examine(&stage.scene(), stage.directory.partition(GROUP).expect("there")).expect("a first permit");
    let kind = CommandKind::IssuePermits { death: None, permits: vec![first] };
    let command = DirectoryCommand { at: LogTime(1), operation: quorate_proto::ids::OperationId::NONE, kind };
    let index = stage.directory.applied().0.next();
    stage.directory.apply(index, Term(1), command).result.expect("taken");
    let examine = |stage: &Stage, arbiter: &mut Arbiter| {
        let partition = stage.directory.partition(GROUP).expect("there");
        let _ = arbiter.examine(&stage.scene(), partition);
        arbiter.stuck_for(GROUP, stage.now)
    };
    assert_eq!(examine(&stage, &mut arbiter), None, "three sound logs");
    stage.view.session_closed(NodeId(3), Ticket(3), stage.now);
    stage.report(1, |r| r.suspect_log = true);
    assert_eq!(examine(&stage, &mut arbiter), Some(Duration::ZERO), "one sound log of three, and one is away");
    stage.now += MS(300);
    assert_eq!(examine(&stage, &mut arbiter), Some(MS(300)));
    stage.view.session_opened(NodeId(3), Incarnation(1), Ticket(33), stage.now);
    for node in 1..=3 {
        stage.report(node, |r| r.suspect_log = node == 1);
    }
    assert_eq!(examine(&stage, &mut arbiter), None);
}

#[test]
fn a_node_with_little_room_gets_no_leaders_and_gives_its_own_away() {
    let mut stage = Stage::new();
    let preferred = stage.directory.partition(GROUP).expect("there").replicas[0].1.get();
    let scarce = |stage: &mut Stage, node: u64| {
        let beat = Heartbeat { disk_ok: true, room: Room::Scarce, partial: true, ..Heartbeat::default() };
        stage.view.heartbeat(NodeId(node), beat, stage.now);
    };
    scarce(&mut stage, preferred);
    let other = stage.choice(&[]).expect("somebody");
    assert_ne!(other, preferred);
    let third = (1..=3).find(|node| ![preferred, other].contains(node)).expect("three nodes");
    scarce(&mut stage, other);
    assert_eq!(stage.choice(&[]), Some(third), "even if its log is a little shorter");
    assert_ne!(stage.choice(&[third]), Some(third), "but not for ever, if it cannot win");
    scarce(&mut stage, third);
    assert_eq!(stage.choice(&[]), Some(preferred), "with little room everywhere somebody leads all the same");
}
