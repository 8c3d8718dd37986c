//! One data node of the harness: its core, its disk, its storage, and everything that its effects did.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use quorate_proto::control::SessionUp;
use quorate_proto::ids::{GroupId, LogIndex, ReplicaId, Term, Ticket};
use quorate_proto::refusal::Refusal;
use quorate_proto::time::BootTime;
use quorate_proto::v1::Receipt;
use raft::eraftpb::{Entry, HardState};

use super::harness::{config, ReadResult, STORAGE};
use crate::effect::{Note, PersistWrite};
use crate::node::effect::{AppliedEntry, Observers, View};
use crate::node::{MachineImage, NodeCore, NodeEffect, NodeEvent, NodeLimits};

/// What survives a crash of one group.
#[derive(Default)]
pub(super) struct Stored {
    pub(super) entries: BTreeMap<u64, Entry>,
    pub(super) hard_state: Option<HardState>,
    pub(super) puts: BTreeMap<&'static str, Bytes>,
}

impl Stored {
    pub(super) fn write(&mut self, write: &PersistWrite) {
        if write.clear {
            self.entries.clear();
        }
        if let Some(first) = write.entries.first() {
            self.entries.split_off(&first.index);
        }
        self.entries.extend(write.entries.iter().map(|entry| (entry.index, entry.clone())));
        if let Some(through) = write.compact_through {
            self.entries = self.entries.split_off(&(through.0 + 1));
        }
        if let Some(hard_state) = &write.hard_state {
            self.hard_state = Some(hard_state.clone());
        }
        self.puts.extend(write.puts.iter().cloned());
    }
}

pub(super) enum Job {
    Write(PersistWrite),
    Token(u64),
    Canary,
}

/// One node: its core and everything that its effects did.
pub(super) struct Node {
    pub(super) core: NodeCore,
    pub(super) up: bool,
    pub(super) disk: VecDeque<Job>,
    /// The disk does not finish anything.
    pub(super) hang: bool,
    pub(super) stored: BTreeMap<GroupId, Stored>,
    /// Storage: entries appended since the start or the last snapshot, and the newest checkpoint's state.
    pub(super) appended: Vec<AppliedEntry>,
    pub(super) checkpoint: Option<(LogIndex, Term, Bytes)>,
    /// Storage answers `Checkpoint` by itself.
    pub(super) checkpoints: bool,
    pub(super) answers: Vec<(Ticket, Result<Receipt, Refusal>)>,
    pub(super) reads: Vec<(Ticket, ReadResult)>,
    pub(super) told: Vec<(Observers, SessionUp)>,
    pub(super) serve_until: BootTime,
    pub(super) view: View,
    pub(super) opened: Vec<GroupId>,
    pub(super) quarantined: Vec<String>,
    pub(super) retired: Vec<(GroupId, ReplicaId)>,
    pub(super) reopened: Vec<(GroupId, ReplicaId)>,
    pub(super) notes: Vec<Note>,
    pub(super) fatal: Option<String>,
    pub(super) canaries: usize,
    /// One line per effect, for tests of order.
    pub(super) trace: Vec<String>,
}

pub(super) fn node(id: u64, incarnation: u64, limits: &NodeLimits, now: BootTime) -> Node {
    Node {
        core: NodeCore::new(config(id, incarnation, limits), now),
        up: true,
        disk: VecDeque::new(),
        hang: false,
        stored: BTreeMap::new(),
        appended: Vec::new(),
        checkpoint: None,
        checkpoints: true,
        answers: Vec::new(),
        reads: Vec::new(),
        told: Vec::new(),
        serve_until: BootTime::ZERO,
        view: View::default(),
        opened: Vec::new(),
        quarantined: Vec::new(),
        retired: Vec::new(),
        reopened: Vec::new(),
        notes: Vec::new(),
        fatal: None,
        canaries: 0,
        trace: Vec::new(),
    }
}

impl Node {
    pub(super) fn execute(&mut self, effect: NodeEffect, later: &mut Vec<NodeEvent>) {
        match effect {
            NodeEffect::Persist(write) => self.disk.push_back(Job::Write(write)),
            NodeEffect::WalToken { seq } => self.disk.push_back(Job::Token(seq)),
            NodeEffect::Canary => {
                self.canaries += 1;
                self.disk.push_back(Job::Canary);
            }
            NodeEffect::Answer { ticket, result } => self.answers.push((ticket, result)),
            NodeEffect::ReadAnswer { ticket, result } => self.reads.push((ticket, result)),
            NodeEffect::Open(assignment) => {
                // The data of a replica whose place is taken are not mixed with the new one's.
                if self.opened.contains(&assignment.group) {
                    self.stored.remove(&assignment.group);
                    self.disk.clear();
                    self.appended.clear();
                    self.checkpoint = None;
                }
                self.opened.push(assignment.group);
            }
            NodeEffect::Retire { group, replica } => self.retired.push((group, replica)),
            NodeEffect::Reopen { group, replica } => self.reopened.push((group, replica)),
            NodeEffect::Append { entries, .. } => self.appended.extend(entries),
            NodeEffect::View { view, .. } => self.view = view,
            NodeEffect::ServeUntil { until, .. } => self.serve_until = until,
            NodeEffect::Quarantined { reason, .. } => self.quarantined.push(reason),
            NodeEffect::Note { note, .. } => self.notes.push(note),
            NodeEffect::Fatal(reason) => self.fatal = Some(reason),
            NodeEffect::Fetch { group, from, to, .. } => {
                let entries = self.stored.get(&group).and_then(|stored| stored.range(from.0, to.0));
                later.push(NodeEvent::EntriesFetched { group, from, entries });
            }
            other => self.store(other, later),
        }
    }

    fn store(&mut self, effect: NodeEffect, later: &mut Vec<NodeEvent>) {
        match effect {
            NodeEffect::Checkpoint { group, index, term, state } => {
                self.checkpoint = Some((index, term, state.clone()));
                if self.checkpoints {
                    later.push(NodeEvent::Checkpointed { group, index, puts: vec![(STORAGE, state)] });
                }
            }
            NodeEffect::BuildSnapshot { group, to } => {
                let (index, term, data) = self.checkpoint.clone().expect("the log was compacted after a checkpoint");
                let conf_state = raft::eraftpb::ConfState::default();
                later.push(NodeEvent::SnapshotBuilt { group, to, index, term, conf_state, data });
                later.push(NodeEvent::SnapshotSent { group, to, ok: true });
            }
            NodeEffect::InstallSnapshot { group, index, term, data } => {
                self.appended.clear();
                self.checkpoint = Some((index, term, data.clone()));
                let image = MachineImage { state: data.clone(), key_runs: Vec::new() };
                later.push(NodeEvent::SnapshotInstalled { group, index, image, puts: vec![(STORAGE, data)] });
            }
            _ => {}
        }
    }
}

impl Stored {
    fn range(&self, from: u64, to: u64) -> Option<Vec<Entry>> {
        let entries: Vec<Entry> = self.entries.range(from..to).map(|(_, entry)| entry.clone()).collect();
        entries.first().is_some_and(|entry| entry.index == from).then_some(entries)
    }
}

pub(super) fn name_of(effect: &NodeEffect) -> String {
    match effect {
        NodeEffect::Persist(_) => "persist".into(),
        NodeEffect::Answer { ticket, result } => format!("answer {} {}", ticket.get(), result.is_ok()),
        NodeEffect::Append { .. } => "append".into(),
        NodeEffect::View { view, .. } => format!("view {}", view.high_watermark.get()),
        NodeEffect::ServeUntil { until, .. } if *until == BootTime::ZERO => "serve no more".into(),
        NodeEffect::ServeUntil { .. } => "serve".into(),
        NodeEffect::Session { message, .. } => match &**message {
            SessionUp::Hello(_) => "hello".into(),
            SessionUp::Heartbeat(beat) if beat.partial => "changes".into(),
            SessionUp::Heartbeat(_) => "beat".into(),
            SessionUp::Lease(_) => "lease".into(),
            SessionUp::Release { .. } => "release".into(),
            SessionUp::AskPermit { .. } => "ask".into(),
            SessionUp::Phases(_) => "phases".into(),
            SessionUp::Directory(_) => "directory".into(),
        },
        NodeEffect::Send { .. } => "send".into(),
        NodeEffect::Open(_) => "open".into(),
        NodeEffect::InstallSnapshot { .. } => "install".into(),
        _ => "other".into(),
    }
}

pub(super) fn runs(appended: &[AppliedEntry]) -> Vec<Bytes> {
    appended.iter().map(|entry| entry.keys.clone()).filter(|keys| !keys.is_empty()).collect()
}
