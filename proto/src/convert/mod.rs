//! Control vocabulary ([`crate::control`]) ↔ protobuf ([`crate::internal`]). Total in one direction (`From`),
//! checked in the other (`TryFrom`): what comes from the wire never yields a zero id, an unknown kind or a
//! malformed hexadecimal id.
//!
//! Durations and instants travel as written in the `.proto` files: `*_us` in microseconds (rounded down),
//! stamps of `CLOCK_BOOTTIME` in nanoseconds.

mod change;
mod permit;
mod report;
mod session;

pub use session::{exit_notice_from_wire, exit_notice_to_wire};

use std::time::Duration;

/// Protocol version of the private services. A peer with a newer one is refused readably.
pub const PROTOCOL_VERSION: u32 = 1;

/// A message from another node that does not mean anything.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}.{field}: {problem}")]
pub struct ConvertError {
    /// Message type.
    pub message: &'static str,
    /// Field of it.
    pub field: &'static str,
    /// What is wrong with it.
    pub problem: String,
}

impl ConvertError {
    /// With what is wrong in words.
    pub fn new(message: &'static str, field: &'static str, problem: impl Into<String>) -> Self {
        Self { message, field, problem: problem.into() }
    }
}

/// `value`, or an error that names the field that lacks one.
fn required<T>(value: Option<T>, message: &'static str, field: &'static str) -> Result<T, ConvertError> {
    value.ok_or_else(|| ConvertError::new(message, field, "missing, zero or malformed"))
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

fn all<A, B: TryFrom<A, Error = ConvertError>>(items: Vec<A>) -> Result<Vec<B>, ConvertError> {
    items.into_iter().map(B::try_from).collect()
}

#[cfg(test)]
mod tests;
