//! The observer's core: directory, arbiter, leases, and the observers' own self-electing replica.
//!
//! ```text
//! sessions ──► view ──► arbiter ──► commands ──► replica ──► applied ──► directory ──► permits, leases, assignments,
//!              (what was heard)     (proposed)   (commit)                              routes: only from here
//! ```

mod apply;
mod attendance;
mod break_glass;
mod clock;
mod config;
mod core;
mod disk;
pub mod effect;
pub mod event;
mod failover;
mod handoff;
mod leading;
mod leases;
mod pending;
mod rebuild;
mod repair;
mod session;
mod why;

pub use self::config::{observer_of, replica_of, ObserverConfig, StartError, SNAPSHOT_ENTRIES};
pub use self::core::ObserverCore;
pub use break_glass::BreakGlassPlan;
pub use effect::ObserverEffect;
pub use event::ObserverEvent;
pub use rebuild::RebuildPlan;

#[cfg(test)]
mod tests;
