//! Deterministic simulation of Quorate: the production cores of data nodes, observers and client in virtual time, on
//! one thread, from one seed.
//!
//! - [`world`]: the run; [`plan`]: what goes wrong in it; [`checker`]: what must hold all the same.
//! - [`net`], [`stream`], [`disk`], [`storage`], [`time`]: the surroundings that the shells have in production.
//! - [`mutant`]: production with one rule left out; each must be caught.
//!
//! What it does not cover is written down in `docs/testing.md`.

pub mod checker;
pub mod client;
pub mod coverage;
pub mod data_node;
pub mod disk;
pub mod mutant;
pub mod net;
pub mod observer_node;
pub mod plan;
pub mod regressions;
pub mod rng;
pub mod runner;
pub mod storage;
pub mod stream;
pub mod time;
pub mod trace;
pub mod world;
