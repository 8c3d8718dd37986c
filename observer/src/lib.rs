//! The observer: the shell around [`quorate_consensus::observer`], its snapshot files and view, its sessions with data
//! nodes and supervisors, and the public `Directory` and `Admin` services.
//!
//! ```text
//!   thread     what runs there
//!   I/O        tokio (current thread): sockets, gRPC services, and the turn: drain → ObserverCore::handle → effects
//!   wal        host::wal: one writer
//!   files      snapshot files, the sled view
//! ```
//!
//! [`run_observer`] is the process.

pub mod config;
pub mod error;
pub mod files;
mod node;
pub mod routes;
pub mod services;

pub use config::ObserverConfig;
pub use error::ObserverError;
pub use node::{run_observer, Ended};
