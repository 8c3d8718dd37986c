//! What an application gets back.

use std::sync::Arc;

use quorate_proto::ids::{NodeId, Offset, PartitionNo, Term};
use quorate_proto::time::LogTime;

/// The record is committed: on stable storage on a majority of the replicas, in one order, for good (protocol W1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// Where it lies.
    pub partition: PartitionNo,
    /// Its offset there. For a suppressed repeat: the offset of the first copy. `None` only when the answer to a
    /// re-sent batch came after the partition had forgotten the batch's offsets (the record is committed all the same).
    pub offset: Option<Offset>,
    /// Leader epoch (Raft term) in which it was committed.
    pub epoch: Term,
    /// When it was appended, by the log's own clock (protocol W5).
    pub log_time: LogTime,
    /// Nodes known to hold it on stable storage when it was committed.
    pub durable_on: Arc<[NodeId]>,
    /// Set if the idempotency key had been used before with the same payload: this record was suppressed, and this is
    /// the offset of the first copy. A batch re-sent by the client itself is no duplicate in this sense.
    pub duplicate: Option<Offset>,
}

/// Totals of a producer, from its start to its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CloseReport {
    /// Acknowledged records, suppressed repeats included.
    pub committed: u64,
    /// Of those, suppressed repeats.
    pub duplicates: u64,
    /// Decisively refused or never sent: not in the log and never will be by this producer.
    pub refused: u64,
    /// Fate unknown.
    pub unresolved: u64,
}
