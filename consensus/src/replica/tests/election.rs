//! Joint consent: P1, P2, V1–V4, M3.

use quorate_proto::control::{Ended, Role};
use quorate_proto::ids::{GroupId, Incarnation, PermitEpoch, ReplicaId, Term};
use raft::eraftpb::MessageType;

use super::harness::{led, ms, Cluster};
use crate::effect::{Note, ReplicaEffect};
use crate::policy::{Policy, Production};
use crate::replica::Mode;

pub(super) fn released(replica: u64, term: Term) -> Ended {
    Ended::Released { replica: ReplicaId(replica), term }
}

pub(super) fn dead(replica: u64) -> Ended {
    Ended::Dead { replica: ReplicaId(replica), incarnation: Incarnation(1) }
}

#[test]
fn the_own_timer_asks_for_a_permit_and_never_campaigns() {
    let mut cluster = Cluster::<Production>::new(Mode::Governed, 3);
    cluster.run(40_000);
    for id in 1..=3 {
        assert_eq!(cluster.replica(id).role(), Role::Follower);
        assert_eq!(cluster.replica(id).term(), Term(1));
        assert!(cluster.replica(id).report(cluster.now).wants_permit);
        let asked = cluster.take_effects(id).iter().filter(|e| matches!(e, ReplicaEffect::AskPermit)).count();
        assert!((2..=3).contains(&asked), "every 12 to 15 s: {asked}");
    }
}

#[test]
fn a_permit_elects_its_holder_which_serves_once_its_no_op_is_applied_and_its_lease_granted() {
    let mut cluster = Cluster::<Production>::new(Mode::Governed, 3);
    cluster.grant_leases = false;
    cluster.permit(1, 2, &[], true);
    assert_eq!(cluster.leader(), Some(2));
    assert_eq!(cluster.replica(2).won_epoch(), PermitEpoch(1));
    assert!(cluster.serving().is_empty(), "no lease yet");
    cluster.grant();
    assert_eq!(cluster.serving(), [2]);
    cluster.run(300);
    assert_eq!(cluster.replica(3).leader(), Some(ReplicaId(2)));
    assert_eq!(cluster.replica(3).won_epoch(), PermitEpoch(1));
}

#[test]
fn a_dead_leader_is_replaced_at_once_and_a_silent_one_after_f_plus_d() {
    let mut cluster = led::<Production>();
    cluster.run(1000);
    cluster.crash(1);
    cluster.permit(2, 2, &[dead(1)], true);
    assert_eq!(cluster.leader(), Some(2));

    let mut cluster = led::<Production>();
    cluster.run(1000);
    cluster.crash(1);
    cluster.permit(2, 2, &[], false);
    assert_eq!(cluster.leader(), None);
    let took = cluster.run_until("the next leader", 3000, |c| c.leader() == Some(2));
    assert!(took > ms(1100) && took < ms(1400), "{took:?}");
    assert!(cluster.vetoes(2).contains(&"silence"));
}

#[test]
fn the_candidates_own_vote_passes_the_same_gate() {
    let mut cluster = led::<Production>();
    cluster.run(500);
    // Replica 3 would vote: it heard nothing for long. Replica 2 hears the leader and so may not even ask.
    cluster.cut_both(1, 3);
    cluster.run(2000);
    cluster.take_effects(2);
    cluster.permit(2, 2, &[], false);
    cluster.run(1000);
    assert_eq!(cluster.leader(), Some(1));
    assert_eq!(cluster.replica(2).role(), Role::Follower);
    assert!(cluster.vetoes(2).iter().all(|rule| *rule == "silence"));
    assert!(!cluster.vetoes(2).is_empty());
    assert_eq!(cluster.replica(3).term(), cluster.replica(1).term());
}

#[test]
fn a_voter_that_acknowledges_the_leader_vetoes_and_no_term_moves() {
    let mut cluster = led::<Production>();
    let term = cluster.replica(1).term();
    cluster.cut_both(1, 3);
    cluster.run(2000);
    cluster.permit(2, 3, &[], false);
    cluster.run(1000);
    assert_eq!(cluster.serving(), [1]);
    assert!((1..=3).all(|id| cluster.replica(id).term() == term));
    assert!(cluster.vetoes(2).contains(&"silence"));
    assert!(cluster.vetoes(1).is_empty(), "it is cut off from the candidate");
    cluster.cuts.clear();
    cluster.run(200);
    assert_eq!(cluster.serving(), [1]);
}

#[test]
fn a_leader_with_contact_vetoes_and_one_without_resigns_before_it_votes() {
    let mut cluster = led::<Production>();
    cluster.run(500);
    let mut request = vote_request(&cluster, 3, 2, MessageType::MsgRequestPreVote);
    cluster.take_effects(1);
    cluster.hand_over(request.clone());
    assert_eq!(cluster.vetoes(1), ["serving"]);
    let reject = cluster.wire.iter().find(|e| e.message.get_msg_type() == MessageType::MsgRequestPreVoteResponse);
    let reject = reject.expect("a vetoed pre-vote is answered");
    assert!(reject.message.reject && reject.veto_wait.is_some_and(|w| w <= ms(1200)) && reject.last.is_some());

    cluster.wire.clear();
    cluster.isolate(1);
    cluster.run(1300);
    assert_eq!(cluster.replica(1).role(), Role::Leader, "fenced, but within R");
    cluster.take_effects(1);
    cluster.cuts.clear();
    request.stamp = Some(cluster.now);
    cluster.hand_over(request);
    let effects = cluster.take_effects(1);
    let at = |f: &dyn Fn(&ReplicaEffect) -> bool| effects.iter().position(f).expect("it is there");
    let stopped = at(&|e| matches!(e, ReplicaEffect::ServeUntil(until) if until.0 == 0));
    let told = at(&|e| matches!(e, ReplicaEffect::Released { for_fence: true, .. }));
    let voted = at(&|e| {
        matches!(e, ReplicaEffect::Send { envelope, .. }
            if envelope.message.get_msg_type() == MessageType::MsgRequestPreVoteResponse && !envelope.message.reject)
    });
    assert!(stopped < told && told < voted);
}

pub(super) fn vote_request<P: Policy>(
    cluster: &Cluster<P>,
    from: u64,
    epoch: u64,
    kind: MessageType,
) -> crate::envelope::Envelope {
    let replica = cluster.replica(from);
    let mut message = raft::eraftpb::Message::default();
    message.set_msg_type(kind);
    message.from = from;
    message.to = 1;
    message.term = replica.term().0 + 1;
    message.index = replica.last_index().0;
    message.log_term = replica.term_at(replica.last_index()).unwrap().0;
    crate::envelope::Envelope {
        stamp: Some(cluster.now),
        permit: Some(cluster.make_permit(epoch, from, &[], false)),
        ..crate::envelope::Envelope::bare(super::harness::GROUP, Incarnation(1), message)
    }
}

/// V1c. A leader with one follower left restarts that follower; the other one asks it for its vote.
fn restarted_voter<P: Policy>(clear: bool) -> Cluster<P> {
    let mut cluster = led::<P>();
    cluster.cut_both(1, 3);
    cluster.run(2000);
    assert_eq!(cluster.serving(), [1]);
    cluster.crash(2);
    cluster.run(20);
    cluster.start(2).unwrap();
    cluster.cut_both(1, 2);
    cluster.permit(2, 3, &[], clear);
    cluster.run(200);
    cluster
}

#[derive(Clone, Copy, Debug, Default)]
struct NoBootWait;
impl Policy for NoBootWait {
    fn keeps(rule: crate::policy::Rule) -> bool {
        rule != crate::policy::Rule::BootWait
    }
}

#[test]
fn a_restarted_voters_empty_memory_proves_nothing() {
    let mut cluster = restarted_voter::<Production>(false);
    assert_eq!(cluster.serving(), [1]);
    assert!(cluster.vetoes(2).contains(&"boot"));
    cluster.run_until("the boot wait ends", 2000, |c| c.serving() == [3]);

    let cluster = restarted_voter::<NoBootWait>(false);
    assert_eq!(cluster.serving(), [1, 3], "the rule is what prevents this");
}

#[test]
fn a_clear_permit_makes_the_boot_wait_needless() {
    let mut cluster = led::<Production>();
    for id in 1..=3 {
        cluster.crash(id);
    }
    for id in 1..=3 {
        cluster.start(id).unwrap();
    }
    cluster.permit(2, 2, &[dead(1)], true);
    assert_eq!(cluster.leader(), Some(2));
}

#[derive(Clone, Copy, Debug, Default)]
struct ReusablePermit;
impl Policy for ReusablePermit {
    fn keeps(rule: crate::policy::Rule) -> bool {
        rule != crate::policy::Rule::PermitOnce
    }
}

#[test]
fn a_permit_elects_at_most_one_leader() {
    fn resigned<P: Policy>() -> Cluster<P> {
        let mut cluster = Cluster::<P>::new(Mode::Governed, 3);
        cluster.permit(1, 1, &[], true);
        cluster.run(100);
        cluster.act(1, |r, now, out| r.release(now, "test", out));
        cluster.deliver();
        cluster.run(1000);
        cluster
    }
    assert_eq!(resigned::<Production>().leader(), None);
    assert_eq!(resigned::<ReusablePermit>().leader(), Some(1), "the rule is what prevents this");
}

#[test]
fn a_spent_epoch_is_vetoed_also_when_the_voter_never_saw_the_permit() {
    let mut cluster = led::<Production>();
    cluster.run(500);
    let mut request = vote_request(&cluster, 3, 1, MessageType::MsgRequestPreVote);
    request.to = ReplicaId(2);
    request.message.to = 2;
    cluster.take_effects(2);
    cluster.hand_over(request);
    assert_eq!(cluster.vetoes(2), ["spent"]);
}

#[test]
fn a_permit_lapses_five_seconds_after_its_first_receipt() {
    let mut cluster = led::<Production>();
    cluster.isolate(2);
    cluster.crash(1);
    cluster.permit(2, 2, &[dead(1)], true);
    cluster.run(4000);
    let again = cluster.make_permit(2, 2, &[dead(1)], true);
    cluster.act(2, |r, now, out| r.permit(now, again, out));
    cluster.run(1100);
    cluster.cuts.clear();
    cluster.run(1000);
    assert_eq!(cluster.leader(), None);
    cluster.permit(3, 2, &[dead(1)], true);
    assert_eq!(cluster.leader(), Some(2));
}

#[test]
fn only_the_named_replica_of_the_named_incarnation_may_be_voted_for() {
    let mut cluster = led::<Production>();
    cluster.crash(1);
    let mut other = cluster.make_permit(2, 2, &[dead(1)], true);
    other.candidate_incarnation = Incarnation(9);
    cluster.act(2, |r, now, out| r.permit(now, other, out));
    cluster.run(500);
    assert_eq!(cluster.leader(), None);
    let mut request = vote_request(&cluster, 3, 3, MessageType::MsgRequestPreVote);
    request.permit = Some(cluster.make_permit(3, 2, &[dead(1)], true));
    request.to = ReplicaId(2);
    request.message.to = 2;
    cluster.take_effects(2);
    cluster.hand_over(request);
    assert_eq!(cluster.vetoes(2), ["permit"]);
}

#[test]
fn a_vetoed_candidate_tries_again_when_the_veto_ends_and_a_lost_vote_request_is_repeated() {
    let mut cluster = led::<Production>();
    cluster.run(500);
    cluster.crash(1);
    cluster.keep = Some(MessageType::MsgRequestVote);
    cluster.permit(2, 2, &[dead(1)], true);
    assert_eq!(cluster.kept.len(), 2, "one vote request to each");
    let term = cluster.replica(2).term();
    cluster.keep = None;
    cluster.run(60);
    assert_eq!(cluster.leader(), Some(2));
    assert_eq!(cluster.replica(2).term(), term, "repeated, not a new term");
}

#[test]
fn a_slow_flush_of_the_vote_does_not_make_terms_race() {
    let mut cluster = led::<Production>();
    cluster.run(500);
    cluster.crash(1);
    cluster.nodes.get_mut(&2).unwrap().hold_flush = true;
    cluster.permit(2, 2, &[dead(1)], true);
    cluster.run(1000);
    assert_eq!(cluster.replica(2).role(), Role::Candidate);
    let term = cluster.replica(2).term();
    cluster.nodes.get_mut(&2).unwrap().hold_flush = false;
    cluster.flush(2);
    cluster.deliver();
    assert_eq!((cluster.leader(), cluster.replica(2).term()), (Some(2), term));
}

#[test]
fn a_vote_granted_counts_as_acknowledging_the_winner() {
    let mut cluster = led::<Production>();
    cluster.run(500);
    cluster.crash(1);
    cluster.keep = Some(MessageType::MsgRequestVoteResponse);
    cluster.permit(2, 2, &[dead(1)], true);
    cluster.keep = None;
    // Replica 2 has the vote of 3 on the way; 3 must not help to elect itself meanwhile.
    cluster.isolate(2);
    cluster.take_effects(3);
    cluster.permit(3, 3, &[dead(1)], true);
    cluster.run(300);
    assert!(cluster.vetoes(3).contains(&"silence"));
}

#[test]
fn the_winner_counts_contact_from_the_vote_request_it_sent() {
    let mut cluster = Cluster::<Production>::new(Mode::Governed, 3);
    cluster.keep = Some(MessageType::MsgRequestVoteResponse);
    cluster.permit(1, 1, &[], true);
    cluster.keep = None;
    let sent = cluster.now;
    cluster.run(100);
    let answers = std::mem::take(&mut cluster.kept);
    cluster.cuts.extend([(2, 1), (3, 1)]);
    let contact_before = cluster.replica(1).contact(cluster.now);
    assert_eq!(contact_before, None);
    cluster.cuts.clear();
    cluster.keep = Some(MessageType::MsgAppend);
    cluster.hand_over(answers[0].clone());
    let contact = cluster.replica(1).contact(cluster.now).expect("it leads");
    assert!(contact <= sent, "{contact} is not after {sent}");
}

#[test]
fn a_winner_by_votes_that_took_long_does_not_serve_on_them_but_is_given_time_for_contact() {
    let mut cluster = Cluster::<Production>::new(Mode::Governed, 3);
    for id in [2, 3] {
        cluster.nodes.get_mut(&id).unwrap().hold_flush = true;
    }
    cluster.permit(1, 1, &[], true);
    cluster.run(250);
    cluster.keep = Some(MessageType::MsgRequestVoteResponse);
    for id in [2, 3] {
        cluster.nodes.get_mut(&id).unwrap().hold_flush = false;
        cluster.flush(id);
    }
    cluster.deliver();
    let answers = std::mem::take(&mut cluster.kept);
    cluster.keep = Some(MessageType::MsgRequestPreVote);
    cluster.now += ms(2000);
    for answer in answers {
        cluster.hand_over(answer);
    }
    assert_eq!(cluster.leader(), Some(1));
    cluster.act(1, |r, now, out| r.tick(now, out));
    assert!(cluster.serving().is_empty());
    assert_eq!(cluster.leader(), Some(1), "contact is on its way");
    cluster.deliver();
    cluster.run(100);
    assert_eq!(cluster.serving(), [1]);
}

#[test]
fn a_vetoed_candidate_does_not_flood_the_observers_with_reports() {
    let mut cluster = led::<Production>();
    cluster.cut_both(1, 3);
    cluster.run(2000);
    cluster.take_effects(3);
    cluster.permit(2, 3, &[], false);
    cluster.run(2000);
    assert!(cluster.vetoes(2).len() > 20);
    let reports = cluster.take_effects(3).iter().filter(|e| matches!(e, ReplicaEffect::ReportNow)).count();
    assert!(reports <= 2, "{reports}");
}

#[test]
fn what_may_not_be_stepped_is_dropped() {
    let mut cluster = led::<Production>();
    cluster.run(100);
    let sound = vote_request(&cluster, 3, 2, MessageType::MsgHeartbeatResponse);
    let mut wrong_group = sound.clone();
    wrong_group.group = GroupId(8);
    let mut wrong_replica = sound.clone();
    wrong_replica.to = ReplicaId(9);
    let mut forged = sound.clone();
    forged.message.from = 2;
    let mut proposal = sound.clone();
    proposal.message.set_msg_type(MessageType::MsgPropose);
    let mut read = sound.clone();
    read.message.set_msg_type(MessageType::MsgReadIndex);
    let mut time_out = sound.clone();
    time_out.message.set_msg_type(MessageType::MsgTimeoutNow);
    let mut newer = sound.clone();
    newer.from_incarnation = Incarnation(5);
    let all = [wrong_group, wrong_replica, forged, proposal, read, time_out, newer, sound];
    cluster.take_effects(1);
    for envelope in all {
        cluster.act(1, |r, now, out| r.receive(now, envelope, out));
    }
    let dropped = |e| match e {
        ReplicaEffect::Note(Note::Dropped(why)) => Some(why),
        _ => None,
    };
    let dropped: Vec<_> = cluster.take_effects(1).into_iter().filter_map(dropped).collect();
    assert_eq!(dropped, ["group", "replica", "sender", "kind", "kind", "time-out-now", "incarnation"]);
}
