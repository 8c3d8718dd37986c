//! Upper bounds of everything that is written or accepted, each with its reason.

use std::time::Duration;

/// One record as encoded: key, idempotency key, headers and payload with their lengths.
pub const RECORD_MAX: usize = 1 << 20;

/// A record key, and also an idempotency key.
pub const KEY_MAX: usize = 64 << 10;

/// Headers of one record.
pub const HEADERS_MAX: usize = 256;

/// A whole record batch as encoded: a stock gRPC client's 4 MiB receive limit holds with room for its frame.
pub const BATCH_MAX: usize = 3 << 20;

/// Records section after decompression: a batch that is opened for a client without a decoder fits the same limit.
pub const UNCOMPRESSED_MAX: usize = 3 << 20;

/// Uncompressed size ÷ compressed size: more than this is a decompression bomb.
pub const COMPRESSION_RATIO_MAX: usize = 16;

/// Records in a batch: bounds the table, the bitmap and the answer to one publish.
pub const BATCH_RECORDS_MAX: usize = 32_768;

/// An SDK closes a batch at this size (`3-architecture`, "A publish").
pub const SDK_BATCH: usize = 256 << 10;

/// Batches gathered into one Raft entry; a larger batch is an entry of its own.
pub const ENTRY_GATHER: usize = 512 << 10;

/// Batches in one Raft entry: bounds the metadata.
pub const ENTRY_BATCHES_MAX: usize = 4_096;

/// A Raft entry's payload: the largest batch, or a full gathering, with its metadata.
pub const ENTRY_MAX: usize = 4 << 20;

/// A principal or client id in an entry; longer ones are cut by whoever makes the entry.
pub const NAME_MAX: usize = 256;

/// Topic name and namespace, each.
pub const TOPIC_NAME_MAX: usize = 200;

/// Remembered results of a producer (I2).
pub const PRODUCER_RESULTS: usize = 64;

/// Runs of exceptional outcomes that one producer's remembered results may hold; older results go first. Bounds
/// what a producer of many refused or repeated records can occupy.
pub const PRODUCER_OUTCOME_RUNS: usize = 4_096;

/// Producers of a partition (I5).
pub const PRODUCERS_MAX: usize = 100_000;

/// Idle producer state is forgotten after this much log time (I5).
pub const PRODUCER_IDLE: Duration = Duration::from_secs(7 * 24 * 3600);

/// Producer state younger than this is never evicted (I5). The SDK raises its epoch after 8 min of idleness.
pub const PRODUCER_SAFE: Duration = Duration::from_secs(600);

/// Age of the key window in log time (I7).
pub const KEY_WINDOW: Duration = Duration::from_secs(24 * 3600);

/// The window never shrinks below this many keys, whatever their age.
pub const KEYS_MIN: usize = 1_000_000;

/// The window never grows beyond this many keys, however young they are.
pub const KEYS_MAX: usize = 10_000_000;

/// Cluster time that leaps by more than this stops ageing until an operator accepts it (W5).
pub const TIME_LEAP: Duration = Duration::from_secs(300);
