//! Workload, exact audit, faults, benchmarks: everything that drives a real cluster of real processes
//! from outside and says whether it kept its promises.
//!
//! - [`load`]: open- and closed-loop generators; [`ledger`] and [`reader`]: the exact audit.
//! - [`cluster`]: real processes, real signals; [`proc`](mod@proc): what the kernel says of them; [`volume`] and [`network`]:
//!   disks that hang or are full, hosts that are cut off.
//! - [`mod@bench`]: the benchmarks; [`probe`]: the machine's own limits beside them; [`pulse`]: whether the
//!   rest of the machine waited, too.
//! - [`slo`]: recorded failovers summed up by cause.
//! - [`orders`]: seeded rows in the shape of real order events.

pub mod bench;
pub mod cluster;
pub mod error;
pub mod layout;
pub mod ledger;
pub mod lifeline;
pub mod load;
pub mod measure;
pub mod network;
pub mod orders;
pub mod payload;
pub mod probe;
pub mod proc;
pub mod pulse;
pub mod reader;
pub mod slo;
pub mod volume;

pub use error::Error;
