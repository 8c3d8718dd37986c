//! The data node's core: [`NodeCore`] owns every replica that the node hosts, its session with the observers,
//! the leases it holds, and its heartbeat token. Shells and simulator feed [`NodeEvent`]s and execute [`NodeEffect`]s.

mod checkpoints;
mod cluster_time;
mod config;
mod disk;
mod dispatch;
mod early_keys;
pub mod effect;
pub mod event;
mod execute;
mod handoff;
mod hosting;
mod inspect;
mod known;
mod marks;
mod membership;
mod partition_replica;
mod pipeline;
mod publish;
mod reads;
mod refuse;
mod rng;
mod session;
mod status;
pub mod stored;

pub use config::{MachineImage, NodeConfig, NodeLimits};
pub use dispatch::NodeCore;
pub use effect::NodeEffect;
pub use event::NodeEvent;
pub use hosting::first_members;
pub use status::{NodeCounters, NodeStatus, PartitionStatus};

#[cfg(test)]
mod tests;
