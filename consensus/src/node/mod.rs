//! The data node's core: [`NodeCore`](core) owns every replica that the node hosts, its session with the observers,
//! the leases it holds, and its heartbeat token. Shells and simulator feed [`NodeEvent`]s and execute [`NodeEffect`]s.

pub mod effect;
pub mod event;

pub use effect::NodeEffect;
pub use event::NodeEvent;
