//! raft-engine's file system, wrapped: a failed flush never returns, a cut tail is noticed, faults can be injected.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use raft_engine::env::{DefaultFileSystem, FileSystem, Handle, Permission, WriteExt};

use super::queue::Shared;
use super::tail::lost_records;
use super::{FaultPolicy, TailCut, WriteAs};
use crate::remover::Remover;

type Fd = <DefaultFileSystem as FileSystem>::Handle;
type RawWriter = <DefaultFileSystem as FileSystem>::Writer;
type RawReader = <DefaultFileSystem as FileSystem>::Reader;

/// A write that found no room is tried again after this long.
const ROOM_RETRY: Duration = Duration::from_millis(50);

/// State that all files of a log share.
pub(super) struct Disk {
    shared: Arc<Shared>,
    faults: Arc<dyn FaultPolicy>,
    /// Recovery: errors are returned (the open fails) instead of poisoning, and truncations are cut tails.
    opening: AtomicBool,
    tail_cut: Mutex<Option<TailCut>>,
    /// Files are used again: old records may stand behind the end.
    recycled: bool,
    remover: Remover,
    /// The open files by name: one that is deleted is only taken down when nobody reads it any more.
    open: Mutex<BTreeMap<PathBuf, Vec<Weak<Fd>>>>,
}

impl Disk {
    /// After an append or flush error nothing of this log may run any more (B3), unless it is just being opened.
    fn failed(&self, what: &str, file: &Path, error: io::Error) -> io::Error {
        if self.opening.load(Ordering::SeqCst) {
            return error;
        }
        self.shared.poison(&format!("{what} of {} failed: {error}", file.display()))
    }

    /// B5: a full disk is no failed one. Nothing was written, so nothing is lost by trying again: it is a stall (B4) that ends
    /// with room. Its owner is told, so that the ballast goes.
    fn when_there_is_room<T>(&self, mut write: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        loop {
            match write() {
                Err(error) if error.kind() == io::ErrorKind::StorageFull && !self.opening.load(Ordering::SeqCst) => {
                    self.shared.full(ROOM_RETRY);
                }
                result => return result,
            }
        }
    }

    /// Recovery cut `file` at `offset`. Preallocated zeros after the last record are no loss.
    fn note_cut(&self, file: &Path, offset: usize) -> io::Result<()> {
        let mut content = fs::File::open(file)?;
        content.seek(SeekFrom::Start(offset as u64))?;
        // At most one file: 128 MiB, once, at a start after a crash.
        let mut rest = Vec::new();
        content.read_to_end(&mut rest)?;
        let length = rest.len() as u64;
        rest.truncate(rest.iter().rposition(|&byte| byte != 0).map_or(0, |at| at + 1));
        if !rest.is_empty() {
            let lost = lost_records(&rest, length, number_of(file), self.recycled);
            let cut = TailCut { file: file.into(), kept: offset as u64, dropped: rest.len() as u64, lost };
            let (file, kept, dropped) = (file.display(), cut.kept, cut.dropped);
            tracing::warn!(%file, kept, dropped, lost, "write-ahead log: tail cut");
            *self.tail_cut.lock().unwrap_or_else(PoisonError::into_inner) = Some(cut);
        }
        Ok(())
    }
}

/// A log file's number, by which its records are signed: `0000000000000003.raftlog` is 3.
pub(super) fn number_of(file: &Path) -> u32 {
    let stem = file.file_stem().and_then(|stem| stem.to_str());
    let number: u64 = stem.and_then(|stem| stem.parse().ok()).unwrap_or_default();
    // As raft-engine does it: the lower half.
    #[allow(clippy::cast_possible_truncation)]
    {
        number as u32
    }
}

/// The file system of one log.
pub(super) struct Files(Arc<Disk>);

impl Files {
    pub(super) fn new(shared: Arc<Shared>, faults: Arc<dyn FaultPolicy>, recycled: bool, remover: Remover) -> Self {
        let opening = AtomicBool::new(true);
        Self(Arc::new(Disk {
            shared,
            faults,
            opening,
            tail_cut: Mutex::default(),
            recycled,
            remover,
            open: Mutex::default(),
        }))
    }

    /// Recovery is over: from now on errors poison. Returns what recovery cut off.
    pub(super) fn opened(&self) -> Option<TailCut> {
        self.0.opening.store(false, Ordering::SeqCst);
        self.0.tail_cut.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn wrap(&self, path: &Path, fd: Fd) -> LogFile {
        let fd = Arc::new(fd);
        let mut open = self.0.open.lock().unwrap_or_else(PoisonError::into_inner);
        let handles = open.entry(path.into()).or_default();
        handles.retain(|handle| handle.strong_count() > 0);
        handles.push(Arc::downgrade(&fd));
        LogFile { fd, path: path.into(), disk: Arc::clone(&self.0) }
    }

    /// The file goes away under its name: says from then on whether nobody has it open any more.
    pub(super) fn unused(&self, path: &Path) -> impl Fn() -> bool + Send + 'static {
        let handles = self.0.open.lock().unwrap_or_else(PoisonError::into_inner).remove(path).unwrap_or_default();
        move || handles.iter().all(|handle| handle.strong_count() == 0)
    }
}

impl FileSystem for Files {
    type Handle = LogFile;
    type Reader = LogReader;
    type Writer = LogWriter;

    fn create<P: AsRef<Path>>(&self, path: P) -> io::Result<LogFile> {
        let fd = self.0.when_there_is_room(|| {
            self.0.faults.before_room(path.as_ref())?;
            DefaultFileSystem.create(&path)
        })?;
        Ok(self.wrap(path.as_ref(), fd))
    }

    fn open<P: AsRef<Path>>(&self, path: P, perm: Permission) -> io::Result<LogFile> {
        let fd = DefaultFileSystem.open(&path, perm)?;
        Ok(self.wrap(path.as_ref(), fd))
    }

    fn delete<P: AsRef<Path>>(&self, path: P) -> io::Result<()> {
        // On the writer's thread, between two flushes.
        self.0.remover.remove(path.as_ref(), self.unused(path.as_ref()))
    }

    fn rename<P: AsRef<Path>>(&self, from: P, to: P) -> io::Result<()> {
        drop(self.unused(from.as_ref()));
        DefaultFileSystem.rename(from, to)
    }

    fn new_reader(&self, handle: Arc<LogFile>) -> io::Result<LogReader> {
        let raw = DefaultFileSystem.new_reader(Arc::clone(&handle.fd))?;
        Ok(LogReader { raw, path: handle.path.clone(), disk: Arc::clone(&handle.disk) })
    }

    fn new_writer(&self, handle: Arc<LogFile>) -> io::Result<LogWriter> {
        let raw = DefaultFileSystem.new_writer(Arc::clone(&handle.fd))?;
        Ok(LogWriter { raw, path: handle.path.clone(), disk: Arc::clone(&handle.disk) })
    }
}

/// One open file.
pub(super) struct LogFile {
    fd: Arc<Fd>,
    path: PathBuf,
    disk: Arc<Disk>,
}

impl Handle for LogFile {
    fn truncate(&self, offset: usize) -> io::Result<()> {
        if self.disk.opening.load(Ordering::SeqCst) {
            self.disk.note_cut(&self.path, offset)?;
        }
        Handle::truncate(&*self.fd, offset)
    }

    fn file_size(&self) -> io::Result<usize> {
        Handle::file_size(&*self.fd)
    }

    fn sync(&self) -> io::Result<()> {
        self.disk
            .faults
            .before_flush(&self.path)
            .and_then(|()| Handle::sync(&*self.fd))
            .map_err(|error| self.disk.failed("flush", &self.path, error))
    }
}

/// Writes to one file.
pub(super) struct LogWriter {
    raw: RawWriter,
    path: PathBuf,
    disk: Arc<Disk>,
}

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let (disk, path, raw) = (&self.disk, &self.path, &mut self.raw);
        let written = disk.when_there_is_room(|| match disk.faults.before_write(path, bytes.len())? {
            WriteAs::Whole => raw.write(bytes),
            WriteAs::Short(taken) => raw.write(&bytes[..taken.max(1).min(bytes.len())]),
            WriteAs::Flipped { byte, bit } => raw.write(&flipped(bytes, byte, bit)),
        });
        written.map_err(|error| self.disk.failed("append", &self.path, error))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.raw.flush()
    }
}

impl Seek for LogWriter {
    fn seek(&mut self, position: SeekFrom) -> io::Result<u64> {
        self.raw.seek(position)
    }
}

impl WriteExt for LogWriter {
    fn truncate(&mut self, offset: usize) -> io::Result<()> {
        self.raw.truncate(offset)
    }

    fn allocate(&mut self, offset: usize, size: usize) -> io::Result<()> {
        self.disk.faults.before_room(&self.path)?;
        self.raw.allocate(offset, size)
    }
}

/// A copy with one bit changed.
fn flipped(bytes: &[u8], byte: usize, bit: u8) -> Vec<u8> {
    let mut changed = bytes.to_vec();
    if let Some(byte) = changed.get_mut(byte) {
        *byte ^= 1 << (bit % 8);
    }
    changed
}

/// Reads one file.
pub(super) struct LogReader {
    raw: RawReader,
    path: PathBuf,
    disk: Arc<Disk>,
}

impl Read for LogReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.raw.read(into)?;
        self.disk.faults.after_read(&self.path, &mut into[..count])?;
        Ok(count)
    }
}

impl Seek for LogReader {
    fn seek(&mut self, position: SeekFrom) -> io::Result<u64> {
        self.raw.seek(position)
    }
}

/// Files of a log in its directory.
fn log_files(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|ext| ext == "raftlog" || ext == "rewrite") {
            files.push(path);
        }
    }
    Ok(files)
}

/// After a flush whose result nobody learnt (the process ended while it hung): flushes what the system still holds back,
/// then makes it forget what it holds, so that recovery reads the disk. Pages whose write-back failed count as clean and
/// would be read as if they were there.
pub(super) fn distrust_cache(dir: &Path) -> io::Result<()> {
    for path in log_files(dir)? {
        let file = fs::File::open(&path)?;
        file.sync_data()?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    }
    Ok(())
}

/// Flushes every file of the log and the directory (B1): raft-engine does not flush an intact tail at open, so what
/// a killed process had appended but not flushed would be taken for durable. Returns how many files.
pub(super) fn flush_all(dir: &Path) -> io::Result<usize> {
    let files = log_files(dir)?;
    for path in &files {
        fs::File::open(path)?.sync_data()?;
    }
    fs::File::open(dir)?.sync_all()?;
    Ok(files.len())
}
