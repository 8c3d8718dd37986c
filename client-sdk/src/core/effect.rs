//! What the producer core asks its shell to do.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quorate_proto::ids::{GroupId, NodeId, PartitionNo};
use quorate_proto::refusal::Refusal;

use super::error::SendError;
use super::receipt::Receipt;

/// Names one attempt to publish one batch; echoed in its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(pub u64);

impl Tag {
    /// Attempts are told apart modulo 256: an answer to one that is 256 attempts old cannot exist, the deadline is
    /// shorter.
    pub(super) fn new(serial: u64, attempt: u8) -> Self {
        Self(serial << 8 | u64::from(attempt))
    }

    pub(super) fn serial(self) -> u64 {
        self.0 >> 8
    }

    pub(super) fn attempt(self) -> u8 {
        (self.0 & 0xff) as u8
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tag {}", self.0)
    }
}

/// How a record ended.
pub type Outcome = Result<Receipt, SendError>;

/// One batch to send over the link to `node`, after everything handed over before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Over which link; it is up.
    pub node: NodeId,
    /// To be echoed.
    pub tag: Tag,
    /// `namespace/name`.
    pub topic: Arc<str>,
    /// Partition …
    pub partition: PartitionNo,
    /// … and its incarnation.
    pub group: GroupId,
    /// The batch as encoded.
    pub batch: Bytes,
    /// Records in it.
    pub records: u32,
    /// How long the client will wait from now.
    pub deadline: Duration,
    /// The batch was sent before.
    pub again: bool,
}

/// Trouble that an operator may want to see: logged when it begins, every 10 s, and when it ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Incident {
    /// Something was refused or broke off; nothing is lost yet.
    Began {
        /// First partition concerned.
        partition: PartitionNo,
        /// What happened.
        cause: Arc<Refusal>,
    },
    /// It still stands.
    Continues {
        /// Since it began.
        lasted: Duration,
        /// Partitions without progress.
        partitions: usize,
        /// Records that wait.
        waiting: u32,
        /// What happened last.
        cause: Arc<Refusal>,
    },
    /// Every partition concerned has acknowledged something since, or has nothing left to send.
    Ended {
        /// Since it began.
        lasted: Duration,
    },
}

/// One thing to do. Effects are to be executed in order.
#[derive(Debug, PartialEq, Eq)]
pub enum Effect<T> {
    /// Open a link to this node; report `on_link_up` or `on_link_lost`.
    Connect {
        /// The node.
        node: NodeId,
    },
    /// Send a batch. If the link is gone, drop it and report `on_link_lost`.
    Transmit(Transmit),
    /// The record given with `token` has its outcome; its room in the buffer is free.
    Resolve {
        /// As given to `send`.
        token: T,
        /// Bytes that it occupied.
        size: u32,
        /// How it ended.
        outcome: Outcome,
    },
    /// Log it.
    Incident(Incident),
}
