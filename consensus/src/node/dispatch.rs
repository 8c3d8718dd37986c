//! [`NodeCore`]: dispatch of events to the parts of a data node.

use std::marker::PhantomData;

use quorate_proto::control::Assignment;
use quorate_proto::ids::GroupId;
use quorate_proto::time::BootTime;

use super::config::{MachineImage, NodeConfig};
use super::effect::NodeEffect;
use super::event::NodeEvent;
use super::status::{NodeStatus, PartitionStatus};
use crate::effect::Restored;
use crate::policy::Policy;
use crate::policy::Production;

/// The pure core of a data node.
#[derive(Debug)]
pub struct NodeCore<P: Policy = Production> {
    config: NodeConfig,
    policy: PhantomData<P>,
}

impl<P: Policy> NodeCore<P> {
    /// A node that hosts nothing yet. `now`: start of the process, for V1c.
    #[must_use]
    pub fn new(config: NodeConfig, _now: BootTime) -> Self {
        Self { config, policy: PhantomData }
    }

    /// Hosts a replica that was found on disk at start. Call it before the first event.
    ///
    /// `assignment`: as stored under [`super::stored::ASSIGNMENT`] in the group's key–value pairs.
    /// `image`: the newest checkpoint; `None` if there was none yet. Entries after it are applied again, so the
    /// effects contain the `Append`s of everything committed after the checkpoint.
    pub fn open(
        &mut self,
        _assignment: Assignment,
        _restored: Restored,
        _image: Option<MachineImage>,
        _now: BootTime,
        _out: &mut Vec<NodeEffect>,
    ) {
    }

    /// Takes one event. `now` is read after the event was taken from its queue, anew for each event (V2).
    pub fn handle(&mut self, _now: BootTime, _event: NodeEvent, _out: &mut Vec<NodeEffect>) {}

    /// Ends a turn: call it after the mailbox was drained. Proposes what gathered, asks for leases, reports.
    pub fn flush(&mut self, _now: BootTime, _out: &mut Vec<NodeEffect>) {}

    /// When the core wants a `Tick` at the latest.
    #[must_use]
    pub fn next_deadline(&self) -> BootTime {
        BootTime::ZERO
    }

    /// What was given at the start.
    #[must_use]
    pub fn config(&self) -> &NodeConfig {
        &self.config
    }

    /// State of the node.
    #[must_use]
    pub fn status(&self) -> NodeStatus {
        NodeStatus::default()
    }

    /// Groups hosted.
    pub fn groups(&self) -> impl Iterator<Item = GroupId> + '_ {
        std::iter::empty()
    }

    /// State of one replica.
    #[must_use]
    pub fn partition(&self, _group: GroupId, _now: BootTime) -> Option<PartitionStatus> {
        None
    }
}
