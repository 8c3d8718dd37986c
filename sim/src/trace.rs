//! What happened, as text for people and as a hash for the test that one seed gives one run.

use std::fmt::Arguments;

use crate::time::Instant;

/// Trace of one run.
#[derive(Debug)]
pub struct Trace {
    print: bool,
    hash: blake3::Hasher,
    lines: u64,
}

impl Trace {
    /// Prints every line to standard output if `print`.
    #[must_use]
    pub fn new(print: bool) -> Self {
        Self { print, hash: blake3::Hasher::new(), lines: 0 }
    }

    /// One event.
    pub fn line(&mut self, at: Instant, text: Arguments<'_>) {
        let line = format!("{at} {text}");
        self.hash.update(line.as_bytes());
        self.hash.update(b"\n");
        self.lines += 1;
        if self.print {
            println!("{line}");
        }
    }

    /// Lines so far.
    #[must_use]
    pub fn lines(&self) -> u64 {
        self.lines
    }

    /// Hash over all lines.
    #[must_use]
    pub fn digest(&self) -> String {
        self.hash.finalize().to_hex().to_string()
    }
}
