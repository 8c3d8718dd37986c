//! Processes of `quorate dev` end with it, whatever ends it; so does `quorate dev` with a test that started it.
//!
//! The starter holds the only writing end of a pipe; every process below it, grandchildren included, inherits the
//! reading end and its number. The kernel closes the writing end when the starter is gone, also by `kill -9`, and
//! each reader sees the end. (`PR_SET_PDEATHSIG` would bind a node to its supervisor instead, whose death it must
//! survive: protocol S2.)

use std::fs::File;
use std::io::{PipeWriter, Read};
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::{fcntl_setfd, FdFlags};

/// Names the inherited pipe.
const VARIABLE: &str = "QUORATED_LIFELINE";

/// Exit status of a process whose starter is gone: that of SIGKILL, which it replaces.
const EXIT: i32 = 137;

/// The end that the starter holds.
#[derive(Debug)]
pub struct Lifeline {
    reader: OwnedFd,
    _writer: PipeWriter,
}

impl Lifeline {
    /// A pipe whose reading end children inherit.
    ///
    /// # Errors
    /// No more file descriptors.
    pub fn new() -> std::io::Result<Self> {
        let (reader, writer) = std::io::pipe()?;
        let reader = OwnedFd::from(reader);
        fcntl_setfd(&reader, FdFlags::empty())?;
        Ok(Self { reader, _writer: writer })
    }

    /// What a child must find in its environment.
    #[must_use]
    pub fn environment(&self) -> (&'static str, String) {
        (VARIABLE, self.reader.as_raw_fd().to_string())
    }
}

/// In a process that was started with a lifeline: ends it as soon as the starter is gone.
pub fn watch() {
    let Ok(number) = std::env::var(VARIABLE) else { return };
    let Ok(number) = number.parse::<u32>() else { return };
    // Opened anew by its number: no ownership of a foreign descriptor is claimed.
    let Ok(mut pipe) = File::open(format!("/proc/self/fd/{number}")) else { return };
    let watcher = std::thread::Builder::new().name("lifeline".to_owned()).spawn(move || {
        let mut nothing = [0_u8; 1];
        while !matches!(pipe.read(&mut nothing), Ok(0)) {}
        std::process::exit(EXIT);
    });
    drop(watcher);
}
