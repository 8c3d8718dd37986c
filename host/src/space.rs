//! Measuring what is free on a node's disks, and the ballast (B5). What follows from it the core decides.
//!
//! ```text
//! <dir>/ballast/bytes      allocated, not sparse: its removal gives its size back
//! <dir>/ballast/inode-00…  empty: their removal gives inodes back
//! ```
//! One ballast per file system. It is made while there is ample room, and removed when the core says so, or at a start that
//! would otherwise find no room to write to.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use quorate_consensus::space::{Ballast, Free, Marks, Space};
use quorate_proto::time::BootTime;
use rustix::fs::{fallocate, statvfs, FallocateFlags};

/// Folder of the ballast.
const FOLDER: &str = "ballast";
/// File that holds its bytes.
const BYTES: &str = "bytes";
/// Empty files that hold inodes.
const INODES: u32 = 16;
/// How often is measured.
const EVERY: Duration = Duration::from_secs(1);
/// A ballast that cannot be made is tried again after so many measurements.
const PAUSE: u32 = 60;

/// The directories of a node that must have room, one per file system.
#[derive(Clone, Debug)]
pub struct Disks {
    dirs: Vec<PathBuf>,
    marks: Marks,
}

impl Disks {
    /// Those of `dirs` that are there and lie on file systems of their own.
    ///
    /// # Errors
    /// If one cannot be examined.
    pub fn new(dirs: impl IntoIterator<Item = PathBuf>, marks: Marks) -> io::Result<Self> {
        use std::os::unix::fs::MetadataExt;
        let (mut kept, mut devices) = (Vec::new(), Vec::new());
        for dir in dirs {
            let device = match fs::metadata(&dir) {
                Ok(found) => found.dev(),
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            if !devices.contains(&device) {
                devices.push(device);
                kept.push(dir);
            }
        }
        Ok(Self { dirs: kept, marks })
    }

    /// What is free, in the order of the directories. One that cannot be examined counts as full.
    #[must_use]
    pub fn measure(&self) -> Vec<Free> {
        self.dirs.iter().map(|dir| free(dir).unwrap_or(Free { bytes: 0, inodes: Some(0), ballast: 0 })).collect()
    }

    /// At a start, before anything is written: removes the ballast if there is no room otherwise. True if it did.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn make_room(&self) -> io::Result<bool> {
        let (disks, mut space) = (self.measure(), Space::default());
        space.measured(BootTime::ZERO, &disks, &self.marks);
        let release = space.ballast(&disks, &self.marks) == Some(Ballast::Release);
        if release {
            self.release()?;
        }
        Ok(release)
    }

    fn show(&self, measured: &[Free]) {
        #[allow(clippy::cast_precision_loss)]
        let set = |name: &'static str, dir: &Path, value: u64| {
            metrics::gauge!(name, "directory" => dir.display().to_string()).set(value as f64);
        };
        for (dir, free) in self.dirs.iter().zip(measured) {
            set("quorate_disk_free_bytes", dir, free.bytes);
            set("quorate_disk_ballast_bytes", dir, free.ballast);
            if let Some(inodes) = free.inodes {
                set("quorate_disk_free_inodes", dir, inodes);
            }
        }
    }

    fn release(&self) -> io::Result<()> {
        for dir in &self.dirs {
            match fs::remove_dir_all(dir.join(FOLDER)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Whole or not at all.
    fn restore(&self) -> io::Result<()> {
        for dir in &self.dirs {
            if let Err(error) = make(&dir.join(FOLDER), self.marks.ballast_bytes) {
                let _ = fs::remove_dir_all(dir.join(FOLDER));
                return Err(error);
            }
        }
        Ok(())
    }
}

fn free(dir: &Path) -> io::Result<Free> {
    let system = statvfs(dir)?;
    let ballast = fs::metadata(dir.join(FOLDER).join(BYTES)).map_or(0, |file| file.len());
    // Some file systems make inodes as they are needed and say 0 of 0.
    let inodes = (system.f_files != 0).then_some(system.f_favail);
    Ok(Free { bytes: system.f_bavail.saturating_mul(system.f_frsize), inodes, ballast })
}

fn make(folder: &Path, bytes: u64) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    for number in 0..INODES {
        File::create(folder.join(format!("inode-{number:02}")))?;
    }
    let file = File::create(folder.join(BYTES))?;
    if bytes > 0 {
        fallocate(&file, FallocateFlags::empty(), 0, bytes)?;
    }
    file.sync_all()
}

/// The measuring thread; it ends when this is dropped.
#[derive(Debug)]
pub struct Gauge {
    orders: mpsc::Sender<Order>,
}

/// What the thread is asked for beside its own measurements.
#[derive(Clone, Copy, Debug)]
enum Order {
    Ballast(Ballast),
    Measure,
}

impl Gauge {
    /// Starts it. `tell` gets a measurement every second, the first one at once; it must not block.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(disks: Disks, tell: impl Fn(Vec<Free>) + Send + 'static) -> io::Result<Self> {
        let (orders, inbox) = mpsc::channel();
        let run = move || {
            let mut patience = 0;
            let measure = || {
                let free = disks.measure();
                disks.show(&free);
                tell(free);
            };
            measure();
            loop {
                match inbox.recv_timeout(EVERY) {
                    Ok(Order::Measure) => measure(),
                    Ok(Order::Ballast(Ballast::Release)) => {
                        let done = disks.release();
                        tracing::warn!(?done, "the disk is full: the ballast is released");
                    }
                    Ok(Order::Ballast(Ballast::Restore)) if patience > 0 => patience -= 1,
                    Ok(Order::Ballast(Ballast::Restore)) => match disks.restore() {
                        Ok(()) => tracing::info!(bytes = disks.marks.ballast_bytes, "ballast in place"),
                        Err(error) => {
                            patience = PAUSE;
                            tracing::warn!(%error, "the ballast cannot be made: the disk may fill up entirely");
                        }
                    },
                    Err(RecvTimeoutError::Timeout) => measure(),
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        };
        thread::Builder::new().name("space".into()).spawn(run)?;
        Ok(Self { orders })
    }

    /// Hands an order of the core to the thread.
    pub fn order(&self, order: Ballast) {
        // It lives as long as this.
        let _ = self.orders.send(Order::Ballast(order));
    }

    /// Somebody found no room: measures at once.
    pub fn measure(&self) {
        let _ = self.orders.send(Order::Measure);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disks(dir: &Path, ballast_bytes: u64) -> Disks {
        let marks = Marks { soft_bytes: 3, hard_bytes: 2, soft_inodes: 0, hard_inodes: 0, ballast_bytes };
        Disks::new([dir.to_owned(), dir.join("wal")], marks).unwrap()
    }

    #[test]
    fn one_file_system_is_measured_once_and_its_ballast_is_allocated_and_released() {
        use std::os::unix::fs::MetadataExt;
        let dir = tempfile::tempdir().unwrap();
        let disks = disks(dir.path(), 1 << 20);
        let before = disks.measure();
        assert_eq!(before.len(), 1, "both directories lie on one file system");
        assert!(before[0].bytes > 0 && before[0].ballast == 0);
        disks.restore().unwrap();
        assert_eq!(disks.measure()[0].ballast, 1 << 20);
        let file = fs::metadata(dir.path().join(FOLDER).join(BYTES)).unwrap();
        assert!(file.blocks() * 512 >= 1 << 20, "not sparse");
        disks.release().unwrap();
        disks.release().unwrap();
        assert_eq!(disks.measure()[0].ballast, 0);
    }

    #[test]
    fn a_start_with_room_keeps_the_ballast_and_one_without_releases_it() {
        let dir = tempfile::tempdir().unwrap();
        let disks = disks(dir.path(), 4_096);
        disks.restore().unwrap();
        assert!(!disks.make_room().unwrap());
        let marks =
            Marks { soft_bytes: u64::MAX, hard_bytes: u64::MAX - 1, ballast_bytes: u64::MAX / 2, ..disks.marks };
        let full = Disks { marks, ..disks };
        assert!(full.make_room().unwrap());
        assert_eq!(full.measure()[0].ballast, 0);
        assert!(!full.make_room().unwrap(), "there is none any more");
    }

    #[test]
    fn a_ballast_that_does_not_fit_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let disks = disks(dir.path(), 1 << 60);
        assert!(disks.restore().is_err());
        assert!(!dir.path().join(FOLDER).exists());
    }
}
