//! The pure part of the client: no sockets, no clock, no tasks. It takes `(now, event)` and returns effects, so the
//! simulator drives the very same code that applications run.

pub mod backoff;
pub mod config;
pub mod effect;
pub mod error;
mod lane;
mod lane_answer;
mod lane_end;
mod links;
pub mod producer;
pub mod receipt;
pub mod record;
pub mod routes;
mod shared;
pub mod target;
#[cfg(test)]
pub(crate) mod tests;

pub use config::{OnGap, ProducerConfig};
pub use effect::{Effect, Incident, Outcome, Tag, Transmit};
pub use error::{SendError, Unresolved};
pub use producer::{NotAdmitted, ProducerCore};
pub use receipt::{CloseReport, Receipt};
pub use record::Record;
pub use routes::{NodeInfo, PartitionRoute, RouteTable, TopicRoutes};
