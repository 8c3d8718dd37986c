//! What is done to a cluster to see how long its clients wait.

/// What is done to the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// `kill -9` of the leader's node process; its supervisor lives.
    Kill,
    /// `kill -9` of both.
    KillWithSupervisor,
    /// `kill -9` of the leader's node process and, at the same instant, of the observer leader.
    KillWithObserverLeader,
    /// `kill -9` of the observer leader.
    ObserverLeader,
    /// `kill -9` of an observer that does not lead.
    Observer,
    /// The disk of the leader's write-ahead log hangs (B4): its file system is frozen.
    Hang,
    /// SIGSTOP of the leader's node process and its supervisor; SIGCONT after the gap.
    Pause,
    /// Nothing goes from or to the leader's host any more; healed after the gap.
    Cut,
    /// Nothing comes in to the leader's host any more; what it sends arrives.
    Deaf,
    /// Nothing goes between the leader's host and the observers any more; data nodes and clients are not concerned.
    CutObservers,
    /// `kill -9` of every process, and all are started again.
    RestartAll,
    /// No fault: a planned handoff to the next replica (H1).
    Handoff,
    /// A planned handoff whose target is killed with -9 right after it was asked for (H2).
    HandoffTargetDies,
    /// A planned handoff whose target gets SIGSTOP, with its supervisor, right after it was asked for (H2).
    HandoffTargetStops,
}

/// What a fault needs beyond processes of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ground {
    /// Any cluster of this host.
    Any,
    /// A private cluster.
    Private,
    /// A private cluster, each log on a file system of its own.
    Volumes,
    /// A private cluster, each data node on a host of its own as far as the network is concerned.
    Networks,
}

impl Fault {
    /// As on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::KillWithSupervisor => "kill-with-supervisor",
            Self::KillWithObserverLeader => "kill-with-observer-leader",
            Self::ObserverLeader => "observer-leader",
            Self::Observer => "observer",
            Self::Hang => "hang",
            Self::Pause => "pause",
            Self::Cut => "cut",
            Self::Deaf => "deaf",
            Self::CutObservers => "cut-observers",
            Self::RestartAll => "restart-all",
            Self::Handoff => "handoff",
            Self::HandoffTargetDies => "handoff-target-dies",
            Self::HandoffTargetStops => "handoff-target-stops",
        }
    }

    /// What it needs.
    #[must_use]
    pub fn ground(self) -> Ground {
        match self {
            Self::Hang => Ground::Volumes,
            Self::Cut | Self::Deaf | Self::CutObservers => Ground::Networks,
            Self::RestartAll => Ground::Private,
            _ => Ground::Any,
        }
    }

    /// A handoff is asked for.
    #[must_use]
    pub fn planned(self) -> bool {
        matches!(self, Self::Handoff | Self::HandoffTargetDies | Self::HandoffTargetStops)
    }

    /// It hits the node that leads, so all measured partitions must have their leaders there.
    pub(super) fn concerns_leader(self) -> bool {
        !matches!(self, Self::ObserverLeader | Self::Observer | Self::RestartAll)
    }

    /// Processes of this host are killed.
    pub(super) fn kills(self) -> bool {
        matches!(
            self,
            Self::Kill
                | Self::KillWithSupervisor
                | Self::KillWithObserverLeader
                | Self::ObserverLeader
                | Self::Observer
                | Self::HandoffTargetDies
        )
    }

    /// The leader's process dies, and its supervisor starts another one.
    pub(super) fn kills_leader(self) -> bool {
        matches!(self, Self::Kill | Self::KillWithObserverLeader)
    }

    /// Another leader arises in any case, and a record of it.
    pub(super) fn moves_leader(self) -> bool {
        self.concerns_leader() && !matches!(self, Self::HandoffTargetDies | Self::HandoffTargetStops)
    }
}
