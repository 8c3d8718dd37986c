//! One applied entry as it stands in a segment. Little endian.
//!
//! ```text
//!  0  u32  magic "QEN1"
//!  4  u32  CRC32C over bytes 8..64
//!  8  u32  length of what follows the header (table + batches)
//! 12  u32  number of batches
//! 16  u64  Raft index
//! 24  u64  Raft term
//! 32  i64  log time, µs
//! 40  u64  offset before the entry's first record
//! 48  u64  offset after its last record
//! 56  u32  CRC32C over what follows the header
//! 60  u32  reserved, 0
//! 64  per batch, 24 bytes: u32 length, u32 reserved, u64 base offset, u64 end offset
//!     then the stored batches (what apply wrote, then the batch as it came), one after the other
//! ```
//! Header and body have checksums of their own, so that an index is built by reading headers alone.

use quorate_consensus::node::effect::AppliedEntry;
use quorate_proto::ids::Offset;
use quorate_proto::time::LogTime;

/// Length of the fixed part.
pub(super) const HEADER: usize = 64;
/// Length of one row of the table.
pub(super) const ROW: usize = 24;
const MAGIC: u32 = u32::from_le_bytes(*b"QEN1");
/// No entry is longer: a length beyond it is damage (a batch is at most 3 MiB, an entry little more).
pub(super) const MAX_BODY: u32 = 16 << 20;

/// The fixed part, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub body: u32,
    pub batches: u32,
    pub index: u64,
    pub time: LogTime,
    pub base: u64,
    pub end: u64,
    pub body_crc: u32,
}

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub length: u32,
    pub base: u64,
    pub end: u64,
}

/// Header and table of `entry`; the batches follow as they are. `next` is the partition's next offset before it.
pub(super) fn encode_head(entry: &AppliedEntry, next: Offset) -> Vec<u8> {
    let table = entry.batches.len() * ROW;
    let mut head = vec![0_u8; HEADER + table];
    let mut crc = 0;
    let mut length = table;
    for (i, batch) in entry.batches.iter().enumerate() {
        let row = &mut head[HEADER + i * ROW..HEADER + (i + 1) * ROW];
        let size = batch.prefix.len() + batch.body.len();
        length += size;
        row[0..4].copy_from_slice(&to_u32(size).to_le_bytes());
        row[8..16].copy_from_slice(&batch.base_offset.get().to_le_bytes());
        row[16..24].copy_from_slice(&batch.end_offset.get().to_le_bytes());
    }
    crc = crc32c::crc32c_append(crc, &head[HEADER..]);
    for batch in &entry.batches {
        crc = crc32c::crc32c_append(crc, &batch.prefix);
        crc = crc32c::crc32c_append(crc, &batch.body);
    }
    let end = entry.batches.last().map_or(next, |b| b.end_offset);
    head[0..4].copy_from_slice(&MAGIC.to_le_bytes());
    head[8..12].copy_from_slice(&to_u32(length).to_le_bytes());
    head[12..16].copy_from_slice(&to_u32(entry.batches.len()).to_le_bytes());
    head[16..24].copy_from_slice(&entry.index.get().to_le_bytes());
    head[24..32].copy_from_slice(&entry.term.get().to_le_bytes());
    head[32..40].copy_from_slice(&entry.log_time.0.to_le_bytes());
    head[40..48].copy_from_slice(&next.get().to_le_bytes());
    head[48..56].copy_from_slice(&end.get().to_le_bytes());
    head[56..60].copy_from_slice(&crc.to_le_bytes());
    let crc = crc32c::crc32c(&head[8..HEADER]);
    head[4..8].copy_from_slice(&crc.to_le_bytes());
    head
}

/// Decodes and checks a header; the text says what is wrong with it.
pub(super) fn decode_header(bytes: &[u8]) -> Result<Header, &'static str> {
    let bytes = bytes.get(..HEADER).ok_or("an entry header is cut off")?;
    if u32_at(bytes, 0) != MAGIC {
        return Err("no entry begins here");
    }
    if crc32c::crc32c(&bytes[8..HEADER]) != u32_at(bytes, 4) {
        return Err("an entry header fails its checksum");
    }
    let header = Header {
        body: u32_at(bytes, 8),
        batches: u32_at(bytes, 12),
        index: u64_at(bytes, 16),
        time: LogTime(i64::from_le_bytes(bytes[32..40].try_into().expect("8 bytes"))),
        base: u64_at(bytes, 40),
        end: u64_at(bytes, 48),
        body_crc: u32_at(bytes, 56),
    };
    if header.body > MAX_BODY || u64::from(header.batches) * ROW as u64 > u64::from(header.body) {
        return Err("an entry header has impossible lengths");
    }
    Ok(header)
}

/// Checks a body against its header and yields its table.
pub(super) fn decode_table(header: &Header, body: &[u8]) -> Result<Vec<Row>, &'static str> {
    if body.len() != header.body as usize || crc32c::crc32c(body) != header.body_crc {
        return Err("an entry fails its checksum");
    }
    let table = header.batches as usize * ROW;
    let rows: Vec<Row> = body[..table]
        .chunks_exact(ROW)
        .map(|row| Row { length: u32_at(row, 0), base: u64_at(row, 8), end: u64_at(row, 16) })
        .collect();
    let total: u64 = rows.iter().map(|r| u64::from(r.length)).sum();
    if total + table as u64 == u64::from(header.body) {
        Ok(rows)
    } else {
        Err("an entry's table does not add up")
    }
}

fn to_u32(length: usize) -> u32 {
    u32::try_from(length).expect("entries are far below 4 GiB: the replica bounds them")
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}
