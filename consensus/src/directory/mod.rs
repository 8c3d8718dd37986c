//! The observers' machine.

/// Nodes, topics, partitions, permits, leases, releases, deaths.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Directory {}
