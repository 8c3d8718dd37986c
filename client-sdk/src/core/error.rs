//! Why a record was not acknowledged.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use quorate_proto::ids::{PartitionNo, ProducerEpoch, ProducerId, Sequence};
use quorate_proto::refusal::{Reason, Refusal};

/// The outcome of a record that got no receipt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// Decisive: not in the log, and never will be by this send. Refused by the cluster or by this client.
    #[error("{0}")]
    Refused(Arc<Refusal>),
    /// The client gave the record up without an answer: it may have been applied.
    #[error("{0}")]
    Unresolved(Arc<Unresolved>),
}

impl SendError {
    /// A decisive refusal.
    #[must_use]
    pub fn refused(refusal: Refusal) -> Self {
        Self::Refused(Arc::new(refusal))
    }

    /// The stable reason.
    #[must_use]
    pub fn reason(&self) -> Reason {
        self.refusal().reason
    }

    /// What, to what, applied or not, what to do now.
    #[must_use]
    pub fn refusal(&self) -> &Refusal {
        match self {
            Self::Refused(refusal) => refusal,
            Self::Unresolved(unresolved) => &unresolved.refusal,
        }
    }

    /// Not applied and never will be: the opposite of [`Self::maybe_applied`].
    #[must_use]
    pub fn decisive(&self) -> bool {
        matches!(self, Self::Refused(_))
    }

    /// The record may be in the log.
    #[must_use]
    pub fn maybe_applied(&self) -> bool {
        !self.decisive()
    }

    /// Sending the same record again may succeed. (After an unresolved outcome only an idempotency key makes that
    /// safe.)
    #[must_use]
    pub fn retryable(&self) -> bool {
        self.maybe_applied()
            || matches!(
                self.reason(),
                Reason::NotLeader
                    | Reason::NoLeader
                    | Reason::Fenced
                    | Reason::Handoff
                    | Reason::Busy
                    | Reason::Degraded
                    | Reason::Quota
                    | Reason::StorageFull
                    | Reason::Deadline
                    | Reason::Unreachable
                    | Reason::RefusedUnsafe
            )
    }
}

/// Identity of a record whose fate the client does not know. The producer has raised its epoch since, so the fate is
/// decided as soon as anything later of this producer is committed in that partition (protocol I4): it is in the log,
/// or it never will be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unresolved {
    /// Why it was given up; `maybe_applied` is true.
    pub refusal: Refusal,
    /// Partition that it was sent to.
    pub partition: PartitionNo,
    /// Producer …
    pub producer: ProducerId,
    /// … its epoch …
    pub epoch: ProducerEpoch,
    /// … and the record's sequence there: together the record's identity.
    pub sequence: Sequence,
    /// The application's key, with which the outcome can be asked.
    pub idempotency_key: Option<Bytes>,
}

impl fmt::Display for Unresolved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} [{}, producer {}, {}, {}]",
            self.refusal, self.partition, self.producer, self.epoch, self.sequence
        )
    }
}
