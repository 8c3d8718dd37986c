//! The words for each state. Every answer has four parts: what is so, who waits for what, what happens next, what the
//! reader must do.

use quorate_proto::time::spoken;

use super::facts::{AtLeast, Facts, Verdict};
use super::state::State;
use crate::arbiter::Cause;

/// The four parts.
pub(super) struct Words {
    pub what: String,
    pub waits_for: String,
    pub next: String,
    pub action: String,
}

/// If this still stands by then, something is wrong that the cluster does not heal: every fault that leaves a majority
/// is over within 15 s.
const NOTHING: &str = "Nothing. If this still stands after 15 s, follow the runbook.";

pub(super) fn words(facts: &Facts, state: State) -> Words {
    match state {
        State::Serving | State::ServingDegraded => serving(facts, state),
        State::ServingWithoutObservers => serving_without_observers(facts),
        State::ObserversWithoutMajority => observers_lost(facts),
        State::HandingOver | State::HandoffReleased => handoff(facts, state),
        State::Elected => elected(facts),
        State::New => new(facts),
        State::HolderUnheard => holder_unheard(facts),
        State::Leaderless => leaderless(facts),
        State::Electing => electing(facts),
        State::NoCandidate => no_candidate(facts),
        State::NoMajority | State::SuspectLogs | State::FullAttendance | State::NeedsOperator => {
            no_majority(facts, state)
        }
    }
}

fn text(what: String, waits_for: &str, next: &str, action: &str) -> Words {
    Words { what, waits_for: waits_for.to_owned(), next: next.to_owned(), action: action.to_owned() }
}

fn leader(facts: &Facts) -> &str {
    facts.leader.as_ref().map_or("nobody", |leader| leader.node.as_str())
}

/// `It has been served for 3.2 s`.
fn served(facts: &Facts) -> String {
    match facts.leader.as_ref().and_then(|leader| leader.since) {
        Some((span, AtLeast::Exactly)) => format!("It has been served for {}", spoken(span)),
        Some((span, AtLeast::AtLeast)) => format!("It has been served for at least {}", spoken(span)),
        None => "It is served".to_owned(),
    }
}

fn serving(facts: &Facts, state: State) -> Words {
    let term = facts.leader.as_ref().map_or_else(String::new, |leader| format!(" in {}", leader.term));
    let what = format!("{}, led by {}{term}.", served(facts), leader(facts));
    if state == State::Serving {
        return text(what, "Nobody waits.", "The leader renews its lease every 5 s.", "Nothing.");
    }
    let sound = facts.replicas.iter().filter(|replica| replica.is_sound()).count();
    let (of, majority) = (facts.replicas.len(), facts.replicas.len() / 2 + 1);
    let spare = sound.saturating_sub(majority);
    let what = if sound == of {
        format!("{what} {of} of {of} replicas count.")
    } else if sound < majority {
        let within = spoken(facts.bounds.silence);
        format!("{what} {sound} of {of} replicas count, {majority} are needed: it stops within {within}.")
    } else if spare == 0 {
        format!("{what} {sound} of {of} replicas count: the loss of one more stops it.")
    } else {
        format!("{what} {sound} of {of} replicas count: it bears the loss of {spare} more.")
    };
    text(
        what,
        "Clients wait for nothing. Full redundancy waits for the replicas named below.",
        "A node whose process died is started again by its supervisor and catches up by itself.",
        "If a replica is still named here after a minute, follow its runbook.",
    )
}

fn serving_without_observers(facts: &Facts) -> Words {
    let left = facts.leader.as_ref().map(|leader| spoken(leader.lease)).unwrap_or_default();
    let what = format!(
        "It is served, led by {}, but the observers have no majority: nobody can renew its lease, which lasts {left} more.",
        leader(facts)
    );
    text(
        what,
        "The leader waits for a majority of the observers to renew its lease.",
        "When the lease ends the partition stops, unless a majority of the observers is back before \
         (`observer_loss = \"read_index\"`: it goes on, and no new leader can be elected).",
        "Start the observers that are down, at once.",
    )
}

fn observers_lost(facts: &Facts) -> Words {
    let since = not_served(facts);
    let unheard = &facts.observers.unheard;
    let missing = if unheard.is_empty() {
        "they hear each other and are electing a leader".to_owned()
    } else {
        format!("{} does not hear {}", facts.observers.asked, unheard.join(" and "))
    };
    let what = format!("{since}: the observers have no majority ({missing}).");
    text(
        what,
        "The partition waits for a permit or a lease, which only a majority of the observers gives.",
        "They elect a leader among themselves within a second of a majority being back; then the partition serves.",
        "Start the observers that are down.",
    )
}

/// `It has not been served for 3.2 s`.
fn not_served(facts: &Facts) -> String {
    match super::since(facts, State::Leaderless) {
        Some(span) => format!("It has not been served for {}", spoken(span)),
        None => "It is not served".to_owned(),
    }
}

fn handoff(facts: &Facts, state: State) -> Words {
    let Some(handoff) = &facts.handoff else { return leaderless(facts) };
    let (from, to, age) = (&handoff.from, &handoff.to, spoken(handoff.age));
    if state == State::HandingOver {
        return text(
            format!("It is served; its leader moves from {from} to {to} on purpose, begun {age} ago."),
            &format!("{from} waits until its last entries are committed and {to} has them all."),
            &format!("{from} releases its term and {to} takes over, or after 1 s {from} goes on."),
            "Nothing: clients wait for some milliseconds, and no request fails.",
        );
    }
    text(
        format!("{}: {from} released its term in a planned handoff to {to}, begun {age} ago.", not_served(facts)),
        &format!("{to} waits for the votes of a majority."),
        &format!("{to} serves as soon as it has them; if it does not come, any replica is permitted."),
        NOTHING,
    )
}

fn elected(facts: &Facts) -> Words {
    let leased = facts.leader.as_ref().is_some_and(|leader| leader.leased);
    let waits = if leased {
        "It has its lease and waits for its own first entry of the term to be committed by a majority."
    } else {
        "It waits for its own first entry of the term to be committed by a majority, and for its first lease."
    };
    text(
        format!("{}: {} is elected and, by its last report, does not serve yet.", not_served(facts), leader(facts)),
        waits,
        "It serves when it has both, usually within some milliseconds; without a lease for 1 s it resigns, and another \
         one is permitted.",
        NOTHING,
    )
}

fn new(facts: &Facts) -> Words {
    let reporting = facts.replicas.iter().filter(|replica| replica.is_sound()).count();
    let (of, majority) = (facts.replicas.len(), facts.replicas.len() / 2 + 1);
    text(
        "It is new and never had a leader.".to_owned(),
        &format!("It waits for {majority} of {of} replicas to report; {reporting} do."),
        "Then the first of them is permitted to campaign.",
        NOTHING,
    )
}

fn holder_unheard(facts: &Facts) -> Words {
    let holder = match &facts.health {
        Verdict::Unknown { holder } => holder.as_str(),
        _ => leader(facts),
    };
    let lease = spoken(facts.bounds.lease);
    text(
        format!("It is not known whether it serves: {holder} holds the lease and is not heard by this observer."),
        &format!("The observers wait for a word of {holder}, or for the end of its lease."),
        &format!(
            "A leader that reports is left alone. One that is silent for three heartbeats, or whose lease of {lease} ran \
             out, is replaced."
        ),
        NOTHING,
    )
}

/// What ended the old leader.
fn reason(facts: &Facts) -> String {
    let Verdict::Leaderless { cause, was, .. } = &facts.health else { return "no leader is known".to_owned() };
    let who = was.as_deref().unwrap_or("the leader");
    match cause {
        Cause::ExitNotice => format!("the process of {who}, which led, is dead"),
        Cause::Silence => format!("{who}, which led, is silent: a majority of the observers missed three heartbeats"),
        Cause::Unheard => format!("{who} leads and is not heard by a majority of its replicas"),
        Cause::FenceLost => format!("{who} leads and does not hear a majority of its replicas"),
        Cause::LeaseLapsed => format!("the lease of {who} ran out: it did not renew it with proof of a durable write"),
        Cause::Disk => format!("the disk of {who}, which led, failed or hangs"),
        Cause::Handoff => format!("{who} handed over on purpose"),
        Cause::Released => format!("{who}, which led, gave its term up"),
        Cause::NoLeader => "none of its replicas says that it leads".to_owned(),
    }
}

fn leaderless(facts: &Facts) -> Words {
    text(
        format!("{}: {}.", not_served(facts), reason(facts)),
        "It waits for the observers to permit a replica.",
        "The observer leader looks at it every 100 ms and permits the replica with the newest log; at most 2 s pass \
         between two permits.",
        NOTHING,
    )
}

fn electing(facts: &Facts) -> Words {
    let Some(permit) = &facts.permit else { return leaderless(facts) };
    let (candidate, age) = (&permit.candidate, spoken(permit.age));
    let waits = if permit.clear || over(facts) {
        format!("{candidate}, permitted {age} ago, waits for the votes of a majority.")
    } else {
        format!(
            "{candidate}, permitted {age} ago, waits for the votes of a majority, and the voters until they have not \
             heard the old leader for {}.",
            spoken(facts.bounds.silence)
        )
    };
    text(
        format!("{}: {}.", not_served(facts), reason(facts)),
        &waits,
        &format!("{candidate} serves when it has won; if it does not win, another replica is permitted within 2 s."),
        NOTHING,
    )
}

/// A fact ended the old leader: voters need not wait for its silence.
fn over(facts: &Facts) -> bool {
    matches!(&facts.health, Verdict::Leaderless { cause: Cause::ExitNotice | Cause::Released | Cause::Handoff, .. })
}

/// The nodes whose replicas do not count; why, the remarks say.
fn missing(facts: &Facts) -> String {
    let nodes = facts.replicas.iter().filter(|replica| !replica.is_sound()).map(|replica| replica.node.as_str());
    nodes.collect::<Vec<_>>().join(" and ")
}

fn no_candidate(facts: &Facts) -> Words {
    let stays = facts.replicas.iter().filter(|replica| replica.report.is_some_and(|report| report.leads));
    let stays: Vec<&str> = stays.map(|replica| replica.node.as_str()).collect();
    let waits = if stays.is_empty() {
        "The observers wait for a replica that follows, with a fresh report and a healthy disk.".to_owned()
    } else {
        format!("The observers wait for {} to resign, which still calls itself leader.", stays.join(" and "))
    };
    text(
        format!("{}: {}; no replica can be permitted.", not_served(facts), reason(facts)),
        &waits,
        "A leader that is fenced or has no lease resigns within 1.5 s; then a replica is permitted at once.",
        NOTHING,
    )
}

fn no_majority(facts: &Facts, state: State) -> Words {
    let (of, majority) = (facts.replicas.len(), facts.replicas.len() / 2 + 1);
    let sound = facts.replicas.iter().filter(|replica| replica.is_sound()).count();
    let missing = missing(facts);
    let what = format!("{}: {sound} of {of} replicas count, {majority} are needed; not {missing}.", not_served(facts));
    match state {
        State::NoMajority => text(
            what,
            "It waits for one more of its replicas.",
            "Supervisors start dead nodes again by themselves, at most 30 s apart, but not after status 74. A leader is \
             elected as soon as a majority is back.",
            "Start the nodes that are down, or let them be reached again.",
        ),
        State::FullAttendance => {
            let candidate = facts.permit.as_ref().map_or("the replica with the longest log", |p| p.candidate.as_str());
            text(
                format!("{what} All their logs are there, and the longest holds all that was committed."),
                &format!("It waits for {candidate} to be elected."),
                "The others catch up from it, and count again.",
                NOTHING,
            )
        }
        State::SuspectLogs => text(
            what,
            "It waits for a replica whose log is sound: one that may have lost records must not help to elect.",
            "When such a replica is back it is elected, the suspect ones catch up from it, and count again.",
            &format!(
                "Start the nodes that are down. If none is, or they do not come back within {}, a person is needed.",
                spoken(facts.bounds.operator)
            ),
        ),
        _ => text(
            what,
            "It waits for a person: a replica with a sound log must come back, with its own disk.",
            "Nothing by itself. No record is lost by waiting.",
            "Bring a node with a sound log back. Wipe nothing: the logs that are left are all there is. The last resort is \
             `quorate partition break-glass`.",
        ),
    }
}
