//! What stands beside the answer: replicas that are not in order, pins, drains; and about the observers.

use quorate_proto::control::{ChangePhase, Memory};
use quorate_proto::time::spoken;

use super::facts::{Ailment, ChangeFacts, Facts, Observers};
use super::state::Runbook;

/// One more sentence, with the page that belongs to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    /// The sentence.
    pub text: String,
    /// The page to follow, if something is to be done.
    pub runbook: Option<Runbook>,
}

impl Remark {
    fn plain(text: String) -> Self {
        Self { text, runbook: None }
    }
}

/// All remarks, in the order of the replicas.
pub(super) fn remarks(facts: &Facts) -> Vec<Remark> {
    let mut all: Vec<Remark> = facts
        .replicas
        .iter()
        .filter_map(|replica| {
            let ailment = replica.ailment()?;
            Some(Remark { text: describe(&replica.node, &ailment), runbook: Some(ailment.runbook()) })
        })
        .collect();
    let draining = facts.replicas.iter().filter(|replica| replica.draining);
    all.extend(draining.map(|replica| {
        let node = &replica.node;
        Remark::plain(format!("{node} is being drained: it is handed no leader; `quorate node undrain {node}` ends it"))
    }));
    all.extend(facts.change.as_ref().map(change));
    if let Some(place) = &facts.misplaced {
        let text = format!(
            "its leader is pinned to {place} and moves there as soon as {place} can take it; `quorate leader unpin {}` \
             leaves the place to the cluster",
            facts.partition
        );
        all.push(Remark::plain(text));
    }
    all
}

fn change(change: &ChangeFacts) -> Remark {
    let ChangeFacts { task, from, to, phase, waits_for } = change;
    let phase = match phase {
        ChangePhase::Learn => "learning",
        ChangePhase::Promote => "being promoted",
        ChangePhase::Cancel => "given up",
    };
    let waits = waits_for.as_ref().map(|what| format!(", waits for {what}")).unwrap_or_default();
    let task = task.get();
    Remark::plain(format!(
        "the replica on {from} is being replaced by one on {to}: {phase}{waits} (`quorate task show {task}`)"
    ))
}

/// What is not in order with the observers, and whether the answer is hearsay.
#[must_use]
pub fn of_observers(observers: &Observers) -> Vec<Remark> {
    let mut all = Vec::new();
    if !observers.unheard.is_empty() {
        let text = format!("{} does not hear {}", observers.asked, observers.unheard.join(" and "));
        all.push(Remark { text, runbook: Some(Runbook::ObserversLost) });
    }
    if !observers.know_more.is_empty() {
        let by = observers.know_more.join(" and ");
        let text = if observers.blank {
            format!(
                "the observers lost their directory, {by} keep it: nothing is served until it is rebuilt, \
                 `quorate observer rebuild --from-nodes`"
            )
        } else {
            format!(
                "the observers have an old copy of their directory, {by} keep a newer one: these nodes are not taken in \
                 until the observers have it too; start an observer that has, or set the old copies aside and rebuild it"
            )
        };
        all.push(Remark { text, runbook: Some(Runbook::ObserversRebuild) });
    }
    for (name, memory) in &observers.forgetful {
        let why = match memory {
            Memory::Empty => "its disk is empty",
            Memory::Lost => "its log is lost",
            Memory::Suspect | Memory::Sound => "its log may have lost flushed entries",
        };
        let rejoins = match &observers.waits_for {
            Some(what) if *name == observers.asked => format!("; {what}"),
            _ => String::new(),
        };
        let text = format!("{name} does not vote until it has caught up, {why}{rejoins}");
        let page = if observers.too_many_forgot() { Runbook::ObserversRebuild } else { Runbook::ObserversLost };
        all.push(Remark { text, runbook: Some(page) });
    }
    if !observers.leads {
        let text = format!("{} does not lead the observers: this is what it heard itself", observers.asked);
        all.push(Remark::plain(text));
    }
    all
}

/// What is wrong with a replica, in words.
fn describe(node: &str, ailment: &Ailment) -> String {
    match ailment {
        Ailment::Lost => format!("the replica on {node} is lost with its disk; a new one takes its place after 30 s"),
        Ailment::Dead(how) if how.is_empty() => format!("{node} is down: its process is dead"),
        Ailment::Dead(how) => format!("{node} is down: its process is dead ({how})"),
        Ailment::Poisoned => {
            format!("{node} is down: it left with status 74, its disk cannot be trusted, and is not started again")
        }
        Ailment::Silent(span) => format!("{node} is silent: not heard for {}", spoken(*span)),
        Ailment::Unconnected => format!("{node} has no session with this observer"),
        Ailment::DiskFailed => format!("the disk of {node} failed: an append or flush returned an error"),
        Ailment::DiskStalled(age) => format!("the disk of {node} hangs: a flush is {} old", spoken(*age)),
        Ailment::NoReport => format!("{node} is up and does not report its replica"),
        Ailment::Quarantined => format!("the replica on {node} is set aside: its data cannot be trusted"),
        Ailment::SuspectLog => {
            format!("the log on {node} may have lost flushed records: it does not vote until it has caught up")
        }
        Ailment::NoRoom(room) => format!("the disk of {node} is {room}: it takes no publishes and leads nothing"),
        Ailment::Lagging(lag) => format!("the replica on {node} is {lag} entries behind the leader"),
    }
}
