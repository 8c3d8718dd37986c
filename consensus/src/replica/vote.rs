//! Elections by joint consent: the gate around every vote (V1–V3) and the permit holder's campaign (P1, P2, V4).
//!
//! ```text
//!   permit ─► self-test (gate on the own vote) ─► forget leader ─► pre-vote ─► self-test again ─► vote ─► leader
//!               │ veto: again when it may pass, at the latest in 50 ms         ▲ voters: gate, forget, step
//! ```
//!
//! - A vetoed pre-vote is answered with a reject that carries the wait; a vetoed vote is not answered. Neither touches
//!   the term: the request is not stepped.
//! - raft-rs's own timer never campaigns here: it asks the observers for a permit (V4).
//! - The candidate's vote for itself is a vote: raft-rs casts it inside `campaign()` and again when the pre-vote is won,
//!   so the gate is asked before both.
//! - A vote request that may have been lost is repeated as it was (voters grant the same candidate again); only after
//!   [`CANDIDATE_PATIENCE`] a new term is tried, so a slow flush does not make terms race.
//! - A voter that leads and has contact vetoes; one without contact resigns first, then votes.

use std::collections::BTreeMap;
use std::time::Duration;

use quorate_proto::control::{Ended, Permit, PermitKind};
use quorate_proto::ids::{Incarnation, ReplicaId, Term};
use quorate_proto::time::BootTime;
use raft::eraftpb::{Message, MessageType};
use raft::StateRole;

use super::gate::Verdict;
use super::{Heard, Out, Replica};
use crate::effect::{Note, ReplicaEffect};
use crate::envelope::{Envelope, Lane};
use crate::policy::{Policy, Rule};

/// How long a candidate whose vote requests are out repeats them before it tries a new term, in campaign retries.
const CANDIDATE_PATIENCE: u32 = 6;
/// Shortest pause before the next self-test.
const SHORTEST_RETRY: Duration = Duration::from_millis(1);

/// A campaign under way.
#[derive(Debug)]
pub(super) struct Candidacy {
    /// `None` in a self-electing group.
    pub(super) permit: Option<Permit>,
    /// End of the permit's validity.
    until: BootTime,
    /// Vote requests that left, to be repeated.
    votes: Vec<Message>,
    /// When they first left.
    released: Option<BootTime>,
    /// Stamp echoed by each voter that granted its vote in `term`.
    pub(super) grants: BTreeMap<u64, BootTime>,
    term: u64,
}

impl Candidacy {
    fn new(permit: Option<Permit>, until: BootTime) -> Self {
        Self { permit, until, votes: Vec::new(), released: None, grants: BTreeMap::new(), term: 0 }
    }
}

impl<P: Policy> Replica<P> {
    /// A committed permit came from the observers (P1). It goes to every replica; each records the epoch.
    pub fn permit(&mut self, now: BootTime, permit: Permit, out: &mut Out) {
        if self.stopped() || !self.governed() || permit.group != self.cfg.group {
            return;
        }
        self.first_pushed.get_or_insert(permit.epoch);
        self.learn_permit(now, &permit, out);
        self.pursue(now, out);
        self.drive(now, out);
    }

    fn learn_permit(&mut self, now: BootTime, permit: &Permit, out: &mut Out) {
        for &fact in &permit.basis {
            self.facts.learn(fact);
        }
        self.forget_ended_leader();
        if self.permits.record(permit, now, self.cfg.me, self.cfg.incarnation) {
            self.next_campaign = now;
            Self::note(out, Note::PermitSeen(permit.epoch));
        }
    }

    /// P2: the permit holder's self-test and pre-vote, repeated while its permit is the newest and valid.
    pub(super) fn pursue(&mut self, now: BootTime, out: &mut Out) {
        if !self.governed() || self.lead.is_some() || self.installing.is_some() || !self.raw.raft.promotable() {
            return;
        }
        if now < self.next_campaign {
            return;
        }
        let Some((permit, until)) = self.usable_permit(now) else { return };
        let retry = self.cfg.timing.campaign_retry;
        self.next_campaign = now + retry;
        if self.repeat_votes(now, &permit, out) {
            return;
        }
        if let Verdict::Veto { rule, wait } = self.gate_own_vote(now, &permit) {
            Self::note(out, Note::Vetoed { rule, candidate: self.cfg.me });
            self.next_campaign = now + wait.unwrap_or(retry).min(retry).max(SHORTEST_RETRY);
            return;
        }
        if self.voters().len() == 1 && self.persisted_index() < self.last_index() {
            // Alone it would win at once, and raft-rs wants a leader's log flushed.
            return;
        }
        if self.raw.raft.leader_id != raft::INVALID_ID || self.raw.raft.state == StateRole::Candidate {
            self.forget_leader();
        }
        self.candidacy = Some(Candidacy::new(Some(permit), until));
        // An error means only that raft-rs saw no reason to campaign; the next retry asks again.
        let _ = self.raw.campaign();
    }

    /// True if a real election under this very permit is still under way.
    fn repeat_votes(&mut self, now: BootTime, permit: &Permit, out: &mut Out) -> bool {
        let patience = self.cfg.timing.campaign_retry * CANDIDATE_PATIENCE;
        let Some(candidacy) = &self.candidacy else { return false };
        if self.raw.raft.state != StateRole::Candidate
            || candidacy.permit.as_ref().map(|p| p.epoch) != Some(permit.epoch)
        {
            return false;
        }
        // Not released: the vote's own flush is under way.
        let Some(released) = candidacy.released else { return true };
        if now.since(released) >= patience {
            return false;
        }
        let unanswered =
            candidacy.votes.iter().filter(|m| m.term == self.raw.raft.term && !candidacy.grants.contains_key(&m.to));
        for message in unanswered {
            let mut envelope = self.envelope(message.clone());
            envelope.stamp = Some(now);
            envelope.permit.clone_from(&candidacy.permit);
            envelope.ended = self.facts.releases();
            out.push(ReplicaEffect::Send { lane: Lane::Control, envelope: Box::new(envelope) });
        }
        true
    }

    /// Adds stamp, permit and releases to a request that raft-rs made; false if it may not leave.
    pub(super) fn dress_vote_request(&mut self, now: BootTime, taken: BootTime, envelope: &mut Envelope) -> bool {
        // The earlier of two stamps is always the safe one (V2).
        envelope.stamp = Some(taken);
        if !self.governed() {
            return true;
        }
        let Some(candidacy) = self.candidacy.as_mut() else { return false };
        envelope.permit.clone_from(&candidacy.permit);
        if envelope.message.get_msg_type() == MessageType::MsgRequestVote {
            candidacy.released.get_or_insert(now);
            candidacy.votes.push(envelope.message.clone());
        }
        envelope.ended = self.facts.releases();
        true
    }

    /// V1 for the own vote.
    fn gate_own_vote(&mut self, now: BootTime, permit: &Permit) -> Verdict {
        let candidate = (self.cfg.me, self.cfg.incarnation, self.term().next());
        self.gate(now, Some(permit), candidate)
    }

    /// V1 without the voter's own leadership.
    fn gate(&mut self, now: BootTime, permit: Option<&Permit>, candidate: (ReplicaId, Incarnation, Term)) -> Verdict {
        let Some(permit) = permit else { return Verdict::veto("permit") };
        let names = permit.group == self.cfg.group
            && permit.candidate == candidate.0
            && permit.candidate_incarnation == candidate.1;
        if !names {
            return Verdict::veto("permit");
        }
        if let Err(rule) = self.permits.judge(permit.epoch, P::keeps(Rule::PermitOnce)) {
            return Verdict::veto(rule);
        }
        if P::keeps(Rule::ReleaseFirst) && !self.facts.fulfils(permit) {
            return Verdict::veto("unreleased");
        }
        if self.suspect && permit.kind == PermitKind::Normal && P::keeps(Rule::SuspectVeto) {
            return Verdict::veto("suspect");
        }
        let window = self.cfg.timing.fence + self.cfg.timing.margin;
        let up = now.since(self.cfg.started);
        if up <= window && !permit.clear && self.boot_wait_applies(now, window, candidate) {
            return Verdict::wait("boot", window - up + Duration::from_nanos(1));
        }
        if P::keeps(Rule::Silence) {
            let left = self.acks.wait(now, window, &self.facts, self.cfg.me, candidate);
            if !left.is_zero() {
                return Verdict::wait("silence", left);
            }
        }
        Verdict::Pass
    }

    /// V1c. Both exceptions are mutants': an empty memory proves nothing.
    fn boot_wait_applies(
        &mut self,
        now: BootTime,
        window: Duration,
        candidate: (ReplicaId, Incarnation, Term),
    ) -> bool {
        if !P::keeps(Rule::EmptyMemory) && self.acks.wait(now, window, &self.facts, self.cfg.me, candidate).is_zero() {
            return false;
        }
        P::keeps(Rule::BootWait)
    }

    /// V1b for a voter that leads: veto while it has contact, else resign.
    fn gate_own_leadership(&mut self, now: BootTime, out: &mut Out) -> Verdict {
        let Some(contact) = self.contact(now) else { return Verdict::Pass };
        let fence = self.cfg.timing.fence;
        if now.since(contact) < fence {
            return Verdict::wait("serving", fence - now.since(contact));
        }
        self.resign(now, "voted for another", true, out);
        Verdict::Pass
    }

    pub(super) fn vote_request(&mut self, now: BootTime, envelope: Envelope, out: &mut Out) {
        let pre_vote = envelope.message.get_msg_type() == MessageType::MsgRequestPreVote;
        if !self.governed() {
            self.plain_vote_request(now, envelope, out);
            return;
        }
        if let Some(permit) = envelope.permit.as_ref().filter(|p| p.group == self.cfg.group) {
            self.learn_permit(now, &permit.clone(), out);
        }
        if envelope.message.term < self.raw.raft.term {
            // raft-rs rejects or ignores it, whoever asks.
            self.step(envelope.message, out);
            return;
        }
        let candidate = (envelope.from, envelope.from_incarnation, Term(envelope.message.term));
        let mut verdict = self.gate(now, envelope.permit.as_ref(), candidate);
        if verdict == Verdict::Pass {
            verdict = self.gate_own_leadership(now, out);
        }
        match verdict {
            Verdict::Pass => {
                if envelope.message.term > self.raw.raft.term && self.raw.raft.leader_id != raft::INVALID_ID {
                    self.forget_leader();
                }
                self.cast(now, envelope, out);
            }
            Verdict::Veto { rule, wait } => {
                Self::note(out, Note::Vetoed { rule, candidate: envelope.from });
                if pre_vote {
                    self.reject_pre_vote(envelope.from, wait, out);
                }
            }
        }
    }

    /// Steps a request that passed the gate. A vote granted counts as acknowledging the winner (V2).
    pub(super) fn cast(&mut self, now: BootTime, envelope: Envelope, out: &mut Out) {
        let (from, incarnation, stamp) = (envelope.from, envelope.from_incarnation, envelope.stamp);
        let (kind, term) = (envelope.message.get_msg_type(), envelope.message.term);
        self.step(envelope.message, out);
        let raft = &self.raw.raft;
        if kind == MessageType::MsgRequestVote && raft.term == term && raft.vote == from.0 {
            if P::keeps(Rule::VoteAcknowledges) {
                self.acks.note(from, Term(term), incarnation, now);
            }
            self.vote_heard = stamp.map(|stamp| Heard { from, term: Term(term), stamp });
        }
    }

    /// Crafted outside raft-rs: brings the candidate back at once, with what it needs to try again (P2).
    pub(super) fn reject_pre_vote(&mut self, to: ReplicaId, wait: Option<Duration>, out: &mut Out) {
        let mut message = Message::default();
        message.set_msg_type(MessageType::MsgRequestPreVoteResponse);
        message.reject = true;
        message.term = self.raw.raft.term;
        message.from = self.cfg.me.0;
        message.to = to.0;
        let mut envelope = self.envelope(message);
        envelope.veto_wait = wait;
        envelope.last = Some(self.last_flushed());
        out.push(ReplicaEffect::Send { lane: Lane::Control, envelope: Box::new(envelope) });
    }

    pub(super) fn vote_response(&mut self, now: BootTime, envelope: Envelope, out: &mut Out) {
        let raft = &self.raw.raft;
        let message = &envelope.message;
        let real = message.get_msg_type() == MessageType::MsgRequestVoteResponse;
        if !message.reject {
            let expected = if real { StateRole::Candidate } else { StateRole::PreCandidate };
            if raft.state == expected && !self.may_still_win(now, real) {
                Self::note(out, Note::Dropped("late vote"));
                self.forget_leader();
                return;
            }
            if real && self.raw.raft.state == StateRole::Candidate && message.term == self.raw.raft.term {
                self.count_grant(&envelope);
            }
        }
        let hint = envelope.veto_wait.filter(|_| message.reject);
        self.step(envelope.message, out);
        if let Some(wait) = hint {
            self.next_campaign = self.next_campaign.min(now + wait.max(SHORTEST_RETRY));
        }
    }

    fn count_grant(&mut self, envelope: &Envelope) {
        let candidacy = self.candidacy.get_or_insert_with(|| Candidacy::new(None, BootTime::MAX));
        if candidacy.term != envelope.message.term {
            candidacy.term = envelope.message.term;
            candidacy.grants.clear();
        }
        candidacy.grants.insert(envelope.from.0, envelope.echo.unwrap_or_default());
    }

    /// A grant makes raft-rs vote for this replica (pre-vote) or lead (vote): only under a permit that is still good.
    /// A newer, unused permit does not matter once the voters have voted.
    fn may_still_win(&mut self, now: BootTime, real: bool) -> bool {
        if !self.governed() {
            return true;
        }
        let Some((permit, until)) = self.candidacy.as_ref().and_then(|c| Some((c.permit.clone()?, c.until))) else {
            return false;
        };
        let spent = P::keeps(Rule::PermitOnce) && self.permits.is_spent(permit.epoch);
        let valid = now < until || !P::keeps(Rule::PermitOnce);
        valid && !spent && (real || self.gate_own_vote(now, &permit) == Verdict::Pass)
    }

    fn usable_permit(&self, now: BootTime) -> Option<(Permit, BootTime)> {
        let (permit, until) = self.permits.usable(now, self.cfg.timing.permit_valid, P::keeps(Rule::PermitOnce))?;
        // A planned one that waits for its release is pursued by the time-out-now that brings it.
        self.facts.fulfils(permit).then(|| (permit.clone(), until))
    }

    /// When the campaign is to be pursued next, if there is a permit for it.
    pub(super) fn campaign_deadline(&self, now: BootTime) -> Option<BootTime> {
        let able = self.governed() && self.lead.is_none() && self.installing.is_none();
        self.usable_permit(now).filter(|_| able).map(|_| self.next_campaign)
    }

    /// H1: time-out-now starts an election without pre-vote. Only with the sender's release of this very term, and under
    /// a permit that names this replica.
    pub(super) fn time_out_now(&mut self, now: BootTime, envelope: Envelope, out: &mut Out) {
        if let Some(permit) = envelope.permit.as_ref().filter(|p| p.group == self.cfg.group) {
            self.learn_permit(now, &permit.clone(), out);
        }
        let term = Term(envelope.message.term);
        let released = envelope.ended.iter().any(
            |fact| matches!(*fact, Ended::Released { replica, term: over } if replica == envelope.from && over >= term),
        );
        let idle = self.raw.raft.state == StateRole::Follower && self.installing.is_none() && term == self.term();
        let Some((permit, until)) = self.usable_permit(now).filter(|_| released && idle) else {
            Self::note(out, Note::Dropped("time-out-now"));
            return;
        };
        if self.gate_own_vote(now, &permit) != Verdict::Pass {
            Self::note(out, Note::Dropped("time-out-now"));
            return;
        }
        self.candidacy = Some(Candidacy::new(Some(permit), until));
        self.next_campaign = now + self.cfg.timing.campaign_retry;
        self.step(envelope.message, out);
    }
}
