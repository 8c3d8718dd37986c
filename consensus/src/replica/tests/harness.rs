//! A cluster of replicas with one clock, a wire that can be cut, and disks that forget what was not flushed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use quorate_proto::control::{Ended, Permit, PermitKind};
use quorate_proto::ids::{
    ConfigVersion, GroupId, Incarnation, LogIndex, PermitEpoch, PersistId, ReplicaId, Term, Ticket,
};
use quorate_proto::time::BootTime;
use raft::eraftpb::{Entry, EntryType, HardState, MessageType};

use crate::effect::{Note, PersistWrite, ReplicaEffect};
use crate::envelope::Envelope;
use crate::policy::{Policy, Production};
use crate::replica::{
    bootstrap, restored, Mode, ObserverLoss, Quarantine, Replica, ReplicaConfig, SnapshotImage, META_KEY,
};
use crate::timing::Timing;

pub(super) const GROUP: GroupId = GroupId(7);

pub(super) fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// What survives a crash.
#[derive(Clone, Debug, Default)]
pub(super) struct Disk {
    pub(super) hard_state: Option<HardState>,
    pub(super) meta: Option<Bytes>,
    pub(super) machine: Option<Bytes>,
    pub(super) entries: BTreeMap<u64, Entry>,
}

impl Disk {
    fn write(&mut self, write: PersistWrite) {
        if write.clear {
            self.entries.clear();
        }
        if let Some(first) = write.entries.first() {
            self.entries.split_off(&first.index);
        }
        for entry in write.entries {
            self.entries.insert(entry.index, entry);
        }
        if let Some(through) = write.compact_through {
            self.entries = self.entries.split_off(&(through.0 + 1));
        }
        if let Some(hard_state) = write.hard_state {
            self.hard_state = Some(hard_state);
        }
        for (key, value) in write.puts {
            match key {
                META_KEY => self.meta = Some(value),
                "machine" => self.machine = Some(value),
                other => panic!("unknown key {other}"),
            }
        }
    }
}

/// The machine: what was applied, by index.
pub(super) type Machine = Vec<(u64, Bytes)>;

fn encode(machine: &Machine) -> Bytes {
    let lines: Vec<_> = machine.iter().map(|(i, d)| format!("{i} {}", String::from_utf8_lossy(d))).collect();
    lines.join("\n").into()
}

fn decode(data: &[u8]) -> Machine {
    let text = String::from_utf8_lossy(data);
    let line = |l: &str| {
        let (index, data) = l.split_once(' ')?;
        Some((index.parse().ok()?, Bytes::from(data.to_owned())))
    };
    text.lines().filter_map(line).collect()
}

pub(super) struct Node<P: Policy> {
    pub(super) replica: Option<Replica<P>>,
    pub(super) incarnation: u64,
    pub(super) disk: Disk,
    pub(super) unflushed: VecDeque<PersistWrite>,
    pub(super) hold_flush: bool,
    pub(super) hold_restore: bool,
    pub(super) machine: Machine,
    pub(super) suspect: bool,
    pub(super) effects: Vec<ReplicaEffect>,
}

pub(super) struct Cluster<P: Policy = Production> {
    pub(super) now: BootTime,
    pub(super) mode: Mode,
    pub(super) loss: ObserverLoss,
    pub(super) cache_bytes: usize,
    pub(super) nodes: BTreeMap<u64, Node<P>>,
    pub(super) cuts: BTreeSet<(u64, u64)>,
    pub(super) wire: VecDeque<Envelope>,
    /// Kinds of messages that are kept back instead of delivered.
    pub(super) keep: Option<MessageType>,
    pub(super) kept: Vec<Envelope>,
    pub(super) grant_leases: bool,
    size: u64,
}

impl<P: Policy> Cluster<P> {
    pub(super) fn new(mode: Mode, size: u64) -> Self {
        let mut cluster = Self {
            // Long after the boot wait.
            now: BootTime(10_000_000_000),
            mode,
            loss: ObserverLoss::Stop,
            cache_bytes: 1 << 20,
            nodes: BTreeMap::new(),
            cuts: BTreeSet::new(),
            wire: VecDeque::new(),
            keep: None,
            kept: Vec::new(),
            grant_leases: true,
            size,
        };
        for id in 1..=size {
            let node = Node {
                replica: None,
                incarnation: 0,
                disk: Disk::default(),
                unflushed: VecDeque::new(),
                hold_flush: false,
                hold_restore: false,
                machine: Vec::new(),
                suspect: false,
                effects: Vec::new(),
            };
            cluster.nodes.insert(id, node);
            cluster.start_at(id, BootTime::ZERO).expect("a fresh replica is sound");
        }
        cluster
    }

    pub(super) fn start(&mut self, id: u64) -> Result<(), Quarantine> {
        self.start_at(id, self.now)
    }

    fn start_at(&mut self, id: u64, started: BootTime) -> Result<(), Quarantine> {
        let members: Vec<_> = (1..=self.size).map(ReplicaId).collect();
        let (mode, loss, cache_bytes, now) = (self.mode, self.loss, self.cache_bytes, self.now);
        let node = self.nodes.get_mut(&id).expect("a node of the cluster");
        node.incarnation += 1;
        let state = match &node.disk.meta {
            None => bootstrap(&members),
            Some(meta) => restored(meta, node.disk.hard_state.clone(), node.disk.entries.values().cloned().collect())?,
        };
        let cfg = ReplicaConfig {
            group: GROUP,
            me: ReplicaId(id),
            incarnation: Incarnation(node.incarnation),
            timing: Timing::default(),
            mode,
            election_ticks: if mode == Mode::Governed { 120 + id as usize } else { 20 },
            started,
            suspect_log: node.suspect,
            observer_loss: loss,
            cache_bytes,
            first_write: PersistId(1),
        };
        node.machine = node.disk.machine.as_ref().map(|m| decode(m)).unwrap_or_default();
        node.unflushed.clear();
        node.replica = Some(Replica::new(cfg, state, now)?);
        Ok(())
    }

    /// Process gone; what was not flushed is lost.
    pub(super) fn crash(&mut self, id: u64) {
        let node = self.nodes.get_mut(&id).expect("a node of the cluster");
        node.replica = None;
        node.unflushed.clear();
    }

    pub(super) fn replica(&self, id: u64) -> &Replica<P> {
        self.nodes[&id].replica.as_ref().expect("it runs")
    }

    pub(super) fn act<R>(
        &mut self,
        id: u64,
        f: impl FnOnce(&mut Replica<P>, BootTime, &mut Vec<ReplicaEffect>) -> R,
    ) -> R {
        let now = self.now;
        let mut out = Vec::new();
        let replica = self.nodes.get_mut(&id).and_then(|n| n.replica.as_mut()).expect("it runs");
        let result = f(replica, now, &mut out);
        self.execute(id, out);
        result
    }

    fn execute(&mut self, id: u64, effects: Vec<ReplicaEffect>) {
        let mut todo: VecDeque<_> = effects.into();
        while let Some(effect) = todo.pop_front() {
            let now = self.now;
            let mut more = Vec::new();
            let Some(node) = self.nodes.get_mut(&id) else { return };
            let Some(replica) = node.replica.as_mut() else { return };
            node.effects.push(effect.clone());
            match effect {
                ReplicaEffect::Persist(write) => node.unflushed.push_back(write),
                ReplicaEffect::Send { envelope, .. } => self.wire.push_back(*envelope),
                ReplicaEffect::Apply(entries) => {
                    let last = entries.last().expect("never empty").index;
                    let payload = |e: &&Entry| e.get_entry_type() == EntryType::EntryNormal && !e.data.is_empty();
                    node.machine.extend(entries.iter().filter(payload).map(|e| (e.index, e.data.clone())));
                    replica.applied(now, LogIndex(last), &mut more);
                }
                ReplicaEffect::Restore { index, data, .. } => {
                    node.machine = decode(&data);
                    if !node.hold_restore {
                        replica.restored(now, index, vec![("machine", data)], &mut more);
                    }
                }
                ReplicaEffect::Fetch { from, to, max_bytes } => {
                    let mut size = 0;
                    let fits = |e: &&Entry| {
                        size += e.data.len() as u64;
                        size <= max_bytes
                    };
                    let entries: Vec<_> =
                        node.disk.entries.range(from.0..to.0).map(|(_, e)| e).take_while(fits).cloned().collect();
                    replica.entries_fetched(now, from, (!entries.is_empty()).then_some(entries), &mut more);
                }
                ReplicaEffect::BuildSnapshot { to } => {
                    let index = replica.applied_index();
                    let image = SnapshotImage {
                        index,
                        term: replica.term_at(index).expect("applied index is in the log"),
                        conf_state: replica.membership_at(index),
                        data: encode(&node.machine),
                    };
                    replica.snapshot_built(now, to, Some(image), &mut more);
                }
                _ => {}
            }
            // In order: what an effect leads to comes after what was already emitted.
            todo.extend(more);
        }
        self.flush(id);
    }

    /// Flushes everything of `id` unless its disk hangs.
    pub(super) fn flush(&mut self, id: u64) {
        loop {
            let now = self.now;
            let Some(node) = self.nodes.get_mut(&id) else { return };
            let Some(replica) = node.replica.as_mut() else { return };
            if node.hold_flush || node.unflushed.is_empty() {
                return;
            }
            let mut last = PersistId::ZERO;
            for write in node.unflushed.drain(..) {
                last = write.id;
                node.disk.write(write);
            }
            let mut out = Vec::new();
            replica.persisted(now, last, &mut out);
            self.execute(id, out);
        }
    }

    /// Delivers everything that is on the wire, and what follows from it.
    pub(super) fn deliver(&mut self) {
        let mut rounds = 0;
        while let Some(envelope) = self.wire.pop_front() {
            rounds += 1;
            assert!(rounds < 20_000, "messages without end");
            self.now += Duration::from_micros(20);
            if self.keep == Some(envelope.message.get_msg_type()) {
                self.kept.push(envelope);
                continue;
            }
            self.hand_over(envelope);
        }
    }

    pub(super) fn hand_over(&mut self, envelope: Envelope) {
        let (from, to) = (envelope.from.0, envelope.to.0);
        let arrives = !self.cuts.contains(&(from, to)) && self.nodes[&to].replica.is_some();
        let snapshot = envelope.message.get_msg_type() == MessageType::MsgSnapshot;
        if arrives {
            self.act(to, |r, now, out| r.receive(now, envelope, out));
        }
        if snapshot && self.nodes[&from].replica.is_some() {
            self.act(from, |r, now, out| r.snapshot_sent(now, ReplicaId(to), arrives, out));
        }
    }

    /// Time passes in steps of 10 ms.
    pub(super) fn run(&mut self, millis: u64) {
        for _ in 0..millis.div_ceil(10) {
            self.now += ms(10);
            self.turn();
        }
    }

    pub(super) fn turn(&mut self) {
        for id in self.alive() {
            self.act(id, |r, now, out| r.tick(now, out));
        }
        self.deliver();
        if self.grant_leases {
            self.grant();
        }
    }

    pub(super) fn grant(&mut self) {
        for id in self.alive() {
            if let Some(item) = self.replica(id).lease_due(self.now) {
                self.act(id, |r, now, out| {
                    r.lease_asked(now);
                    r.lease_granted(now, item.term, now, out);
                });
            }
        }
    }

    pub(super) fn run_until(&mut self, what: &str, millis: u64, f: impl Fn(&Self) -> bool) -> Duration {
        let began = self.now;
        while self.now.since(began) < ms(millis) {
            if f(self) {
                return self.now.since(began);
            }
            self.run(10);
        }
        panic!("not within {millis} ms: {what}");
    }

    pub(super) fn alive(&self) -> Vec<u64> {
        self.nodes.iter().filter(|(_, n)| n.replica.is_some()).map(|(&id, _)| id).collect()
    }

    /// A permit as the observers would send it: to every replica that runs.
    pub(super) fn permit(&mut self, epoch: u64, candidate: u64, basis: &[Ended], clear: bool) {
        let permit = self.make_permit(epoch, candidate, basis, clear);
        for id in self.alive() {
            let permit = permit.clone();
            self.act(id, |r, now, out| r.permit(now, permit, out));
        }
        self.deliver();
    }

    pub(super) fn make_permit(&self, epoch: u64, candidate: u64, basis: &[Ended], clear: bool) -> Permit {
        Permit {
            group: GROUP,
            epoch: PermitEpoch(epoch),
            candidate: ReplicaId(candidate),
            candidate_incarnation: Incarnation(self.nodes[&candidate].incarnation),
            config_version: ConfigVersion(1),
            basis: basis.to_vec(),
            clear,
            kind: PermitKind::Normal,
            planned: None,
        }
    }

    pub(super) fn cut_both(&mut self, a: u64, b: u64) {
        self.cuts.extend([(a, b), (b, a)]);
    }

    pub(super) fn isolate(&mut self, id: u64) {
        let others: Vec<_> = self.nodes.keys().copied().filter(|&n| n != id).collect();
        for other in others {
            self.cut_both(id, other);
        }
    }

    pub(super) fn leader(&self) -> Option<u64> {
        let leads = |id: &u64| self.replica(*id).role() == quorate_proto::control::Role::Leader;
        self.alive().into_iter().filter(leads).max_by_key(|&id| self.replica(id).term())
    }

    pub(super) fn serving(&self) -> Vec<u64> {
        self.alive().into_iter().filter(|&id| self.replica(id).serving(self.now)).collect()
    }

    pub(super) fn propose(&mut self, id: u64, data: &str) -> (Term, LogIndex) {
        let data = Bytes::from(data.to_owned());
        let position = self.act(id, |r, now, out| r.propose(now, data, out)).expect("it leads");
        self.deliver();
        position
    }

    pub(super) fn values(&self, id: u64) -> Vec<String> {
        self.nodes[&id].machine.iter().map(|(_, d)| String::from_utf8_lossy(d).into_owned()).collect()
    }

    pub(super) fn checkpoint(&mut self, id: u64) {
        let machine = encode(&self.nodes[&id].machine);
        let applied = self.replica(id).applied_index().min(self.replica(id).persisted_index());
        assert_eq!(applied, self.replica(id).applied_index(), "everything applied is flushed");
        self.act(id, |r, now, out| r.compact(now, applied, vec![("machine", machine)], out));
    }

    pub(super) fn take_effects(&mut self, id: u64) -> Vec<ReplicaEffect> {
        std::mem::take(&mut self.nodes.get_mut(&id).expect("a node").effects)
    }

    pub(super) fn vetoes(&mut self, id: u64) -> Vec<&'static str> {
        let rule = |e: &ReplicaEffect| match e {
            ReplicaEffect::Note(Note::Vetoed { rule, .. }) => Some(*rule),
            _ => None,
        };
        self.nodes[&id].effects.iter().filter_map(rule).collect()
    }

    pub(super) fn read(&mut self, id: u64, ticket: u64) {
        self.act(id, |r, now, out| r.read_index(now, Ticket(ticket), out));
        self.deliver();
    }

    pub(super) fn reads(&self, id: u64) -> Vec<(u64, Option<u64>)> {
        let read = |e: &ReplicaEffect| match e {
            ReplicaEffect::ReadReady { read, index } => Some((read.0, Some(index.0))),
            ReplicaEffect::ReadLost { read } => Some((read.0, None)),
            _ => None,
        };
        self.nodes[&id].effects.iter().filter_map(read).collect()
    }
}

/// Three replicas of a partition, the first one leading and serving under permit epoch 1.
pub(super) fn led<P: Policy>() -> Cluster<P> {
    let mut cluster = Cluster::new(Mode::Governed, 3);
    cluster.permit(1, 1, &[], true);
    cluster.run_until("first leader serves", 1000, |c| c.serving() == [1]);
    cluster
}
