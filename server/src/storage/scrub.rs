//! Scrub (B6): what lies on the disk is read back in the background and every checksum in it is tested, at a pace that leaves
//! the disk to others. Damage that shows twice sets the replica aside before a reader or a restart meets it; damage in the
//! write-ahead log, which is everybody's, takes the node's leaders away and makes its log suspect (B2).
//!
//! Only what a checkpoint covers is looked at: it is flushed and never changes. The system is made to forget its copy first,
//! or the memory would be tested and not the disk.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use quorate_host::wal::{log_files, read_back, LogDamage};
use quorate_proto::file_header::FileKind;
use quorate_proto::ids::GroupId;
use rustix::fs::{fadvise, Advice};

use super::error::StorageError;
use super::file;
use super::files::{group_dir, SnapshotFile};
use super::frame::{self, HEADER};
use super::handle::StorageHandle;
use super::runs;

/// Name of the file that says that a group's files are damaged; it stays until they are replaced.
const MARKER: &str = "DAMAGED";
/// A node that is restarted every day is scrubbed all the same.
const FIRST: Duration = Duration::from_secs(600);
/// A pause is slept in pieces of this length at most, so that the pace is even.
const PIECE: u64 = 1 << 20;

/// How the scrub goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScrubSettings {
    /// Where the write-ahead log lives.
    pub wal: PathBuf,
    /// Bytes read in a second at most; 0 = no scrub.
    pub bytes_per_second: u64,
    /// Pause between the end of a pass and the next.
    pub every: Duration,
}

/// Starts the scrubbing thread, which ends with the storage. `log_damaged` is called on it, at most once.
///
/// # Errors
/// When the system gives no thread.
pub fn start(
    storage: StorageHandle,
    settings: ScrubSettings,
    log_damaged: impl FnOnce(String) + Send + 'static,
) -> io::Result<()> {
    if settings.bytes_per_second == 0 {
        return Ok(());
    }
    let run = move || {
        let mut pace = Pace { bytes_per_second: settings.bytes_per_second, owed: 0 };
        let mut pause = settings.every.min(FIRST);
        let mut log_damaged = Some(log_damaged);
        loop {
            std::thread::sleep(std::mem::replace(&mut pause, settings.every));
            let Some(targets) = storage.durable_files() else { return };
            for (group, files) in targets {
                for file in files {
                    scrub(&storage, group, &file, &mut pace);
                }
            }
            if let Some(damage) = scrub_log(&settings.wal, &mut pace) {
                if let Some(tell) = log_damaged.take() {
                    tell(damage.to_string());
                }
            }
            metrics::counter!("quorate_scrub_passes_total").increment(1);
        }
    };
    std::thread::Builder::new().name("scrub".to_owned()).spawn(run).map(drop)
}

fn scrub(storage: &StorageHandle, group: GroupId, file: &SnapshotFile, pace: &mut Pace) {
    let mut look = || verify(&file.path, file.length, &mut |bytes| pace.spend(bytes));
    let Err(first) = look() else { return };
    // Once may be the memory or the way to it.
    match look() {
        Ok(()) => tracing::warn!(%group, error = %first, "scrub: read badly once, well the second time"),
        Err(error) => {
            tracing::error!(%group, %error, "scrub: damaged");
            metrics::counter!("quorate_scrub_damaged_total").increment(1);
            storage.damaged(group, error.to_string());
        }
    }
}

/// The whole log; what is being written meanwhile is looked at in the next pass.
fn scrub_log(wal: &Path, pace: &mut Pace) -> Option<LogDamage> {
    let files = log_files(wal).unwrap_or_default();
    for (at, file) in files.iter().enumerate() {
        let closed = at + 1 < files.len();
        let mut look = || {
            read_back(file, closed, &mut |bytes| pace.spend(bytes))
                .unwrap_or_else(|_| Some(LogDamage { file: file.clone(), position: 0 }))
        };
        if look().is_none() {
            continue;
        }
        if let Some(damage) = look() {
            tracing::error!(%damage, "scrub: the write-ahead log is damaged");
            metrics::counter!("quorate_scrub_damaged_total").increment(1);
            return Some(damage);
        }
    }
    None
}

struct Pace {
    bytes_per_second: u64,
    owed: u64,
}

impl Pace {
    fn spend(&mut self, bytes: u64) {
        metrics::counter!("quorate_scrub_bytes_total").increment(bytes);
        self.owed += bytes;
        if self.owed >= PIECE.min(self.bytes_per_second) {
            let nanos = u128::from(self.owed) * 1_000_000_000 / u128::from(self.bytes_per_second);
            std::thread::sleep(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)));
            self.owed = 0;
        }
    }
}

/// Tests the first `length` bytes of a segment or key run. A file that is not there (any more) was replaced.
///
/// # Errors
/// [`StorageError::Corrupt`] names the place.
pub(super) fn verify(path: &Path, length: u64, spend: &mut dyn FnMut(u64)) -> Result<(), StorageError> {
    let opened = match File::open(path) {
        Ok(opened) => opened,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(unreadable(path, 0)(error)),
    };
    // Best effort: where it is not possible, memory is tested.
    let _ = fadvise(&opened, 0, None, Advice::DontNeed);
    if path.extension().is_some_and(|ext| ext == "keys") {
        file::check_header(&opened, path, FileKind::KeyRun)?;
        return verify_run(&opened, path, length, spend);
    }
    file::check_header(&opened, path, FileKind::Segment)?;
    verify_segment(&opened, path, length, spend)
}

fn verify_segment(opened: &File, path: &Path, length: u64, spend: &mut dyn FnMut(u64)) -> Result<(), StorageError> {
    let mut position = file::HEADER_LEN as u64;
    let (mut head, mut body) = ([0; HEADER], Vec::new());
    while position < length {
        let corrupt = |what| StorageError::corrupt(path, position, what);
        opened.read_exact_at(&mut head, position).map_err(unreadable(path, position))?;
        let header = frame::decode_header(&head).map_err(corrupt)?;
        let next = position + HEADER as u64 + u64::from(header.body);
        if next > length {
            return Err(corrupt("an entry runs past the end"));
        }
        body.resize(header.body as usize, 0);
        opened.read_exact_at(&mut body, position + HEADER as u64).map_err(unreadable(path, position))?;
        frame::decode_table(&header, &body).map_err(corrupt)?;
        spend(next - position);
        position = next;
    }
    Ok(())
}

fn verify_run(opened: &File, path: &Path, length: u64, spend: &mut dyn FnMut(u64)) -> Result<(), StorageError> {
    // Closed at 8 MiB: read whole.
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(usize::MAX).saturating_sub(file::HEADER_LEN)];
    opened.read_exact_at(&mut bytes, file::HEADER_LEN as u64).map_err(unreadable(path, 0))?;
    spend(length);
    runs::frames(path, bytes.into(), &mut Vec::new())
}

/// A place that cannot be read is damaged: the rest of the disk may well be in order.
fn unreadable(path: &Path, position: u64) -> impl FnOnce(io::Error) -> StorageError + '_ {
    move |error| StorageError::corrupt(path, position, format!("it cannot be read: {error}"))
}

fn marker(partitions: &Path, group: GroupId) -> PathBuf {
    group_dir(partitions, group).join(MARKER)
}

/// Leaves word for the next start. A disk that does not take it is found damaged again then.
pub(super) fn mark(partitions: &Path, group: GroupId, what: &str) {
    let path = marker(partitions, group);
    let written = std::fs::write(&path, what).and_then(|()| File::open(&path)?.sync_all());
    if let Err(error) = written {
        tracing::error!(%group, %error, "that its files are damaged could not be noted");
    }
}

/// What an earlier scrub found.
pub(super) fn marked(partitions: &Path, group: GroupId) -> Option<String> {
    std::fs::read_to_string(marker(partitions, group)).ok()
}
