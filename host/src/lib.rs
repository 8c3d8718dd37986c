//! The shell that hosts Raft groups for either kind of node. It knows nothing of partitions or directories:
//! it executes effects of the pure cores (`quorate-consensus`) and reports what came of them.
//!
//! - [`wal`]: one raft-engine and one writer thread per node; group commit; disk faults (W1, B1, B3, B4).
//! - [`transport`]: frames between nodes of one kind, on lanes of their own; snapshots.
//! - [`turn`]: the bounded mailbox and the event loop that both kinds of node run.
//! - [`clock`]: `CLOCK_BOOTTIME` behind a trait, and the boot id.
//! - [`data_dir`]: exclusive lock, identity, incarnation (B1).
//! - [`remover`]: deletes large files without making anybody wait.
//! - [`space`]: free bytes and inodes, the ballast (B5).
//! - [`config`], [`telemetry`], [`listen`]: what every process of Quorate needs at its start.

pub mod clock;
pub mod config;
pub mod data_dir;
pub mod listen;
mod mount;
pub mod remover;
mod repeats;
pub mod space;
pub mod telemetry;
pub mod transport;
pub mod turn;
pub mod wal;
