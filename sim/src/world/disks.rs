//! Writes and flushes of data nodes, and what goes wrong with them (W1, B3, B4).

use std::time::Duration;

use quorate_consensus::effect::PersistWrite;
use quorate_consensus::node::NodeEvent;
use quorate_consensus::policy::Policy;
use quorate_proto::ids::{GroupId, Incarnation, LogIndex, NodeId, Offset, Term};

use super::{What, World};
use crate::disk::{Done, Job};
use crate::net::Host;

impl<P: Policy> World<P> {
    pub(crate) fn node_write(&mut self, id: NodeId, job: Job) {
        if let Job::Write(write) = &job {
            let PersistWrite { group, id: persist, entries, .. } = write;
            self.trace.line(self.now, format_args!("node-{} writes {group} {persist} {} entries", id.0, entries.len()));
            let checkers = &mut self.checkers;
            checkers.logs.wrote(id, write);
            let result = checkers.log_matching.wrote(self.now, id, write, &checkers.logs);
            self.check(result);
        }
        if self.node_mut(id).disk.submit(job) {
            self.node_flush(id);
        }
    }

    fn node_flush(&mut self, id: NodeId) {
        let usual =
            self.chance.span(Duration::from_micros(300), Duration::from_micros(2_500)) + self.plan.burden.flush();
        let slow = if self.chance.one_in(5) { Duration::from_millis(40) } else { Duration::ZERO };
        let node = self.node_mut(id);
        if node.disk.start() {
            let hang = std::mem::take(&mut node.disk.hang);
            let (span, incarnation) = (usual + slow + node.disk.slow + hang, node.incarnation);
            if hang > Duration::ZERO {
                self.coverage.count("faults that bit");
                self.coverage.count("stalls");
            }
            self.after(span, What::Flushed(Host::Node(id.0), incarnation));
        }
    }

    pub(crate) fn node_flushed(&mut self, id: NodeId, incarnation: Incarnation) {
        let now = self.now;
        let node = self.node_mut(id);
        if node.incarnation != incarnation || node.process.is_none() {
            return;
        }
        if node.disk.fail_next {
            self.poisoned(id);
            return;
        }
        let at = node.clock.read(now);
        for done in node.disk.complete() {
            let event = match done {
                Done::Persisted(group, id) => NodeEvent::Persisted { group, id, at },
                Done::Token(seq) => NodeEvent::TokenBack { seq, age: Duration::ZERO },
                Done::Canary => NodeEvent::CanaryFlushed { at },
            };
            self.post_to_node(id, event);
        }
        self.node_flush(id);
    }

    /// B3: the core serves no more and releases; then the process exits with its own status.
    fn poisoned(&mut self, id: NodeId) {
        self.coverage.count("flush errors");
        self.coverage.count("faults that bit");
        self.say(format_args!("node-{} has a flush error", id.0));
        let clock = self.nodes[&id].clock.read(self.now);
        let mut out = Vec::new();
        if let Some(process) = &mut self.node_mut(id).process {
            process.core.handle(clock, NodeEvent::WalPoisoned, &mut out);
            process.core.flush(clock, &mut out);
        }
        self.execute(id, out);
        self.exit(id, true, Duration::from_secs(3));
        self.node_mut(id).suspect = true;
    }

    /// B2: the newest writes are lost, and the next start sees a cut on another boot.
    pub(crate) fn lose_tail(&mut self, id: NodeId, entries: u64) {
        let node = self.node_mut(id);
        let lost = node.disk.lose_tail(entries, |log| {
            let checkpoint = log.pairs.get(crate::storage::CHECKPOINT);
            let compacted = log.entries.first_key_value().map_or(0, |(first, _)| first - 1);
            checkpoint.map_or(compacted, |value| crate::storage::decode_checkpoint(value).0 .0.max(compacted))
        });
        node.suspect = true;
        node.boots += 1;
        if lost > 0 {
            self.coverage.count("tails lost");
            self.coverage.count("faults that bit");
        }
        self.say(format_args!("node-{} lost the last {lost} entries of its log", id.0));
    }

    /// Disks that hold the entry on stable storage, by its log or by a checkpoint over it.
    pub(crate) fn disks_with(&self, group: GroupId, offset: Offset, (index, term): (LogIndex, Term)) -> usize {
        let holds = |id: &NodeId| {
            let node = &self.nodes[id];
            // Flushed there when it was acknowledged there, on a disk that is gone since.
            if node.held(group, index.0, term.0) {
                return true;
            }
            let Some(log) = node.disk.group(group) else { return false };
            match log.entries.get(&index.0) {
                Some(entry) => entry.term == term.0,
                None => {
                    let compacted = log.entries.first_key_value().is_none_or(|(first, _)| *first > index.0);
                    let covered = node.checkpoint(group).is_some_and(|(at, ..)| at >= index);
                    compacted && covered && node.segments.get(&group).is_some_and(|files| files.holds(index, offset))
                }
            }
        };
        super::NODES.iter().filter(|id| holds(id)).count()
    }
}
