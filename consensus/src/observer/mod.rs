//! The observer's core: directory, arbiter, leases, and the observers' own self-electing replica.

mod config;
mod core;
pub mod effect;
pub mod event;

pub use self::config::{observer_of, replica_of, ObserverConfig, StartError, SNAPSHOT_ENTRIES};
pub use self::core::ObserverCore;
pub use effect::ObserverEffect;
pub use event::ObserverEvent;
