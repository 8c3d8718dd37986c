//! Connections as the producer core sees them: which it wants, and when it may try again.

use std::collections::{BTreeMap, BTreeSet};

use quorate_proto::ids::{NodeId, PartitionNo};
use quorate_proto::time::BootTime;

use super::backoff::Jitter;
use super::effect::Effect;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Down { retry_at: BootTime },
    Connecting,
    Up,
}

#[derive(Debug)]
struct Link {
    state: State,
    /// Losses in a row without an answer in between.
    failures: u32,
    /// Partitions that wait for it.
    waiting: BTreeSet<PartitionNo>,
}

/// All links of a producer.
#[derive(Debug, Default)]
pub(super) struct Links {
    links: BTreeMap<NodeId, Link>,
}

impl Links {
    /// True if the link is up; else it is opened as soon as its delay allows, and `partition` is told.
    pub(super) fn want<T>(
        &mut self,
        now: BootTime,
        node: NodeId,
        partition: PartitionNo,
        out: &mut Vec<Effect<T>>,
    ) -> bool {
        let link = self.links.entry(node).or_insert_with(|| Link {
            state: State::Down { retry_at: BootTime::ZERO },
            failures: 0,
            waiting: BTreeSet::new(),
        });
        if link.state == State::Up {
            return true;
        }
        link.waiting.insert(partition);
        link.connect_if_due(now, node, out);
        false
    }

    /// Partitions that waited for it.
    pub(super) fn on_up(&mut self, node: NodeId) -> BTreeSet<PartitionNo> {
        let Some(link) = self.links.get_mut(&node) else { return BTreeSet::new() };
        link.state = State::Up;
        std::mem::take(&mut link.waiting)
    }

    pub(super) fn on_lost(&mut self, now: BootTime, node: NodeId, jitter: &mut Jitter) {
        if let Some(link) = self.links.get_mut(&node) {
            link.state = State::Down { retry_at: now + jitter.delay(link.failures) };
            link.failures = link.failures.saturating_add(1);
        }
    }

    /// The node answered something.
    pub(super) fn on_answer(&mut self, node: NodeId) {
        if let Some(link) = self.links.get_mut(&node) {
            link.failures = 0;
        }
    }

    /// Tries the links that are due and waited for.
    pub(super) fn retry<T>(&mut self, now: BootTime, out: &mut Vec<Effect<T>>) {
        for (node, link) in &mut self.links {
            if !link.waiting.is_empty() {
                link.connect_if_due(now, *node, out);
            }
        }
    }

    /// The partition no longer waits for any link.
    pub(super) fn forget(&mut self, partition: PartitionNo) {
        for link in self.links.values_mut() {
            link.waiting.remove(&partition);
        }
    }

    pub(super) fn deadline(&self) -> Option<BootTime> {
        let due = |link: &Link| match link.state {
            State::Down { retry_at } if !link.waiting.is_empty() => Some(retry_at),
            _ => None,
        };
        self.links.values().filter_map(due).min()
    }
}

impl Link {
    fn connect_if_due<T>(&mut self, now: BootTime, node: NodeId, out: &mut Vec<Effect<T>>) {
        if matches!(self.state, State::Down { retry_at } if retry_at <= now) {
            self.state = State::Connecting;
            out.push(Effect::Connect { node });
        }
    }
}
