//! The data node: the shell around [`quorate_consensus::node`], its storage, its public `Log` service, its session
//! with the observers, and the supervisor process that stands over it.
//!
//! ```text
//!   thread       what runs there
//!   I/O + shard  tokio (current thread): sockets, gRPC services, and the turn: drain → NodeCore::handle → flush → effects
//!   wal          host::wal: one writer, group commit over all partitions
//!   storage      segments, key runs, checkpoints, snapshots, reads below the tail cache
//! ```
//!
//! [`run_node`] is the node process; [`run_supervisor`] its parent (protocol S2).

pub mod config;
pub mod error;

pub use config::ServerConfig;
pub use error::ServerError;
pub use node::run_node;
pub use supervisor::{run_supervisor, ChildCommand};

pub mod keys;
pub mod known;
pub mod node;
pub mod services;
pub mod session;
pub mod storage;
pub mod supervisor;
pub mod view;
