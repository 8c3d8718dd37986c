//! What an observer keeps on its disk beside the write-ahead log: snapshot files of the directory, and the sled view.

mod snapshot;
mod view;

pub use snapshot::{SnapshotFile, Snapshots, GENERATIONS};
pub use view::{View, ViewError};
