//! Refusals: why a request was not done, in four parts (what, to what, applied or not, what to do now).

use std::fmt;
use std::time::Duration;

use crate::ids::{NodeId, Sequence};
pub use crate::v1::Reason;

/// One refusal. `reason` is stable; the texts are for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Stable reason; its page is `docs/errors/<REASON>.md`.
    pub reason: Reason,
    /// What happened.
    pub what: String,
    /// To what: topic/partition, node, offset, numbers.
    pub subject: String,
    /// The record may have been applied: its fate is unknown.
    pub maybe_applied: bool,
    /// What to do now.
    pub action: String,
    /// When a retry makes sense.
    pub retry_after: Option<Duration>,
    /// Who leads now, if known.
    pub leader: Option<NodeId>,
    /// `OUT_OF_SEQUENCE`: what the partition expects next.
    pub expected: Option<Sequence>,
}

impl Refusal {
    /// A refusal of something that was not applied.
    pub fn new(reason: Reason, what: impl Into<String>, subject: impl Into<String>, action: impl Into<String>) -> Self {
        Self {
            reason,
            what: what.into(),
            subject: subject.into(),
            maybe_applied: false,
            action: action.into(),
            retry_after: None,
            leader: None,
            expected: None,
        }
    }

    /// The same, of unknown fate.
    #[must_use]
    pub fn of_unknown_fate(mut self) -> Self {
        self.maybe_applied = true;
        self
    }

    /// With advice when to try again.
    #[must_use]
    pub fn retry_after(mut self, delay: Duration) -> Self {
        self.retry_after = Some(delay);
        self
    }

    /// With the node that leads.
    #[must_use]
    pub fn led_by(mut self, leader: Option<NodeId>) -> Self {
        self.leader = leader;
        self
    }

    /// Never applied and never will be by this attempt: the opposite of [`Self::maybe_applied`].
    #[must_use]
    pub fn decisive(&self) -> bool {
        !self.maybe_applied
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fate = if self.maybe_applied { "may have been applied" } else { "not applied" };
        write!(f, "{}: {} ({}); {fate}; {}", self.reason.as_str_name(), self.what, self.subject, self.action)
    }
}

impl std::error::Error for Refusal {}

impl From<Refusal> for crate::v1::Error {
    fn from(refusal: Refusal) -> Self {
        Self {
            reason: refusal.reason.into(),
            what: refusal.what,
            subject: refusal.subject,
            maybe_applied: refusal.maybe_applied,
            action: refusal.action,
            retry_after_ms: refusal.retry_after.map_or(0, |d| u32::try_from(d.as_millis()).unwrap_or(u32::MAX).max(1)),
            leader_node: refusal.leader.map_or(0, NodeId::get),
            expected_sequence: refusal.expected.map_or(0, Sequence::get),
        }
    }
}

impl From<crate::v1::Error> for Refusal {
    fn from(error: crate::v1::Error) -> Self {
        let reason = error.reason();
        Self {
            reason,
            what: error.what,
            subject: error.subject,
            maybe_applied: error.maybe_applied,
            action: error.action,
            retry_after: (error.retry_after_ms > 0).then(|| Duration::from_millis(error.retry_after_ms.into())),
            leader: NodeId(error.leader_node).non_zero(),
            expected: (reason == Reason::OutOfSequence).then_some(Sequence(error.expected_sequence)),
        }
    }
}
