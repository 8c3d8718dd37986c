//! Messages from peers: which may be stepped (M3), what they prove (C1, V2, P1), and what they must not do.
//!
//! - Another group, another replica, an older incarnation of the sender's node: never stepped, and the owner answers
//!   `STALE_INCARNATION`. A dead sender: dropped.
//! - `MsgPropose`, `MsgReadIndex`, transfers and raft-rs's local kinds never come from the network.
//! - A leader's message is an acknowledgement from the moment it is processed: the book is written with a clock read
//!   after the message was taken from its queue and before the response can leave (V2). Its stamp is echoed (C1), its
//!   epoch is spent (P1).
//! - A leader that released its term, or whose incarnation is dead, is not followed any more: its late messages must
//!   not look like a living leader.
//! - A heartbeat with a commit index beyond the local log means that this replica lost data: quarantine, no panic (M3).
//! - A release is taken from the leader itself, or relayed with a vote request (P1); a death only from a permit.

use quorate_proto::control::Ended;
use quorate_proto::ids::{ReplicaId, Term};
use quorate_proto::time::BootTime;
use raft::eraftpb::{Message, MessageType};
use raft::StateRole;

use super::{Heard, Out, Replica};
use crate::effect::{Note, ReplicaEffect};
use crate::envelope::Envelope;
use crate::policy::{Policy, Rule};

impl<P: Policy> Replica<P> {
    /// A message from a peer.
    pub fn receive(&mut self, now: BootTime, envelope: Envelope, out: &mut Out) {
        use MessageType as M;
        if self.stopped() {
            return;
        }
        if let Err(why) = self.admit(&envelope) {
            Self::note(out, Note::Dropped(why));
            return;
        }
        self.peer_heard(now, envelope.from);
        self.learn_room(envelope.from, envelope.room);
        self.learn_releases(&envelope);
        match envelope.message.get_msg_type() {
            // Only carries a release.
            M::MsgHup => {}
            M::MsgAppend | M::MsgHeartbeat | M::MsgSnapshot => self.leader_message(now, envelope, out),
            M::MsgRequestVote | M::MsgRequestPreVote => self.vote_request(now, envelope, out),
            M::MsgRequestVoteResponse | M::MsgRequestPreVoteResponse => self.vote_response(now, envelope, out),
            M::MsgAppendResponse | M::MsgHeartbeatResponse => self.response(now, envelope, out),
            M::MsgTimeoutNow if self.governed() => self.time_out_now(now, envelope, out),
            // An observer that gives its leadership away: only the leader itself, in its own term.
            M::MsgTimeoutNow if self.is_led_by(&envelope) && !self.held && self.may_stand() => {
                self.step(envelope.message, out);
            }
            _ => Self::note(out, Note::Dropped("kind")),
        }
        self.drive(now, out);
    }

    /// Any frame came from the node that hosts `peer` (for `hears_quorum`).
    pub fn peer_heard(&mut self, now: BootTime, peer: ReplicaId) {
        let heard = self.frames.entry(peer).or_default();
        *heard = now.max(*heard);
    }

    /// The connection to a peer broke: suspicion may start (S1), proof it is not (S2).
    pub fn peer_lost(&mut self, now: BootTime, peer: ReplicaId, out: &mut Out) {
        if self.stopped() {
            return;
        }
        self.losses.insert(peer, now);
        if self.lead.is_some() {
            self.raw.report_unreachable(peer.0);
        } else if self.leader() == Some(peer) {
            out.push(ReplicaEffect::ReportNow);
        }
        self.drive(now, out);
    }

    /// The connection to a peer broke, and no frame came from there since.
    #[must_use]
    pub fn is_lost(&self, peer: ReplicaId) -> bool {
        self.losses.get(&peer).is_some_and(|lost| self.frames.get(&peer).is_none_or(|heard| heard <= lost))
    }

    /// M3. The newest incarnation of each sender is remembered.
    fn admit(&mut self, envelope: &Envelope) -> Result<(), &'static str> {
        let message = &envelope.message;
        if let Some(why) = self.stranger(envelope) {
            return Err(why);
        }
        if envelope.stale {
            return Err("an answer");
        }
        if message.to != envelope.to.0 || message.from != envelope.from.0 {
            return Err("sender");
        }
        self.incarnations.insert(envelope.from, envelope.from_incarnation);
        if self.facts.is_dead(envelope.from, envelope.from_incarnation) {
            return Err("dead");
        }
        Ok(())
    }

    /// Why a message has no receiver here: the owner answers it `STALE_INCARNATION` (M3). Nothing of it is remembered.
    #[must_use]
    pub fn stranger(&self, envelope: &Envelope) -> Option<&'static str> {
        if envelope.group != self.cfg.group {
            return Some("group");
        }
        if envelope.to != self.cfg.me || envelope.from == self.cfg.me {
            return Some("replica");
        }
        let newest = self.incarnations.get(&envelope.from).copied().unwrap_or_default();
        (envelope.from_incarnation < newest).then_some("incarnation")
    }

    fn is_led_by(&self, envelope: &Envelope) -> bool {
        self.leader() == Some(envelope.from) && envelope.message.term == self.term().0
    }

    fn learn_releases(&mut self, envelope: &Envelope) {
        if !self.governed() || envelope.ended.is_empty() {
            return;
        }
        let kind = envelope.message.get_msg_type();
        let relayed =
            matches!(kind, MessageType::MsgRequestVote | MessageType::MsgRequestPreVote | MessageType::MsgTimeoutNow);
        for fact in &envelope.ended {
            match *fact {
                Ended::Released { replica, .. } if replica == envelope.from || (relayed && replica != self.cfg.me) => {
                    self.facts.learn(*fact);
                }
                _ => {}
            }
        }
        self.forget_ended_leader();
    }

    /// A leader known to be over is no leader: nobody is sent there any more.
    pub(super) fn forget_ended_leader(&mut self) {
        let Some(leader) = self.leader().filter(|&l| l != self.cfg.me) else { return };
        let incarnation = self.incarnations.get(&leader).copied().unwrap_or_default();
        if self.facts.is_over(leader, self.term(), incarnation) && self.raw.raft.state == StateRole::Follower {
            self.forget_leader();
        }
    }

    /// V3. Keeps term and vote.
    pub(super) fn forget_leader(&mut self) {
        let term = self.raw.raft.term;
        self.raw.raft.become_follower(term, raft::INVALID_ID);
    }

    fn leader_message(&mut self, now: BootTime, envelope: Envelope, out: &mut Out) {
        if !self.may_follow(&envelope) {
            Self::note(out, Note::Dropped("suspect"));
            return;
        }
        let (from, incarnation) = (envelope.from, envelope.from_incarnation);
        let (stamp, won_epoch, message) = (envelope.stamp, envelope.won_epoch, envelope.message);
        let (kind, term) = (message.get_msg_type(), Term(message.term));
        if term < self.term() {
            // raft-rs answers with the higher term: that is no acknowledgement of the old one.
            self.step(message, out);
            return;
        }
        if self.governed() && self.facts.is_over(from, term, incarnation) {
            Self::note(out, Note::Dropped("over"));
            return;
        }
        if self.lead.as_ref().is_some_and(|lead| lead.term == term) {
            Self::note(out, Note::Dropped("second leader"));
            return;
        }
        if kind == MessageType::MsgHeartbeat && message.commit > self.last_index().0 {
            let (commit, last) = (message.commit, self.last_index().0);
            self.quarantine(
                format!("{from} committed up to {commit} what it saw here, but the log ends at {last}"),
                out,
            );
            return;
        }
        if kind == MessageType::MsgSnapshot && self.installing.is_some() {
            Self::note(out, Note::Dropped("installing"));
            return;
        }
        self.acks.note(from, term, incarnation, now);
        if let Some(stamp) = stamp {
            let newer = self.heard.filter(|h| h.from == from && h.term == term && h.stamp > stamp);
            self.heard = newer.or(Some(Heard { from, term, stamp }));
        }
        if self.governed() {
            self.permits.spend(won_epoch);
            self.leader_won = (term, won_epoch);
        }
        self.leader_frame = Some(now);
        self.wants_permit = false;
        let first = *self.first_leader_term.get_or_insert(term);
        // B2: only a leader elected after this start probes the true end of a log that lost its tail.
        let since_start = self.first_pushed.is_some_and(|epoch| won_epoch >= epoch);
        let elected_since = !self.governed() || since_start || term > first.max(self.restored_term);
        let proves = self.suspect && elected_since && kind == MessageType::MsgAppend;
        let (anchor, reaches) = ((message.index, message.log_term), message.index + message.entries.len() as u64);
        let proves = proves && reaches >= message.commit;
        let commit = message.commit;
        self.step(message, out);
        let proves = proves && (self.governed() || self.commits_own_term(commit));
        if proves && self.raw.raft.raft_log.match_term(anchor.0, anchor.1) {
            self.caught_up_at = Some((term, reaches));
        }
    }

    /// B2: a suspect log that has flushed everything up to the commit index of a leader elected since is sound again.
    pub(super) fn clear_suspicion(&mut self, now: BootTime, out: &mut Out) {
        let Some((term, index)) = self.caught_up_at else { return };
        if self.term() != term {
            self.caught_up_at = None;
        } else if self.raw.raft.raft_log.persisted >= index {
            self.caught_up_at = None;
            if self.governed() {
                self.suspect = false;
                out.push(ReplicaEffect::ReportNow);
            } else {
                self.caught_up_alone(now, out);
            }
        }
    }

    fn response(&mut self, now: BootTime, envelope: Envelope, out: &mut Out) {
        let (from, echo, message) = (envelope.from, envelope.echo, envelope.message);
        if let Some(lead) = self.lead.as_mut().filter(|lead| lead.term.0 == message.term) {
            let stamp = if P::keeps(Rule::ContactStamp) { echo.filter(|&stamp| stamp <= now) } else { Some(now) };
            if let Some(stamp) = stamp {
                lead.contacted(from.0, stamp);
            }
        }
        self.step(message, out);
    }

    /// Steps a message that passed every rule.
    pub(super) fn step(&mut self, message: Message, out: &mut Out) {
        if self.raw.step(message).is_err() {
            // A response of somebody who is no member: nothing to do with it.
            Self::note(out, Note::Dropped("member"));
        }
    }
}
