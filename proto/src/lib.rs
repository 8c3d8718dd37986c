//! The wire contract of Quorate, its shared vocabulary, and its record batch and Raft entry formats.
//!
//! - [`ids`], [`time`]: one newtype for every id, term, epoch, offset, index and clock.
//! - [`control`]: what data nodes, observers and voters tell each other (permits, facts, leases, reports).
//! - [`batch`]: record batches, on the wire, in the log and as stored; [`entry`]: payloads of Raft entries.
//! - [`key_run`]: what the key window gained by an entry.
//! - [`file_header`], [`hash`], [`slot`], [`names`], [`limits`]: the rest of the formats.
//! - [`convert`]: control vocabulary ↔ protobuf.
//! - [`v1`], [`internal`]: generated protobuf messages; with feature `grpc` the services too.
//!
//! The formats are documented byte by byte in `docs/format.md`.

pub mod batch;
pub mod control;
pub mod convert;
pub mod entry;
pub mod file_header;
pub mod hash;
pub mod ids;
pub mod key_run;
mod le;
pub mod limits;
pub mod names;
pub mod reasons;
pub mod refusal;
pub mod slot;
#[cfg(feature = "grpc")]
pub mod status;
pub mod time;

/// Public messages (package `quorate.v1`).
#[allow(missing_docs, clippy::all)]
pub mod v1 {
    include!(concat!(env!("OUT_DIR"), "/quorate.v1.rs"));
}

/// Private messages between nodes and on disk (package `quorate.internal.v1`).
#[allow(missing_docs, clippy::all)]
pub mod internal {
    include!(concat!(env!("OUT_DIR"), "/quorate.internal.v1.rs"));
}

/// Encoded `FileDescriptorSet` of all `.proto` files, for gRPC server reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
