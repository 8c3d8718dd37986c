//! Storage of a data node: one thread owns the files of all partitions.
//!
//! ```text
//!   data_dir/partitions/<group id>/<generation>/<base offset>.segment   applied entries (frame.rs)
//!                                               <base offset>.index     where to begin to look in it (index.rs)
//!                                               <number>.keys           key runs (runs.rs)
//!   checkpoint (checkpoint.rs): key–value of the group in the write-ahead log
//! ```
//! The shell sends commands over a queue bounded in bytes and gets [`StorageNotice`]s. Appends are buffered by the
//! system; only a checkpoint flushes. What lies after a checkpoint is cut off at start and appended again from the
//! write-ahead log, so a torn tail is never looked at.

mod checkpoint;
mod error;
mod evidence;
mod file;
mod files;
mod frame;
mod handle;
mod index;
mod runs;
mod scrub;
mod segment;
mod staging;
mod thread;

#[cfg(test)]
mod tests;

pub use checkpoint::{Checkpoint, CHECKPOINT_KEY};
pub use error::StorageError;
pub use evidence::{groups, holds_entries, reach};
pub use files::SnapshotFile;
pub use handle::StorageHandle;
pub use scrub::{start as start_scrub, ScrubSettings};
pub use segment::Found;
pub use staging::{snapshot_parts, Stagings};
pub use thread::{Storage, StorageNotice, StorageSettings};
