//! The client on tokio and tonic.

mod admin;
mod client;
mod consumer;
mod producer;

pub use admin::Admin;
pub use client::{Client, ClientBuilder, ConnectError};
pub use consumer::{ConsumedRecord, Consumer, ConsumerBuilder, StartAt};
pub use producer::{Pending, Producer, ProducerBuilder, Rejected};

use quorate_proto::refusal::{Reason, Refusal};

pub(crate) fn not_yet<T>() -> Result<T, Refusal> {
    Err(Refusal::new(Reason::UnsupportedVersion, "not available in this build", "", "use a newer client"))
}
