//! Observers' disks, and lives that begin on them.

use std::collections::BTreeMap;

use bytes::Bytes;
use quorate_proto::control::{Memory, ObserverInfo};
use quorate_proto::ids::{DiskId, Incarnation, LogIndex, NodeId};
use raft::eraftpb::{Entry, HardState};

use super::harness::{World, CLUSTER};
use crate::effect::{PersistWrite, Restored};
use crate::observer::{ObserverConfig, ObserverCore};
use crate::replica::{restored, META_KEY};

/// What an observer's disk holds. Every write is flushed.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    /// Which disk it is; drawn anew when it is emptied.
    pub id: u128,
    pub incarnation: u64,
    pub hard_state: Option<HardState>,
    pub entries: BTreeMap<u64, Entry>,
    pub puts: BTreeMap<&'static str, Bytes>,
    pub snapshots: Vec<(LogIndex, Bytes)>,
}

impl Disk {
    pub fn write(&mut self, write: &PersistWrite) {
        if write.clear {
            self.entries.clear();
        }
        if let Some(first) = write.entries.first() {
            self.entries.split_off(&first.index);
        }
        self.entries.extend(write.entries.iter().map(|entry| (entry.index, entry.clone())));
        if let Some(through) = write.compact_through {
            self.entries = self.entries.split_off(&(through.get() + 1));
        }
        if let Some(hard_state) = &write.hard_state {
            self.hard_state = Some(hard_state.clone());
        }
        self.puts.extend(write.puts.iter().cloned());
    }

    /// Its last entries were never there.
    pub fn cut(&mut self, entries: usize) {
        for _ in 0..entries {
            self.entries.pop_last();
        }
        let last = self.entries.last_key_value().map_or(5, |(index, _)| *index);
        if let Some(hard_state) = self.hard_state.as_mut() {
            hard_state.commit = hard_state.commit.min(last);
        }
    }

    fn restored(&self) -> Option<Restored> {
        let meta = self.puts.get(META_KEY)?;
        let entries = self.entries.values().cloned().collect();
        Some(restored(meta, self.hard_state.clone(), entries).expect("a log that was written so"))
    }
}

impl World {
    /// An observer's process is gone; its disk stays.
    pub fn kill(&mut self, observer: u64) {
        self.cores.remove(&NodeId(observer));
    }

    /// Another, empty disk.
    pub fn wipe(&mut self, observer: u64) {
        let id = self.now.0.into();
        self.disks.insert(NodeId(observer), Disk { id, ..Disk::default() });
    }

    /// An observer starts on its disk, which is worth this.
    pub fn start_observer(&mut self, observer: u64, memory: Memory) {
        let node = NodeId(observer);
        let disk = self.disks.entry(node).or_default();
        disk.incarnation += 1;
        let incarnation = Incarnation(disk.incarnation);
        let info = ObserverInfo { node, incarnation, ..ObserverInfo::default() };
        let members = vec![NodeId(101), NodeId(102), NodeId(103)];
        let mut cfg = ObserverConfig::new(CLUSTER, info, members, observer * 7 + disk.incarnation);
        (cfg.memory, cfg.disk, cfg.snapshot_entries) = (memory, DiskId(disk.id), self.snapshot_entries);
        let found = disk.restored();
        let start = found.as_ref().map_or(LogIndex(5), |found| found.compacted.0);
        let last = found.as_ref().and_then(|found| found.entries.last()).map_or(start, |entry| LogIndex(entry.index));
        let fits = |(index, _): &&(LogIndex, Bytes)| *index >= start && *index <= last;
        let snapshot = disk.snapshots.iter().rev().find(fits).map(|(_, data)| data.clone()).filter(|_| found.is_some());
        let core = ObserverCore::new(cfg, found, snapshot.as_deref(), self.now).expect("it starts");
        self.cores.insert(node, core);
    }

    /// Observers that ask for it live again, with a greater incarnation.
    pub fn live_again(&mut self) {
        for (node, above, forgot) in std::mem::take(&mut self.again) {
            let disk = self.disks.entry(node).or_default();
            disk.incarnation = disk.incarnation.max(above.get());
            let memory = match self.cores.get(&node).map_or(Memory::Sound, ObserverCore::memory) {
                Memory::Sound if forgot.is_some() => Memory::Suspect,
                memory => memory,
            };
            self.start_observer(node.get(), memory);
        }
    }

    pub fn all_sound(&self) -> bool {
        self.cores.len() == 3 && self.cores.values().all(|core| core.memory() == Memory::Sound)
    }
}
