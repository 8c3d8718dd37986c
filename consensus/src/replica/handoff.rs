//! The leader's part of a planned handoff (H1): release, then time-out-now.
//!
//! ```text
//!   old leader: …last entry committed ─► ServeUntil(0) ─► release to all ─► time-out-now with release and permit ─► target
//!   target:     the release fulfils its permit ─► vote at once (no pre-vote) ─► leader; first lease in the permit
//! ```
//! raft-rs's own `transfer_leader` would keep the old leader in office until it is voted out; here it is out of office
//! before anything leaves (a released term never serves again), so the order is made by hand.

use quorate_proto::control::Permit;
use quorate_proto::ids::{LogIndex, ReplicaId};
use quorate_proto::time::BootTime;
use raft::eraftpb::{Message, MessageType};

use super::{Out, Replica};
use crate::effect::ReplicaEffect;
use crate::envelope::Lane;
use crate::policy::Policy;

impl<P: Policy> Replica<P> {
    /// Last index that `peer` is known to have flushed, if this replica leads.
    #[must_use]
    pub fn has_flushed(&self, peer: ReplicaId) -> Option<LogIndex> {
        self.lead.as_ref()?;
        self.raw.raft.prs().get(peer.0).map(|progress| LogIndex(progress.matched))
    }

    /// Self-electing groups: the follower of those allowed that is heard and has most of the log.
    #[must_use]
    pub fn successor(&self, allowed: impl Fn(ReplicaId) -> bool) -> Option<ReplicaId> {
        self.lead.as_ref()?;
        let prs = self.raw.raft.prs();
        let followers = self.voters().into_iter().filter(|&peer| peer != self.cfg.me && allowed(peer));
        let known = followers.filter_map(|peer| prs.get(peer.0).map(|progress| (progress, peer)));
        let best = known.filter(|(progress, _)| progress.recent_active).max_by_key(|(progress, _)| progress.matched);
        best.map(|(_, peer)| peer)
    }

    /// Self-electing groups: asks `to` to take over (raft-rs's own transfer; it gives up by itself after an election
    /// time-out). Nothing on this path waits for the own flush.
    pub fn transfer(&mut self, now: BootTime, to: ReplicaId, out: &mut Out) {
        if self.stopped() || self.governed() || self.lead.is_none() {
            return;
        }
        self.raw.transfer_leader(to.0);
        self.drive(now, out);
    }

    /// Gives leadership up for good, in favour of the holder of `permit`, which must have the whole log: otherwise it
    /// would only lose the election. Does nothing if this replica does not lead in the permit's term.
    pub fn hand_over(&mut self, now: BootTime, permit: &Permit, out: &mut Out) {
        let planned = permit.planned.filter(|planned| planned.from == self.cfg.me && planned.term == self.term());
        if self.stopped() || planned.is_none() || self.lead.is_none() {
            return;
        }
        self.resign(now, "handoff", false, out);
        let mut order = Message::default();
        order.set_msg_type(MessageType::MsgTimeoutNow);
        order.from = self.cfg.me.0;
        order.to = permit.candidate.0;
        order.term = self.term().0;
        let mut envelope = self.envelope(order);
        envelope.permit = Some(permit.clone());
        envelope.ended = self.facts.releases();
        out.push(ReplicaEffect::Send { lane: Lane::Control, envelope: Box::new(envelope) });
        self.drive(now, out);
    }
}
