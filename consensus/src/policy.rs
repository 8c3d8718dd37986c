//! Mutants for the simulator are types, never cargo features (features unify into the server).

use std::fmt::Debug;

/// Rules that a mutant can leave out. Production keeps all of them.
pub trait Policy: Copy + Debug + Default + Send + 'static {
    /// V1c: a restarted voter waits F + D.
    const BOOT_WAIT: bool = true;
    /// C1: contact is the echoed send stamp, not the time of receipt.
    const CONTACT_FROM_STAMP: bool = true;
    /// V1b: every leader ever acknowledged must be over or silent.
    const SILENCE_RULE: bool = true;
    /// W1: nothing counts before its flush.
    const FLUSH_BEFORE_ACK: bool = true;
    /// F3: a leader without contact or lease resigns.
    const RESIGN: bool = true;
    /// P1: a permit elects at most one leader.
    const PERMIT_ONCE: bool = true;
    /// H1: a planned permit counts only once the leader that is to hand over released its term.
    const RELEASE_FIRST: bool = true;
    /// F1: the lease is part of the right to serve. (Checkers also run with it ignored.)
    const LEASE: bool = true;
}

/// The rules as written.
#[derive(Clone, Copy, Debug, Default)]
pub struct Production;
impl Policy for Production {}
