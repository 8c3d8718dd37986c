//! The vote gate: who may be voted for, and when (V1), from what this voter remembers.
//!
//! - [`Facts`]: leaderships that are over, by release or death (P1). Facts only grow.
//! - [`AckBook`]: every leader that this voter acknowledged (V2), with the time of the last acknowledgement. One that
//!   has been silent for more than F + D passes V1b for good, so it is dropped then: the book stays small.
//! - [`Permits`]: epochs seen and spent, and the permit that names this replica (P1). A permit elects at most one
//!   leader, and is valid 5 s from its *first* receipt on the candidate's clock; receiving it again changes nothing.
//!
//! Why it is safe (`2-protocol`, end of *Elections*): while the old leader serves, some majority has processed a stamp
//! not older than F. The new leader's majority shares a voter with it; that voter voted more than F + D after
//! processing, hence after the old leader's last serving instant, and never acknowledges the old term again.
//!
//! An empty book proves nothing after a restart (V1c): until the process is F + D old, only a permit that says `clear`
//! (the observers know every earlier holder to be over) lets this voter vote.

use std::collections::BTreeMap;
use std::time::Duration;

use quorate_proto::control::{Ended, Permit};
use quorate_proto::ids::{Incarnation, PermitEpoch, ReplicaId, Term};
use quorate_proto::time::BootTime;

/// What the gate says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The vote may be cast.
    Pass,
    /// Not now.
    Veto {
        /// For counting: "permit", "spent", "unreleased", "silence", "boot", "suspect", "serving".
        rule: &'static str,
        /// When the gate may pass, if only time is missing.
        wait: Option<Duration>,
    },
}

impl Verdict {
    pub(super) fn veto(rule: &'static str) -> Self {
        Self::Veto { rule, wait: None }
    }

    pub(super) fn wait(rule: &'static str, wait: Duration) -> Self {
        Self::Veto { rule, wait: Some(wait) }
    }
}

/// Leaderships known to be over.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    released: BTreeMap<ReplicaId, Term>,
    dead: BTreeMap<ReplicaId, Incarnation>,
}

impl Facts {
    pub(super) fn learn(&mut self, fact: Ended) {
        match fact {
            Ended::Released { replica, term } => {
                let known = self.released.entry(replica).or_default();
                *known = term.max(*known);
            }
            Ended::Dead { replica, incarnation } => {
                let known = self.dead.entry(replica).or_default();
                *known = incarnation.max(*known);
            }
        }
    }

    /// The leadership of `replica` in `term`, held in `incarnation` of its node, is over.
    pub(super) fn is_over(&self, replica: ReplicaId, term: Term, incarnation: Incarnation) -> bool {
        self.is_released(replica, term) || self.is_dead(replica, incarnation)
    }

    /// `replica` gave up `term` (H1).
    pub(super) fn is_released(&self, replica: ReplicaId, term: Term) -> bool {
        self.released.get(&replica).is_some_and(|&t| t >= term)
    }

    /// A planned permit counts only once the leader that is to hand over released its term (H1).
    pub(super) fn fulfils(&self, permit: &Permit) -> bool {
        permit.planned.is_none_or(|planned| self.is_released(planned.from, planned.term))
    }

    pub(super) fn is_dead(&self, replica: ReplicaId, incarnation: Incarnation) -> bool {
        self.dead.get(&replica).is_some_and(|&i| i >= incarnation)
    }

    /// Releases to relay with a vote request (P1). Deaths are taken from permits only.
    pub(super) fn releases(&self) -> Vec<Ended> {
        self.released.iter().map(|(&replica, &term)| Ended::Released { replica, term }).collect()
    }
}

#[derive(Clone, Copy, Debug)]
struct Ack {
    at: BootTime,
    incarnation: Incarnation,
}

/// Leaders acknowledged, with the last time (V1b, V2).
#[derive(Clone, Debug, Default)]
pub(super) struct AckBook {
    acks: BTreeMap<(ReplicaId, Term), Ack>,
}

impl AckBook {
    /// `now` was read after the message was taken from its queue, and the response has not left yet (V2).
    pub(super) fn note(&mut self, leader: ReplicaId, term: Term, incarnation: Incarnation, now: BootTime) {
        let ack = self.acks.entry((leader, term)).or_insert(Ack { at: now, incarnation });
        ack.at = ack.at.max(now);
        ack.incarnation = ack.incarnation.max(incarnation);
    }

    /// How long V1b still forbids to vote for `candidate`; zero if it does not. Forgets what passed for good.
    pub(super) fn wait(
        &mut self,
        now: BootTime,
        window: Duration,
        facts: &Facts,
        me: ReplicaId,
        candidate: (ReplicaId, Incarnation, Term),
    ) -> Duration {
        self.acks.retain(|_, ack| now.since(ack.at) <= window);
        let blocking = self.acks.iter().filter(|(&(leader, term), ack)| {
            let itself = leader == candidate.0 && ack.incarnation == candidate.1 && term < candidate.2;
            !(itself || leader == me || facts.is_over(leader, term, ack.incarnation))
        });
        // One nanosecond more: the rule says *more than* F + D.
        let left = blocking.map(|(_, ack)| window - now.since(ack.at) + Duration::from_nanos(1)).max();
        left.unwrap_or_default()
    }
}

/// Permits as far as this replica knows them.
#[derive(Clone, Debug, Default)]
pub(super) struct Permits {
    seen: PermitEpoch,
    spent: PermitEpoch,
    mine: Option<(Permit, BootTime)>,
}

impl Permits {
    pub(super) fn seen(&self) -> PermitEpoch {
        self.seen
    }

    /// Records a permit at receipt; true if its epoch is the newest so far.
    pub(super) fn record(&mut self, permit: &Permit, now: BootTime, me: ReplicaId, incarnation: Incarnation) -> bool {
        if permit.epoch <= self.seen {
            return false;
        }
        self.seen = permit.epoch;
        let named = permit.candidate == me && permit.candidate_incarnation == incarnation;
        self.mine = named.then(|| (permit.clone(), now));
        true
    }

    /// A leader is known to have won with `epoch`: it and every older one are spent.
    pub(super) fn spend(&mut self, epoch: PermitEpoch) {
        self.spent = self.spent.max(epoch);
        self.seen = self.seen.max(epoch);
    }

    /// V1a without the names. `once` is false only in a mutant.
    pub(super) fn judge(&self, epoch: PermitEpoch, once: bool) -> Result<(), &'static str> {
        if epoch < self.seen {
            return Err("permit");
        }
        if once && self.is_spent(epoch) {
            return Err("spent");
        }
        Ok(())
    }

    pub(super) fn is_spent(&self, epoch: PermitEpoch) -> bool {
        epoch <= self.spent
    }

    /// The permit under which this replica may campaign now, if any, and until when.
    pub(super) fn usable(&self, now: BootTime, valid: Duration, once: bool) -> Option<(&Permit, BootTime)> {
        let (permit, received) = self.mine.as_ref()?;
        let until = *received + valid;
        ((now < until || !once) && self.judge(permit.epoch, once).is_ok()).then_some((permit, until))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_millis(1350);

    fn at(ms: u64) -> BootTime {
        BootTime(ms * 1_000_000)
    }

    fn permit(epoch: u64, candidate: u64) -> Permit {
        Permit {
            group: quorate_proto::ids::GroupId(9),
            epoch: PermitEpoch(epoch),
            candidate: ReplicaId(candidate),
            candidate_incarnation: Incarnation(1),
            config_version: quorate_proto::ids::ConfigVersion(1),
            basis: Vec::new(),
            clear: false,
            kind: quorate_proto::control::PermitKind::Normal,
            planned: None,
        }
    }

    #[test]
    fn every_leader_ever_acknowledged_must_be_over_or_silent() {
        let (mut book, mut facts) = (AckBook::default(), Facts::default());
        book.note(ReplicaId(1), Term(3), Incarnation(1), at(1000));
        book.note(ReplicaId(2), Term(4), Incarnation(1), at(1500));
        let candidate = (ReplicaId(3), Incarnation(1), Term(5));
        let left = book.wait(at(2000), WINDOW, &facts, ReplicaId(9), candidate);
        assert_eq!(left, Duration::from_millis(850) + Duration::from_nanos(1));
        facts.learn(Ended::Released { replica: ReplicaId(2), term: Term(4) });
        let left = book.wait(at(2000), WINDOW, &facts, ReplicaId(9), candidate);
        assert_eq!(left, Duration::from_millis(350) + Duration::from_nanos(1), "the older leader still counts");
        facts.learn(Ended::Dead { replica: ReplicaId(1), incarnation: Incarnation(1) });
        assert!(book.wait(at(2000), WINDOW, &facts, ReplicaId(9), candidate).is_zero());
    }

    #[test]
    fn exactly_f_plus_d_of_silence_is_not_enough() {
        let (mut book, facts) = (AckBook::default(), Facts::default());
        book.note(ReplicaId(1), Term(3), Incarnation(1), at(1000));
        let candidate = (ReplicaId(3), Incarnation(1), Term(5));
        assert!(!book.wait(at(2350), WINDOW, &facts, ReplicaId(9), candidate).is_zero());
        assert!(book.wait(BootTime(2_350_000_001), WINDOW, &facts, ReplicaId(9), candidate).is_zero());
    }

    #[test]
    fn a_death_says_nothing_about_a_newer_incarnation_and_a_release_nothing_about_a_newer_term() {
        let mut facts = Facts::default();
        facts.learn(Ended::Dead { replica: ReplicaId(1), incarnation: Incarnation(4) });
        facts.learn(Ended::Released { replica: ReplicaId(2), term: Term(7) });
        assert!(facts.is_over(ReplicaId(1), Term(9), Incarnation(4)));
        assert!(!facts.is_over(ReplicaId(1), Term(9), Incarnation(5)));
        assert!(facts.is_over(ReplicaId(2), Term(6), Incarnation(1)));
        assert!(!facts.is_over(ReplicaId(2), Term(8), Incarnation(1)));
    }

    #[test]
    fn the_leader_itself_may_come_back_in_a_later_term_but_not_as_another_incarnation() {
        let (mut book, facts) = (AckBook::default(), Facts::default());
        book.note(ReplicaId(1), Term(3), Incarnation(1), at(1000));
        let me = ReplicaId(9);
        assert!(book.wait(at(1100), WINDOW, &facts, me, (ReplicaId(1), Incarnation(1), Term(4))).is_zero());
        assert!(!book.wait(at(1100), WINDOW, &facts, me, (ReplicaId(1), Incarnation(1), Term(3))).is_zero());
        assert!(!book.wait(at(1100), WINDOW, &facts, me, (ReplicaId(1), Incarnation(2), Term(4))).is_zero());
    }

    #[test]
    fn a_permit_lapses_five_seconds_after_its_first_receipt_and_dies_when_spent_or_overtaken() {
        let valid = Duration::from_secs(5);
        let mut book = Permits::default();
        assert!(book.record(&permit(3, 1), at(0), ReplicaId(1), Incarnation(1)));
        assert!(!book.record(&permit(3, 1), at(4000), ReplicaId(1), Incarnation(1)), "received again");
        assert!(book.usable(at(4999), valid, true).is_some());
        assert!(book.usable(at(5000), valid, true).is_none());
        assert!(book.record(&permit(4, 1), at(5000), ReplicaId(1), Incarnation(1)));
        book.spend(PermitEpoch(4));
        assert!(book.usable(at(5001), valid, true).is_none());
        assert_eq!(book.judge(PermitEpoch(4), true), Err("spent"));
        assert!(book.record(&permit(5, 1), at(6000), ReplicaId(1), Incarnation(1)));
        assert!(book.record(&permit(6, 2), at(6001), ReplicaId(1), Incarnation(1)));
        assert!(book.usable(at(6002), valid, true).is_none(), "a newer permit names another replica");
        assert_eq!(book.judge(PermitEpoch(5), true), Err("permit"));
    }
}
