//! Self-electing groups: a replica whose memory is gone (B2, M1), and how it becomes one of them again.
//!
//! A partition's replica that lost its log gets a new id and the arbiter's help. The observers' own group has nobody above
//! it, and its members are its configuration. There a replica that may have forgotten what it flushed – entries, or a vote –
//! neither votes nor leads nor follows, until all the *other* members have answered to its present life:
//!
//! ```text
//!   all others sound     rejoin(T)       T: newest term among the answers. A leader of T or later is nobody's past: whoever
//!                                        could have won with a forgotten vote is among those who answered
//!   all others there,    attend(T, r)    full attendance: only `r`, whose log is the longest of all, may be voted for, and
//!   some suspect                         only in a later term than T
//!   nobody has a log     begin(T)        a new group: there was nothing to forget
//! ```
//!
//! Following, it is sound again once it has flushed everything up to a commit index of that leader's own term. A vote that it
//! forgot was cast in T at the latest; before it may vote again, the leader of its present term is its vote of that term,
//! durably.
//!
//! Why it is safe: an entry that was committed with a forgotten flush stands on a majority; so on a member that did not
//! forget, and every leader elected without the forgetful one has it. While one member is forgetful, only the others elect.

use quorate_proto::ids::{Incarnation, LogIndex, PersistId, ReplicaId, Term};
use quorate_proto::time::BootTime;
use raft::eraftpb::MessageType;
use raft::StateRole;

use super::{Out, Replica};
use crate::effect::{Note, PersistWrite, ReplicaEffect};
use crate::envelope::Envelope;
use crate::policy::{Policy, Rule};

/// What a replica without memory was told by the others.
#[derive(Debug, Default)]
pub(super) struct Rejoin {
    /// Newest term in which it may have forgotten something; unknown until all others answered.
    forgotten: Option<Term>,
    /// The only one that it may vote for.
    longest: Option<ReplicaId>,
    /// The write after which it is sound.
    sealing: Option<PersistId>,
}

impl<P: Policy> Replica<P> {
    /// It may have forgotten what it flushed: it takes no part in elections.
    #[must_use]
    pub fn is_suspect(&self) -> bool {
        self.suspect
    }

    /// What it may have forgotten keeps it from electing and following.
    fn is_forgetful(&self) -> bool {
        self.suspect && P::keeps(Rule::Forgetful)
    }

    /// Its log holds nothing but the beginning that all members share.
    #[must_use]
    pub fn is_blank(&self) -> bool {
        self.last_index() == super::BOOTSTRAP_INDEX
    }

    /// Term, and newest flushed entry, to be told to the other members.
    #[must_use]
    pub fn attendance(&self) -> (Term, (Term, LogIndex)) {
        (self.term(), self.last_flushed())
    }

    /// All other members are sound and answered to this life; `newest` is the newest term among the answers.
    pub fn rejoin(&mut self, newest: Term) {
        if self.suspect && !self.governed() {
            self.rejoin.forgotten.get_or_insert(newest);
            self.rejoin.longest = None;
        }
    }

    /// Full attendance (B2): every member answered to every other's present life, and none lost its whole log. `longest` has
    /// the newest one.
    pub fn attend(&mut self, now: BootTime, newest: Term, longest: ReplicaId, out: &mut Out) {
        if !self.suspect || self.governed() || self.stopped() {
            return;
        }
        let forgotten = *self.rejoin.forgotten.get_or_insert(newest.max(self.term()));
        self.rejoin.longest = Some(longest);
        if self.term() < forgotten {
            self.raw.raft.become_follower(forgotten.0, raft::INVALID_ID);
        }
        self.drive(now, out);
    }

    /// Attendance is not full any more, and not all others are sound.
    pub fn disperse(&mut self) {
        self.rejoin.longest = None;
    }

    /// No member has ever had a log: there is nothing to forget. Sound once its term is durable.
    pub fn begin(&mut self, now: BootTime, newest: Term, out: &mut Out) {
        if !self.suspect || self.governed() || self.stopped() || self.rejoin.sealing.is_some() {
            return;
        }
        let term = newest.max(self.term());
        if self.term() < term {
            self.raw.raft.become_follower(term.0, raft::INVALID_ID);
        }
        self.seal(now, self.cfg.me, out);
    }

    /// A peer says that it lost its memory: what it acknowledged in an earlier life proves nothing. As leader, this replica
    /// begins with it anew.
    pub fn peer_forgot(&mut self, now: BootTime, peer: ReplicaId, incarnation: Incarnation, out: &mut Out) {
        if self.governed() || self.stopped() {
            return;
        }
        let newest = self.incarnations.entry(peer).or_default();
        *newest = incarnation.max(*newest);
        let next = self.raw.raft.raft_log.last_index() + 1;
        if self.lead.is_some() {
            if let Some(progress) = self.raw.raft.mut_prs().get_mut(peer.0) {
                progress.become_probe();
                progress.matched = 0;
                progress.next_idx = next;
                self.raw.raft.send_append(peer.0);
            }
        }
        self.drive(now, out);
    }

    /// Whether a leader's message may be stepped here.
    pub(super) fn may_follow(&self, envelope: &Envelope) -> bool {
        if !self.is_forgetful() || self.governed() {
            return true;
        }
        let message = &envelope.message;
        let newest = self.rejoin.forgotten.is_some_and(|term| message.term >= term.0);
        // The leader has not heard yet how little of the log is left here.
        let beyond = message.get_msg_type() == MessageType::MsgHeartbeat && message.commit > self.last_index().0;
        newest && !beyond
    }

    /// Whether this replica may vote for the sender, or for itself.
    pub(super) fn may_elect(&self, candidate: ReplicaId, term: Term) -> bool {
        let attended = self.rejoin.longest == Some(candidate);
        !self.is_forgetful() || (attended && self.rejoin.forgotten.is_some_and(|forgotten| term > forgotten))
    }

    /// Whether this replica may campaign.
    pub(super) fn may_stand(&self) -> bool {
        self.governed() || self.may_elect(self.cfg.me, self.term().next())
    }

    /// A vote request in a self-electing group.
    pub(super) fn plain_vote_request(&mut self, now: BootTime, envelope: Envelope, out: &mut Out) {
        if self.may_elect(envelope.from, Term(envelope.message.term)) {
            self.cast(now, envelope, out);
            return;
        }
        Self::note(out, Note::Vetoed { rule: "suspect", candidate: envelope.from });
        if envelope.message.get_msg_type() == MessageType::MsgRequestPreVote {
            self.reject_pre_vote(envelope.from, None, out);
        }
    }

    /// A leader of `term` committed an entry of its own, and everything up to it is flushed here.
    pub(super) fn caught_up_alone(&mut self, now: BootTime, out: &mut Out) {
        if self.rejoin.sealing.is_some() {
            return;
        }
        if let Some(leader) = self.leader() {
            self.seal(now, leader, out);
        }
    }

    /// Makes a vote in the present term durable; then this replica has forgotten nothing.
    fn seal(&mut self, now: BootTime, vote: ReplicaId, out: &mut Out) {
        if self.raw.raft.vote == raft::INVALID_ID {
            self.raw.raft.vote = vote.0;
        }
        let hard_state = Some(self.raw.raft.hard_state());
        let write = PersistWrite { hard_state, ..PersistWrite::default() };
        self.rejoin.sealing = self.outbox.push(Some(write), None, None, Vec::new(), now);
        self.settle(now, out);
        self.drive(now, out);
    }

    /// The write `id` is flushed.
    pub(super) fn sealed(&mut self, id: PersistId, out: &mut Out) {
        if self.rejoin.sealing.is_some_and(|write| write <= id) {
            self.remembers(out);
        }
    }

    /// It won an election of full attendance, or has caught up.
    pub(super) fn remembers(&mut self, out: &mut Out) {
        self.suspect = false;
        self.rejoin = Rejoin::default();
        out.push(ReplicaEffect::ReportNow);
    }

    /// The commit index is one of the present leader's own term.
    pub(super) fn commits_own_term(&self, commit: u64) -> bool {
        self.raw.raft.raft_log.term(commit).is_ok_and(|term| term == self.raw.raft.term)
            && self.raw.raft.state == StateRole::Follower
    }
}
