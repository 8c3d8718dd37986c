//! The client on tokio and tonic.

mod admin;
pub mod blocking;
mod channels;
mod client;
mod consumer;
mod driver;
mod fetcher;
mod leader;
mod link;
mod producer;
mod status;
mod telemetry;
#[cfg(test)]
mod tests;
mod watch;

pub use admin::Admin;
pub use client::{Client, ClientBuilder, ConnectError};
pub use consumer::{ConsumedRecord, Consumer, ConsumerBuilder, StartAt};
pub use producer::{Pending, Producer, ProducerBuilder, Rejected};
