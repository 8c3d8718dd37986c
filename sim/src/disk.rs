//! The disk under a simulated process: its write-ahead log with group commit. Only what was flushed survives a crash
//! for sure. Of the flush in flight a prefix survives, write by write (one write batch has one checksum): a torn tail.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use quorate_consensus::effect::{PersistWrite, Restored};
use quorate_consensus::{replica, space};
use quorate_proto::ids::{GroupId, LogIndex, PersistId};
use raft::eraftpb::{Entry, HardState};

/// A job that waits for the next flush.
#[derive(Clone, Debug)]
pub enum Job {
    /// Write and acknowledge.
    Write(PersistWrite),
    /// Acknowledge only.
    Token(u64),
    /// Flush something small.
    Canary,
}

/// What one flush completed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Done {
    /// This write.
    Persisted(GroupId, PersistId),
    /// This token.
    Token(u64),
    /// The canary.
    Canary,
}

/// What is free on it: above all marks, between them, or below the hard one (B5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Free(u64);

impl Default for Free {
    fn default() -> Self {
        Self::PLENTY
    }
}

impl Free {
    const MIB: u64 = 1 << 20;
    /// Room for everything.
    pub const PLENTY: Self = Self(100 * 1_024 * Self::MIB);
    /// Below the soft mark.
    pub const SCARCE: Self = Self(1_536 * Self::MIB);
    /// Below the hard mark; what the protocol itself needs still fits.
    pub const FULL: Self = Self(512 * Self::MIB);

    /// As a shell measures it. The simulated disk has no ballast to give up.
    #[must_use]
    pub fn measured(self) -> Vec<space::Free> {
        vec![space::Free { bytes: self.0, inodes: None, ballast: space::Marks::default().ballast_bytes }]
    }
}

/// Flushed state of one group.
#[derive(Clone, Debug, Default)]
pub struct GroupLog {
    /// Entries by index.
    pub entries: BTreeMap<u64, Entry>,
    /// Last hard state.
    pub hard_state: Option<HardState>,
    /// Key–value pairs.
    pub pairs: BTreeMap<&'static str, Bytes>,
}

impl GroupLog {
    fn write(&mut self, write: PersistWrite) {
        if write.clear {
            self.entries.clear();
        }
        if let Some(first) = write.entries.first() {
            let first = first.index;
            let next = self.entries.last_key_value().map(|(last, _)| last + 1);
            assert!(next.is_none_or(|next| first <= next), "the log would get a gap: {first} after {next:?}");
            self.entries.split_off(&first);
            self.entries.extend(write.entries.into_iter().map(|entry| (entry.index, entry)));
        }
        if let Some(through) = write.compact_through {
            self.entries = self.entries.split_off(&(through.0 + 1));
        }
        if write.hard_state.is_some() {
            self.hard_state = write.hard_state;
        }
        self.pairs.extend(write.puts);
    }

    /// As a process finds it at its start; `None` if the group was never written whole.
    pub fn restored(&self) -> Option<Result<Restored, replica::Quarantine>> {
        let meta = self.pairs.get(replica::META_KEY)?;
        Some(replica::restored(meta, self.hard_state.clone(), self.entries.values().cloned().collect()))
    }

    /// Entries `from..to`, as many as fit, at least one; `None` if they are gone.
    #[must_use]
    pub fn fetch(&self, from: LogIndex, to: LogIndex, max_bytes: u64) -> Option<Vec<Entry>> {
        let mut taken = Vec::new();
        let mut bytes = 0;
        for index in from.0..to.0 {
            let entry = self.entries.get(&index)?;
            bytes += entry.data.len() as u64;
            if !taken.is_empty() && bytes > max_bytes {
                break;
            }
            taken.push(entry.clone());
        }
        Some(taken)
    }
}

/// One disk.
#[derive(Debug, Default)]
pub struct Disk {
    groups: BTreeMap<GroupId, GroupLog>,
    waiting: VecDeque<Job>,
    in_flight: Vec<Job>,
    /// The next flush fails (B3).
    pub fail_next: bool,
    /// Flushes take this much longer, for a while.
    pub slow: Duration,
    /// The next flush hangs for so long (B4).
    pub hang: Duration,
    /// What is free.
    pub free: Free,
}

impl Disk {
    /// Queues a job. True if a flush is to be started.
    pub fn submit(&mut self, job: Job) -> bool {
        self.waiting.push_back(job);
        self.in_flight.is_empty()
    }

    /// Starts a flush with all that waits. False if nothing waits or one is in flight.
    pub fn start(&mut self) -> bool {
        if self.in_flight.is_empty() {
            self.in_flight.extend(self.waiting.drain(..));
            return !self.in_flight.is_empty();
        }
        false
    }

    /// The flush in flight ended well.
    pub fn complete(&mut self) -> Vec<Done> {
        let jobs = std::mem::take(&mut self.in_flight);
        jobs.into_iter().map(|job| self.finish(job)).collect()
    }

    fn finish(&mut self, job: Job) -> Done {
        match job {
            Job::Write(write) => {
                let done = Done::Persisted(write.group, write.id);
                self.groups.entry(write.group).or_default().write(write);
                done
            }
            Job::Token(seq) => Done::Token(seq),
            Job::Canary => Done::Canary,
        }
    }

    /// Jobs of the flush in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// The process is gone. `keep`: so many jobs of the flush in flight reached the disk all the same.
    pub fn crash(&mut self, keep: usize) {
        for job in std::mem::take(&mut self.in_flight).into_iter().take(keep) {
            self.finish(job);
        }
        self.waiting.clear();
        self.fail_next = false;
        self.hang = Duration::ZERO;
    }

    /// The newest `entries` of each group's log are lost, flushed or not, down to its checkpoint. How many were lost.
    pub fn lose_tail(&mut self, entries: u64, checkpoint: impl Fn(&GroupLog) -> u64) -> u64 {
        let mut lost = 0;
        for log in self.groups.values_mut() {
            let Some((&last, _)) = log.entries.last_key_value() else { continue };
            let keep = last.saturating_sub(entries).max(checkpoint(log));
            lost += log.entries.split_off(&(keep + 1)).len() as u64;
            if let Some(hard_state) = &mut log.hard_state {
                hard_state.commit = hard_state.commit.min(keep);
            }
        }
        lost
    }

    /// Votes are gone, and the terms in which nothing was written.
    pub fn forget_votes(&mut self, group: GroupId) {
        let Some(log) = self.groups.get_mut(&group) else { return };
        let term = log.entries.last_key_value().map(|(_, entry)| entry.term);
        if let (Some(hard_state), Some(term)) = (&mut log.hard_state, term) {
            hard_state.vote = 0;
            hard_state.term = hard_state.term.min(term);
        }
    }

    /// Everything of a group is gone, also what is still to be written.
    pub fn forget(&mut self, group: GroupId) {
        let others = |job: &Job| !matches!(job, Job::Write(write) if write.group == group);
        self.groups.remove(&group);
        self.waiting.retain(others);
        self.in_flight.retain(others);
    }

    /// What was set aside of a group is its log again.
    pub fn put_back(&mut self, group: GroupId, log: GroupLog) {
        self.forget(group);
        self.groups.insert(group, log);
    }

    /// Flushed state of a group.
    #[must_use]
    pub fn group(&self, group: GroupId) -> Option<&GroupLog> {
        self.groups.get(&group)
    }

    /// All groups.
    pub fn groups(&self) -> impl Iterator<Item = (&GroupId, &GroupLog)> {
        self.groups.iter()
    }
}
