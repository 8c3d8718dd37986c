//! One leader within its fence at any instant, with the lease and the own no-op ignored: the lease masks faults of the
//! vote gate, the no-op masks those of the first contact (C2, V1, V2).
//!
//! A right is contact + F of a Raft leader, as its core reckons it after every event.

use std::ops::{Deref, DerefMut};

use super::rights::Rights;

/// Name in violations.
pub const NAME: &str = "one leader within its fence";

/// Fence windows.
#[derive(Debug)]
pub struct Fenced(Rights);

impl Default for Fenced {
    fn default() -> Self {
        Self(Rights::new(NAME))
    }
}

impl Deref for Fenced {
    type Target = Rights;
    fn deref(&self) -> &Rights {
        &self.0
    }
}

impl DerefMut for Fenced {
    fn deref_mut(&mut self) -> &mut Rights {
        &mut self.0
    }
}
