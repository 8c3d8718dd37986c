//! Injected disk faults. Production uses [`NoFaults`]; tests and drills script theirs.

use std::io;
use std::path::Path;
use std::sync::{Condvar, Mutex, PoisonError};

/// Asked before each disk operation of the log. May return an error instead of the operation's own result, or
/// block, which is what a stalled disk does.
pub trait FaultPolicy: Send + Sync + 'static {
    /// Before bytes are appended.
    ///
    /// # Errors
    /// The error that the write shall fail with.
    fn before_write(&self, file: &Path, bytes: usize) -> io::Result<()> {
        let _ = (file, bytes);
        Ok(())
    }

    /// Before a file is flushed.
    ///
    /// # Errors
    /// The error that the flush shall fail with.
    fn before_flush(&self, file: &Path) -> io::Result<()> {
        let _ = file;
        Ok(())
    }
}

/// No faults.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoFaults;
impl FaultPolicy for NoFaults {}

#[derive(Debug, Default)]
struct Script {
    fail_flush: bool,
    fail_write: bool,
    stalled: bool,
    flushes: u64,
}

/// Faults switched on and off by a test.
#[derive(Debug, Default)]
pub struct ScriptedFaults {
    script: Mutex<Script>,
    changed: Condvar,
}

impl ScriptedFaults {
    fn with<T>(&self, change: impl FnOnce(&mut Script) -> T) -> T {
        let mut script = self.script.lock().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut script);
        self.changed.notify_all();
        result
    }

    /// Every flush from now on fails with `EIO`.
    pub fn fail_flushes(&self) {
        self.with(|script| script.fail_flush = true);
    }

    /// Every write from now on fails with `EIO`.
    pub fn fail_writes(&self) {
        self.with(|script| script.fail_write = true);
    }

    /// Flushes hang from now on, until [`Self::resume`].
    pub fn stall(&self) {
        self.with(|script| script.stalled = true);
    }

    /// Lets hanging flushes go on.
    pub fn resume(&self) {
        self.with(|script| script.stalled = false);
    }

    /// Flushes begun so far.
    #[must_use]
    pub fn flushes(&self) -> u64 {
        self.with(|script| script.flushes)
    }
}

impl FaultPolicy for ScriptedFaults {
    fn before_write(&self, _file: &Path, _bytes: usize) -> io::Result<()> {
        if self.with(|script| script.fail_write) {
            return Err(io::Error::other("injected write error"));
        }
        Ok(())
    }

    fn before_flush(&self, _file: &Path) -> io::Result<()> {
        let mut script = self.script.lock().unwrap_or_else(PoisonError::into_inner);
        script.flushes += 1;
        while script.stalled {
            script = self.changed.wait(script).unwrap_or_else(PoisonError::into_inner);
        }
        if script.fail_flush {
            return Err(io::Error::other("injected flush error"));
        }
        Ok(())
    }
}
