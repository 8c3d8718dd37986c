//! The sparse index of a segment: where to begin to look for an offset or a log time.
//!
//! It is made as entries are appended. When the segment is closed it is written beside it, `<base offset>.index`, so
//! that a later start reads a few kilobytes instead of every entry header. It is a shortcut and nothing else: an index
//! that is missing, torn, damaged or of another length is made anew from the segment, never trusted.
//!
//! ```text
//!  0  file header (32 bytes)
//! 32  u64  length of the segment that it describes
//! 40  u32  number of points
//! 44  u32  CRC32C over bytes 32..44 and all points
//! 48  per point: u64 offset before an entry, i64 its log time (µs), u64 its position in the segment
//! ```

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use quorate_proto::file_header::{FileHeader, FileKind};
use quorate_proto::ids::Offset;
use quorate_proto::time::LogTime;

use super::error::StorageError;
use super::file;
use super::frame::{self, HEADER};
use super::segment::FIRST_ENTRY;

/// From one point to the next at least this many bytes of the segment.
const EVERY: u64 = 32 << 10;
const POINT: usize = 24;
/// What stands before the points, after the file header.
const HEAD: usize = 16;

/// One entry of the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Point {
    offset: u64,
    time: i64,
    position: u64,
}

/// Points in the order of the segment: offsets, times and positions never fall.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Index(Vec<Point>);

impl Index {
    /// The index of this segment: the one beside it if that fits, else made from its entry headers, and written beside it
    /// if the segment is `closed`.
    ///
    /// # Errors
    /// The segment cannot be read or is damaged.
    pub fn of(segment: &File, path: &Path, length: u64, closed: bool) -> Result<Self, StorageError> {
        if let Some(index) = Self::load(&beside(path), length) {
            return Ok(index);
        }
        let mut index = Self::default();
        let mut position = FIRST_ENTRY;
        let mut bytes = [0; HEADER];
        while position < length {
            segment.read_exact_at(&mut bytes, position).map_err(StorageError::io("cannot read", path))?;
            let header = frame::decode_header(&bytes).map_err(|what| StorageError::corrupt(path, position, what))?;
            index.note(Offset(header.base), header.time, position);
            position += (HEADER as u64) + u64::from(header.body);
        }
        if closed {
            index.store(path, length);
        }
        Ok(index)
    }

    /// The next entry of the segment begins with this offset and log time at `position`.
    pub fn note(&mut self, offset: Offset, time: LogTime, position: u64) {
        if self.0.last().is_none_or(|last| position - last.position >= EVERY) {
            self.0.push(Point { offset: offset.get(), time: time.0, position });
        }
    }

    /// Number of points, for [`Self::truncate`].
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// What was noted since there were `points` of them does not count.
    pub fn truncate(&mut self, points: usize) {
        self.0.truncate(points);
    }

    /// Where to begin to look for the batch that holds `offset`.
    pub fn before_offset(&self, offset: Offset) -> u64 {
        self.before(|point| point.offset <= offset.get())
    }

    /// Where to begin to look for the first entry of this log time or later.
    pub fn before_time(&self, time: LogTime) -> u64 {
        self.before(|point| point.time < time.0)
    }

    fn before(&self, holds: impl Fn(&Point) -> bool) -> u64 {
        match self.0.partition_point(holds) {
            0 => FIRST_ENTRY,
            after => self.0[after - 1].position,
        }
    }

    /// Writes it beside its segment. Not flushed: a torn one is found out.
    pub fn store(&self, segment: &Path, length: u64) {
        let mut bytes = file::header(FileKind::SegmentIndex).to_vec();
        let mut body = length.to_le_bytes().to_vec();
        body.extend_from_slice(&u32::try_from(self.0.len()).expect("a segment is far below 2^47 bytes").to_le_bytes());
        let points: Vec<u8> = self.0.iter().flat_map(Point::encode).collect();
        let crc = crc32c::crc32c_append(crc32c::crc32c(&body), &points);
        body.extend_from_slice(&crc.to_le_bytes());
        bytes.extend_from_slice(&body);
        bytes.extend_from_slice(&points);
        let path = beside(segment);
        if let Err(error) = std::fs::write(&path, bytes) {
            // Nothing is lost. A disk that fails shows by what must be written to it.
            tracing::warn!(path = %path.display(), %error, "a segment's index cannot be written; it is made anew when needed");
            let _ = std::fs::remove_file(&path);
        }
    }

    fn load(path: &Path, length: u64) -> Option<Self> {
        let bytes = std::fs::read(path).ok()?;
        let (header, rest) = bytes.split_at_checked(file::HEADER_LEN)?;
        FileHeader::parse(FileKind::SegmentIndex, header).ok()?;
        let (head, points) = rest.split_at_checked(HEAD)?;
        let (said, crc) = head.split_at(HEAD - 4);
        let sound = crc32c::crc32c_append(crc32c::crc32c(said), points).to_le_bytes() == *crc;
        let fits = said[..8] == length.to_le_bytes() && points.len() % POINT == 0;
        let counted = said[8..] == u32::try_from(points.len() / POINT).ok()?.to_le_bytes();
        (sound && fits && counted).then(|| Self(points.chunks_exact(POINT).map(Point::decode).collect()))
    }
}

/// The segment is cut: what its index says is of no use any more.
pub(super) fn remove(segment: &Path) {
    // There is none, mostly. One that stays is of another length.
    let _ = std::fs::remove_file(beside(segment));
}

/// The file of a segment's index.
pub(super) fn beside(segment: &Path) -> PathBuf {
    segment.with_extension("index")
}

impl Point {
    fn encode(&self) -> [u8; POINT] {
        let mut bytes = [0; POINT];
        bytes[..8].copy_from_slice(&self.offset.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.time.to_le_bytes());
        bytes[16..].copy_from_slice(&self.position.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Self {
        let word = |at: usize| <[u8; 8]>::try_from(&bytes[at..at + 8]).expect("8 bytes");
        Self {
            offset: u64::from_le_bytes(word(0)),
            time: i64::from_le_bytes(word(8)),
            position: u64::from_le_bytes(word(16)),
        }
    }
}
