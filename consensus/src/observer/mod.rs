//! The observer's core: directory, arbiter, leases, and the observers' own self-electing replica.

pub mod effect;
pub mod event;

pub use effect::ObserverEffect;
pub use event::ObserverEvent;
