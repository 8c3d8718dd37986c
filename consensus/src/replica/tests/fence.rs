//! The right to serve: C1, C2, F1–F3, L2, L6, B3.

use quorate_proto::control::{Ended, Role};
use quorate_proto::ids::{Incarnation, ReplicaId, Term};
use quorate_proto::time::BootTime;
use raft::eraftpb::MessageType;

use super::harness::{led, ms, Cluster};
use crate::effect::{Note, ReplicaEffect};
use crate::policy::{Policy, Production};
use crate::replica::{Mode, ObserverLoss};

#[derive(Clone, Copy, Debug, Default)]
struct ContactAtReceipt;
impl Policy for ContactAtReceipt {
    fn keeps(rule: crate::policy::Rule) -> bool {
        rule != crate::policy::Rule::ContactStamp
    }
}

/// A heartbeat waits one second on its way; its answer is the only contact that the leader has.
fn late_heartbeat<P: Policy>() -> Cluster<P> {
    let mut cluster = led::<P>();
    cluster.run(500);
    cluster.keep = Some(MessageType::MsgHeartbeat);
    cluster.run(210);
    let late: Vec<_> = cluster.kept.drain(..).filter(|e| e.to.0 == 2).collect();
    cluster.run(1000);
    cluster.kept.clear();
    for envelope in late {
        cluster.hand_over(envelope);
    }
    cluster.deliver();
    cluster.run(300);
    cluster
}

#[test]
fn contact_is_the_stamp_that_was_sent_not_the_time_the_answer_came() {
    let cluster = late_heartbeat::<Production>();
    assert!(cluster.serving().is_empty());
    let cluster = late_heartbeat::<ContactAtReceipt>();
    assert_eq!(cluster.serving(), [1], "the rule is what prevents this");
}

#[test]
fn contact_restored_within_r_reopens_the_fence_without_an_election() {
    let mut cluster = led::<Production>();
    cluster.run(500);
    let term = cluster.replica(1).term();
    cluster.isolate(1);
    cluster.run_until("fenced", 1500, |c| c.serving().is_empty());
    assert!(cluster.replica(1).report(cluster.now).fence_lost);
    cluster.run(100);
    cluster.cuts.clear();
    cluster.run_until("serves again", 400, |c| c.serving() == [1]);
    assert_eq!(cluster.replica(1).term(), term);
}

#[test]
fn a_leader_that_hears_nobody_resigns_tells_everybody_and_is_replaced_at_once() {
    let mut cluster = led::<Production>();
    cluster.run(500);
    let term = cluster.replica(1).term();
    cluster.take_effects(1);
    cluster.cuts.extend([(2, 1), (3, 1)]);
    let took = cluster.run_until("resigned", 2500, |c| c.replica(1).role() != Role::Leader);
    // F + R after the last stamp that came back, which is a heartbeat old at most.
    assert!(took >= ms(1280) && took <= ms(1520), "{took:?}");
    let effects = cluster.take_effects(1);
    assert!(effects.iter().any(|e| matches!(e, ReplicaEffect::Released { term: t, for_fence: true } if *t == term)));
    assert!(effects.iter().any(|e| matches!(e, ReplicaEffect::Note(Note::Resigned("contact")))));
    assert!(cluster.replica(1).report(cluster.now).resigned_for_fence);
    // The others acknowledged it until just now, and vote nevertheless: it told them.
    cluster.permit(2, 2, &[], false);
    assert_eq!(cluster.leader(), Some(2));
    cluster.run(50);
    assert_eq!(cluster.serving(), [2]);
}

#[derive(Clone, Copy, Debug, Default)]
struct NoResign;
impl Policy for NoResign {
    fn keeps(rule: crate::policy::Rule) -> bool {
        rule != crate::policy::Rule::Resign
    }
}

#[test]
fn without_resigning_a_deaf_leader_would_block_every_election() {
    let mut cluster = led::<NoResign>();
    cluster.cuts.extend([(2, 1), (3, 1)]);
    cluster.run(3000);
    cluster.permit(2, 2, &[], false);
    cluster.run(3000);
    assert_eq!(cluster.leader(), Some(1));
    assert!(cluster.serving().is_empty());
}

#[test]
fn a_leader_that_the_observers_cannot_hear_serves_until_its_lease_ends_and_resigns_a_second_later() {
    let mut cluster = led::<Production>();
    cluster.grant_leases = false;
    let took = cluster.run_until("lease ends", 9000, |c| c.serving().is_empty());
    assert!(took > ms(7500) && took <= ms(7800), "{took:?}");
    assert_eq!(cluster.replica(1).role(), Role::Leader);
    let took = cluster.run_until("resigned", 1500, |c| c.replica(1).role() == Role::Follower);
    assert!(took >= ms(900) && took <= ms(1100), "{took:?}");
    assert!(!cluster.replica(1).report(cluster.now).resigned_for_fence);
}

#[test]
fn under_read_index_it_goes_on_without_observers_but_not_without_a_first_lease() {
    let mut cluster = Cluster::<Production>::new(Mode::Governed, 3);
    cluster.loss = ObserverLoss::ReadIndex;
    for id in 1..=3 {
        cluster.crash(id);
        cluster.start(id).unwrap();
    }
    cluster.permit(1, 1, &[], true);
    cluster.run(100);
    assert_eq!(cluster.serving(), [1]);
    cluster.grant_leases = false;
    cluster.run(20_000);
    assert_eq!(cluster.serving(), [1]);
    cluster.crash(1);
    cluster.permit(2, 2, &[Ended::Dead { replica: ReplicaId(1), incarnation: Incarnation(2) }], true);
    cluster.run(900);
    assert_eq!((cluster.leader(), cluster.serving().len()), (Some(2), 0));
    cluster.run(200);
    assert_eq!(cluster.leader(), None);
}

#[test]
fn a_lease_refused_as_superseded_ends_the_leadership_at_once() {
    let mut cluster = led::<Production>();
    let term = cluster.replica(1).term();
    cluster.act(1, |r, now, out| r.lease_superseded(now, Term(term.0 - 1), out));
    assert_eq!(cluster.serving(), [1], "about another term");
    cluster.act(1, |r, now, out| r.lease_superseded(now, term, out));
    assert_eq!((cluster.leader(), cluster.serving().len()), (None, 0));
}

#[test]
fn the_published_word_is_never_later_than_the_rule_and_zero_before_the_role_is_given_up() {
    let mut cluster = led::<Production>();
    for _ in 0..300 {
        cluster.run(10);
        let published = cluster.replica(1).serve_until();
        assert!(published > cluster.now, "it serves without a break");
        assert!(published <= cluster.now + ms(1200));
    }
    cluster.take_effects(1);
    cluster.act(1, |r, now, out| r.release(now, "test", out));
    let effects = cluster.take_effects(1);
    assert!(matches!(effects[0], ReplicaEffect::ServeUntil(BootTime::ZERO)));
    let changed = effects.iter().position(|e| matches!(e, ReplicaEffect::RoleChanged { .. }));
    assert!(changed.is_some_and(|at| at > 0));
}

#[test]
fn a_held_leader_does_not_serve_and_serves_again_when_let_go() {
    let mut cluster = led::<Production>();
    cluster.act(1, |r, now, out| r.hold_serving(now, true, out));
    cluster.run(100);
    assert!(cluster.serving().is_empty());
    assert_eq!(cluster.replica(1).serve_until(), BootTime::ZERO);
    cluster.act(1, |r, now, out| r.hold_serving(now, false, out));
    assert_eq!(cluster.serving(), [1]);
}

#[test]
fn a_poisoned_wal_releases_and_persists_nothing_more() {
    let mut cluster = led::<Production>();
    cluster.take_effects(1);
    cluster.act(1, |r, now, out| r.wal_poisoned(now, out));
    let effects = cluster.take_effects(1);
    assert!(effects.iter().any(|e| matches!(e, ReplicaEffect::Released { .. })));
    cluster.deliver();
    cluster.run(2000);
    let effects = cluster.take_effects(1);
    assert!(effects.is_empty(), "{effects:?}");
    cluster.permit(2, 2, &[], false);
    assert_eq!(cluster.leader(), Some(2), "the release reached the others");
}

#[test]
fn a_deposed_leaders_term_is_released_too() {
    let mut cluster = led::<Production>();
    cluster.run(500);
    let term = cluster.replica(1).term();
    cluster.isolate(1);
    cluster.act(2, |r, _, _| assert_eq!(r.role(), Role::Follower));
    let dead = Ended::Released { replica: ReplicaId(1), term };
    cluster.permit(2, 2, &[dead], false);
    assert_eq!(cluster.replica(2).role(), Role::Leader);
    cluster.take_effects(1);
    cluster.cuts.clear();
    cluster.run(300);
    let effects = cluster.take_effects(1);
    assert!(effects.iter().any(|e| matches!(e, ReplicaEffect::Released { term: t, for_fence: false } if *t == term)));
    assert_eq!(cluster.replica(1).leader(), Some(ReplicaId(2)));
}

#[test]
fn silence_loss_of_fence_and_a_broken_stream_are_reported_at_once() {
    let mut cluster = led::<Production>();
    cluster.run(500);
    cluster.take_effects(2);
    cluster.act(2, |r, now, out| r.peer_lost(now, ReplicaId(1), out));
    let told = |effects: &[ReplicaEffect]| effects.iter().filter(|e| matches!(e, ReplicaEffect::ReportNow)).count();
    assert_eq!(told(&cluster.take_effects(2)), 1);
    cluster.crash(1);
    cluster.run_until("silence", 1500, |c| c.replica(2).report(c.now).leader_silent);
    assert_eq!(told(&cluster.take_effects(2)), 1);
    assert!(!cluster.replica(2).report(cluster.now).hears_quorum);
}
