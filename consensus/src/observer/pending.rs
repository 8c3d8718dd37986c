//! What an observer leader proposed and has not yet seen applied.

use quorate_proto::ids::{GroupId, Incarnation, NodeId, ReplicaId, Term, Ticket};

/// Why an entry was proposed: what is to be done when it is applied, or lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Pending {
    /// Nobody waits for it.
    Plain,
    /// A node registers.
    Register(NodeId),
    /// An administrator's change, answered once it is applied.
    Admin(Ticket),
    /// Permits for these partitions, with a death perhaps.
    Permits {
        /// Partitions, also those whose permit may come too late.
        groups: Vec<GroupId>,
        /// The death in the same command.
        death: Option<(NodeId, Incarnation)>,
    },
    /// A lease; its askers wait in the lease book.
    Grant(GroupId, Term),
    /// A step of a change of this partition's members.
    Members(GroupId),
    /// A release.
    Release(ReplicaId, Term),
}
