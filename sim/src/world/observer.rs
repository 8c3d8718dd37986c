//! Turns of observers and what their cores ask for.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use quorate_client::core::routes::{PartitionRoute, TopicRoutes};
use quorate_consensus::observer::event::AdminRequest;
use quorate_consensus::observer::{ObserverCore, ObserverEffect, ObserverEvent};
use quorate_consensus::policy::Policy;
use quorate_proto::control::{LeaseVerdict, Memory, Room, SessionDown};
use quorate_proto::ids::{GroupId, Incarnation, NodeId, OperationId, PartitionNo, Term, Ticket, TopicId};
use quorate_proto::time::LogTime;

use super::{Message, What, World, OBSERVERS, PARTITIONS, TOPIC};
use crate::disk::{Done, Job};
use crate::net::Host;

/// A session that an observer closes delivers what was written to it within this.
const FLUSHED: Duration = Duration::from_millis(2);

/// Wall clock at the start of a run, microseconds since the Unix epoch.
const EPOCH_US: i64 = 1_790_000_000_000_000;

/// An observer as the network sees it.
#[must_use]
pub(crate) fn host(id: NodeId) -> Host {
    Host::Observer(id.0)
}

/// The observer behind a host.
#[must_use]
pub(crate) fn id_of(host: Host) -> NodeId {
    match host {
        Host::Observer(id) | Host::Node(id) => NodeId(id),
        Host::Client | Host::Reader => NodeId::ZERO,
    }
}

/// Version and routes of the run's topic as an observer has applied them.
pub(crate) fn routes<P: Policy>(core: &ObserverCore<P>) -> Option<(u64, Arc<TopicRoutes>)> {
    let directory = core.directory();
    let topic = directory.topic_named(TOPIC)?;
    let mut partitions = BTreeMap::new();
    for group in &topic.groups {
        let partition = directory.partition(*group)?;
        let leader = directory.leader_of(*group);
        let epoch = leader.as_ref().map_or(Term::ZERO, |(_, lease)| lease.term);
        let handed_over = directory.partition(*group).is_some_and(quorate_consensus::directory::Partition::handed_over);
        let route = PartitionRoute { group: *group, leader: leader.map(|(node, _)| node), epoch, handed_over };
        partitions.insert(partition.number, route);
    }
    Some((directory.version().0, Arc::new(TopicRoutes::even(topic.id, TOPIC, partitions))))
}

impl<P: Policy> World<P> {
    pub(crate) fn group_of(&self, partition: PartitionNo) -> Option<GroupId> {
        self.groups.get(partition.0 as usize).copied()
    }

    pub(crate) fn observer_start(&mut self, id: NodeId) {
        if self.observers[&id].process.is_some() {
            return;
        }
        let seed = self.chance.word();
        let (now, timing) = (self.now, self.timing.clone());
        let observer = self.observer_mut(id);
        observer.start(now, &OBSERVERS, &timing, seed);
        let incarnation = observer.incarnation;
        let free = observer.disk.free;
        self.say(format_args!("observer-{} starts, {incarnation}", id.0));
        self.post_to_observer(id, ObserverEvent::Space(free.measured()));
        self.observer_tick(id);
    }

    pub(crate) fn observer_crash(&mut self, id: NodeId) {
        let in_flight = self.observers[&id].disk.in_flight() as u64;
        let keep = usize::try_from(self.chance.between(0, in_flight)).expect("few jobs");
        let observer = self.observer_mut(id);
        if observer.process.take().is_none() {
            return;
        }
        observer.disk.crash(keep);
        observer.paused_until = None;
        self.coverage.count("observer crashes");
        self.coverage.count("faults that bit");
        self.say(format_args!("observer-{} is gone", id.0));
        self.break_streams_of(host(id));
    }

    pub(crate) fn observer_tick(&mut self, id: NodeId) {
        // Wall clocks differ by up to a second or so; only their median counts (W5).
        let skew = (id.0 as i64 % 7) * 150_000;
        let wall = LogTime(EPOCH_US + skew + self.observers[&id].wall_error + (self.now.0 / 1_000) as i64);
        self.post_to_observer(id, ObserverEvent::Tick { wall });
    }

    pub(crate) fn post_to_observer(&mut self, id: NodeId, event: ObserverEvent) {
        let delay = self.wait_for_a_processor();
        let now = self.now;
        let observer = self.observer_mut(id);
        let (awake, incarnation) = (observer.awake(now), observer.incarnation);
        let Some(process) = &mut observer.process else { return };
        process.mailbox.push_back(event);
        if awake && !process.turn_due {
            process.turn_due = true;
            self.after(delay, What::Turn(host(id), incarnation));
        }
    }

    pub(crate) fn observer_turn(&mut self, id: NodeId, incarnation: Incarnation) {
        let now = self.now;
        let observer = self.observer_mut(id);
        if observer.incarnation != incarnation || !observer.awake(now) {
            if let Some(process) = &mut observer.process {
                process.turn_due = false;
            }
            return;
        }
        let clock = observer.clock.read(now);
        let Some(process) = &mut observer.process else { return };
        process.turn_due = false;
        let mut out = Vec::new();
        while let Some(event) = process.mailbox.pop_front() {
            process.core.handle(clock, event, &mut out);
        }
        self.look_at_directory(id);
        self.observer_effects(id, out);
        self.make_topic(id);
        let observer = self.observer_mut(id);
        let clocks = observer.clock;
        let Some(process) = &mut observer.process else { return };
        let due = clocks.when(process.core.next_deadline(clock), now).max(now + Duration::from_micros(50));
        if due < process.tick_due || process.tick_due <= now {
            process.tick_due = due;
            self.at(due, What::Tick(host(id), incarnation));
        }
    }

    /// Permits, leases and the whole directory as this observer applied them.
    fn look_at_directory(&mut self, id: NodeId) {
        let now = self.now;
        let Self { observers, checkers, coverage, .. } = self;
        let observer = observers.get_mut(&id).expect("observers are fixed");
        let Some(process) = &observer.process else { return };
        let directory = process.core.directory();
        let applied = directory.applied().0;
        if std::mem::replace(&mut observer.looked_at, applied) == applied {
            return;
        }
        let mut result = checkers.directory.at(now, id, directory);
        for partition in directory.partitions().values() {
            for permit in partition.uncleared.iter().chain(&partition.newest) {
                let Some(node) = partition.node_of(permit.candidate) else { continue };
                match checkers.permits.applied(now, permit, node) {
                    Ok(news) => {
                        coverage.add("permits issued", u64::from(news));
                        coverage.add("handoffs permitted", u64::from(news && permit.planned.is_some()));
                    }
                    Err(violation) => result = Err(violation),
                }
            }
            if let Some((lease, node)) = partition.lease.and_then(|l| Some((l, partition.node_of(l.replica)?))) {
                let winner = checkers.permits.winner(partition.group, lease.epoch);
                match checkers.leases.applied(now, partition.group, node, lease, winner) {
                    Ok(news) => coverage.add("leases granted", u64::from(news)),
                    Err(violation) => result = Err(violation),
                }
            }
        }
        let groups = directory.topic_named(TOPIC).map(|topic| topic.groups.clone()).unwrap_or_default();
        self.learn_groups(&groups);
        self.check(result);
    }

    fn count_lease_answers(&mut self, message: &SessionDown) {
        if let SessionDown::Lease(answer) = message {
            let refused = answer.results.iter().filter(|(.., verdict)| *verdict != LeaseVerdict::Granted).count();
            self.coverage.add("refused renewals", refused as u64);
            self.coverage.add("leases renewed", (answer.results.len() - refused) as u64);
        }
    }

    pub(crate) fn look_for_majority(&mut self) {
        let awake = OBSERVERS.iter().filter(|id| self.observers[id].awake(self.now)).count();
        self.coverage.add("no observer majority", u64::from(awake * 2 < OBSERVERS.len()));
    }

    /// An operator's call, to every observer: only their leader takes it up.
    pub(crate) fn ask_observers(&mut self, request: &AdminRequest) {
        for id in OBSERVERS {
            let ticket = Ticket(self.fresh_id());
            self.post_to_observer(id, ObserverEvent::Admin { ticket, request: request.clone() });
        }
    }

    /// The operator makes the topic as soon as all data nodes are there.
    fn make_topic(&mut self, id: NodeId) {
        let Some(process) = &self.observers[&id].process else { return };
        let directory = process.core.directory();
        let ready = process.core.is_leading() && directory.nodes().len() == super::NODES.len();
        if ready && directory.topic_named(TOPIC).is_none() && self.chance.one_in(50) {
            self.coverage.count("topics asked for");
            let request = AdminRequest::CreateTopic {
                name: TOPIC.into(),
                partitions: PARTITIONS,
                operation: OperationId(42),
                topic_id: TopicId(43),
            };
            let ticket = Ticket(self.fresh_id());
            self.post_to_observer(id, ObserverEvent::Admin { ticket, request });
        }
    }

    fn observer_effects(&mut self, id: NodeId, effects: Vec<ObserverEffect>) {
        for effect in effects {
            self.observer_effect(id, effect);
        }
    }

    fn observer_effect(&mut self, id: NodeId, effect: ObserverEffect) {
        match effect {
            ObserverEffect::Persist(write) => {
                if self.observer_mut(id).disk.submit(Job::Write(write)) {
                    self.observer_flush(id);
                }
            }
            ObserverEffect::Send { node, lane: _, envelope } => {
                for at in self.net.datagram(&mut self.chance, self.now, host(id), host(node), 0) {
                    self.at(at, What::ObserverPeer(node, envelope.clone()));
                }
            }
            ObserverEffect::Gossip(table) => {
                for other in OBSERVERS.into_iter().filter(|other| *other != id) {
                    for at in self.net.datagram(&mut self.chance, self.now, host(id), host(other), 0) {
                        self.at(at, What::Gossip(other, table.clone()));
                    }
                }
            }
            ObserverEffect::Session { session, message } => {
                self.count_lease_answers(&message);
                self.write(session.0, false, Message::Down(message));
            }
            // What was written before is still delivered.
            ObserverEffect::CloseSession { session } => self.after(FLUSHED, What::Close(session.0)),
            ObserverEffect::DirectoryChanged { version } => {
                self.push_routes();
                let incarnation = self.observers[&id].incarnation;
                let event = ObserverEvent::RoutesPushed { version };
                self.after(Duration::from_micros(100), What::ToObserver(id, incarnation, Box::new(event)));
            }
            ObserverEffect::ExitAnswer { ticket, result } => {
                if let (Some((node, incarnation)), true) = (self.notices.remove(&ticket), result.is_ok()) {
                    let seen = self.noticed.entry(node).or_default();
                    *seen = (*seen).max(incarnation);
                }
            }
            ObserverEffect::AdminAnswer { .. } | ObserverEffect::Restored { .. } => {}
            ObserverEffect::SaveSnapshot { index, term, data } => {
                self.coverage.count("directory snapshots");
                let observer = self.observer_mut(id);
                observer.snapshots.push((index, data.clone()));
                let excess = observer.snapshots.len().saturating_sub(2);
                observer.snapshots.drain(..excess);
                let incarnation = observer.incarnation;
                let event = ObserverEvent::SnapshotSaved { index, term, data };
                self.after(Duration::from_millis(2), What::ToObserver(id, incarnation, Box::new(event)));
            }
            ObserverEffect::LeaderChanged { leader } => {
                self.coverage.count("observer leader changes");
                self.say(format_args!("observer-{} sees {leader:?} lead the observers", id.0));
            }
            ObserverEffect::Room(room) => {
                self.say(format_args!("observer-{} has {room} room", id.0));
                if room == Room::Full {
                    self.coverage.count("observers' disks full");
                }
            }
            ObserverEffect::Note(_) | ObserverEffect::Ballast(_) => {}
            ObserverEffect::Memory { memory, text } => {
                self.say(format_args!("observer-{}: {text}", id.0));
                if memory == Memory::Sound {
                    self.coverage.count("observers sound again");
                    let observer = self.observer_mut(id);
                    (observer.memory, observer.rejoined) = (Memory::Sound, true);
                }
            }
            ObserverEffect::StartAgain { above, forgot } => {
                if let Some(why) = forgot {
                    // Whoever lost something knows it from the start here: nobody may contradict the others.
                    let what = format!("observer-{} does not trust its log: {why}", id.0);
                    let violation = crate::checker::Violation::new("observers go on", self.now, what);
                    self.check(Err(violation));
                }
                self.coverage.count("observers started again");
                self.observer_crash(id);
                let observer = self.observer_mut(id);
                observer.incarnation = observer.incarnation.max(above);
                self.after(Duration::from_millis(100), What::Start(host(id)));
            }
            ObserverEffect::Fatal(why) => {
                let what = format!("observer-{} cannot go on: {why}", id.0);
                let violation = crate::checker::Violation::new("observers go on", self.now, what);
                self.check(Err(violation));
                self.observer_crash(id);
            }
        }
    }

    fn observer_flush(&mut self, id: NodeId) {
        let span =
            self.chance.span(Duration::from_micros(300), Duration::from_micros(2_500)) + self.plan.burden.flush();
        let observer = self.observer_mut(id);
        if observer.disk.start() {
            let incarnation = observer.incarnation;
            self.after(span, What::Flushed(host(id), incarnation));
        }
    }

    pub(crate) fn observer_flushed(&mut self, id: NodeId, incarnation: Incarnation) {
        let observer = self.observer_mut(id);
        if observer.incarnation != incarnation || observer.process.is_none() {
            return;
        }
        for done in observer.disk.complete() {
            if let Done::Persisted(group, persist) = done {
                self.post_to_observer(id, ObserverEvent::Persisted { group, id: persist });
            }
        }
        self.observer_flush(id);
    }
}
