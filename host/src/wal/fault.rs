//! Injected disk faults. Production uses [`NoFaults`]; tests and drills script theirs. A policy is given when a log is
//! opened: nothing of it is a build feature, and a process that was given none has none.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::{Condvar, Mutex, PoisonError};

/// What becomes of a write that does not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteAs {
    /// As asked.
    Whole,
    /// Only so many bytes are taken, at least one: the writer has to go on with the rest.
    Short(usize),
    /// Taken whole, with one bit changed on the way to the disk, and success reported.
    Flipped {
        /// Which byte of this write.
        byte: usize,
        /// Which bit of it, 0–7.
        bit: u8,
    },
}

/// Asked about each disk operation of the log. May return an error instead of the operation's own result, or
/// block, which is what a stalled disk does.
pub trait FaultPolicy: Send + Sync + 'static {
    /// Before bytes are appended.
    ///
    /// # Errors
    /// The error that the write shall fail with.
    fn before_write(&self, file: &Path, bytes: usize) -> io::Result<WriteAs> {
        let _ = (file, bytes);
        Ok(WriteAs::Whole)
    }

    /// Before a file is flushed.
    ///
    /// # Errors
    /// The error that the flush shall fail with.
    fn before_flush(&self, file: &Path) -> io::Result<()> {
        let _ = file;
        Ok(())
    }

    /// Before a file is made or room in it is set aside.
    ///
    /// # Errors
    /// The error that this shall fail with.
    fn before_room(&self, file: &Path) -> io::Result<()> {
        let _ = file;
        Ok(())
    }

    /// After bytes were read: they may be changed, as a disk does that returns something else than was written.
    ///
    /// # Errors
    /// The error that the read shall fail with.
    fn after_read(&self, file: &Path, bytes: &mut [u8]) -> io::Result<()> {
        let _ = (file, bytes);
        Ok(())
    }
}

/// No faults.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoFaults;
impl FaultPolicy for NoFaults {}

/// One kind of fault; it lasts from [`ScriptedFaults::inject`] to [`ScriptedFaults::lift`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// Flushes fail with `EIO`.
    FlushError,
    /// Writes fail with `EIO`.
    WriteError,
    /// Writes take a few bytes at a time, without an error.
    ShortWrites,
    /// Writes fail with `ENOSPC`, and so does every attempt to get room for more.
    DiskFull,
    /// Only the setting aside of room fails with `ENOSPC`; what there is takes writes.
    NoRoom,
    /// Flushes hang.
    Stall,
    /// One bit in the middle of every write changes on its way to the disk.
    FlipWritten,
    /// One bit in the middle of everything that is read is not what was written.
    FlipRead,
}

#[derive(Debug, Default)]
struct Script {
    active: BTreeSet<Fault>,
    flushes: u64,
}

/// Faults switched on and off by a test.
#[derive(Debug, Default)]
pub struct ScriptedFaults {
    script: Mutex<Script>,
    changed: Condvar,
}

/// Bytes that a short write takes.
const SHORT: usize = 7;

impl ScriptedFaults {
    fn with<T>(&self, change: impl FnOnce(&mut Script) -> T) -> T {
        let mut script = self.script.lock().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut script);
        self.changed.notify_all();
        result
    }

    /// From now on.
    pub fn inject(&self, fault: Fault) {
        self.with(|script| script.active.insert(fault));
    }

    /// No more; what hangs goes on.
    pub fn lift(&self, fault: Fault) {
        self.with(|script| script.active.remove(&fault));
    }

    /// Flushes begun so far.
    #[must_use]
    pub fn flushes(&self) -> u64 {
        self.with(|script| script.flushes)
    }

    fn active(&self, fault: Fault) -> bool {
        self.with(|script| script.active.contains(&fault))
    }

    fn full(&self) -> io::Result<()> {
        if self.active(Fault::DiskFull) {
            return Err(rustix::io::Errno::NOSPC.into());
        }
        Ok(())
    }
}

impl FaultPolicy for ScriptedFaults {
    fn before_write(&self, _file: &Path, bytes: usize) -> io::Result<WriteAs> {
        self.full()?;
        if self.active(Fault::WriteError) {
            return Err(io::Error::other("injected write error"));
        }
        Ok(if self.active(Fault::ShortWrites) {
            WriteAs::Short(SHORT)
        } else if self.active(Fault::FlipWritten) {
            WriteAs::Flipped { byte: bytes / 2, bit: 3 }
        } else {
            WriteAs::Whole
        })
    }

    fn before_flush(&self, _file: &Path) -> io::Result<()> {
        let mut script = self.script.lock().unwrap_or_else(PoisonError::into_inner);
        script.flushes += 1;
        while script.active.contains(&Fault::Stall) {
            script = self.changed.wait(script).unwrap_or_else(PoisonError::into_inner);
        }
        if script.active.contains(&Fault::FlushError) {
            return Err(io::Error::other("injected flush error"));
        }
        Ok(())
    }

    fn before_room(&self, _file: &Path) -> io::Result<()> {
        self.full()?;
        if self.active(Fault::NoRoom) {
            return Err(rustix::io::Errno::NOSPC.into());
        }
        Ok(())
    }

    fn after_read(&self, _file: &Path, bytes: &mut [u8]) -> io::Result<()> {
        if self.active(Fault::FlipRead) {
            let middle = bytes.len() / 2;
            if let Some(byte) = bytes.get_mut(middle) {
                *byte ^= 1 << 3;
            }
        }
        Ok(())
    }
}
