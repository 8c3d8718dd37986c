//! Rust client for Quorate: publish and consume messages that survive any single failure.
//!
//! - [`core`]: the sans-IO producer (batching, sequences, retry, routing, epochs).
//! - [`net`] (feature `net`, default): the client on tokio and tonic.

// Refusals are rare and carry four texts; boxing them everywhere would cost the reader more than it saves.
#![allow(clippy::result_large_err)]

pub mod core;
#[cfg(feature = "net")]
pub mod net;

pub use crate::core::config::OnGap;
pub use crate::core::error::{SendError, Unresolved};
pub use crate::core::receipt::{CloseReport, Receipt};
pub use crate::core::record::{Priority, Record};
#[cfg(feature = "net")]
pub use crate::net::{
    Admin, Client, ClientBuilder, ConnectError, ConsumedRecord, Consumer, ConsumerBuilder, Pending, Producer,
    ProducerBuilder, Rejected, StartAt,
};
pub use quorate_proto::ids::{ClusterId, NodeId, Offset, PartitionNo, Term};
pub use quorate_proto::refusal::{Reason, Refusal};
pub use quorate_proto::time::LogTime;
