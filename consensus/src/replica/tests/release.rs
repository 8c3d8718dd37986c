//! H1, F3: what a release ends, and where it may be taken from.

use quorate_proto::ids::ReplicaId;
use raft::eraftpb::MessageType;

use super::election::{dead, released, vote_request};
use super::harness::led;
use crate::effect::{Note, ReplicaEffect};
use crate::policy::Production;

#[test]
fn a_release_is_taken_from_the_leader_itself_or_with_a_vote_request_and_a_death_only_from_a_permit() {
    let mut cluster = led::<Production>();
    cluster.run(500);
    let term = cluster.replica(1).term();
    let mut gossip = vote_request(&cluster, 3, 2, MessageType::MsgHeartbeatResponse);
    gossip.to = ReplicaId(2);
    gossip.message.to = 2;
    gossip.message.term = term.0;
    gossip.ended = vec![released(1, term), dead(1)];
    cluster.hand_over(gossip.clone());
    assert_eq!(cluster.replica(2).leader(), Some(ReplicaId(1)), "hearsay");
    gossip.message.set_msg_type(MessageType::MsgRequestPreVote);
    gossip.message.term = term.0 + 1;
    gossip.ended = vec![dead(1)];
    cluster.hand_over(gossip.clone());
    assert_eq!(cluster.replica(2).leader(), Some(ReplicaId(1)), "a death only from a permit");
    gossip.ended = vec![released(1, term)];
    cluster.hand_over(gossip);
    assert_eq!(cluster.replica(2).leader(), None);
}

#[test]
fn a_released_or_dead_leaders_late_messages_are_not_followed() {
    let mut cluster = led::<Production>();
    cluster.run(500);
    cluster.keep = Some(MessageType::MsgHeartbeat);
    cluster.run(300);
    let late = cluster.kept.iter().find(|e| e.to.0 == 2).expect("a heartbeat to replica 2").clone();
    cluster.keep = None;
    cluster.crash(1);
    cluster.permit(2, 3, &[dead(1)], true);
    cluster.isolate(3);
    cluster.take_effects(2);
    cluster.act(2, |r, now, out| r.receive(now, late, out));
    assert!(cluster.take_effects(2).contains_dropped("dead"));
    assert_ne!(cluster.replica(2).leader(), Some(ReplicaId(1)));
}

trait ContainsDropped {
    fn contains_dropped(&self, why: &str) -> bool;
}

impl ContainsDropped for Vec<ReplicaEffect> {
    fn contains_dropped(&self, why: &str) -> bool {
        self.iter().any(|e| matches!(e, ReplicaEffect::Note(Note::Dropped(reason)) if *reason == why))
    }
}

#[test]
fn time_out_now_with_the_release_and_a_permit_elects_without_pre_vote() {
    let mut cluster = led::<Production>();
    cluster.run(500);
    let term = cluster.replica(1).term();
    let permit = cluster.make_permit(2, 2, &[], false);
    let mut order = vote_request(&cluster, 3, 2, MessageType::MsgTimeoutNow);
    (order.from, order.message.from) = (ReplicaId(1), 1);
    (order.to, order.message.to) = (ReplicaId(2), 2);
    order.message.term = term.0;
    order.permit = Some(permit);
    cluster.act(1, |r, now, out| r.release(now, "handoff", out));
    cluster.wire.clear();
    let unreleased = order.clone();
    cluster.hand_over(unreleased);
    assert_eq!(cluster.replica(2).term(), term, "no release, no election");
    order.ended = vec![released(1, term)];
    // The first order had taught replica 2 the permit, and the release lets it campaign at once either way.
    cluster.hand_over(order);
    cluster.deliver();
    assert_eq!(cluster.leader(), Some(2));
}
