//! One segment: an append-only file of applied entries, named by the offset it begins at.
//!
//! Its sparse index (index.rs) is looked for on first use: starting a node costs nothing per stored record.

use std::fs::{File, OpenOptions};
use std::io::{IoSlice, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use quorate_consensus::node::effect::AppliedEntry;
use quorate_proto::file_header::FileKind;
use quorate_proto::ids::Offset;
use quorate_proto::time::LogTime;

use super::error::StorageError;
use super::file;
use super::frame::{self, HEADER};
use super::index::{self, Index};

/// One read from disk, unless an entry is longer.
const BLOCK: usize = 512 << 10;
/// Written bytes after which the storage thread flushes without being asked. A flush of the log waits for all data
/// that the file system's journal has to order before it: small steps keep that wait short, where a checkpoint's worth
/// of dirty pages at once would stall every acknowledgement for its whole length.
const WRITE_BACK_EVERY: u64 = 512 * 1024;

/// At most this many pieces go into one `writev` (the system's limit is 1024).
const MAX_PIECES: usize = 512;

/// The file's own header comes first.
pub(super) const FIRST_ENTRY: u64 = file::HEADER_LEN as u64;

/// A segment with what is known of it.
#[derive(Debug)]
pub(super) struct Segment {
    pub base: Offset,
    path: PathBuf,
    /// Bytes written, header included.
    pub length: u64,
    /// Open for appending; sealed segments are opened when read.
    file: Option<Arc<File>>,
    /// `None` until somebody reads.
    index: Option<Index>,
    /// Written since the last flush.
    pub dirty: bool,
    /// How much of it, bytes.
    unflushed: u64,
}

/// What a read found.
#[derive(Debug, Default)]
pub struct Found {
    /// Stored batches, one after the other.
    pub bytes: BytesMut,
    /// Offset after the last of them.
    pub next: Option<Offset>,
}

impl Segment {
    /// The file name of a segment that begins at `base`.
    pub fn name(base: Offset) -> String {
        format!("{:020}.segment", base.get())
    }

    /// The file name of its index.
    pub fn index_name(base: Offset) -> String {
        index::beside(Path::new(&Self::name(base))).to_string_lossy().into_owned()
    }

    /// Makes an empty segment.
    pub fn create(dir: &Path, base: Offset) -> Result<Self, StorageError> {
        let path = dir.join(Self::name(base));
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(true)
            .read(true)
            .write(true)
            .open(&path)
            .map_err(StorageError::io("cannot create", &path))?;
        file.write_all(&file::header(FileKind::Segment)).map_err(StorageError::io("cannot write", &path))?;
        Ok(Self {
            base,
            path,
            length: FIRST_ENTRY,
            file: Some(Arc::new(file)),
            index: Some(Index::default()),
            dirty: true,
            unflushed: 0,
        })
    }

    /// Opens a segment as a checkpoint knows it; what was written after the checkpoint is cut off and will be
    /// appended again from the log.
    pub fn open(dir: &Path, base: Offset, length: u64, active: bool) -> Result<Self, StorageError> {
        let path = dir.join(Self::name(base));
        let file =
            OpenOptions::new().read(true).write(true).open(&path).map_err(StorageError::io("cannot open", &path))?;
        let found = file.metadata().map_err(StorageError::io("cannot examine", &path))?.len();
        if found < length {
            return Err(StorageError::corrupt(&path, found, format!("{length} bytes were flushed, {found} are there")));
        }
        file::check_header(&file, &path, FileKind::Segment)?;
        if found > length {
            index::remove(&path);
            file.set_len(length).map_err(StorageError::io("cannot truncate", &path))?;
        }
        let mut segment = Self { base, path, length, file: None, index: None, dirty: found > length, unflushed: 0 };
        if active || segment.dirty {
            segment.file = Some(Arc::new(file));
        }
        Ok(segment)
    }

    /// Appends entries; `next` is the partition's next offset and is moved on.
    pub fn append(&mut self, entries: &[AppliedEntry], next: &mut Offset) -> Result<(), StorageError> {
        let (before, indexed) = (*next, self.index.as_ref().map_or(0, Index::len));
        let mut heads = Vec::with_capacity(entries.len());
        let mut position = self.length;
        for entry in entries {
            let head = frame::encode_head(entry, *next);
            if let Some(index) = &mut self.index {
                index.note(*next, entry.log_time, position);
            }
            let body: usize = entry.batches.iter().map(|b| b.prefix.len() + b.body.len()).sum();
            position += (head.len() + body) as u64;
            *next = entry.batches.last().map_or(*next, |b| b.end_offset);
            heads.push(head);
        }
        let mut pieces = Vec::with_capacity(entries.len() * 3);
        for (head, entry) in heads.iter().zip(entries) {
            pieces.push(IoSlice::new(head));
            for batch in &entry.batches {
                pieces.push(IoSlice::new(&batch.prefix));
                pieces.push(IoSlice::new(&batch.body));
            }
        }
        let file = self.file.as_ref().expect("only the open segment is appended to");
        if let Err(error) = write_pieces(file, &mut pieces, self.length) {
            // As if it had not been tried: what was written lies behind the end.
            *next = before;
            if let Some(index) = &mut self.index {
                index.truncate(indexed);
            }
            return Err(StorageError::io("cannot append to", &self.path)(error));
        }
        self.unflushed += position - self.length;
        self.length = position;
        self.dirty = true;
        if self.unflushed >= WRITE_BACK_EVERY {
            self.sync()?;
        }
        Ok(())
    }

    /// Flushes what was written. That is never tried again: after an error nobody knows what the system still holds (B3).
    pub fn sync(&mut self) -> Result<(), StorageError> {
        if !self.dirty {
            return Ok(());
        }
        let file = self.file.as_ref().expect("a dirty segment is open");
        file.sync_data().map_err(StorageError::flush(&self.path))?;
        self.dirty = false;
        self.unflushed = 0;
        Ok(())
    }

    /// No more is appended: flush and close.
    pub fn seal(&mut self) -> Result<(), StorageError> {
        self.sync()?;
        self.file = None;
        // Whoever reads it looks at the one beside it: memory does not grow with the partition.
        if let Some(index) = self.index.take() {
            index.store(&self.path, self.length);
        }
        Ok(())
    }

    fn reader(&self) -> Result<Arc<File>, StorageError> {
        match &self.file {
            Some(file) => Ok(Arc::clone(file)),
            None => File::open(&self.path).map(Arc::new).map_err(StorageError::io("cannot open", &self.path)),
        }
    }

    /// Appends to `found` the batches that end after `offset`, until it holds `max` bytes; at least one batch if
    /// there is any. `true`: the segment has no more, the next one may go on without a gap.
    pub fn read(&mut self, offset: Offset, max: usize, found: &mut Found) -> Result<bool, StorageError> {
        let (file, mut position) = self.look(|index| index.before_offset(offset))?;
        let mut block = Block::default();
        while position < self.length && found.bytes.len() < max {
            let header = self.header_at(&file, &mut block, position)?;
            let body_at = position + HEADER as u64;
            let next = body_at + u64::from(header.body);
            if next > self.length {
                return Err(StorageError::corrupt(&self.path, position, "an entry runs past the end"));
            }
            if header.end > offset.get() && header.batches > 0 {
                let body = block
                    .get(&file, body_at, header.body as usize, self.length)
                    .map_err(StorageError::io("cannot read", &self.path))?;
                let rows = frame::decode_table(&header, &body)
                    .map_err(|what| StorageError::corrupt(&self.path, position, what))?;
                let mut at = rows.len() * frame::ROW;
                for row in rows {
                    let batch = &body[at..at + row.length as usize];
                    at += row.length as usize;
                    if row.end <= offset.get() {
                        continue;
                    }
                    if !found.bytes.is_empty() && found.bytes.len() + batch.len() > max {
                        return Ok(false);
                    }
                    found.bytes.extend_from_slice(batch);
                    found.next = Some(Offset(row.end));
                }
            }
            position = next;
        }
        Ok(position >= self.length)
    }

    /// The offset before the first entry of this log time or later; `None`: all are older.
    pub fn offset_at(&mut self, time: LogTime) -> Result<Option<Offset>, StorageError> {
        let (file, mut position) = self.look(|index| index.before_time(time))?;
        let mut block = Block::default();
        while position < self.length {
            let header = self.header_at(&file, &mut block, position)?;
            if header.time >= time {
                return Ok(Some(Offset(header.base)));
            }
            position += HEADER as u64 + u64::from(header.body);
        }
        Ok(None)
    }

    /// Log time of its first entry; `None` if it has none.
    pub fn first_time(&self) -> Result<Option<LogTime>, StorageError> {
        if self.length == FIRST_ENTRY {
            return Ok(None);
        }
        let mut bytes = [0; HEADER];
        let read = self.reader()?.read_exact_at(&mut bytes, FIRST_ENTRY);
        read.map_err(StorageError::io("cannot read", &self.path))?;
        let header = frame::decode_header(&bytes);
        header.map(|header| Some(header.time)).map_err(|what| StorageError::corrupt(&self.path, FIRST_ENTRY, what))
    }

    /// The file, and a position that the index names, which is looked for if nobody has read yet.
    fn look(&mut self, where_to: impl FnOnce(&Index) -> u64) -> Result<(Arc<File>, u64), StorageError> {
        let file = self.reader()?;
        if self.index.is_none() {
            self.index = Some(Index::of(&file, &self.path, self.length, self.file.is_none())?);
        }
        let position = self.index.as_ref().map_or(FIRST_ENTRY, where_to);
        Ok((file, position))
    }

    fn header_at(&self, file: &File, block: &mut Block, position: u64) -> Result<frame::Header, StorageError> {
        let bytes =
            block.get(file, position, HEADER, self.length).map_err(StorageError::io("cannot read", &self.path))?;
        frame::decode_header(&bytes).map_err(|what| StorageError::corrupt(&self.path, position, what))
    }
}

/// The last piece of a file that was read.
#[derive(Default)]
struct Block {
    start: u64,
    bytes: Bytes,
}

impl Block {
    /// `length` bytes at `position`, from memory if they were read before; reads ahead up to a block.
    fn get(&mut self, file: &File, position: u64, length: usize, limit: u64) -> std::io::Result<Bytes> {
        let within = position.checked_sub(self.start).and_then(|skip| usize::try_from(skip).ok());
        if let Some(skip) = within {
            if skip + length <= self.bytes.len() {
                return Ok(self.bytes.slice(skip..skip + length));
            }
        }
        let ahead = usize::try_from(limit.saturating_sub(position)).unwrap_or(usize::MAX).min(BLOCK).max(length);
        let mut bytes = vec![0; ahead];
        file.read_exact_at(&mut bytes, position)?;
        self.start = position;
        self.bytes = Bytes::from(bytes);
        Ok(self.bytes.slice(..length))
    }
}

/// Writes all pieces at `position` (not at the file's own cursor: after a truncation that stands elsewhere).
fn write_pieces(mut file: &File, pieces: &mut [IoSlice<'_>], position: u64) -> std::io::Result<()> {
    use std::io::{Seek, SeekFrom};
    file.seek(SeekFrom::Start(position))?;
    let mut rest = pieces;
    while !rest.is_empty() {
        let window = rest.len().min(MAX_PIECES);
        let written = file.write_vectored(&rest[..window])?;
        if written == 0 && rest[..window].iter().any(|piece| !piece.is_empty()) {
            return Err(std::io::ErrorKind::WriteZero.into());
        }
        IoSlice::advance_slices(&mut rest, written);
        // Empty pieces in front would otherwise never go away.
        while rest.first().is_some_and(|piece| piece.is_empty()) {
            rest = &mut rest[1..];
        }
    }
    Ok(())
}
