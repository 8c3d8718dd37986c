//! A simulated observer: the production core, its disk, its snapshot files.

use std::collections::VecDeque;

use bytes::Bytes;
use quorate_consensus::observer::{ObserverConfig, ObserverCore, ObserverEvent};
use quorate_consensus::policy::Policy;
use quorate_consensus::timing::Timing;
use quorate_proto::control::{Memory, ObserverInfo};
use quorate_proto::ids::{ClusterId, DiskId, GroupId, Incarnation, LogIndex, NodeId};

use crate::disk::Disk;
use crate::time::{HostClock, Instant};

/// The process, while it runs.
#[derive(Debug)]
pub struct Process<P: Policy> {
    /// The production core.
    pub core: ObserverCore<P>,
    /// Taken from sockets, not yet handled.
    pub mailbox: VecDeque<ObserverEvent>,
    /// A turn is scheduled.
    pub turn_due: bool,
    /// Earliest tick scheduled.
    pub tick_due: Instant,
}

/// One observer's host.
#[derive(Debug)]
pub struct ObserverNode<P: Policy> {
    /// Who.
    pub id: NodeId,
    /// Its clock.
    pub clock: HostClock,
    /// Its WAL.
    pub disk: Disk,
    /// Snapshot files, flushed.
    pub snapshots: Vec<(LogIndex, Bytes)>,
    /// How often it started.
    pub incarnation: Incarnation,
    /// Running, unless crashed.
    pub process: Option<Process<P>>,
    /// Stopped until then (SIGSTOP).
    pub paused_until: Option<Instant>,
    /// Its wall clock is off by so many microseconds.
    pub wall_error: i64,
    /// What its marker says of its log (B2).
    pub memory: Memory,
    /// It was heard to be sound since it last forgot something.
    pub rejoined: bool,
    /// How often its disk was replaced by an empty one.
    pub wipes: u64,
    /// Applied position that was looked at last.
    pub looked_at: LogIndex,
}

impl<P: Policy> ObserverNode<P> {
    /// A host with an empty disk.
    #[must_use]
    pub fn new(id: NodeId, clock: HostClock) -> Self {
        Self {
            id,
            clock,
            disk: Disk::default(),
            snapshots: Vec::new(),
            incarnation: Incarnation::ZERO,
            process: None,
            paused_until: None,
            wall_error: 0,
            memory: Memory::Sound,
            rejoined: false,
            wipes: 0,
            looked_at: LogIndex::ZERO,
        }
    }

    /// Starts the process from its disk.
    pub fn start(&mut self, now: Instant, members: &[NodeId], timing: &Timing, seed: u64) {
        self.incarnation = self.incarnation.next();
        let me = ObserverInfo {
            node: self.id,
            incarnation: self.incarnation,
            name: format!("observer-{}", self.id.0),
            address: format!("observer-{}:9100", self.id.0),
            ..ObserverInfo::default()
        };
        let mut config = ObserverConfig::new(ClusterId(7), me, members.to_vec(), seed);
        config.timing = timing.clone();
        config.snapshot_entries = 20;
        config.disk = DiskId(u128::from(self.id.0) + 1_000_000 * u128::from(self.wipes));
        // As a start judges it: an empty disk may be a new one, or one that held a log. The marker stays until it is sound.
        if self.disk.group(GroupId::DIRECTORY).is_none() {
            self.memory = Memory::Empty;
        }
        config.memory = self.memory;
        let log = self.disk.group(GroupId::DIRECTORY).and_then(crate::disk::GroupLog::restored);
        let restored = log.map(|log| log.expect("a simulated disk keeps what it acknowledged"));
        // The newest snapshot whose position lies within the log.
        let last = restored
            .as_ref()
            .map_or(LogIndex::ZERO, |log| log.entries.last().map_or(log.compacted.0, |entry| LogIndex(entry.index)));
        let snapshot = self.snapshots.iter().rev().find(|(index, _)| *index <= last).map(|(_, data)| data.clone());
        let core = ObserverCore::new(config, restored, snapshot.as_deref(), self.clock.read(now))
            .expect("an observer starts from what its disk holds");
        self.process = Some(Process { core, mailbox: VecDeque::new(), turn_due: false, tick_due: Instant(u64::MAX) });
    }

    /// The disk is replaced by an empty one, or the log loses its end, while the process is down.
    pub fn forget(&mut self, entries: Option<u64>) {
        let Some(entries) = entries else {
            let free = self.disk.free;
            self.disk = Disk::default();
            self.disk.free = free;
            self.snapshots.clear();
            self.incarnation = Incarnation::ZERO;
            self.wipes += 1;
            self.looked_at = LogIndex::ZERO;
            return;
        };
        let snapshot = self.snapshots.last().map_or(0, |(index, _)| index.0);
        self.disk
            .lose_tail(entries, |log| log.entries.first_key_value().map_or(0, |(first, _)| first - 1).max(snapshot));
        self.disk.forget_votes(GroupId::DIRECTORY);
        self.memory = Memory::Suspect;
        self.looked_at = LogIndex::ZERO;
    }

    /// It remembers everything that it ever said.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.memory == Memory::Sound && self.disk.group(GroupId::DIRECTORY).is_some()
    }

    /// True if the process runs and is not stopped.
    #[must_use]
    pub fn awake(&self, now: Instant) -> bool {
        self.process.is_some() && self.paused_until.is_none_or(|until| until <= now)
    }
}
