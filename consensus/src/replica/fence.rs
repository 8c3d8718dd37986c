//! The right to serve and its end: fence, lease, resigning, time (F1–F3, L2, L6, V4).
//!
//! - `serve_until` = min(contact + F, lease end), zero unless the leader's own no-op is applied (F1). It is published as
//!   one word for readers on other threads, and as zero *before* leadership is given up in any way.
//! - Fenced for lack of contact: contact within R more reopens the fence without an election; without it the leader
//!   resigns (F3), because voters would protect it for ever on a one-way cut.
//! - A leader without a valid lease for 1 s resigns (under `read_index` only before the first lease), and one whose
//!   lease was refused as superseded at once.
//! - Resigning is a release: told to observers and peers at once, final for the term (H1).
//! - raft-rs's election timer only asks for a permit (V4); it never fires inside raft-rs in a governed group.

use std::time::Duration;

use quorate_proto::control::LeaseItem;
use quorate_proto::ids::Term;
use quorate_proto::time::BootTime;
use raft::StateRole;

use super::lead::Lead;
use super::{election_bounds, tick_of, Out, Replica};
use crate::effect::{Note, ReplicaEffect};
use crate::policy::{Policy, Rule};

/// Ticks made up for after a late call; a longer stop is no reason to time out.
const MAX_LATE_TICKS: u32 = 3;
/// What the owner was asked for (entries, a snapshot) is asked for again after once to twice this.
const WANTS_OVERDUE: Duration = Duration::from_secs(30);
/// The published word is refreshed when it can be moved on by this much, in fractions of F.
const PUBLISH_STEPS: u32 = 32;

impl<P: Policy> Replica<P> {
    /// Time passes. Call at least every half tick and at [`Self::next_deadline`].
    pub fn tick(&mut self, now: BootTime, out: &mut Out) {
        if self.stopped() {
            return;
        }
        self.guard_leadership(now, out);
        let tick = tick_of(&self.cfg);
        let mut late = 0;
        while now >= self.next_tick && late < MAX_LATE_TICKS {
            self.next_tick += tick;
            late += 1;
            self.raft_tick(out);
        }
        if now >= self.next_tick {
            self.next_tick = now + tick;
        }
        self.forget_overdue(now);
        self.pursue(now, out);
        self.drive(now, out);
    }

    /// When [`Self::tick`] has something to do.
    #[must_use]
    pub fn next_deadline(&self, now: BootTime) -> BootTime {
        if self.stopped() {
            return BootTime::MAX;
        }
        let mut soonest = self.next_tick;
        let mut consider = |at: BootTime| {
            if at > now {
                soonest = soonest.min(at);
            }
        };
        if let Some(at) = self.campaign_deadline(now) {
            // One that is due is due now, not never.
            consider(at.max(now + Duration::from_nanos(1)));
        }
        if let (Some(lead), Some(contact)) = (&self.lead, self.contact(now)) {
            if self.governed() {
                let (timing, loss) = (&self.cfg.timing, self.cfg.observer_loss);
                consider(contact + timing.fence);
                consider(lead.fence_resign_at(contact, timing));
                consider(lead.lease_resign_at(timing, loss));
                consider(lead.lease_end(timing));
                consider(lead.lease_deadline(timing));
            }
        } else if let Some(heard) = self.leader_frame {
            consider(heard + self.cfg.timing.fence);
        }
        soonest
    }

    /// A reader or builder that was asked long ago and never answered must not block a follower for ever.
    fn forget_overdue(&mut self, now: BootTime) {
        if now.since(self.wants_checked) < WANTS_OVERDUE {
            return;
        }
        self.wants_checked = now;
        self.raw.mut_store().forget_overdue();
        self.give_up_snapshots();
    }

    /// raft-rs's clock, with our time-outs.
    fn raft_tick(&mut self, out: &mut Out) {
        let leads = self.raw.raft.state == StateRole::Leader;
        if !leads && self.installing.is_some() {
            return;
        }
        if !leads && !self.governed() && (self.held || !self.may_stand()) {
            // Its vote for itself would hang with its disk, or rest on what it forgot (B2).
            self.raw.raft.election_elapsed = 0;
            return;
        }
        if !leads && self.governed() {
            self.raw.raft.election_elapsed += 1;
            if self.raw.raft.election_elapsed >= self.election_timeout && self.raw.raft.promotable() {
                self.raw.raft.election_elapsed = 0;
                self.draw_timeout();
                self.wants_permit = true;
                out.push(ReplicaEffect::AskPermit);
            }
            return;
        }
        self.raw.raft.set_randomized_election_timeout(self.election_timeout);
        if !leads && self.raw.raft.election_elapsed + 1 >= self.election_timeout {
            self.draw_timeout();
        }
        self.raw.tick();
    }

    /// Next election time-out: between the bounds, by a counter-based generator (splitmix64).
    pub(super) fn draw_timeout(&mut self) {
        if self.draws == 0 {
            // The first one is the owner's.
            self.draws = 1;
            return;
        }
        let bounds = election_bounds(&self.cfg);
        let seed = self.cfg.me.0.rotate_left(32) ^ self.cfg.group.0 ^ (self.cfg.election_ticks as u64).rotate_left(48);
        self.draws += 1;
        let mut z = seed.wrapping_add(self.draws.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        let width = (bounds.high - bounds.low) as u64;
        self.election_timeout = bounds.low + usize::try_from(z % width).unwrap_or(0);
    }

    /// F3: what time alone takes from a leader.
    fn guard_leadership(&mut self, now: BootTime, out: &mut Out) {
        let (Some(lead), Some(contact)) = (&self.lead, self.contact(now)) else { return };
        if !self.governed() || !P::keeps(Rule::Resign) {
            return;
        }
        let timing = &self.cfg.timing;
        if now >= lead.fence_resign_at(contact, timing) {
            self.resign(now, "contact", true, out);
        } else if self.resigns_without_lease() && now >= lead.lease_resign_at(timing, self.cfg.observer_loss) {
            self.resign(now, "lease", false, out);
        }
    }

    fn resigns_without_lease(&self) -> bool {
        P::keeps(Rule::Resign) && P::keeps(Rule::LeaseResign) && P::keeps(Rule::Lease)
    }

    /// Ends the own leadership for good.
    pub(super) fn resign(&mut self, now: BootTime, why: &'static str, for_fence: bool, out: &mut Out) {
        if self.lead.is_none() {
            return;
        }
        if !P::keeps(Rule::ReleaseFinal) {
            self.announce_only(now, for_fence, out);
            return;
        }
        self.end_leadership(now, for_fence, why, out);
        if for_fence {
            self.resigned_for_fence = Some(now);
        }
        self.forget_leader();
        out.push(ReplicaEffect::ReportNow);
    }

    /// Gives leadership up for good, if it leads.
    pub fn release(&mut self, now: BootTime, why: &'static str, out: &mut Out) {
        if self.stopped() {
            return;
        }
        self.resign(now, why, false, out);
        self.drive(now, out);
    }

    /// Serve no more (`true`) although contact and lease hold, or again (`false`). A leader whose WAL hangs must also
    /// [`Self::release`], because its followers go on acknowledging it (B4). In a self-electing group: do not campaign; a
    /// leader must also [`Self::transfer`].
    pub fn hold_serving(&mut self, now: BootTime, hold: bool, out: &mut Out) {
        self.held = hold;
        self.drive(now, out);
    }

    /// An append or flush failed: nothing is persisted or served any more, a leadership is released (B3).
    pub fn wal_poisoned(&mut self, now: BootTime, out: &mut Out) {
        if self.stopped() {
            return;
        }
        self.resign(now, "flush error", false, out);
        self.poisoned = true;
    }

    /// The lease to ask for now, if any.
    #[must_use]
    pub fn lease_due(&self, now: BootTime) -> Option<LeaseItem> {
        let lead = self.lead.as_ref().filter(|_| self.governed() && !self.stopped())?;
        (now >= lead.lease_deadline(&self.cfg.timing)).then_some(LeaseItem {
            group: self.cfg.group,
            replica: self.cfg.me,
            term: lead.term,
            permit_epoch: lead.won_epoch,
        })
    }

    /// It was put into a request.
    pub fn lease_asked(&mut self, now: BootTime) {
        if let Some(lead) = self.lead.as_mut() {
            lead.asked(now);
        }
    }

    /// Granted: valid from `sent`, which was read before the request was handed over (L2).
    pub fn lease_granted(&mut self, now: BootTime, term: Term, sent: BootTime, out: &mut Out) {
        if let Some(lead) = self.lead.as_mut().filter(|lead| lead.term == term && sent <= now) {
            lead.granted(sent);
        }
        self.drive(now, out);
    }

    /// Refused as superseded or released: final (F3).
    pub fn lease_superseded(&mut self, now: BootTime, term: Term, out: &mut Out) {
        if self.lead.as_ref().is_some_and(|lead| lead.term == term) && self.resigns_without_lease() {
            self.resign(now, "superseded", false, out);
        }
        self.drive(now, out);
    }

    /// Contact time of the group (C2), if it leads.
    #[must_use]
    pub fn contact(&self, now: BootTime) -> Option<BootTime> {
        self.lead.as_ref().map(|lead| lead.group_contact(&self.conf, self.cfg.me.0, now))
    }

    /// A leader with majority contact within the fence window (observers: within their longest election time-out).
    #[must_use]
    pub fn has_quorum_contact(&self, now: BootTime) -> bool {
        let window = if self.governed() { self.cfg.timing.fence } else { self.cfg.timing.observer_election_max };
        self.contact(now).is_some_and(|contact| now.since(contact) < window)
    }

    /// F1 holds at `now`. Test after the state was read (F2).
    #[must_use]
    pub fn serving(&self, now: BootTime) -> bool {
        now < self.may_serve_until(now)
    }

    /// F1 holds before this, as last published; `ZERO` = not at all.
    #[must_use]
    pub fn serve_until(&self) -> BootTime {
        self.published
    }

    fn may_serve_until(&self, now: BootTime) -> BootTime {
        let (Some(lead), Some(contact)) = (&self.lead, self.contact(now)) else { return BootTime::ZERO };
        let noop_applied = self.applied >= lead.noop || !P::keeps(Rule::ReadsWait);
        if !self.governed() || self.held || self.stopped() || !noop_applied {
            return BootTime::ZERO;
        }
        lead.may_serve_until(contact, &self.cfg.timing, self.cfg.observer_loss, P::keeps(Rule::Lease))
    }

    /// Refreshes the word that readers on other threads test.
    pub(super) fn publish(&mut self, now: BootTime, out: &mut Out) {
        let until = self.may_serve_until(now);
        let until = if until <= now { BootTime::ZERO } else { until };
        let forward = until >= self.published + self.cfg.timing.fence / PUBLISH_STEPS;
        let backward = until < self.published;
        if backward || (forward && until > self.published) {
            self.published = until;
            out.push(ReplicaEffect::ServeUntil(until));
        }
    }

    /// F1 without lease and no-op: contact + F of a leader, `ZERO` of anybody else. A checker holds that no two replicas
    /// are within theirs at one instant.
    #[must_use]
    pub fn fence_until(&self, now: BootTime) -> BootTime {
        match self.contact(now) {
            Some(contact) if self.governed() && !self.stopped() => contact + self.cfg.timing.fence,
            _ => BootTime::ZERO,
        }
    }

    pub(super) fn fenced(&self, now: BootTime) -> bool {
        self.contact(now).is_some_and(|contact| Lead::is_fenced(contact, now, self.cfg.timing.fence))
    }

    pub(super) fn note_fence(fenced: bool, out: &mut Out) {
        Self::note(out, Note::Fenced(fenced));
    }
}
