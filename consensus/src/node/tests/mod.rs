//! The node's core among its peers, one test per rule.

mod handoff;
mod harness;
mod host;
mod leases;
mod life;
mod members;
mod publishing;
mod space;
mod storage;
