//! Ordered connections between processes: what is written while the way is cut arrives late, if the cut heals before
//! keep-alive breaks the connection.

use std::time::Duration;

use crate::net::Host;
use crate::time::Instant;

/// A cut of this length breaks a connection (HTTP/2 keep-alive 500 ms + 1 s).
pub const KEEP_ALIVE: Duration = Duration::from_millis(1_500);

/// One connection, from the side that opened it (`a`) to the other (`b`).
#[derive(Debug)]
pub struct Stream<M> {
    /// Names it.
    pub id: u64,
    /// Who opened it.
    pub a: Host,
    /// The other side.
    pub b: Host,
    cut_since: Option<Instant>,
    stalled: Vec<(bool, M)>,
}

/// What upkeep found.
#[derive(Debug, PartialEq, Eq)]
pub enum Upkeep<M> {
    /// Nothing to do.
    Fine,
    /// The way is free again: these go out now, in order; `true` = from `a` to `b`.
    Flows(Vec<(bool, M)>),
    /// Broken: both sides are told.
    Broken,
}

impl<M> Stream<M> {
    /// A fresh connection.
    #[must_use]
    pub fn new(id: u64, a: Host, b: Host) -> Self {
        Self { id, a, b, cut_since: None, stalled: Vec::new() }
    }

    /// Writes a message; gives it back if it may travel now.
    pub fn write(&mut self, forward: bool, cut: bool, message: M) -> Option<M> {
        if cut || self.stalled.iter().any(|(way, _)| *way == forward) {
            self.stalled.push((forward, message));
            return None;
        }
        Some(message)
    }

    /// To be called now and then with the state of both directions.
    pub fn upkeep(&mut self, now: Instant, cut: bool) -> Upkeep<M> {
        if !cut {
            self.cut_since = None;
            return if self.stalled.is_empty() {
                Upkeep::Fine
            } else {
                Upkeep::Flows(std::mem::take(&mut self.stalled))
            };
        }
        let since = *self.cut_since.get_or_insert(now);
        if now.since(since) >= KEEP_ALIVE {
            Upkeep::Broken
        } else {
            Upkeep::Fine
        }
    }
}
