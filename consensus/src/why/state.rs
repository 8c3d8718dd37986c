//! The states that `why` can name, and the page that belongs to each.

use std::fmt;

use super::facts::Ailment;
use crate::arbiter::Cause;

/// What a partition is doing. The texts are part of the JSON output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Served, all replicas in order.
    Serving,
    /// Served, a replica is not in order.
    ServingDegraded,
    /// Served under leases that nobody can renew.
    ServingWithoutObservers,
    /// Served; the leader is being moved on purpose.
    HandingOver,
    /// The old leader has released, the new one does not serve yet.
    HandoffReleased,
    /// A leader is elected and does not serve yet.
    Elected,
    /// A new partition that has no leader yet.
    New,
    /// The holder of the lease is not heard by this observer, and nothing says that it is gone.
    HolderUnheard,
    /// The leader is lost; a permit is due.
    Leaderless,
    /// A replica is permitted to campaign.
    Electing,
    /// A majority could vote, but nobody may be permitted.
    NoCandidate,
    /// Too few replicas are up.
    NoMajority,
    /// Too few of the replicas that are up have a log that may vote.
    SuspectLogs,
    /// Too few logs may vote, but all of them are there: the longest is elected (B2).
    FullAttendance,
    /// The same as suspect logs, and the rest did not come back: a person must decide (B2).
    NeedsOperator,
    /// The observers have no majority.
    ObserversWithoutMajority,
}

impl State {
    /// All of them.
    pub const ALL: [Self; 16] = [
        Self::Serving,
        Self::ServingDegraded,
        Self::ServingWithoutObservers,
        Self::HandingOver,
        Self::HandoffReleased,
        Self::Elected,
        Self::New,
        Self::HolderUnheard,
        Self::Leaderless,
        Self::Electing,
        Self::NoCandidate,
        Self::NoMajority,
        Self::SuspectLogs,
        Self::FullAttendance,
        Self::NeedsOperator,
        Self::ObserversWithoutMajority,
    ];

    /// Publishes are answered in this state.
    #[must_use]
    pub fn is_serving(self) -> bool {
        matches!(self, Self::Serving | Self::ServingDegraded | Self::ServingWithoutObservers | Self::HandingOver)
    }

    /// The page for an operator, where the state calls for one.
    #[must_use]
    pub fn runbook(self, cause: Option<Cause>) -> Option<Runbook> {
        match self {
            Self::Serving | Self::HandingOver => None,
            // Its remarks name the page of each replica's ailment.
            Self::ServingDegraded => None,
            Self::ServingWithoutObservers | Self::ObserversWithoutMajority => Some(Runbook::ObserversLost),
            Self::SuspectLogs | Self::FullAttendance => Some(Runbook::ReplicaSuspect),
            Self::NeedsOperator => Some(Runbook::NeedsOperator),
            Self::NoMajority => Some(Runbook::NodeDead),
            Self::Leaderless | Self::Electing if cause == Some(Cause::Disk) => Some(Runbook::WalStalled),
            Self::Leaderless | Self::Electing | Self::NoCandidate => Some(Runbook::NoLeader),
            Self::HandoffReleased | Self::Elected | Self::New | Self::HolderUnheard => Some(Runbook::NoLeader),
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Serving => "serving",
            Self::ServingDegraded => "serving_degraded",
            Self::ServingWithoutObservers => "serving_without_observers",
            Self::HandingOver => "handing_over",
            Self::HandoffReleased => "handoff_released",
            Self::Elected => "elected",
            Self::New => "new",
            Self::HolderUnheard => "holder_unheard",
            Self::Leaderless => "leaderless",
            Self::Electing => "electing",
            Self::NoCandidate => "no_candidate",
            Self::NoMajority => "no_majority",
            Self::SuspectLogs => "suspect_logs",
            Self::FullAttendance => "full_attendance",
            Self::NeedsOperator => "needs_operator",
            Self::ObserversWithoutMajority => "observers_without_majority",
        })
    }
}

/// A page of `docs/runbooks`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Runbook {
    /// A partition without a serving leader.
    NoLeader,
    /// The observers have no majority; leases end.
    ObserversLost,
    /// A replica whose log is suspect, or that was set aside.
    ReplicaSuspect,
    /// A node left with status 74.
    WalPoisoned,
    /// Flushes hang.
    WalStalled,
    /// A node is dead, silent or starts again and again.
    NodeDead,
    /// A replica is far behind.
    ReplicaLagging,
    /// Cluster time leapt.
    TimeLeap,
    /// A disk is nearly full.
    DiskFull,
    /// Fewer than a majority of the logs can be trusted.
    NeedsOperator,
    /// A majority of the observers lost their memory.
    ObserversRebuild,
}

impl Runbook {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::NoLeader,
        Self::ObserversLost,
        Self::ReplicaSuspect,
        Self::WalPoisoned,
        Self::WalStalled,
        Self::NodeDead,
        Self::ReplicaLagging,
        Self::TimeLeap,
        Self::DiskFull,
        Self::NeedsOperator,
        Self::ObserversRebuild,
    ];

    /// The file, from the root of the documentation.
    #[must_use]
    pub fn page(self) -> &'static str {
        match self {
            Self::NoLeader => "docs/runbooks/no-leader.md",
            Self::ObserversLost => "docs/runbooks/observers-lost.md",
            Self::ReplicaSuspect => "docs/runbooks/replica-suspect.md",
            Self::WalPoisoned => "docs/runbooks/wal-poisoned.md",
            Self::WalStalled => "docs/runbooks/wal-stalled.md",
            Self::NodeDead => "docs/runbooks/node-dead.md",
            Self::ReplicaLagging => "docs/runbooks/replica-lagging.md",
            Self::TimeLeap => "docs/runbooks/time-leap.md",
            Self::DiskFull => "docs/runbooks/disk-full.md",
            Self::NeedsOperator => "docs/runbooks/needs-operator.md",
            Self::ObserversRebuild => "docs/runbooks/observers-rebuild.md",
        }
    }
}

impl fmt::Display for Runbook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.page())
    }
}

impl Ailment {
    /// The page that heals it.
    #[must_use]
    pub fn runbook(&self) -> Runbook {
        match self {
            Self::Dead(_) | Self::Silent(_) | Self::Unconnected | Self::NoReport => Runbook::NodeDead,
            Self::Poisoned | Self::DiskFailed => Runbook::WalPoisoned,
            Self::DiskStalled(_) => Runbook::WalStalled,
            Self::Lost | Self::Quarantined | Self::SuspectLog => Runbook::ReplicaSuspect,
            Self::Lagging(_) => Runbook::ReplicaLagging,
            Self::NoRoom(_) => Runbook::DiskFull,
        }
    }
}
