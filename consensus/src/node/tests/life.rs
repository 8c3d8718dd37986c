//! Session, beats, WAL faults, closing, strangers.

use std::time::Duration;

use quorate_proto::control::{Role, SessionDown, SessionUp};
use quorate_proto::ids::{GroupId, NodeId, ReplicaId};
use quorate_proto::refusal::Reason;
use quorate_proto::time::BootTime;

use super::harness::{assignments, batch, Cluster, GROUP};
use super::host::Job;
use crate::effect::Note;
use crate::node::effect::Observers;
use crate::node::NodeEvent;

#[test]
fn a_session_begins_with_hello_and_a_full_beat_follows() {
    let mut cluster = Cluster::led();
    cluster.nodes.get_mut(&1).expect("a node").told.clear();
    cluster.event(1, NodeEvent::SessionUp(NodeId(102)));
    let (to, first) = cluster.nodes[&1].told.first().expect("told");
    assert!(*to == Observers::One(NodeId(102)) && matches!(first, SessionUp::Hello(_)));
    cluster.settle();
    let beats = cluster.heartbeats(1);
    assert!(!beats[0].partial && beats[0].reports.len() == 1);
    assert!(beats[0].reports[0].serving);
}

#[test]
fn a_beat_needs_its_token_back_through_the_wal_queue() {
    let mut cluster = Cluster::led();
    cluster.advance(1_000);
    let full = |cluster: &Cluster| cluster.heartbeats(2).iter().filter(|beat| !beat.partial).count();
    let before = full(&cluster);
    cluster.advance(1_000);
    assert_eq!(full(&cluster), before + 2, "every 500 ms");
    cluster.nodes.get_mut(&2).expect("a node").hang = true;
    let before = full(&cluster);
    cluster.advance(3_000);
    assert_eq!(full(&cluster), before, "B4: no free-running timer");
}

#[test]
fn a_stalled_wal_stops_serving_releases_and_reports() {
    let mut cluster = Cluster::led();
    cluster.nodes.get_mut(&1).expect("a node").hang = true;
    cluster.nodes.get_mut(&1).expect("a node").told.clear();
    cluster.publish(1, batch(0, 0, 1));
    cluster.advance(1_700);
    assert!(!cluster.serving(1));
    let told = &cluster.nodes[&1].told;
    let stood = told.iter().find_map(|(_, up)| match up {
        SessionUp::Release { group: GROUP, stood, .. } => Some(*stood),
        _ => None,
    });
    assert!(stood.expect("released") > Duration::from_secs(1), "since then it acknowledged nothing: {stood:?}");
    let beats = cluster.heartbeats(1);
    let last = beats.last().expect("reported at once");
    assert!(last.partial && !last.disk_ok && last.wal_age > Duration::from_secs(1));
    cluster.elect(2);
    assert!(cluster.serving(2));
    cluster.nodes.get_mut(&1).expect("a node").hang = false;
    cluster.advance(1_000);
    assert!(cluster.heartbeats(1).last().expect("beats again").disk_ok);
}

#[test]
fn a_paused_process_does_not_take_its_own_pause_for_a_stalled_disk() {
    let mut cluster = Cluster::led();
    cluster.nodes.get_mut(&1).expect("a node").hang = true;
    cluster.advance(500);
    assert!(cluster.nodes[&1].disk.iter().any(|job| matches!(job, Job::Token(_))), "a token is under way");
    // Stopped for 1.1 s; the flush ended meanwhile, but the tick is first in the mailbox.
    cluster.now += Duration::from_millis(1_100);
    cluster.event(1, NodeEvent::Tick);
    assert!(cluster.heartbeats(1).iter().all(|beat| beat.disk_ok));
    cluster.nodes.get_mut(&1).expect("a node").hang = false;
    cluster.settle();
    cluster.advance(500);
    assert!(cluster.heartbeats(1).iter().all(|beat| beat.disk_ok));
}

#[test]
fn a_failed_wal_serves_no_more_and_releases() {
    let mut cluster = Cluster::led();
    let ticket = cluster.publish(1, batch(0, 0, 1));
    cluster.event(1, NodeEvent::WalPoisoned);
    assert!(!cluster.serving(1));
    assert!(cluster.refusal(1, ticket).maybe_applied);
    assert!(cluster.nodes[&1].told.iter().any(|(_, up)| matches!(up, SessionUp::Release { .. })));
    assert!(!cluster.heartbeats(1).last().expect("reported").disk_ok);
    let late = cluster.publish(1, batch(0, 1, 1));
    assert!(!cluster.refusal(1, late).maybe_applied);
}

#[test]
fn a_change_is_reported_at_once() {
    let mut cluster = Cluster::new();
    cluster.nodes.get_mut(&2).expect("a node").told.clear();
    cluster.permit(1);
    cluster.settle();
    let beats = cluster.heartbeats(2);
    let change = beats.iter().find(|beat| beat.partial).expect("without waiting for the beat (P2)");
    assert_eq!(change.reports[0].leader, Some(ReplicaId(11)));
}

#[test]
fn a_closing_node_takes_nothing_new_finishes_and_releases() {
    let mut cluster = Cluster::led();
    let before = cluster.publish(1, batch(0, 0, 1));
    cluster.event(1, NodeEvent::Shutdown);
    let after = cluster.publish(1, batch(0, 1, 1));
    let refusal = cluster.refusal(1, after);
    assert_eq!((refusal.reason, refusal.maybe_applied), (Reason::Handoff, false));
    cluster.settle();
    cluster.receipt(1, before);
    cluster.advance(50);
    assert_eq!(cluster.nodes[&1].core.status(cluster.now).leaders, 0);
    cluster.advance(500);
    assert!(cluster.heartbeats(1).last().expect("beats").draining);
    cluster.elect(2);
    assert!(cluster.serving(2));
}

#[test]
fn a_release_is_told_again_on_every_new_session() {
    let mut cluster = Cluster::led();
    cluster.event(1, NodeEvent::Shutdown);
    cluster.advance(50);
    cluster.nodes.get_mut(&1).expect("a node").told.clear();
    cluster.event(1, NodeEvent::SessionUp(NodeId(103)));
    let again = |(to, up): &(Observers, SessionUp)| {
        *to == Observers::One(NodeId(103)) && matches!(up, SessionUp::Release { group: GROUP, .. })
    };
    assert!(cluster.nodes[&1].told.iter().any(again));
}

#[test]
fn a_release_goes_with_the_beats_for_a_while() {
    let mut cluster = Cluster::led();
    cluster.event(1, NodeEvent::Shutdown);
    cluster.advance(2_000);
    let releases = |cluster: &Cluster| {
        let told = cluster.nodes[&1].told.iter();
        told.filter(|(_, up)| matches!(up, SessionUp::Release { .. })).count()
    };
    assert!(releases(&cluster) >= 4, "the observer leader that heard it may be gone");
    cluster.advance(2_000);
    let by_then = releases(&cluster);
    cluster.advance(5_000);
    assert_eq!(releases(&cluster), by_then);
}

/// Delivers `change`d copies of an append to node 2: none may be stepped, each is answered to where it came from.
fn stale_after(change: impl FnOnce(&mut crate::envelope::Envelope)) {
    let mut cluster = Cluster::led();
    cluster.publish(1, batch(0, 0, 1));
    let (from, to, mut envelope) = cluster.wire.pop_front().expect("an append is under way");
    cluster.wire.clear();
    let log_end = cluster.nodes[&to].core.partition(GROUP, cluster.now).expect("hosted").report.last_index;
    change(&mut envelope);
    let (group, sender, receiver) = (envelope.group, envelope.from, envelope.to);
    cluster.event(to, NodeEvent::Peer { from: NodeId(from), envelope: Box::new(envelope) });
    assert_eq!(cluster.nodes[&to].core.status(cluster.now).counters.strangers, 1);
    let (answerer, asker, answer) = cluster.wire.pop_front().expect("an answer");
    assert_eq!((answerer, asker), (to, from));
    assert!(answer.stale && cluster.wire.is_empty(), "nothing else is sent");
    assert_eq!((answer.group, answer.from, answer.to), (group, receiver, sender));
    let now = cluster.now;
    let report = |cluster: &Cluster, id: u64| cluster.nodes[&id].core.partition(GROUP, now).expect("hosted").report;
    assert_eq!(report(&cluster, to).last_index, log_end, "it was stepped");
    // The answer is noted at the sender; it is no message, and is not answered again.
    let before = report(&cluster, from);
    cluster.event(from, NodeEvent::Peer { from: NodeId(to), envelope: Box::new(answer) });
    assert_eq!(cluster.nodes[&from].core.status(cluster.now).counters.stale_answers, 1);
    assert!(matches!(cluster.nodes[&from].notes.last(), Some(Note::ToldStale { by }) if *by == NodeId(to)));
    assert_eq!(report(&cluster, from), before);
    assert!(cluster.wire.is_empty(), "an answer was answered");
}

#[test]
fn a_message_for_an_unknown_group_is_answered_stale() {
    stale_after(|envelope| envelope.group = GroupId(99));
}

#[test]
fn a_message_for_another_replica_is_answered_stale() {
    stale_after(|envelope| {
        envelope.to = ReplicaId(77);
        envelope.message.to = 77;
    });
}

#[test]
fn a_message_of_a_replica_that_is_no_member_is_answered_stale() {
    stale_after(|envelope| {
        envelope.from = ReplicaId(5);
        envelope.message.from = 5;
    });
}

#[test]
fn a_message_of_an_incarnation_that_is_over_is_answered_stale() {
    stale_after(|envelope| envelope.from_incarnation = quorate_proto::ids::Incarnation(0));
}

#[test]
fn an_assignment_opens_a_replica_once() {
    let mut cluster = Cluster::led();
    for version in [1, 2] {
        cluster.down(1, SessionDown::Assignments(assignments(1, version)));
    }
    assert_eq!(cluster.nodes[&1].opened, [GROUP]);
}

#[test]
fn a_refused_identity_is_fatal() {
    let mut cluster = Cluster::led();
    cluster.down(1, SessionDown::Refused { reason: "busy".into(), fatal: false, raise_above: None });
    assert_eq!(cluster.nodes[&1].fatal, None);
    cluster.down(1, SessionDown::Refused { reason: "foreign disk".into(), fatal: true, raise_above: None });
    assert_eq!(cluster.nodes[&1].fatal.as_deref(), Some("foreign disk"));
}

#[test]
fn the_node_asks_to_be_called_within_half_a_tick() {
    let mut cluster = Cluster::led();
    cluster.advance(100);
    let core = &cluster.nodes[&1].core;
    assert!(core.next_deadline() > BootTime::ZERO);
    assert!(core.next_deadline() <= cluster.now + core.config().timing.tick / 2);
}

#[test]
fn an_entry_that_cannot_be_applied_sets_the_replica_aside() {
    let mut cluster = Cluster::led();
    let ticket = cluster.publish(1, batch(0, 0, 1));
    cluster.settle();
    cluster.receipt(1, ticket);
    let garbage = bytes::Bytes::from_static(b"\xffnot an entry");
    let now = cluster.now;
    let mut out = Vec::new();
    let core = &mut cluster.nodes.get_mut(&1).expect("a node").core;
    core.visit(GROUP, now, &mut out, |partition, turn| {
        partition.replica.propose(turn.now, garbage, &mut partition.effects).expect("it leads");
    });
    let effects = std::mem::take(&mut out);
    cluster.run_effects(1, effects);
    cluster.settle();
    // The others learn of the commit from a next leader, and stop as well.
    cluster.elect(2);
    for id in [1, 2] {
        assert_eq!(cluster.nodes[&id].quarantined.len(), 1, "skipping would diverge");
        assert!(!cluster.serving(id));
        assert_eq!(cluster.nodes[&id].view.role, Role::Quarantined);
        let report = cluster.nodes[&id].core.partition(GROUP, now).expect("still hosted").report;
        assert_eq!(report.role, Role::Quarantined);
    }
    let refused = cluster.publish(1, batch(0, 1, 1));
    assert!(!cluster.refusal(1, refused).maybe_applied);
}

#[test]
fn damaged_records_set_their_replica_aside_and_a_damaged_log_takes_all_leaders_away() {
    let mut cluster = Cluster::led();
    let ticket = cluster.publish(1, batch(0, 0, 1));
    cluster.settle();
    cluster.receipt(1, ticket);
    cluster.event(1, NodeEvent::Damaged { group: GROUP, reason: "a segment".into() });
    assert!(!cluster.serving(1));
    assert_eq!(cluster.nodes[&1].quarantined, ["a segment"]);
    assert_eq!(cluster.heartbeats(1).last().expect("told").reports[0].role, Role::Quarantined);
    cluster.elect(2);
    assert!(cluster.serving(2), "the others go on");

    cluster.nodes.get_mut(&2).expect("a node").told.clear();
    cluster.event(2, NodeEvent::LogDamaged);
    assert!(!cluster.serving(2));
    assert!(cluster.nodes[&2].told.iter().any(|(_, up)| matches!(up, SessionUp::Release { .. })));
    cluster.advance(5_000);
    assert!(!cluster.heartbeats(2).last().expect("beats").disk_ok, "it does not pass");
    let last = cluster.report(2).last_index;
    assert!(last >= cluster.report(3).last_index, "it goes on following");
}
