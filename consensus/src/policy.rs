//! Mutants for the simulator are types, never cargo features (features unify into the server).

use std::fmt::Debug;

/// A rule that a mutant can leave out. Each is asked for in one place, or in the few that make it up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// V1c: a restarted voter waits F + D, unless the permit is `clear`.
    BootWait,
    /// V1c: an empty memory proves nothing (an `all()` over no leader at all must not pass).
    EmptyMemory,
    /// V1b: every leader ever acknowledged must be over or silent.
    Silence,
    /// V1d: a suspect log does not vote.
    SuspectVeto,
    /// B2: an observer that lost its memory neither votes nor follows until all others answered.
    Forgetful,
    /// V2: granting a vote counts as acknowledging the winner.
    VoteAcknowledges,
    /// V2: the shell reads the clock anew for each event that it hands over.
    FreshClock,
    /// C1: contact is the echoed send stamp, not the time of receipt.
    ContactStamp,
    /// C2: a new leader's first contact is the send time of its vote requests.
    FirstContact,
    /// W1: nothing counts before its flush.
    FlushBeforeAck,
    /// W3: a key counts as seen only when applied.
    KeysAtApply,
    /// I3: a batch beyond the next sequence is refused.
    NoSequenceGap,
    /// R1, F1: nothing is read before the own no-op is applied and the majority confirmed the read.
    ReadsWait,
    /// F1: the lease is part of the right to serve. (A checker also looks at the right without it.)
    Lease,
    /// F3: a leader without contact or lease resigns.
    Resign,
    /// F3: a leader without a valid lease resigns.
    LeaseResign,
    /// H1, F3: a release is final.
    ReleaseFinal,
    /// P1: a permit elects at most one leader, and only for 5 s.
    PermitOnce,
    /// H1: a planned permit counts only once the leader that is to hand over released its term.
    ReleaseFirst,
    /// P1: permits and their basis are handed out only once they are committed.
    CommittedPermit,
    /// P2: a candidate that failed, resigned or hears nobody comes last.
    FailedLast,
    /// M1: what was hosted on a disk that is gone never comes back under its old replica id.
    NewIdAfterLoss,
    /// S2: a newer incarnation proves the death of an older one only by the same lock on the same boot.
    DeathProof,
}

/// Which rules are kept. Production keeps all of them, by construction.
pub trait Policy: Copy + Debug + Default + Send + 'static {
    /// False only in a mutant.
    #[must_use]
    #[inline]
    fn keeps(_rule: Rule) -> bool {
        true
    }
}

/// The rules as written.
#[derive(Clone, Copy, Debug, Default)]
pub struct Production;
impl Policy for Production {}
