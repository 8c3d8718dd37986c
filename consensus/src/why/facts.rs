//! What is known of a partition at one instant: the input of [`explain`](super::explain). Plain data with names in it,
//! so that every state can be written down in a test.

use std::time::Duration;

use quorate_proto::control::{ChangePhase, Memory, Room};
use quorate_proto::ids::{TaskId, Term};

use crate::arbiter::Cause;

/// Everything that an explanation rests on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// `topic/number`.
    pub partition: String,
    /// The observers, as the one that was asked sees them.
    pub observers: Observers,
    /// What the arbiter makes of the partition.
    pub health: Verdict,
    /// The leader of the greatest term that says so itself.
    pub leader: Option<LeaderFacts>,
    /// All replicas, in the directory's order.
    pub replicas: Vec<ReplicaFacts>,
    /// The newest permit, while it can still elect.
    pub permit: Option<PermitFacts>,
    /// A planned handoff under way.
    pub handoff: Option<HandoffFacts>,
    /// A change of members under way.
    pub change: Option<ChangeFacts>,
    /// B2: too few logs may vote, but all are reported, so that the longest may be elected.
    pub all_logs: bool,
    /// B2: for how long too few logs may vote and not all are there; known to the observer leader.
    pub stuck: Option<Duration>,
    /// Where an operator placed the leader, if it is not there.
    pub misplaced: Option<String>,
    /// When the partition was last known to be served, how long ago.
    pub last_served: Option<Duration>,
    /// The protocol's bounds that words name.
    pub bounds: Bounds,
}

/// Durations that appear in explanations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// F + D: voters wait until the old leader was silent for so long (V1b).
    pub silence: Duration,
    /// A lease.
    pub lease: Duration,
    /// Data node → observers: how old a healthy node's last word may be.
    pub heartbeat: Duration,
    /// B2: the rest of the replicas has so long to come back before a person is needed.
    pub operator: Duration,
}

/// The observers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observers {
    /// The one that was asked.
    pub asked: String,
    /// It leads and has applied everything: what it says is the decision itself, not hearsay.
    pub leads: bool,
    /// The one that leads, if known.
    pub leader: Option<String>,
    /// How many there are.
    pub total: usize,
    /// Those that the asked one does not hear.
    pub unheard: Vec<String>,
    /// Those that do not vote, because they may have forgotten what they flushed (B2), and why.
    pub forgetful: Vec<(String, Memory)>,
    /// What the asked one waits for, if it is one of them.
    pub waits_for: Option<String>,
    /// Nodes that keep a newer directory than the observers have: it must be rebuilt (M5).
    pub know_more: Vec<String>,
    /// The observers' own directory is empty, not merely older.
    pub blank: bool,
}

impl Observers {
    /// A majority of them elects, permits and grants leases.
    #[must_use]
    pub fn have_majority(&self) -> bool {
        self.leads || self.leader.is_some()
    }

    /// So many forgot that the others are no majority: waiting may not help.
    #[must_use]
    pub fn too_many_forgot(&self) -> bool {
        (self.total - self.forgetful.len().min(self.total)) * 2 <= self.total
    }
}

/// The arbiter's view of a partition (`arbiter::Health`, with names).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A leader is in order, or has just been elected.
    Led,
    /// The holder of the lease was not heard here, and nothing says that it is gone.
    Unknown {
        /// It.
        holder: String,
    },
    /// Never had a leader.
    New,
    /// Needs a leader.
    Leaderless {
        /// Why.
        cause: Cause,
        /// Who led, if known.
        was: Option<String>,
        /// Last sign that the old leader was in order, how long ago.
        since: Duration,
    },
}

/// A leader by its own report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderFacts {
    /// Its node.
    pub node: String,
    /// Its term.
    pub term: Term,
    /// F1 holds by its last report.
    pub serving: bool,
    /// Rest of the lease that it counts itself.
    pub lease: Duration,
    /// The directory's newest lease is its own.
    pub leased: bool,
    /// How long it leads; `at least` if the observer does not know the beginning.
    pub since: Option<(Duration, AtLeast)>,
}

/// A duration whose beginning is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtLeast {
    /// It is the beginning.
    Exactly,
    /// It may be longer.
    AtLeast,
}

/// One replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaFacts {
    /// Its node.
    pub node: String,
    /// The node's process.
    pub process: Process,
    /// The node's disk.
    pub disk: Disk,
    /// Room on the node's disks (B5).
    pub room: Room,
    /// Its node came up with an empty disk: nothing is hosted under its id any more (M1).
    pub lost: bool,
    /// An operator drains the node, or it is closing.
    pub draining: bool,
    /// Its report, if it is fresh enough to decide on.
    pub report: Option<ReportFacts>,
}

/// What a replica says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReportFacts {
    /// It calls itself leader.
    pub leads: bool,
    /// It campaigns.
    pub campaigns: bool,
    /// Set aside (M3).
    pub quarantined: bool,
    /// Its log may have lost flushed entries (B2).
    pub suspect_log: bool,
    /// It hears a majority of the replicas' nodes.
    pub hears_quorum: bool,
    /// It has not heard its leader for more than F.
    pub leader_silent: bool,
    /// Entries behind the leader, as the leader counts them.
    pub lag: Option<u64>,
}

/// A node's process as the observers know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Process {
    /// Heard, with a session.
    Up,
    /// A majority of the observers missed three heartbeats, or its session is broken.
    Silent {
        /// For how long.
        span: Duration,
    },
    /// It has no session with this observer.
    Unconnected,
    /// Known to be dead (S2).
    Dead {
        /// How the directory learned it: `exit notice, status 74`.
        how: String,
    },
}

/// A node's disk by its last heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disk {
    /// Takes writes.
    Healthy,
    /// An append or flush failed (B3).
    Failed,
    /// The oldest flush in flight is too old (B4).
    Stalled(Duration),
}

/// Exit status of a node whose disk cannot be trusted (B3).
const POISONED: &str = "status 74";

impl ReplicaFacts {
    /// What keeps it from being a full member, the gravest first.
    #[must_use]
    pub fn ailment(&self) -> Option<Ailment> {
        if self.lost {
            return Some(Ailment::Lost);
        }
        match &self.process {
            Process::Dead { how } if how.ends_with(POISONED) => return Some(Ailment::Poisoned),
            Process::Dead { how } => return Some(Ailment::Dead(how.clone())),
            Process::Silent { span } => return Some(Ailment::Silent(*span)),
            Process::Unconnected => return Some(Ailment::Unconnected),
            Process::Up => {}
        }
        match self.disk {
            Disk::Failed => return Some(Ailment::DiskFailed),
            Disk::Stalled(age) => return Some(Ailment::DiskStalled(age)),
            Disk::Healthy => {}
        }
        let Some(report) = &self.report else { return Some(Ailment::NoReport) };
        if report.quarantined {
            return Some(Ailment::Quarantined);
        }
        if report.suspect_log {
            return Some(Ailment::SuspectLog);
        }
        let lag = report.lag.filter(|lag| *lag > LAGGING).map(Ailment::Lagging);
        lag.or((self.room != Room::Ample).then_some(Ailment::NoRoom(self.room)))
    }

    /// It can take part in an election as a voter whose word counts (V1d).
    #[must_use]
    pub fn is_sound(&self) -> bool {
        matches!(self.ailment(), None | Some(Ailment::Lagging(_) | Ailment::NoRoom(_)))
    }
}

/// A follower of a busy partition is some entries behind in any report; beyond this it lags.
pub const LAGGING: u64 = 5_000;

/// What is wrong with a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ailment {
    /// Its disk was replaced by an empty one.
    Lost,
    /// The process is dead.
    Dead(String),
    /// The process ended because its disk cannot be trusted (B3).
    Poisoned,
    /// The observers do not hear the node.
    Silent(Duration),
    /// This observer has no session with it.
    Unconnected,
    /// An append or flush failed.
    DiskFailed,
    /// Flushes hang.
    DiskStalled(Duration),
    /// The node is heard, this replica is not reported.
    NoReport,
    /// Set aside.
    Quarantined,
    /// Its log may have lost flushed entries.
    SuspectLog,
    /// Far behind the leader.
    Lagging(u64),
    /// Its node's disk is nearly full (B5).
    NoRoom(Room),
}

/// A permit that may still elect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PermitFacts {
    /// Node of its candidate.
    pub candidate: String,
    /// Issued so long ago.
    pub age: Duration,
    /// The log shows every earlier leader released or dead: voters need not wait for silence (V1c).
    pub clear: bool,
}

/// A planned handoff (H1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandoffFacts {
    /// From this node …
    pub from: String,
    /// … to this one.
    pub to: String,
    /// Begun so long ago.
    pub age: Duration,
    /// The old leader has released its term.
    pub released: bool,
}

/// A change of members (M1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeFacts {
    /// Its task.
    pub task: TaskId,
    /// Node of the replica that goes.
    pub from: String,
    /// Node of the new one.
    pub to: String,
    /// How far it is.
    pub phase: ChangePhase,
    /// What its next step waits for, if the observer knows.
    pub waits_for: Option<String>,
}
