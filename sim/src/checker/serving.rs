//! At most one serving leader of a partition at any virtual instant, and terms of serving leaders only grow (F1, V1).
//!
//! A right begins when the core publishes the word of F1 and ends when the holder's own clock reaches it, or when the
//! core takes it back: exactly what readers on other threads go by.

use std::ops::{Deref, DerefMut};

use super::rights::Rights;

/// Name in violations.
pub const NAME: &str = "one serving leader";

/// Rights to serve.
#[derive(Debug)]
pub struct Serving(Rights);

impl Default for Serving {
    fn default() -> Self {
        Self(Rights::new(NAME))
    }
}

impl Deref for Serving {
    type Target = Rights;
    fn deref(&self) -> &Rights {
        &self.0
    }
}

impl DerefMut for Serving {
    fn deref_mut(&mut self) -> &mut Rights {
        &mut self.0
    }
}
