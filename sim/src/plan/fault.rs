//! Faults and whom they hit.

use std::time::Duration;

use crate::net::Host;

/// Whom a fault hits: roles are resolved when it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// This host.
    Host(Host),
    /// Who serves partition 0 then.
    Leader,
    /// One of its followers.
    FirstFollower,
    /// The other one.
    SecondFollower,
    /// The observer that leads then.
    ObserverLeader,
}

/// One fault or its end. `span: None` = to the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The process dies. It is started again after `down`; its supervisor says so if `notice`.
    Crash {
        /// Who.
        target: Target,
        /// How long it is down.
        down: Duration,
        /// The supervisor lives and tells.
        notice: bool,
    },
    /// All data nodes lose their power at the same instant (case 1).
    PowerCut {
        /// How long they are down at most.
        down: Duration,
    },
    /// SIGTERM: the core closes, then the process exits and is started again.
    Stop {
        /// Who.
        target: Target,
        /// How long it is down.
        down: Duration,
    },
    /// SIGSTOP for a while.
    Pause {
        /// Who.
        target: Target,
        /// How long.
        span: Duration,
        /// Between two events of its next turn (a data node only), else between two turns.
        inside: bool,
    },
    /// The next data node that asks for votes is stopped right after it sent the requests.
    StopCandidate {
        /// How long.
        span: Duration,
    },
    /// One direction is cut.
    Cut {
        /// Sender.
        from: Target,
        /// Receiver.
        to: Target,
        /// How long.
        span: Option<Duration>,
    },
    /// All directions between a host and the observers are cut.
    CutObservers {
        /// Who.
        target: Target,
        /// How long.
        span: Option<Duration>,
    },
    /// All directions between a host and everybody are cut.
    Isolate {
        /// Who.
        target: Target,
        /// How long.
        span: Duration,
    },
    /// Everything that would reach the target (`inbound`) or leave it is lost to the end.
    OneWay {
        /// Who.
        target: Target,
        /// What comes in, else what goes out.
        inbound: bool,
        /// Only traffic with other data nodes; else with observers and applications too.
        peers_only: bool,
    },
    /// The next flush fails (B3).
    FlushError {
        /// Who.
        target: Target,
    },
    /// Flushes take longer for a while.
    SlowDisk {
        /// Who.
        target: Target,
        /// How much longer each flush takes.
        extra: Duration,
        /// How long.
        span: Duration,
    },
    /// The next flush hangs (B4).
    Stall {
        /// Who.
        target: Target,
        /// How long.
        span: Duration,
    },
    /// An observer dies and starts again without its memory (B2): on an empty disk, or without the end of its log.
    Forget {
        /// Who.
        target: Target,
        /// How long it is down: long enough for what was under way to be over.
        down: Duration,
        /// Entries lost at most, with every vote; `None`: the whole disk.
        entries: Option<u64>,
    },
    /// The host's disk fills up to its soft mark, or to its hard one (B5), and is emptied after a while.
    FillDisk {
        /// Who.
        target: Target,
        /// To the hard mark.
        full: bool,
        /// How long.
        span: Duration,
    },
    /// The process dies and the host's disk lost the newest writes, flushed or not: a suspect tail (B2).
    LoseTail {
        /// Who.
        target: Target,
        /// How long it is down.
        down: Duration,
        /// Entries lost per partition at most.
        entries: u64,
    },
    /// An observer's wall clock is set.
    WallStep {
        /// Which.
        target: Target,
        /// By how many seconds.
        seconds: i64,
    },
    /// Somebody who is not its supervisor says that a living process is dead.
    ForgedNotice {
        /// Who is said to be dead.
        target: Target,
    },
    /// An operator moves the leader of partition 0 (H1).
    Handoff {
        /// Number of the node.
        to: u64,
    },
    /// An operator drains a node, or takes that back (H2).
    Drain {
        /// Which.
        target: Target,
        /// Drain it.
        drain: bool,
    },
    /// The host is gone with its disk; another one with an empty disk takes its place (M1).
    Wipe {
        /// Whose.
        target: Target,
        /// How long nothing runs there.
        down: Duration,
    },
    /// An operator has the node's replica of partition 0 made anew on the same node.
    Replace {
        /// Which node.
        target: Target,
    },
    /// The next leader that enters a joint membership is cut off from its followers, or dies, before it has left it.
    HoldLeave {
        /// For so long.
        span: Duration,
        /// It dies; else it is cut off.
        crash: bool,
    },
    /// A copy of the node's disk starts on another host: it registers with the next incarnation, and hangs.
    CopiedDisk {
        /// Whose.
        target: Target,
    },
}
