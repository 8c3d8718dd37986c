//! Every state, with its words.

use std::time::Duration;

use quorate_proto::control::{ChangePhase, Memory, Room};
use quorate_proto::ids::{TaskId, Term};

use super::*;

const MS: fn(u64) -> Duration = Duration::from_millis;
const CAUSES: [Cause; 9] = [
    Cause::ExitNotice,
    Cause::Silence,
    Cause::Unheard,
    Cause::FenceLost,
    Cause::LeaseLapsed,
    Cause::Disk,
    Cause::Handoff,
    Cause::Released,
    Cause::NoLeader,
];

fn replica(node: u64) -> ReplicaFacts {
    ReplicaFacts {
        node: format!("node-{node}"),
        process: Process::Up,
        disk: Disk::Healthy,
        room: Room::Ample,
        lost: false,
        draining: false,
        report: Some(ReportFacts { hears_quorum: true, ..ReportFacts::default() }),
    }
}

/// Served by node-1 for a minute, everything in order, told by the observer leader.
fn healthy() -> Facts {
    let mut facts = Facts {
        partition: "default/orders/0".to_owned(),
        observers: Observers {
            asked: "observer-1".to_owned(),
            leads: true,
            leader: Some("observer-1".to_owned()),
            total: 3,
            unheard: Vec::new(),
            forgetful: Vec::new(),
            waits_for: None,
            know_more: Vec::new(),
            blank: false,
        },
        health: Verdict::Led,
        leader: Some(LeaderFacts {
            node: "node-1".to_owned(),
            term: Term(7),
            serving: true,
            lease: MS(6_200),
            leased: true,
            since: Some((Duration::from_secs(60), AtLeast::Exactly)),
        }),
        replicas: (1..=3).map(replica).collect(),
        permit: None,
        handoff: None,
        change: None,
        all_logs: false,
        stuck: None,
        misplaced: None,
        last_served: Some(MS(200)),
        bounds: Bounds { silence: MS(1_350), lease: MS(8_000), heartbeat: MS(500), operator: MS(15_000) },
    };
    report(&mut facts, 0, |report| report.leads = true);
    facts
}

fn report(facts: &mut Facts, place: usize, change: impl FnOnce(&mut ReportFacts)) {
    change(facts.replicas[place].report.as_mut().expect("it reports"));
}

/// node-1, which led, is gone for this reason.
fn lost(cause: Cause) -> Facts {
    let was = Some("node-1".to_owned());
    let mut facts = Facts {
        health: Verdict::Leaderless { cause, was, since: MS(3_200) },
        leader: None,
        last_served: Some(MS(3_200)),
        ..healthy()
    };
    report(&mut facts, 0, |report| report.leads = false);
    if cause == Cause::ExitNotice {
        facts.replicas[0].process = Process::Dead { how: "exit notice, status -9".to_owned() };
    }
    facts
}

/// Facts of each state.
fn example(state: State) -> Facts {
    let mut facts = match state {
        State::Leaderless | State::Electing | State::NoCandidate => lost(Cause::Silence),
        State::NoMajority | State::SuspectLogs | State::NeedsOperator => lost(Cause::ExitNotice),
        State::FullAttendance => lost(Cause::NoLeader),
        _ => healthy(),
    };
    let follows = |facts: &mut Facts| {
        facts.leader = None;
        report(facts, 0, |report| report.leads = false);
    };
    match state {
        State::Serving | State::Leaderless => {}
        State::ServingDegraded => facts.replicas[2].process = Process::Silent { span: MS(4_000) },
        State::ServingWithoutObservers => {
            facts.observers.leads = false;
            facts.observers.leader = None;
            facts.observers.unheard = vec!["observer-2".to_owned(), "observer-3".to_owned()];
        }
        State::ObserversWithoutMajority => {
            facts = Facts { last_served: Some(MS(9_000)), ..example(State::ServingWithoutObservers) };
            follows(&mut facts);
        }
        State::HandingOver | State::HandoffReleased => {
            let released = state == State::HandoffReleased;
            let (from, to) = ("node-1".to_owned(), "node-2".to_owned());
            facts.handoff = Some(HandoffFacts { from, to, age: MS(12), released });
            if released {
                follows(&mut facts);
            }
        }
        State::Elected => {
            let leader = facts.leader.as_mut().expect("led");
            (leader.serving, leader.leased) = (false, false);
        }
        State::New => {
            follows(&mut facts);
            facts.health = Verdict::New;
            facts.last_served = None;
            facts.replicas[1].report = None;
        }
        State::HolderUnheard => {
            follows(&mut facts);
            facts.health = Verdict::Unknown { holder: "node-1".to_owned() };
        }
        State::Electing => {
            facts.permit = Some(PermitFacts { candidate: "node-2".to_owned(), age: MS(40), clear: false });
        }
        State::NoCandidate => (0..3).for_each(|place| report(&mut facts, place, |report| report.leads = true)),
        State::NoMajority => facts.replicas[1].process = Process::Silent { span: MS(4_000) },
        State::FullAttendance => {
            (1..3).for_each(|place| report(&mut facts, place, |report| report.suspect_log = true));
            facts.all_logs = true;
        }
        State::SuspectLogs | State::NeedsOperator => report(&mut facts, 1, |report| report.suspect_log = true),
    }
    if state == State::NeedsOperator {
        facts.stuck = Some(Duration::from_secs(16));
    }
    facts
}

#[test]
fn every_state_is_reached_and_says_all_four_parts() {
    for state in State::ALL {
        let facts = example(state);
        let said = explain(&facts);
        assert_eq!(said.state, state, "{said:?}");
        for part in [&said.what, &said.waits_for, &said.next, &said.action] {
            assert!(part.ends_with('.') && part.len() > 7, "{state}: `{part}`");
            assert!(!part.contains("  ") && !part.contains(".."), "{state}: `{part}`");
        }
        assert_eq!(said.leader.is_some(), state.is_serving(), "{state}: {said:?}");
    }
}

#[test]
fn a_state_that_is_not_in_order_names_a_page() {
    for state in State::ALL {
        let causes = CAUSES.into_iter().map(Some).chain([None]);
        let named: Vec<Runbook> = causes.filter_map(|cause| state.runbook(cause)).collect();
        assert_eq!(named.is_empty(), state.is_serving() && state != State::ServingWithoutObservers, "{state}");
    }
}

#[test]
fn a_disk_that_is_nearly_full_is_named_with_its_page_and_its_replica_still_counts() {
    let mut facts = healthy();
    facts.replicas[1].room = Room::Scarce;
    let said = explain(&facts);
    assert_eq!(said.state, State::ServingDegraded);
    let [remark] = said.remarks.as_slice() else { panic!("one remark: {:?}", said.remarks) };
    assert!(remark.text.contains("nearly full"), "{}", remark.text);
    assert_eq!(remark.runbook, Some(Runbook::DiskFull));
    assert!(facts.replicas[1].is_sound());
}

#[test]
fn a_healthy_partition_says_since_when_and_by_whom() {
    let said = explain(&healthy());
    assert_eq!(said.what, "It has been served for 60 s, led by node-1 in term 7.");
    assert_eq!((said.action.as_str(), said.runbook, said.remarks), ("Nothing.", None, Vec::new()));
    let mut facts = healthy();
    facts.leader.as_mut().expect("led").since = Some((MS(2_500), AtLeast::AtLeast));
    assert!(explain(&facts).what.contains("for at least 2.5 s"));
}

#[test]
fn a_degraded_partition_says_what_the_next_loss_does_and_what_is_wrong_with_which_replica() {
    let said = explain(&example(State::ServingDegraded));
    assert!(said.what.ends_with("2 of 3 replicas count: the loss of one more stops it."), "{}", said.what);
    let [remark] = said.remarks.as_slice() else { panic!("one remark: {:?}", said.remarks) };
    assert_eq!(remark.text, "node-3 is silent: not heard for 4.0 s");
    assert_eq!(remark.runbook, Some(Runbook::NodeDead));
    let mut last = example(State::ServingDegraded);
    last.replicas[1].process = Process::Unconnected;
    assert!(explain(&last).what.ends_with("1 of 3 replicas count, 2 are needed: it stops within 1.4 s."));
    let mut lagging = healthy();
    report(&mut lagging, 1, |report| report.lag = Some(80_000));
    let said = explain(&lagging);
    assert_eq!(said.state, State::ServingDegraded);
    assert!(said.what.ends_with("3 of 3 replicas count."), "{}", said.what);
    assert!(said.remarks[0].text.contains("80000 entries behind"), "{:?}", said.remarks);
    assert_eq!(said.remarks[0].runbook, Some(Runbook::ReplicaLagging));
}

#[test]
fn without_observers_it_says_when_the_partition_stops_and_then_that_it_did() {
    let said = explain(&example(State::ServingWithoutObservers));
    assert!(said.what.contains("6.2 s more") && said.action.contains("at once"), "{said:?}");
    let said = explain(&example(State::ObserversWithoutMajority));
    let what =
        "It has not been served for 9.0 s: the observers have no majority (observer-1 does not hear observer-2 and \
                observer-3).";
    assert_eq!(said.what, what);
    assert_eq!(said.runbook, Some(Runbook::ObserversLost));
    assert_eq!(said.cause, None, "to one that is alone, everything may be silent");
    let remarks = of_observers(&example(State::ObserversWithoutMajority).observers);
    assert_eq!(remarks[0].text, "observer-1 does not hear observer-2 and observer-3");
    assert_eq!(remarks[0].runbook, Some(Runbook::ObserversLost));
    assert!(remarks[1].text.contains("does not lead the observers"), "{remarks:?}");
    assert!(of_observers(&healthy().observers).is_empty());
}

#[test]
fn each_cause_has_its_own_sentence() {
    let mut all = std::collections::BTreeSet::new();
    for cause in CAUSES {
        let said = explain(&lost(cause));
        assert_eq!((said.state, said.cause), (State::Leaderless, Some(cause)));
        assert!(said.what.starts_with("It has not been served for 3.2 s: "), "{}", said.what);
        assert!(cause == Cause::NoLeader || said.what.contains("node-1"), "{}", said.what);
        all.insert(said.what);
    }
    assert_eq!(all.len(), CAUSES.len());
    assert_eq!(explain(&lost(Cause::Disk)).runbook, Some(Runbook::WalStalled));
}

#[test]
fn the_loss_counts_from_its_own_sign_unless_the_partition_was_not_served_before() {
    let mut facts = lost(Cause::ExitNotice);
    facts.health = Verdict::Leaderless { cause: Cause::ExitNotice, was: None, since: MS(30) };
    facts.last_served = Some(MS(470));
    assert_eq!(explain(&facts).since, Some(MS(30)), "the last heartbeat is older than the kill");
    facts.last_served = Some(MS(9_000));
    assert_eq!(explain(&facts).since, Some(MS(9_000)), "its successors never served");
    facts.health = Verdict::Leaderless { cause: Cause::FenceLost, was: None, since: MS(1_200) };
    facts.last_served = Some(MS(12));
    assert_eq!(explain(&facts).since, Some(MS(12)), "it served until its fence closed");
}

#[test]
fn an_election_says_what_the_voters_wait_for() {
    let said = explain(&example(State::Electing));
    let waits =
        "node-2, permitted 40 ms ago, waits for the votes of a majority, and the voters until they have not heard \
                 the old leader for 1.4 s.";
    assert_eq!(said.waits_for, waits);
    let mut clear = lost(Cause::ExitNotice);
    clear.permit = Some(PermitFacts { candidate: "node-2".to_owned(), age: MS(4), clear: false });
    assert!(!explain(&clear).waits_for.contains("old leader"), "a fact ended it");
}

#[test]
fn an_elected_leader_says_which_of_two_things_it_lacks() {
    let mut facts = example(State::Elected);
    assert!(explain(&facts).waits_for.contains("first lease"));
    facts.leader.as_mut().expect("elected").leased = true;
    assert!(explain(&facts).waits_for.starts_with("It has its lease"));
}

#[test]
fn a_handoff_says_from_where_to_where() {
    let said = explain(&example(State::HandingOver));
    assert!(said.what.contains("from node-1 to node-2") && said.leader.as_deref() == Some("node-1"), "{said:?}");
    let said = explain(&example(State::HandoffReleased));
    assert!(said.what.contains("released its term") && said.waits_for.contains("node-2"), "{said:?}");
}

#[test]
fn a_new_partition_counts_who_reports() {
    let said = explain(&example(State::New));
    assert_eq!(said.waits_for, "It waits for 2 of 3 replicas to report; 2 do.");
    assert_eq!(said.since, None);
}

#[test]
fn a_holder_that_is_not_heard_is_named() {
    let said = explain(&example(State::HolderUnheard));
    assert!(said.what.contains("node-1 holds the lease") && said.next.contains("8.0 s"), "{said:?}");
    // Its last report says that it serves, but its connection is gone and nobody knows why yet.
    let mut facts = healthy();
    facts.replicas[0].process = Process::Unconnected;
    let said = explain(&facts);
    assert_eq!((said.state, said.leader), (State::HolderUnheard, None));
    assert!(said.what.contains("node-1 holds the lease"), "{}", said.what);
}

#[test]
fn observers_that_forgot_are_named_with_the_page_that_helps() {
    let mut observers = healthy().observers;
    observers.forgetful = vec![("observer-1".to_owned(), Memory::Empty)];
    observers.waits_for = Some("observer 3 has not answered".to_owned());
    let remarks = of_observers(&observers);
    assert_eq!(
        remarks[0].text,
        "observer-1 does not vote until it has caught up, its disk is empty; observer 3 has not answered"
    );
    assert_eq!(remarks[0].runbook, Some(Runbook::ObserversLost));
    observers.forgetful.push(("observer-2".to_owned(), Memory::Suspect));
    let remarks = of_observers(&observers);
    assert_eq!(remarks[1].runbook, Some(Runbook::ObserversRebuild));
    assert!(remarks[1].text.contains("may have lost flushed entries") && !remarks[1].text.contains("answered"));
}

#[test]
fn a_leader_that_does_not_resign_is_what_the_observers_wait_for() {
    let mut facts = example(State::NoCandidate);
    assert!(explain(&facts).waits_for.contains("node-1 and node-2 and node-3 to resign"));
    (0..3).for_each(|place| facts.replicas[place].report = None);
    assert_eq!(explain(&facts).state, State::NoMajority, "who does not report does not count");
}

#[test]
fn too_few_replicas_are_counted_and_named() {
    let said = explain(&example(State::NoMajority));
    let what = "It has not been served for 3.2 s: 1 of 3 replicas count, 2 are needed; not node-1 and node-2.";
    assert_eq!(said.what, what);
    let remarks: Vec<&str> = said.remarks.iter().map(|remark| remark.text.as_str()).collect();
    let dead = "node-1 is down: its process is dead (exit notice, status -9)";
    assert_eq!(remarks, [dead, "node-2 is silent: not heard for 4.0 s"]);
    assert_eq!(said.runbook, Some(Runbook::NodeDead));
}

#[test]
fn suspect_logs_wait_for_a_sound_one_and_after_fifteen_seconds_for_a_person() {
    let said = explain(&example(State::SuspectLogs));
    assert!(said.waits_for.contains("whose log is sound"), "{said:?}");
    assert_eq!(said.runbook, Some(Runbook::ReplicaSuspect));
    let said = explain(&example(State::NeedsOperator));
    assert!(said.waits_for.contains("a person") && said.action.contains("Wipe nothing"), "{said:?}");
    assert_eq!(said.runbook, Some(Runbook::NeedsOperator));
}

#[test]
fn when_all_logs_are_there_the_longest_is_elected() {
    let mut facts = example(State::FullAttendance);
    let said = explain(&facts);
    assert!(said.what.contains("1 of 3 replicas count") && said.what.contains("All their logs are there"), "{said:?}");
    assert_eq!(said.runbook, Some(Runbook::ReplicaSuspect));
    facts.permit = Some(PermitFacts { candidate: "node-3".to_owned(), age: MS(4), clear: true });
    assert_eq!(explain(&facts).waits_for, "It waits for node-3 to be elected.");
}

#[test]
fn a_change_of_members_is_remarked_with_what_it_waits_for() {
    let mut facts = healthy();
    let (from, to) = ("node-2".to_owned(), "node-4".to_owned());
    let waits_for = Some("the learner to catch up".to_owned());
    facts.change = Some(ChangeFacts { task: TaskId(7), from, to, phase: ChangePhase::Learn, waits_for });
    let said = explain(&facts);
    assert_eq!(said.state, State::Serving);
    let text = "the replica on node-2 is being replaced by one on node-4: learning, waits for the learner to catch up (`quorate \
                task show 7`)";
    assert_eq!(said.remarks[0].text, text);
}

/// What is changed, words that must be said, page that must be named.
type Case = (fn(&mut ReplicaFacts), &'static str, Runbook);

#[test]
fn each_ailment_is_named_with_its_page() {
    let cases: [Case; 10] = [
        (|r| r.lost = true, "lost with its disk", Runbook::ReplicaSuspect),
        (|r| r.process = Process::Dead { how: "exit notice, status 74".to_owned() }, "status 74", Runbook::WalPoisoned),
        (|r| r.process = Process::Dead { how: String::new() }, "its process is dead", Runbook::NodeDead),
        (|r| r.process = Process::Unconnected, "no session", Runbook::NodeDead),
        (|r| r.disk = Disk::Failed, "failed", Runbook::WalPoisoned),
        (|r| r.disk = Disk::Stalled(MS(1_800)), "1.8 s old", Runbook::WalStalled),
        (|r| r.report = None, "does not report", Runbook::NodeDead),
        (|r| r.report.as_mut().expect("reports").quarantined = true, "set aside", Runbook::ReplicaSuspect),
        (|r| r.report.as_mut().expect("reports").suspect_log = true, "does not vote", Runbook::ReplicaSuspect),
        (|r| r.report.as_mut().expect("reports").lag = Some(9_000), "9000 entries", Runbook::ReplicaLagging),
    ];
    for (change, words, page) in cases {
        let mut facts = healthy();
        change(&mut facts.replicas[1]);
        let said = explain(&facts);
        let [remark] = said.remarks.as_slice() else { panic!("{words}: {:?}", said.remarks) };
        assert!(remark.text.contains(words) && remark.text.contains("node-2"), "{words}: {}", remark.text);
        assert_eq!(remark.runbook, Some(page), "{words}");
    }
}

#[test]
fn drains_and_pins_are_remarked_without_alarm() {
    let mut facts = healthy();
    facts.replicas[2].draining = true;
    facts.misplaced = Some("node-2".to_owned());
    let said = explain(&facts);
    assert_eq!(said.state, State::Serving);
    assert!(said.remarks[0].text.contains("quorate node undrain node-3"), "{:?}", said.remarks);
    assert!(said.remarks[1].text.contains("quorate leader unpin default/orders/0"), "{:?}", said.remarks);
    assert!(said.remarks.iter().all(|remark| remark.runbook.is_none()));
}

#[test]
fn an_old_directory_is_not_called_a_lost_one() {
    let mut observers = healthy().observers;
    observers.know_more = vec!["node-1".to_owned(), "node-2".to_owned()];
    let old = of_observers(&observers);
    assert!(old[0].text.contains("an old copy of their directory, node-1 and node-2 keep a newer one"), "{old:?}");
    observers.blank = true;
    let lost = of_observers(&observers);
    assert!(lost[0].text.contains("lost their directory") && lost[0].text.contains("--from-nodes"), "{lost:?}");
    assert_eq!((old[0].runbook, lost[0].runbook), (Some(Runbook::ObserversRebuild), Some(Runbook::ObserversRebuild)));
}
