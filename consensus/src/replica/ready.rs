//! From raft-rs's `Ready` to ordered effects, and the small events that go straight to raft-rs.
//!
//! Order within one call: what ends a leadership (`ServeUntil(0)`, lost reads, `Released`, `RoleChanged`) before
//! anything that gives it away (F1); a leader's messages before its own write (W2); everybody else's after the flush
//! (W1); `Apply` last, up to the commit index.

use bytes::Bytes;
use quorate_proto::control::{Ended, PermitKind};
use quorate_proto::ids::{LogIndex, PermitEpoch, PersistId, Term};
use quorate_proto::time::BootTime;
use raft::eraftpb::{ConfChange, ConfChangeV2, Entry, EntryType, Message, MessageType};
use raft::{Error, StateRole};
use raft_proto::ConfChangeI;

use super::config::ProposeError;
use super::durable::{encode_meta, META_KEY};
use super::lead::Lead;
use super::{role_of, Out, Replica};
use crate::effect::{Note, PersistWrite, ReadId, ReplicaEffect};
use crate::envelope::{Envelope, Lane};
use crate::policy::{Policy, Rule};

/// One `Apply` at most, bytes.
const APPLY_BYTES: u64 = 4 * 1024 * 1024;
/// How long a release rides on every envelope; by then silence alone ends the leadership (V1b).
const RELEASE_RIDES: u32 = 2;

impl<P: Policy> Replica<P> {
    /// Appends to the log as leader; sent to the followers at once, persisted meanwhile.
    ///
    /// # Errors
    /// Nothing was appended.
    pub fn propose(&mut self, now: BootTime, data: Bytes, out: &mut Out) -> Result<(Term, LogIndex), ProposeError> {
        if self.lead.is_none() || self.stopped() {
            // raft-rs would forward a follower's proposal to the leader.
            return Err(ProposeError::NotLeader { leader: self.leader().filter(|&l| l != self.cfg.me) });
        }
        let entry = Entry { data, ..Default::default() };
        let mut message = Message::default();
        message.set_msg_type(MessageType::MsgPropose);
        message.from = self.cfg.me.0;
        message.set_entries(vec![entry].into());
        match self.raw.raft.step(message) {
            Ok(()) => {
                let position = (self.term(), self.last_index());
                self.drive(now, out);
                Ok(position)
            }
            Err(Error::ProposalDropped) => Err(ProposeError::Full),
            Err(_) => Err(ProposeError::NotLeader { leader: None }),
        }
    }

    /// Wants a linearizable read (R1): answered by `ReadReady` or `ReadLost`, exactly once.
    pub fn read_index(&mut self, now: BootTime, read: ReadId, out: &mut Out) {
        if self.lead.is_none() || self.stopped() || !self.reads.queue(read) {
            out.push(ReplicaEffect::ReadLost { read });
            return;
        }
        self.drive(now, out);
    }

    /// The write `id` and every earlier one are flushed.
    pub fn persisted(&mut self, now: BootTime, id: PersistId, out: &mut Out) {
        if self.stopped() {
            return;
        }
        self.outbox.flushed(id);
        self.sealed(id, out);
        self.settle(now, out);
        self.drive(now, out);
    }

    /// The owner's machine has applied everything up to `index`.
    pub fn applied(&mut self, now: BootTime, index: LogIndex, out: &mut Out) {
        if self.stopped() {
            return;
        }
        assert!(index.0 <= self.apply_emitted, "{index} was not handed out");
        self.applied = self.applied.max(index.0);
        self.drive(now, out);
    }

    pub(super) fn stopped(&self) -> bool {
        self.quarantined || self.poisoned
    }

    /// Hands everything that raft-rs has to the owner.
    pub(super) fn drive(&mut self, now: BootTime, out: &mut Out) {
        if self.stopped() {
            return;
        }
        loop {
            self.observe(now, out);
            self.start_reads();
            if self.raw.has_ready() {
                self.take_ready(now, out);
                self.settle(now, out);
            } else if !self.emit_apply(out) {
                break;
            }
        }
        self.advance_applied();
        self.clear_suspicion(now, out);
        self.emit_wants(out);
        let floor = self.raw.raft.raft_log.applied.min(self.ready_mark);
        self.raw.mut_store().evict(floor);
        self.publish(now, out);
        self.flag_changes(now, out);
    }

    /// Notices changes of role, term and leader.
    fn observe(&mut self, now: BootTime, out: &mut Out) {
        let raft = &self.raw.raft;
        let (state, term) = (raft.state, Term(raft.term));
        let leads = state == StateRole::Leader;
        if self.lead.as_ref().is_some_and(|lead| !leads || lead.term != term) {
            // Deposed by a higher term: as final as a release, and told as one, so that nobody waits F + D for it.
            self.end_leadership(now, false, "deposed", out);
        }
        if leads && self.lead.is_none() {
            self.elected(now, out);
        }
        let leader = self.leader();
        let seen = (state, term, leader);
        if self.seen == seen {
            return;
        }
        if self.seen.1 != term || !leads {
            self.reads.fail_all(out);
        }
        if self.candidacy.is_some() && (leads || state == StateRole::Follower) {
            self.candidacy = None;
        }
        let visible = (role_of(state), term, leader) != (role_of(self.seen.0), self.seen.1, self.seen.2);
        self.seen = seen;
        self.draw_timeout();
        if visible {
            out.push(ReplicaEffect::RoleChanged { role: role_of(state), term, leader });
        }
    }

    fn elected(&mut self, now: BootTime, out: &mut Out) {
        let term = self.term();
        let epoch = self.candidacy.as_ref().and_then(|c| c.permit.as_ref()).map_or(PermitEpoch::ZERO, |p| p.epoch);
        // B2: under such a permit the longest log was chosen, whatever it lost: it is the truth from here on.
        let kind = self.candidacy.as_ref().and_then(|c| c.permit.as_ref()).map(|permit| permit.kind);
        self.suspect &= kind.is_none_or(|kind| kind == PermitKind::Normal);
        if !self.governed() && self.suspect {
            self.remembers(out);
        }
        // Winning consumes the permit (P1).
        self.permits.spend(epoch);
        self.leader_won = (term, epoch);
        let mut lead = Lead::new(term, epoch, now, self.raw.raft.raft_log.last_index());
        // First contact: the send time of the vote requests that were granted (C2).
        let sent_counts = P::keeps(Rule::ContactStamp) && P::keeps(Rule::FirstContact);
        for (&voter, &stamp) in self.candidacy.iter().flat_map(|c| &c.grants) {
            lead.contacted(voter, if sent_counts { stamp } else { now });
        }
        // H1: the permit of a planned handoff contains the first lease.
        if let Some(planned) = self.candidacy.as_ref().and_then(|c| c.permit.as_ref()?.planned) {
            if planned.lease_from <= now {
                lead.promised(planned.lease_from);
            }
        }
        self.lead = Some(lead);
        self.own_release = None;
        self.wants_permit = false;
        Self::note(out, Note::Elected(term));
    }

    /// The one place where a leadership ends: readers stop first (F1), then the release is told (F3, H1).
    pub(super) fn end_leadership(&mut self, now: BootTime, for_fence: bool, why: &'static str, out: &mut Out) {
        let Some(lead) = self.lead.take() else { return };
        self.published = BootTime::ZERO;
        out.push(ReplicaEffect::ServeUntil(BootTime::ZERO));
        self.reads.fail_all(out);
        Self::note(out, Note::Resigned(why));
        if !self.governed() {
            return;
        }
        let window = self.cfg.timing.fence + self.cfg.timing.margin;
        self.facts.learn(Ended::Released { replica: self.cfg.me, term: lead.term });
        self.own_release = Some((lead.term, now + window * RELEASE_RIDES));
        out.push(ReplicaEffect::Released { term: lead.term, for_fence });
        self.announce_release(out);
    }

    /// A mutant's release: told, and not kept.
    pub(super) fn announce_only(&mut self, now: BootTime, for_fence: bool, out: &mut Out) {
        let term = self.term();
        let window = self.cfg.timing.fence + self.cfg.timing.margin;
        if self.own_release.is_none_or(|(told, until)| told < term || until < now) {
            self.facts.learn(Ended::Released { replica: self.cfg.me, term });
            self.own_release = Some((term, now + window * RELEASE_RIDES));
            out.push(ReplicaEffect::Released { term, for_fence });
            self.announce_release(out);
        }
    }

    /// An envelope without a Raft message (`MsgHup` is never sent otherwise) that carries the release (F3).
    fn announce_release(&self, out: &mut Out) {
        for peer in self.voters().into_iter().filter(|&p| p != self.cfg.me) {
            let mut message = Message::default();
            message.set_msg_type(MessageType::MsgHup);
            message.from = self.cfg.me.0;
            message.to = peer.0;
            let mut envelope = self.envelope(message);
            envelope.ended = self.facts.releases();
            out.push(ReplicaEffect::Send { lane: Lane::Control, envelope: Box::new(envelope) });
        }
    }

    fn start_reads(&mut self) {
        if self.lead.is_none() || !self.raw.raft.commit_to_current_term() {
            return;
        }
        while let Some(context) = self.reads.start(self.term(), self.cfg.incarnation) {
            self.raw.read_index(context);
        }
    }

    fn take_ready(&mut self, now: BootTime, out: &mut Out) {
        let mut ready = self.raw.ready();
        for message in ready.take_messages() {
            self.send(now, now, message, out);
        }
        for state in ready.take_read_states() {
            self.reads.confirmed(&state.request_ctx, LogIndex(state.index), out);
        }
        if let Some(last) = ready.committed_entries().last() {
            self.ready_mark = self.ready_mark.max(last.index);
        }
        let mut write = PersistWrite::default();
        let mut installing = None;
        if !ready.snapshot().is_empty() {
            installing = Some(self.take_snapshot(ready.snapshot(), &mut write, out));
        }
        write.entries = ready.take_entries();
        self.raw.mut_store().append(&write.entries);
        let needed = installing.is_some() || !write.entries.is_empty() || ready.must_sync();
        if needed {
            write.hard_state = Some(self.raw.raft.hard_state());
            if std::mem::take(&mut self.meta_unwritten) && installing.is_none() {
                let start = self.raw.store().start();
                let start = (LogIndex(start.0), Term(start.1));
                let checkpoint = LogIndex(self.checkpoint);
                write.puts.push((META_KEY, encode_meta(start, checkpoint, &self.membership_at(checkpoint))));
            }
        }
        let (number, messages) = (ready.number(), ready.take_persisted_messages());
        self.raw.advance_append_async(ready);
        self.outbox.push(needed.then_some(write), installing, Some(number), messages, now);
    }

    /// Emits writes and completes what is flushed, in order.
    pub(super) fn settle(&mut self, now: BootTime, out: &mut Out) {
        self.outbox.emit(out, !P::keeps(Rule::FlushBeforeAck));
        while let Some(step) = self.outbox.pop() {
            if let Some(number) = step.ready {
                self.raw.on_persist_ready(number);
            }
            self.advance_applied();
            for message in step.messages {
                self.send(now, step.taken, message, out);
            }
        }
    }

    /// raft-rs may know as applied only what is committed *and* flushed here; it panics otherwise.
    fn advance_applied(&mut self) {
        let log = &self.raw.raft.raft_log;
        let applied = self.applied.min(log.persisted.min(log.committed));
        if applied > log.applied {
            self.raw.advance_apply_to(applied);
        }
        if self.installing.is_some_and(|index| self.raw.raft.raft_log.applied >= index) {
            self.installing = None;
        }
    }

    /// Committed entries, from the cache. True if something was handed out.
    fn emit_apply(&mut self, out: &mut Out) -> bool {
        let committed = self.raw.raft.raft_log.committed;
        if self.awaiting_restore || self.apply_emitted >= committed {
            return false;
        }
        while self.apply_emitted < committed {
            let entries = self.raw.store().cached(self.apply_emitted + 1, committed, APPLY_BYTES);
            self.apply_emitted = entries.last().expect("the range is not empty").index;
            for entry in &entries {
                self.apply_membership(entry);
            }
            out.push(ReplicaEffect::Apply(entries));
        }
        true
    }

    /// Configuration entries take effect when they are handed out for application.
    fn apply_membership(&mut self, entry: &Entry) {
        let change = match entry.get_entry_type() {
            EntryType::EntryNormal => return,
            EntryType::EntryConfChange => {
                protobuf::Message::parse_from_bytes(&entry.data).ok().map(|c: ConfChange| c.into_v2())
            }
            EntryType::EntryConfChangeV2 => protobuf::Message::parse_from_bytes(&entry.data).ok(),
        };
        let change: ConfChangeV2 = change.unwrap_or_default();
        if let Ok(conf) = self.raw.apply_conf_change(&change) {
            self.conf_history.insert(entry.index, conf.clone());
            self.conf = conf;
        }
    }

    /// An envelope for a message of ours, without what depends on its kind.
    pub(super) fn envelope(&self, message: Message) -> Envelope {
        Envelope { room: self.room, ..Envelope::bare(self.cfg.group, self.cfg.incarnation, message) }
    }

    /// An envelope for something that is no Raft message; `message` is an empty `MsgHup`.
    #[must_use]
    pub fn carrier(&self, message: Message) -> Envelope {
        self.envelope(message)
    }

    /// Sends a message that raft-rs made. `taken`: when its `Ready` was taken.
    fn send(&mut self, now: BootTime, taken: BootTime, message: Message, out: &mut Out) {
        use MessageType as M;
        let mut message = message;
        self.spare(&mut message);
        let (kind, term) = (message.get_msg_type(), Term(message.term));
        let mut envelope = self.envelope(message);
        let mut lane = Lane::Control;
        match kind {
            M::MsgAppend | M::MsgHeartbeat | M::MsgSnapshot => {
                // A leader's message must not leave after its leadership: its stamp would be a lie.
                let Some(lead) = self.lead.as_ref().filter(|lead| lead.term == term) else { return };
                envelope.stamp = Some(now);
                envelope.won_epoch = lead.won_epoch;
                lane = match kind {
                    M::MsgAppend => Lane::Bulk,
                    M::MsgSnapshot => Lane::Snapshot,
                    _ => Lane::Control,
                };
            }
            M::MsgRequestVote | M::MsgRequestPreVote => {
                if !self.dress_vote_request(now, taken, &mut envelope) {
                    return;
                }
            }
            M::MsgTimeoutNow if self.governed() => return,
            M::MsgRequestVoteResponse => envelope.echo = self.echo(self.vote_heard, &envelope),
            _ => envelope.echo = self.echo(self.heard, &envelope),
        }
        if envelope.message.reject {
            envelope.last = Some(self.last_flushed());
        }
        if let Some((term, until)) = self.own_release {
            if now < until && envelope.ended.is_empty() {
                envelope.ended.push(Ended::Released { replica: self.cfg.me, term });
            }
        }
        out.push(ReplicaEffect::Send { lane, envelope: Box::new(envelope) });
    }

    /// C1: the newest stamp processed from the receiver in the message's term.
    fn echo(&self, heard: Option<super::Heard>, envelope: &Envelope) -> Option<BootTime> {
        heard.filter(|h| h.from == envelope.to && h.term.0 == envelope.message.term).map(|h| h.stamp)
    }

    pub(super) fn last_flushed(&self) -> (Term, LogIndex) {
        let index = self.persisted_index();
        (self.term_at(index).unwrap_or_default(), index)
    }
}
