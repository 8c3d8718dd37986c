//! The pure part of the client: no sockets, no clock, no tasks. It takes `(now, event)` and returns effects, so the
//! simulator drives the very same code that applications run.

pub mod config;
pub mod error;
pub mod receipt;
pub mod record;
