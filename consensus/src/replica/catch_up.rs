//! Followers that are behind, and the length of the log: fetches, snapshots, compaction.
//!
//! ```text
//!   leader: Fetch ─► entries_fetched                     follower: Restore ─► owner installs ─► restored(puts)
//!           BuildSnapshot ─► snapshot_built ─► Send             ─► Persist{clear, meta, puts} ─► goes on as usual
//!           … ─► snapshot_sent
//! ```
//!
//! - The write of a received snapshot is made after the machine's part is installed, and holds the machine's checkpoint
//!   and the group's meta record, atomically.
//! - Compaction gives up only what is applied, flushed, and not needed by a snapshot on its way; its write carries a
//!   hard state whose commit index is not older, and the checkpoint that allows it.

use std::collections::BTreeMap;

use bytes::Bytes;
use quorate_proto::ids::{LogIndex, PersistId, ReplicaId, Term};
use quorate_proto::time::BootTime;
use raft::eraftpb::{Entry, Snapshot};
use raft::{ProgressState, SnapshotStatus, Storage as _};

use super::durable::{encode_meta, META_KEY};
use super::{Out, Replica, SnapshotImage};
use crate::effect::{PersistWrite, ReplicaEffect};
use crate::policy::Policy;

/// Looks, half a minute apart, at a snapshot on its way before it counts as lost. The transport reports every end; this is
/// for the one that it does not, and longer than an honest transfer: two hours are 470 GB at the default pace.
const SNAPSHOT_CHECKS: u32 = 240;

impl<P: Policy> Replica<P> {
    /// What `Fetch` asked for; `None` = compacted away (a snapshot follows).
    pub fn entries_fetched(&mut self, now: BootTime, from: LogIndex, entries: Option<Vec<Entry>>, out: &mut Out) {
        if self.stopped() {
            return;
        }
        for context in self.raw.mut_store().put_fetched(from.0, entries) {
            self.raw.on_entries_fetched(context);
        }
        self.raw.mut_store().drop_fetched();
        self.drive(now, out);
    }

    /// The snapshot that `BuildSnapshot` asked for, or `None` if it could not be made.
    pub fn snapshot_built(&mut self, now: BootTime, to: ReplicaId, image: Option<SnapshotImage>, out: &mut Out) {
        if self.stopped() {
            return;
        }
        let snapshot = image.map(|image| {
            let mut snapshot = Snapshot::default();
            let meta = snapshot.mut_metadata();
            meta.index = image.index.0;
            meta.term = image.term.0;
            meta.set_conf_state(image.conf_state);
            snapshot.data = image.data;
            snapshot
        });
        let usable = snapshot.is_some();
        self.raw.mut_store().put_snapshot(to.0, snapshot);
        if usable && self.lead.is_some() && self.raw.raft.prs().get(to.0).is_some() {
            self.raw.raft.send_append(to.0);
        }
        self.drive(now, out);
    }

    /// Sending a snapshot ended.
    pub fn snapshot_sent(&mut self, now: BootTime, to: ReplicaId, ok: bool, out: &mut Out) {
        if self.stopped() {
            return;
        }
        self.raw.report_snapshot(to.0, if ok { SnapshotStatus::Finish } else { SnapshotStatus::Failure });
        self.drive(now, out);
    }

    /// The machine was replaced as `Restore` asked; `puts` go into the write that makes the snapshot the group's log.
    pub fn restored(&mut self, now: BootTime, index: LogIndex, puts: Vec<(&'static str, Bytes)>, out: &mut Out) {
        if self.stopped() || !self.awaiting_restore || self.installing != Some(index.0) {
            return;
        }
        let term = Term(self.raw.store().term(index.0).expect("the log starts at the snapshot"));
        let meta = encode_meta((index, term), index, &self.membership_at(index));
        self.outbox.installed(index.0, |write| {
            write.puts = puts;
            write.puts.push((META_KEY, meta));
        });
        self.meta_unwritten = false;
        self.awaiting_restore = false;
        self.applied = index.0;
        self.checkpoint = index.0;
        self.settle(now, out);
        self.drive(now, out);
    }

    /// A snapshot in a `Ready`: the log is replaced here at once, durably once the owner has installed its part.
    pub(super) fn take_snapshot(&mut self, snapshot: &Snapshot, write: &mut PersistWrite, out: &mut Out) -> u64 {
        let meta = snapshot.get_metadata();
        self.raw.mut_store().reset_to(meta.index, meta.term);
        self.conf = meta.get_conf_state().clone();
        self.conf_history = BTreeMap::from([(meta.index, self.conf.clone())]);
        self.installing = Some(meta.index);
        self.awaiting_restore = true;
        self.apply_emitted = meta.index;
        self.ready_mark = meta.index;
        write.clear = true;
        out.push(ReplicaEffect::Restore {
            index: LogIndex(meta.index),
            term: Term(meta.term),
            data: snapshot.data.clone(),
        });
        meta.index
    }

    /// Makes pairs of the group durable, after everything that was asked for before.
    pub fn store(&mut self, now: BootTime, puts: Vec<(&'static str, Bytes)>, out: &mut Out) {
        if self.stopped() {
            return;
        }
        self.outbox.push(Some(PersistWrite { puts, ..PersistWrite::default() }), None, None, Vec::new(), now);
        self.settle(now, out);
        self.drive(now, out);
    }

    /// The machine's checkpoint at `applied` is to be made durable with `puts`; the log before it is given up as far as
    /// nobody needs it. Emits one `Persist`, whose id is returned; `None` if a newer checkpoint or a snapshot that is
    /// being installed has overtaken this one: nothing is written then.
    ///
    /// # Panics
    /// If `applied` is beyond what the owner said to have applied.
    pub fn compact(
        &mut self,
        now: BootTime,
        applied: LogIndex,
        puts: Vec<(&'static str, Bytes)>,
        out: &mut Out,
    ) -> Option<PersistId> {
        self.compact_through(now, applied, applied, puts, out)
    }

    /// The same, but entries after `through` stay in the log although the checkpoint covers them: a follower that is
    /// a little behind then needs no snapshot.
    ///
    /// # Panics
    /// If `applied` is beyond what the owner said to have applied.
    pub fn compact_through(
        &mut self,
        now: BootTime,
        applied: LogIndex,
        through: LogIndex,
        puts: Vec<(&'static str, Bytes)>,
        out: &mut Out,
    ) -> Option<PersistId> {
        assert!(applied.0 <= self.applied, "a checkpoint at {applied} is beyond what is applied");
        if self.stopped() || self.installing.is_some() || applied.0 < self.checkpoint {
            return None;
        }
        let log = &self.raw.raft.raft_log;
        let mut through = through.0.min(applied.0).min(log.applied).min(log.persisted).min(self.ready_mark);
        if let Some(floor) = self.snapshot_floor() {
            through = through.min(floor);
        }
        self.checkpoint = applied.0;
        let before = self.raw.store().start().0;
        self.raw.mut_store().compact(through);
        let start = self.raw.store().start();
        let meta = encode_meta((LogIndex(start.0), Term(start.1)), applied, &self.membership_at(applied));
        let keep = self.conf_history.range(..=applied.0).next_back().map_or(0, |(&index, _)| index);
        self.conf_history = self.conf_history.split_off(&keep);
        let mut write = PersistWrite {
            compact_through: (start.0 > before).then_some(LogIndex(start.0)),
            hard_state: Some(self.raw.raft.hard_state()),
            puts,
            ..PersistWrite::default()
        };
        write.puts.push((META_KEY, meta));
        self.meta_unwritten = false;
        let id = self.outbox.push(Some(write), None, None, Vec::new(), now);
        self.settle(now, out);
        self.drive(now, out);
        id
    }

    /// Position from which a follower that was sent a snapshot will go on.
    fn snapshot_floor(&self) -> Option<u64> {
        let sending = self.raw.raft.prs().iter().filter(|(_, pr)| pr.state == ProgressState::Snapshot);
        let sent = sending.map(|(_, pr)| pr.pending_snapshot).min().filter(|_| self.lead.is_some());
        [sent, self.raw.store().snapshot_floor()].into_iter().flatten().min()
    }

    /// A snapshot whose end was never reported would keep its follower waiting for ever: after
    /// [`SNAPSHOT_CHECKS`] looks at the same one it counts as failed, and is sent anew.
    pub(super) fn give_up_snapshots(&mut self) {
        let sending: BTreeMap<u64, u64> = self
            .raw
            .raft
            .prs()
            .iter()
            .filter(|(_, pr)| self.lead.is_some() && pr.state == ProgressState::Snapshot)
            .map(|(&id, pr)| (id, pr.pending_snapshot))
            .collect();
        self.sending.retain(|id, (index, _)| sending.get(id) == Some(index));
        for (id, index) in sending {
            let looks = &mut self.sending.entry(id).or_insert((index, 0)).1;
            *looks += 1;
            if *looks > SNAPSHOT_CHECKS {
                self.sending.remove(&id);
                self.raw.report_snapshot(id, SnapshotStatus::Failure);
            }
        }
    }

    /// Tells the owner what raft-rs asked the storage for.
    pub(super) fn emit_wants(&mut self, out: &mut Out) {
        let store = self.raw.mut_store();
        for want in store.take_wanted() {
            out.push(ReplicaEffect::Fetch {
                from: LogIndex(want.from),
                to: LogIndex(want.to),
                max_bytes: want.max_bytes,
            });
        }
        for to in store.take_snapshots_wanted() {
            out.push(ReplicaEffect::BuildSnapshot { to: ReplicaId(to) });
        }
        if self.lead.is_none() {
            self.raw.mut_store().forget_building();
        }
    }
}
