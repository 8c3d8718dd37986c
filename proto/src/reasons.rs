//! What each stable reason says about the fate of what was refused. `docs/errors/` has a page for each reason; a test
//! compares.

use crate::refusal::{Reason, Refusal};

/// May a refusal for this reason have been applied?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsualFate {
    /// Never: the refusal is decisive.
    NotApplied,
    /// It may have been: whoever refuses cannot know.
    Unknown,
    /// Both occur; `maybe_applied` of the refusal says which.
    Either,
}

impl UsualFate {
    /// True if a refusal with this `maybe_applied` agrees with it.
    #[must_use]
    pub const fn allows(self, maybe_applied: bool) -> bool {
        match self {
            Self::NotApplied => !maybe_applied,
            Self::Unknown => maybe_applied,
            Self::Either => true,
        }
    }
}

/// All reasons, in the order of their numbers.
pub fn all() -> impl Iterator<Item = Reason> {
    // The numbers are dense from 1: the first gap is the end.
    (1..).map_while(|number| Reason::try_from(number).ok())
}

/// What a refusal for this reason says about fate.
#[must_use]
pub const fn usual_fate(reason: Reason) -> UsualFate {
    match reason {
        // Refused on arrival, or admitted when leadership, connection or time ended (W4).
        Reason::NotLeader | Reason::NoLeader | Reason::Handoff | Reason::Deadline | Reason::Unreachable => {
            UsualFate::Either
        }
        // Below what is expected or remembered, an earlier copy may have been applied (I3, I5, I7).
        Reason::OutOfSequence | Reason::KeyTooOld => UsualFate::Either,
        // What an older epoch applied is not kept (I4).
        Reason::ProducerFenced => UsualFate::Unknown,
        Reason::Unspecified => UsualFate::Either,
        _ => UsualFate::NotApplied,
    }
}

/// True if the refusal's `maybe_applied` is one that its reason can have.
#[must_use]
pub fn is_consistent(refusal: &Refusal) -> bool {
    usual_fate(refusal.reason).allows(refusal.maybe_applied)
}
