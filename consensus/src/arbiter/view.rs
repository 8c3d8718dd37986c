//! What one observer has heard: sessions, heartbeats and reports of data nodes, and the other observers' last-heard
//! tables. Every observer keeps it, so that a new observer leader decides at once (protocol L5, S1).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use quorate_proto::control::{Heartbeat, LastHeard, ObserverInfo, ReplicaReport, Room};
use quorate_proto::ids::{GroupId, Incarnation, NodeId, ReplicaId, Term, Ticket};
use quorate_proto::time::BootTime;

use crate::directory::{Directory, Partition};
use crate::timing::Timing;

/// A broken session counts as missed heartbeats after this long without a new one: a node that only lost a connection
/// is back within 100 ms.
pub const BROKEN_GRACE: Duration = Duration::from_millis(200);

/// Another observer's table counts only if it came within this many arbiter ticks.
const TABLE_TICKS: u32 = 5;

/// A report with its time of receipt.
#[derive(Clone, Debug)]
pub struct Seen {
    /// What the node said.
    pub report: ReplicaReport,
    /// When it came.
    pub at: BootTime,
    /// When the node sent it, on the node's own clock.
    pub sent: BootTime,
}

/// What is known of one data node.
#[derive(Clone, Debug, Default)]
pub struct NodeView {
    /// Its open session here.
    pub session: Option<Ticket>,
    /// Incarnation that was heard last.
    pub incarnation: Incarnation,
    /// Last sign of life.
    pub heard: BootTime,
    /// Since when its session is broken.
    pub broken: Option<BootTime>,
    /// Age of its oldest flush in flight, by the last beat (B4).
    pub wal_age: Duration,
    /// No append or flush error.
    pub disk_ok: bool,
    /// It is being drained.
    pub draining: bool,
    /// Room on its disks (B5).
    pub room: Room,
    /// Its replicas.
    pub reports: BTreeMap<GroupId, Seen>,
}

impl NodeView {
    /// Its disk takes writes in time.
    #[must_use]
    pub fn disk_healthy(&self, timing: &Timing) -> bool {
        self.disk_ok && self.wal_age <= timing.wal_stall
    }
}

/// Another observer's table.
#[derive(Clone, Debug)]
struct Table {
    info: ObserverInfo,
    received: BootTime,
    nodes: BTreeMap<NodeId, Duration>,
}

/// What one observer has heard.
#[derive(Clone, Debug)]
pub struct ClusterView {
    started: BootTime,
    observers: usize,
    suspicion: Duration,
    wal_stall: Duration,
    table_age: Duration,
    nodes: BTreeMap<NodeId, NodeView>,
    tables: BTreeMap<NodeId, Table>,
    /// When each partition was last known to be served.
    served: BTreeMap<GroupId, BootTime>,
    /// Leaderships that ended because a flush hung: in which term, and since when (B4).
    hung: BTreeMap<GroupId, (Term, BootTime)>,
    /// When each node was last seen at fault: silent, dead, its disk failing or slow (H1). A clean start is no fault.
    faults: BTreeMap<NodeId, BootTime>,
    /// How each node's newest death is known, for people. Of deaths that this observer applied itself.
    deaths: BTreeMap<NodeId, (Incarnation, String)>,
}

impl ClusterView {
    /// Nothing heard yet. `observers` counts all of them, this one included.
    #[must_use]
    pub fn new(observers: usize, timing: &Timing, now: BootTime) -> Self {
        Self {
            started: now,
            observers,
            suspicion: timing.node_heartbeat * timing.missed_heartbeats,
            wal_stall: timing.wal_stall,
            table_age: timing.arbiter_tick * TABLE_TICKS,
            nodes: BTreeMap::new(),
            tables: BTreeMap::new(),
            served: BTreeMap::new(),
            hung: BTreeMap::new(),
            faults: BTreeMap::new(),
            deaths: BTreeMap::new(),
        }
    }

    /// What is known of a node.
    #[must_use]
    pub fn node(&self, node: NodeId) -> Option<&NodeView> {
        self.nodes.get(&node)
    }

    /// Everything that nodes report, registered or not.
    pub fn reports(&self) -> impl Iterator<Item = &ReplicaReport> {
        self.nodes.values().flat_map(|node| node.reports.values()).map(|seen| &seen.report)
    }

    /// Observers that were heard, with how long ago; this one is not among them.
    pub fn observers(&self, now: BootTime) -> impl Iterator<Item = (&ObserverInfo, Duration)> {
        self.tables.values().map(move |t| (&t.info, now.since(t.received)))
    }

    /// A session opened and said who it is.
    pub fn session_opened(&mut self, node: NodeId, incarnation: Incarnation, session: Ticket, now: BootTime) {
        let view = self.nodes.entry(node).or_default();
        if view.incarnation != incarnation {
            *view = NodeView { disk_ok: true, ..NodeView::default() };
        }
        view.session = Some(session);
        view.incarnation = incarnation;
        view.broken = None;
        view.heard = now;
    }

    /// A session broke.
    pub fn session_closed(&mut self, node: NodeId, session: Ticket, now: BootTime) {
        if let Some(view) = self.nodes.get_mut(&node).filter(|view| view.session == Some(session)) {
            view.session = None;
            view.broken = Some(now);
        }
    }

    /// A beat came. Returns the groups about which it says something new that elections depend on.
    pub fn heartbeat(&mut self, node: NodeId, beat: Heartbeat, now: BootTime) -> Vec<GroupId> {
        let view = self.nodes.entry(node).or_default();
        let silent = view.session.is_some() && now.since(view.heard) >= self.suspicion;
        if silent || !beat.disk_ok || beat.wal_age > self.wal_stall || beat.room != Room::Ample {
            self.faults.insert(node, now);
        }
        view.heard = now;
        let disk_changed = (view.disk_ok, view.draining, view.room) != (beat.disk_ok, beat.draining, beat.room)
            || beat.wal_age > view.wal_age;
        view.wal_age = beat.wal_age;
        view.disk_ok = beat.disk_ok;
        view.draining = beat.draining;
        view.room = beat.room;
        let mut changed = Vec::new();
        let mut before = std::mem::take(&mut view.reports);
        for report in beat.reports {
            let old = before.remove(&report.group);
            if report.serving || old.as_ref().is_some_and(|old| old.report.serving) {
                self.served.insert(report.group, now);
            }
            if disk_changed || old.is_none_or(|old| signal(&old.report) != signal(&report)) {
                changed.push(report.group);
            }
            view.reports.insert(report.group, Seen { report, at: now, sent: beat.sent });
        }
        if beat.partial {
            view.reports.append(&mut before);
        }
        changed
    }

    /// The node was found at fault.
    pub fn fault(&mut self, node: NodeId, now: BootTime) {
        self.faults.insert(node, now);
    }

    /// A death is in the log.
    pub fn died(&mut self, node: NodeId, incarnation: Incarnation, how: &str) {
        self.deaths.insert(node, (incarnation, how.to_owned()));
    }

    /// How the death of this incarnation is known: `exit notice, status 74`; empty if this observer did not see it logged.
    #[must_use]
    pub fn how_died(&self, node: NodeId, incarnation: Incarnation) -> &str {
        self.deaths.get(&node).filter(|(dead, _)| *dead == incarnation).map_or("", |(_, how)| how)
    }

    /// How long ago the node was last seen at fault; `None` = never, as far as this observer knows.
    #[must_use]
    pub fn since_fault(&self, node: NodeId, now: BootTime) -> Option<Duration> {
        self.faults.get(&node).map(|at| now.since(*at))
    }

    /// It has room for what a leader writes (B5).
    #[must_use]
    pub fn has_room(&self, node: NodeId) -> bool {
        self.nodes.get(&node).is_none_or(|view| view.room == Room::Ample)
    }

    /// An operator drains it, or it is closing.
    #[must_use]
    pub fn draining(&self, directory: &Directory, node: NodeId) -> bool {
        directory.node(node).is_some_and(|n| n.draining) || self.nodes.get(&node).is_some_and(|v| v.draining)
    }

    /// Another observer's table came.
    pub fn table(&mut self, table: LastHeard, now: BootTime) {
        let nodes = table.nodes.into_iter().map(|(node, _, age)| (node, age)).collect();
        self.tables.insert(table.observer.node, Table { info: table.observer, received: now, nodes });
    }

    /// This observer's own table. A session that is broken for longer than [`BROKEN_GRACE`] reads as missed heartbeats.
    #[must_use]
    pub fn own_table(&self, directory: &Directory, now: BootTime) -> Vec<(NodeId, Incarnation, Duration)> {
        let known = directory.nodes().keys();
        known
            .map(|node| {
                let incarnation = self.nodes.get(node).map_or(Incarnation::ZERO, |v| v.incarnation);
                (*node, incarnation, self.own_age(*node, now))
            })
            .collect()
    }

    fn own_age(&self, node: NodeId, now: BootTime) -> Duration {
        let Some(view) = self.nodes.get(&node) else { return now.since(self.started) };
        let age = now.since(view.heard);
        let broken = view.broken.is_some_and(|at| now.since(at) >= BROKEN_GRACE);
        if broken {
            age.max(self.suspicion)
        } else {
            age
        }
    }

    /// How long nothing was heard here of a node, whatever the state of its session.
    #[must_use]
    pub fn silent_for(&self, node: NodeId, now: BootTime) -> Duration {
        now.since(self.nodes.get(&node).map_or(self.started, |view| view.heard))
    }

    /// S1: a majority of all observers missed three heartbeats of the node.
    #[must_use]
    pub fn suspect(&self, node: NodeId, now: BootTime) -> bool {
        let mine = usize::from(self.own_age(node, now) >= self.suspicion);
        let others = self.tables.values().filter(|table| {
            let delay = now.since(table.received);
            let age = table.nodes.get(&node).map_or(Duration::ZERO, |age| *age + delay);
            delay <= self.table_age && age >= self.suspicion
        });
        mine + others.count() > self.observers / 2
    }

    /// Where a failover begins: when the node's session here broke, or its last heartbeat. A process that ends breaks its
    /// session at once. A host that falls silent is found out by the keep-alive, a second and more after its last sign:
    /// then the break says nothing about when it stopped.
    #[must_use]
    pub fn last_sign(&self, node: NodeId, now: BootTime) -> BootTime {
        let sign = self.nodes.get(&node).map_or(self.started, |view| {
            let at_once = |broken: &BootTime| broken.since(view.heard) <= self.suspicion / 2;
            view.broken.filter(at_once).unwrap_or(view.heard)
        });
        sign.min(now)
    }

    /// When a partition was last known to be served: a leader reports the end of its serving at once.
    #[must_use]
    pub fn last_served(&self, group: GroupId) -> Option<BootTime> {
        self.served.get(&group).copied()
    }

    /// A leader gave up because a flush has hung since `since`.
    pub fn hung(&mut self, group: GroupId, term: Term, since: BootTime) {
        if self.hung.get(&group).is_none_or(|(known, _)| *known < term) {
            self.hung.insert(group, (term, since));
        }
    }

    /// Since when a flush of the leader of this term hung, if it gave up for that.
    #[must_use]
    pub fn hung_since(&self, group: GroupId, term: Term) -> Option<BootTime> {
        self.hung.get(&group).filter(|(of, _)| *of == term).map(|(_, since)| *since)
    }

    /// Data nodes that are suspect now.
    #[must_use]
    pub fn suspects(&self, directory: &Directory, now: BootTime) -> BTreeSet<NodeId> {
        directory.nodes().keys().copied().filter(|node| self.suspect(*node, now)).collect()
    }

    /// The report of a replica's registered, live process. A node that hosts another replica of the group by now says
    /// nothing of this one.
    #[must_use]
    pub fn report(&self, directory: &Directory, group: GroupId, replica: ReplicaId, node: NodeId) -> Option<&Seen> {
        let registered = directory.node(node).filter(|n| n.is_live())?;
        let view = self.nodes.get(&node).filter(|v| v.incarnation == registered.incarnation())?;
        view.reports.get(&group).filter(|seen| seen.report.replica == replica)
    }

    /// Nodes that may get new replicas: registered, alive, heard, with a session here and a healthy disk.
    pub fn usable<'a>(
        &'a self,
        directory: &'a Directory,
        timing: &'a Timing,
        now: BootTime,
    ) -> impl Iterator<Item = NodeId> + 'a {
        directory.nodes().iter().filter_map(move |(id, node)| {
            let view = self.nodes.get(id).filter(|v| v.incarnation == node.incarnation())?;
            let disk = view.disk_healthy(timing) && view.room == Room::Ample;
            let ready = node.is_live() && view.session.is_some() && disk && !view.draining;
            (ready && !self.suspect(*id, now)).then_some(*id)
        })
    }

    /// Replicas whose process reports and may vote.
    #[must_use]
    pub fn reporting(&self, directory: &Directory, partition: &Partition, age: Duration, now: BootTime) -> usize {
        let reports = |(replica, node): &&(ReplicaId, NodeId)| {
            self.report(directory, partition.group, *replica, *node)
                .is_some_and(|seen| now.since(seen.at) <= age && !seen.report.suspect_log)
        };
        partition.replicas.iter().filter(reports).count()
    }
}

/// The part of a report that elections depend on; the rest (positions) changes with every record.
fn signal(r: &ReplicaReport) -> impl PartialEq {
    (
        (r.replica, r.role, r.leader, r.term, r.fence_lost, r.leader_silent, r.serving),
        (r.suspect_log, r.resigned_for_fence, r.hears_quorum, r.wants_permit),
    )
}
