//! What happened, as text for people and as a hash for the test that one seed gives one run.

use std::fmt::{Arguments, Write};

use crate::time::Instant;

/// Bytes hashed at a time.
const CHUNK: usize = 16 * 1024;

/// Trace of one run.
#[derive(Debug)]
pub struct Trace {
    print: bool,
    text: String,
    hash: blake3::Hasher,
    lines: u64,
}

impl Trace {
    /// Prints every line to standard output if `print`.
    #[must_use]
    pub fn new(print: bool) -> Self {
        Self { print, text: String::with_capacity(2 * CHUNK), hash: blake3::Hasher::new(), lines: 0 }
    }

    /// One event.
    pub fn line(&mut self, at: Instant, text: Arguments<'_>) {
        let start = self.text.len();
        writeln!(self.text, "{at} {text}").expect("a string takes everything");
        self.lines += 1;
        if self.print {
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

    /// Hash over all lines.
    #[must_use]
    pub fn digest(&self) -> String {
        let mut hash = self.hash.clone();
        hash.update(self.text.as_bytes());
        hash.finalize().to_hex().to_string()
    }
}
