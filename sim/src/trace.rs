//! What happened, as text for people and as a hash for the test that one seed gives one run.

use std::fmt::{Arguments, Write};

use crate::time::Instant;

/// Bytes hashed at a time.
const CHUNK: usize = 16 * 1024;

/// What becomes of the lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lines {
    /// Nothing: they are not even written (a tenth of a run's time).
    Dropped,
    /// Their hash is taken.
    Hashed,
    /// They go to standard output too.
    Printed,
}

/// Trace of one run.
#[derive(Debug)]
pub struct Trace {
    becomes: Lines,
    text: String,
    hash: blake3::Hasher,
    lines: u64,
}

impl Trace {
    /// Nothing happened yet.
    #[must_use]
    pub fn new(becomes: Lines) -> Self {
        Self { becomes, text: String::with_capacity(2 * CHUNK), hash: blake3::Hasher::new(), lines: 0 }
    }

    /// One event.
    pub fn line(&mut self, at: Instant, text: Arguments<'_>) {
        self.lines += 1;
        if self.becomes == Lines::Dropped {
            return;
        }
        let start = self.text.len();
        writeln!(self.text, "{at} {text}").expect("a string takes everything");
        if self.becomes == Lines::Printed {
            print!("{}", &self.text[start..]);
        }
        if self.text.len() >= CHUNK {
            self.hash.update(self.text.as_bytes());
            self.text.clear();
        }
    }

    /// Lines so far.
    #[must_use]
    pub fn lines(&self) -> u64 {
        self.lines
    }

    /// Hash over all lines; without them, of nothing.
    #[must_use]
    pub fn digest(&self) -> String {
        let mut hash = self.hash.clone();
        hash.update(self.text.as_bytes());
        hash.finalize().to_hex().to_string()
    }
}
