//! The pure cores of Quorate: everything that replicas and observers must agree on, as single-threaded,
//! deterministic code that takes `(now, event)` and pushes ordered effects. No clock, randomness, IO or
//! await lives here; shells (`server`, `observer`) and the simulator (`sim`) drive the same code.
//!
//! ```text
//!   observer::ObserverCore            node::NodeCore
//!    ├ directory (machine)             ├ session, leases held, heartbeat token
//!    ├ arbiter (permits)               └ node::PartitionReplica, one per replica hosted
//!    ├ lease (grants)                      ├ publish pipeline (admission, gathering, answers)
//!    └ replica::Replica (self-electing)    ├ partition (the log machine)
//!                                          └ replica::Replica (governed: gate, fence)
//! ```
//!
//! `now` is given with every event; the shell reads it *after* it took the event from its queue and does not
//! cache it over several events (protocol V2).

pub mod arbiter;
pub mod directory;
pub mod effect;
pub mod envelope;
pub mod lease;
pub mod node;
pub mod observer;
pub mod partition;
pub mod policy;
pub mod replica;
pub mod space;
pub mod timing;
pub mod why;
