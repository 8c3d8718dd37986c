//! `why`: what a partition is doing, in words (not serving since when, who waits for what, what happens next, what must
//! a person do). A pure function: [`Facts`] in, [`Explanation`] out.
//!
//! ```text
//!  observer core ── gather ──► Facts ── state_of ──► State ── words ──► Explanation ──► operator
//!  (directory, view, leases,             (first rule that holds)        + remarks about replicas
//!   arbiter, handoffs)
//! ```
//! What an observer that does not lead says is hearsay, and says so; it is all there is while the observers have no
//! majority.

mod facts;
mod remarks;
mod state;
mod words;

use std::time::Duration;

use crate::arbiter::Cause;

pub use facts::{
    Ailment, AtLeast, Bounds, ChangeFacts, Disk, Facts, HandoffFacts, LeaderFacts, Observers, PermitFacts, Process,
    ReplicaFacts, ReportFacts, Verdict, LAGGING,
};
pub use remarks::{of_observers, Remark};
pub use state::{Runbook, State};

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// `topic/number`.
    pub partition: String,
    /// What it is doing.
    pub state: State,
    /// What ended the last leader, while there is no new one.
    pub cause: Option<Cause>,
    /// The node that serves.
    pub leader: Option<String>,
    /// For how long it has been served, or not served; `None` = not known.
    pub since: Option<Duration>,
    /// One sentence: what is so, and since when.
    pub what: String,
    /// Who waits for what.
    pub waits_for: String,
    /// What happens next, by itself.
    pub next: String,
    /// What the reader must do.
    pub action: String,
    /// The page to follow.
    pub runbook: Option<Runbook>,
    /// What else an operator should know: replicas that are not in order, drains, pins.
    pub remarks: Vec<Remark>,
}

/// Says what the partition is doing.
#[must_use]
pub fn explain(facts: &Facts) -> Explanation {
    let state = state_of(facts);
    let cause = match &facts.health {
        // One observer alone cannot tell why: to it, everything may be silent.
        Verdict::Leaderless { cause, .. } if !state.is_serving() && facts.observers.have_majority() => Some(*cause),
        _ => None,
    };
    let words = words::words(facts, state);
    let since = since(facts, state);
    let leader = facts.leader.as_ref().filter(|_| state.is_serving()).map(|leader| leader.node.clone());
    Explanation {
        partition: facts.partition.clone(),
        state,
        cause,
        leader,
        since,
        what: words.what,
        waits_for: words.waits_for,
        next: words.next,
        action: words.action,
        runbook: state.runbook(cause),
        remarks: remarks::remarks(facts),
    }
}

/// For how long the state of being served, or not, lasts.
fn since(facts: &Facts, state: State) -> Option<Duration> {
    if state.is_serving() {
        return facts.leader.as_ref().and_then(|leader| leader.since).map(|(span, _)| span);
    }
    let lost = match &facts.health {
        Verdict::Leaderless { since, .. } => Some(*since),
        _ => None,
    };
    match (facts.last_served, lost) {
        // The last report that it was served is up to one heartbeat older than the loss itself.
        (Some(served), Some(lost)) if served.saturating_sub(lost) <= facts.bounds.heartbeat => Some(served.min(lost)),
        (served, lost) => served.or(lost),
    }
}

/// The first rule that holds.
#[must_use]
pub fn state_of(facts: &Facts) -> State {
    let led = facts.leader.as_ref();
    // A report counts as long as its node is there; the connection breaks before anybody knows why.
    let there = led.is_some_and(|leader| {
        facts.replicas.iter().any(|replica| replica.node == leader.node && replica.process == Process::Up)
    });
    let serving = led.is_some_and(|leader| leader.serving) && there;
    if !facts.observers.have_majority() {
        return if serving { State::ServingWithoutObservers } else { State::ObserversWithoutMajority };
    }
    if let Some(handoff) = &facts.handoff {
        if serving && !handoff.released {
            return State::HandingOver;
        }
        if !serving && handoff.released {
            return State::HandoffReleased;
        }
    }
    match &facts.health {
        Verdict::Led if !there => State::HolderUnheard,
        Verdict::Led if !serving => State::Elected,
        Verdict::Led if facts.replicas.iter().any(|replica| replica.ailment().is_some()) => State::ServingDegraded,
        Verdict::Led => State::Serving,
        Verdict::New => State::New,
        Verdict::Unknown { .. } => State::HolderUnheard,
        Verdict::Leaderless { .. } => leaderless(facts),
    }
}

fn leaderless(facts: &Facts) -> State {
    let majority = facts.replicas.len() / 2 + 1;
    let sound = facts.replicas.iter().filter(|replica| replica.is_sound()).count();
    if sound < majority {
        // B2: a suspect log vetoes, so its replica is up and yet does not count.
        let suspect = facts.replicas.iter().any(|replica| {
            matches!(replica.ailment(), Some(Ailment::SuspectLog | Ailment::Quarantined | Ailment::Lost))
        });
        if facts.all_logs {
            return State::FullAttendance;
        }
        let known = facts.stuck.or_else(|| since(facts, State::NoMajority));
        let late = known.is_some_and(|span| span >= facts.bounds.operator);
        return match (suspect, late) {
            (true, true) => State::NeedsOperator,
            (true, false) => State::SuspectLogs,
            (false, _) => State::NoMajority,
        };
    }
    if facts.permit.is_some() {
        return State::Electing;
    }
    // Permitted is only a replica that follows: one that still calls itself leader must resign first.
    let able = |replica: &&ReplicaFacts| replica.is_sound() && replica.report.is_some_and(|report| !report.leads);
    if facts.replicas.iter().any(|replica| able(&replica)) {
        State::Leaderless
    } else {
        State::NoCandidate
    }
}

#[cfg(test)]
mod tests;
