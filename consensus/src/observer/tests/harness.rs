//! Three observer cores on an instant network, and scripted data nodes that obey permits.

mod nodes;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use quorate_proto::control::*;
use quorate_proto::ids::*;
use quorate_proto::refusal::Refusal;
use quorate_proto::time::{BootTime, LogTime};

use crate::observer::event::AdminRequest;
use crate::observer::{ObserverConfig, ObserverCore, ObserverEffect, ObserverEvent};

pub use nodes::DataNode;

pub const CLUSTER: ClusterId = ClusterId(77);
pub const SECRET: &str = "a supervisor's secret";
const STEP: Duration = Duration::from_millis(10);

pub struct World {
    pub now: BootTime,
    pub cores: BTreeMap<NodeId, ObserverCore>,
    pub nodes: BTreeMap<NodeId, DataNode>,
    /// Cut links between observers, both ways.
    pub cut: BTreeSet<(NodeId, NodeId)>,
    /// Observers whose flushes do not end.
    pub hung: BTreeSet<NodeId>,
    /// What they wait for.
    unflushed: Vec<(NodeId, ObserverEvent)>,
    /// Everything that observers said to data nodes.
    pub said: Vec<(BootTime, NodeId, NodeId, SessionDown)>,
    pub admin: BTreeMap<Ticket, Result<DirectoryVersion, Refusal>>,
    pub exits: BTreeMap<Ticket, Vec<Result<(), Refusal>>>,
    pub fatal: Vec<String>,
    /// What observers said of their memory.
    pub memory: Vec<(NodeId, Memory, String)>,
    /// Observers that want another life.
    pub again: Vec<(NodeId, Incarnation, Option<String>)>,
    pub disks: BTreeMap<NodeId, super::disks::Disk>,
    pub snapshot_entries: u64,
    pub restored: Vec<NodeId>,
    sessions: BTreeMap<(NodeId, Ticket), NodeId>,
    queue: VecDeque<(NodeId, ObserverEvent)>,
    next_ticket: u64,
}

pub fn hello(node: u64, incarnation: u64) -> Hello {
    Hello {
        cluster: CLUSTER,
        node: NodeId(node),
        name: format!("n{node}"),
        incarnation: Incarnation(incarnation),
        disk: DiskId(u128::from(node)),
        address: format!("127.0.0.1:{node}"),
        peer_address: format!("127.0.0.1:9{node}"),
        fault_domain: format!("rack-{node}"),
        lock: LockProof { boot_id: "boot".to_owned(), dev: 1, ino: node },
        supervisor_hash: blake3::hash(SECRET.as_bytes()).to_hex().to_string(),
        version: "0.1.0".to_owned(),
        pid: 1,
        fresh: false,
        knows: quorate_proto::ids::DirectoryVersion::ZERO,
        knows_born: quorate_proto::time::LogTime::ZERO,
    }
}

impl World {
    /// Observers 101 to 103, data nodes 1 to 3, nothing has happened yet.
    pub fn new() -> Self {
        Self::with_snapshots(10_000)
    }

    pub fn with_snapshots(entries: u64) -> Self {
        let now = BootTime(1_000_000_000_000);
        let members = vec![NodeId(101), NodeId(102), NodeId(103)];
        let core = |node: &NodeId| {
            let info = ObserverInfo { node: *node, incarnation: Incarnation(1), ..ObserverInfo::default() };
            let mut cfg = ObserverConfig::new(CLUSTER, info, members.clone(), node.get() * 7);
            cfg.snapshot_entries = entries;
            (*node, ObserverCore::new(cfg, None, None, now).expect("an empty disk starts"))
        };
        let node = |n: u64| {
            let node = DataNode {
                hello: hello(n, 1),
                up: false,
                obedient: true,
                disk_ok: true,
                room: Room::Ample,
                reports: BTreeMap::new(),
                kept: bytes::Bytes::new(),
                members: BTreeMap::new(),
                next_beat: now,
                seq: 0,
            };
            (NodeId(n), node)
        };
        Self {
            now,
            cores: members.iter().map(core).collect(),
            nodes: (1..=3).map(node).collect(),
            cut: BTreeSet::new(),
            hung: BTreeSet::new(),
            unflushed: Vec::new(),
            said: Vec::new(),
            admin: BTreeMap::new(),
            exits: BTreeMap::new(),
            fatal: Vec::new(),
            memory: Vec::new(),
            again: Vec::new(),
            disks: members
                .iter()
                .map(|node| (*node, super::disks::Disk { incarnation: 1, ..Default::default() }))
                .collect(),
            snapshot_entries: entries,
            restored: Vec::new(),
            sessions: BTreeMap::new(),
            queue: VecDeque::new(),
            next_ticket: 0,
        }
    }

    /// Observers elected, three nodes registered, a topic of `partitions` led.
    pub fn serving(partitions: u32) -> Self {
        let mut world = Self::new();
        world.start(partitions);
        world
    }

    pub fn start(&mut self, partitions: u32) {
        self.until("a leader", |w| w.leader().is_some());
        for node in 1..=3 {
            self.connect(NodeId(node));
        }
        self.until("three nodes", |w| w.directory().nodes().len() == 3);
        let ticket = self.create_topic("default/t", partitions, OperationId(1));
        self.until("the topic", |w| w.admin.contains_key(&ticket));
        assert!(self.admin[&ticket].is_ok(), "{:?}", self.admin[&ticket]);
        self.until("leaders", |w| w.all_led());
        self.run(Duration::from_millis(100));
        self.said.clear();
    }

    pub fn ticket(&mut self) -> Ticket {
        self.next_ticket += 1;
        Ticket(self.next_ticket)
    }

    pub fn leader(&self) -> Option<NodeId> {
        self.cores.iter().find(|(_, core)| core.is_leading()).map(|(node, _)| *node)
    }

    pub fn directory(&self) -> &crate::directory::Directory {
        let leader = self.leader().unwrap_or(NodeId(101));
        self.cores[&leader].directory()
    }

    pub fn all_led(&self) -> bool {
        let d = self.directory();
        !d.partitions().is_empty()
            && d.partitions().keys().all(|g| d.leader_of(*g).is_some_and(|(n, _)| self.nodes[&n].up))
    }

    pub fn create_topic(&mut self, name: &str, partitions: u32, operation: OperationId) -> Ticket {
        let ticket = self.ticket();
        let topic_id = TopicId(u128::from(ticket.get()) + 1_000);
        let request = AdminRequest::CreateTopic { name: name.to_owned(), partitions, operation, topic_id };
        let leader = self.leader().unwrap_or(NodeId(101));
        self.send(leader, ObserverEvent::Admin { ticket, request });
        ticket
    }

    pub fn ask_admin(&mut self, request: &AdminRequest) -> Ticket {
        let ticket = self.ticket();
        let leader = self.leader().expect("somebody leads");
        self.send(leader, ObserverEvent::Admin { ticket, request: request.clone() });
        self.drain();
        ticket
    }

    pub fn send(&mut self, observer: NodeId, event: ObserverEvent) {
        self.queue.push_back((observer, event));
        self.drain();
    }

    /// Opens sessions of a node with every observer that is there.
    pub fn connect(&mut self, node: NodeId) {
        let data = self.nodes.get_mut(&node).expect("known");
        data.up = true;
        data.next_beat = self.now;
        let hello = data.hello.clone();
        let observers: Vec<NodeId> = self.cores.keys().copied().collect();
        for observer in observers {
            let session = self.ticket();
            self.sessions.insert((observer, session), node);
            self.send(observer, ObserverEvent::SessionOpened { session });
            let message = Box::new(SessionUp::Hello(hello.clone()));
            self.send(observer, ObserverEvent::Session { session, message });
        }
    }

    /// A node stops talking; its connections break if `broken`.
    pub fn silence(&mut self, node: NodeId, broken: bool) {
        let data = self.nodes.get_mut(&node).expect("known");
        data.up = false;
        data.reports.clear();
        let gone: Vec<(NodeId, Ticket)> =
            self.sessions.iter().filter(|(_, n)| **n == node).map(|(key, _)| *key).collect();
        for (observer, session) in gone {
            self.sessions.remove(&(observer, session));
            if broken && self.cores.contains_key(&observer) {
                self.send(observer, ObserverEvent::SessionClosed { session });
            }
        }
    }

    pub fn exit_notice(&mut self, node: NodeId, secret: &str) -> Ticket {
        let ticket = self.ticket();
        let incarnation = self.nodes[&node].hello.incarnation;
        let notice = ExitNotice { node, incarnation, secret: secret.to_owned(), status: -9 };
        let observers: Vec<NodeId> = self.cores.keys().copied().collect();
        for observer in observers {
            self.send(observer, ObserverEvent::ExitNotice { ticket, notice: notice.clone() });
        }
        ticket
    }

    /// The observer's flushes end again.
    pub fn unhang(&mut self, observer: NodeId) {
        self.hung.remove(&observer);
        let (ended, others) = std::mem::take(&mut self.unflushed).into_iter().partition(|(of, _)| *of == observer);
        self.unflushed = others;
        for (observer, event) in ended {
            self.send(observer, event);
        }
    }

    /// A node says something to all observers.
    pub fn up(&mut self, node: NodeId, message: SessionUp) {
        let to: Vec<(NodeId, Ticket)> =
            self.sessions.iter().filter(|(_, n)| **n == node).map(|(key, _)| *key).collect();
        for (observer, session) in to {
            if self.cores.contains_key(&observer) {
                let message = Box::new(message.clone());
                self.send(observer, ObserverEvent::Session { session, message });
            }
        }
    }

    pub fn beat(&mut self, node: NodeId) {
        let now = self.now;
        let data = self.nodes.get_mut(&node).expect("known");
        data.seq += 1;
        data.next_beat = now + Duration::from_millis(500);
        let beat = Heartbeat {
            seq: data.seq,
            sent: now,
            disk_ok: data.disk_ok,
            room: data.room,
            reports: data.reports.values().cloned().collect(),
            ..Heartbeat::default()
        };
        self.up(node, SessionUp::Heartbeat(beat));
    }

    pub fn drain(&mut self) {
        while let Some((observer, event)) = self.queue.pop_front() {
            let Some(core) = self.cores.get_mut(&observer) else { continue };
            let mut out = Vec::new();
            core.handle(self.now, event, &mut out);
            for effect in out {
                self.effect(observer, effect);
            }
        }
    }

    fn linked(&self, a: NodeId, b: NodeId) -> bool {
        !self.cut.contains(&(a, b)) && !self.cut.contains(&(b, a))
    }

    fn effect(&mut self, observer: NodeId, effect: ObserverEffect) {
        match effect {
            ObserverEffect::Persist(write) => {
                self.disks.entry(observer).or_default().write(&write);
                let event = ObserverEvent::Persisted { group: write.group, id: write.id };
                if self.hung.contains(&observer) {
                    self.unflushed.push((observer, event));
                } else {
                    self.queue.push_back((observer, event));
                }
            }
            ObserverEffect::Send { node, envelope, .. } => {
                if self.linked(observer, node) {
                    self.queue.push_back((node, ObserverEvent::Peer(envelope)));
                }
            }
            ObserverEffect::Gossip(table) => {
                let others: Vec<NodeId> = self.cores.keys().copied().filter(|n| *n != observer).collect();
                for other in others {
                    if self.linked(observer, other) {
                        self.queue.push_back((other, ObserverEvent::LastHeard(table.clone())));
                    }
                }
            }
            ObserverEffect::Session { session, message } => {
                if let Some(node) = self.sessions.get(&(observer, session)).copied() {
                    self.said.push((self.now, observer, node, (*message).clone()));
                    self.heard(node, *message);
                }
            }
            ObserverEffect::CloseSession { session } => {
                self.sessions.remove(&(observer, session));
                self.queue.push_back((observer, ObserverEvent::SessionClosed { session }));
            }
            ObserverEffect::SaveSnapshot { index, term, data } => {
                self.disks.entry(observer).or_default().snapshots.push((index, data.clone()));
                self.queue.push_back((observer, ObserverEvent::SnapshotSaved { index, term, data }));
            }
            ObserverEffect::DirectoryChanged { version } => {
                self.queue.push_back((observer, ObserverEvent::RoutesPushed { version }));
            }
            ObserverEffect::ExitAnswer { ticket, result } => self.exits.entry(ticket).or_default().push(result),
            ObserverEffect::AdminAnswer { ticket, result } => {
                self.admin.insert(ticket, result);
            }
            ObserverEffect::Restored { .. } => self.restored.push(observer),
            ObserverEffect::Fatal(why) => self.fatal.push(why),
            ObserverEffect::Room(_) | ObserverEffect::Ballast(_) => {}
            ObserverEffect::Memory { memory, text } => self.memory.push((observer, memory, text)),
            ObserverEffect::StartAgain { above, forgot } => self.again.push((observer, above, forgot)),
            ObserverEffect::LeaderChanged { .. } | ObserverEffect::Note(_) => {}
        }
    }

    /// 10 ms pass; leaders renew at every full second.
    pub fn step(&mut self) {
        self.now += STEP;
        let wall = LogTime(i64::try_from(self.now.0 / 1_000).expect("small") + 1_000_000);
        let observers: Vec<NodeId> = self.cores.keys().copied().collect();
        for observer in observers {
            self.send(observer, ObserverEvent::Tick { wall });
        }
        let nodes: Vec<NodeId> = self.nodes.iter().filter(|(_, n)| n.up).map(|(id, _)| *id).collect();
        for node in nodes {
            if self.now >= self.nodes[&node].next_beat {
                self.beat(node);
            }
            if self.now.0 % 1_000_000_000 < 10_000_000 {
                let groups: Vec<GroupId> = self.nodes[&node].reports.keys().copied().collect();
                self.ask(node, &groups);
            }
        }
        self.drain();
        assert_eq!(self.fatal, Vec::<String>::new());
    }

    pub fn run(&mut self, span: Duration) {
        let end = self.now + span;
        while self.now < end {
            self.step();
        }
    }

    /// Steps until `done`, at most 20 virtual seconds.
    pub fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        for _ in 0..2_000 {
            if done(self) {
                return;
            }
            self.step();
        }
        panic!("never saw {what}");
    }

    /// Permits that `node` was given after `since`, with the observer that gave them.
    pub fn permits(&self, since: BootTime) -> Vec<(NodeId, NodeId, Permit)> {
        let said = self.said.iter().filter(|(at, ..)| *at >= since);
        said.filter_map(|(_, observer, node, message)| match message {
            SessionDown::Permits(permits) => Some(permits.iter().map(|p| (*observer, *node, p.clone()))),
            _ => None,
        })
        .flatten()
        .collect()
    }

    /// Lease verdicts given after `since`.
    pub fn verdicts(&self, since: BootTime) -> Vec<(NodeId, LeaseVerdict)> {
        let said = self.said.iter().filter(|(at, ..)| *at >= since);
        said.filter_map(|(_, observer, _, message)| match message {
            SessionDown::Lease(answer) => Some(answer.results.iter().map(|(_, _, v)| (*observer, *v))),
            _ => None,
        })
        .flatten()
        .collect()
    }
}
