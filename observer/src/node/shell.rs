//! The loop: takes events from the mailbox, feeds the core, executes its effects in the order given.
//!
//! The clock is read anew for each event, after it was taken from the queue (V2). Log requests, frames and routes
//! gather over a turn and leave at its end.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::{mpsc as files_queue, Arc};
use std::time::Duration;

use quorate_consensus::observer::{ObserverCore, ObserverEffect, ObserverEvent};
use quorate_host::clock::Clock;
use quorate_host::space::Gauge;
use quorate_host::transport::Transport;
use quorate_host::turn::Turn;
use quorate_host::wal::{Wal, WalNotice, WalRequest};
use quorate_proto::control::{Memory, Room, SessionDown};
use quorate_proto::ids::{Incarnation, NodeId, Ticket};
use quorate_proto::internal;
use quorate_proto::refusal::{Reason, Refusal};
use quorate_proto::time::BootTime;
use quorate_proto::v1;
use tokio::sync::{mpsc, oneshot, watch};

use super::boot::FileJob;
use super::inlets::ShellEvent;
use super::memory;
use super::metrics::Metrics;
use super::story::Story;
use crate::config::ObserverConfig;
use crate::files::SnapshotFile;
use crate::routes::{Picture, Watchers};
use crate::services::{OpenedSession, Request};

/// Messages that wait for one data node; a node that reads slower has lost its session.
const SESSION_QUEUE: usize = 1_024;
/// Metrics, node states and the view are refreshed this often.
const SECOND: Duration = Duration::from_secs(1);

type Answer = oneshot::Sender<Result<(), Refusal>>;

/// An open session on the shell's side. Dropping it ends the stream after what is queued.
pub(super) struct SessionEnd {
    down: mpsc::Sender<internal::SessionDown>,
    _ended: oneshot::Sender<()>,
}

/// Everything that the turns own.
pub(super) struct Shell {
    pub core: ObserverCore,
    pub clock: Arc<dyn Clock>,
    pub wal: Arc<Wal>,
    pub transport: Transport,
    pub config: Arc<ObserverConfig>,
    pub metrics: Metrics,
    /// Measures the disk and keeps the ballast (B5).
    pub gauge: Gauge,
    pub closing: watch::Sender<bool>,
    pub files: files_queue::Sender<FileJob>,
    pub sessions: BTreeMap<Ticket, SessionEnd>,
    pub exits: BTreeMap<Ticket, Answer>,
    pub admins: BTreeMap<Ticket, Answer>,
    pub watchers: Watchers,
    pub picture: Picture,
    pub story: Story,
    pub next_ticket: Ticket,
    pub effects: Vec<ObserverEffect>,
    pub wal_requests: Vec<WalRequest>,
    /// Routes may differ from `picture`.
    pub changed: bool,
    pub view_stale: bool,
    pub second: BootTime,
    /// Why the process must end, beside an order to.
    pub fatal: Option<String>,
    /// It must start anew, with an incarnation above this one.
    pub again: Option<Incarnation>,
    pub poisoned: bool,
    pub terminated: bool,
}

impl Shell {
    fn feed(&mut self, event: ObserverEvent) {
        let now = self.clock.now();
        self.core.handle(now, event, &mut self.effects);
        let mut effects = std::mem::take(&mut self.effects);
        for effect in effects.drain(..) {
            self.execute(effect);
        }
        self.effects = effects;
    }

    fn ticket(&mut self) -> Ticket {
        self.next_ticket = self.next_ticket.next();
        self.next_ticket
    }

    fn request(&mut self, request: Request) {
        match request {
            Request::OpenSession(reply) => self.open_session(reply),
            Request::Session(event) => {
                if let ObserverEvent::SessionClosed { session } = &event {
                    self.sessions.remove(session);
                }
                self.feed(event);
            }
            Request::BadSession(session, reason) => {
                tracing::warn!(%session, reason, "a session message that means nothing");
                self.say(session, SessionDown::Refused { reason, fatal: false, raise_above: None });
            }
            Request::Exit(notice, reply) => {
                let ticket = self.ticket();
                self.exits.insert(ticket, reply);
                self.feed(ObserverEvent::ExitNotice { ticket, notice });
            }
            Request::Admin(request, reply) => {
                let ticket = self.ticket();
                self.admins.insert(ticket, reply);
                self.feed(ObserverEvent::Admin { ticket, request });
            }
            Request::Watch(topics, reply) => self.watch(topics, reply),
            Request::Look(look) => look(&self.core, &self.config, self.clock.now()),
        }
    }

    fn open_session(&mut self, reply: oneshot::Sender<OpenedSession>) {
        let session = self.ticket();
        let (down, out) = mpsc::channel(SESSION_QUEUE);
        let (end, ended) = oneshot::channel();
        if reply.send(OpenedSession { session, down: out, ended }).is_ok() {
            self.sessions.insert(session, SessionEnd { down, _ended: end });
            self.feed(ObserverEvent::SessionOpened { session });
        }
    }

    fn watch(&mut self, topics: Vec<String>, reply: oneshot::Sender<Result<mpsc::Receiver<v1::Routes>, Refusal>>) {
        self.watchers.sweep();
        let answer = if self.watchers.len() >= self.config.watchers_max {
            let subject = format!("observer {}, {} watchers", self.config.node_id, self.watchers.len());
            let action = "watch at another observer, or repeat the call later";
            Err(Refusal::new(Reason::Busy, "too many watchers of routes", subject, action).retry_after(SECOND))
        } else {
            // What changed in this turn goes to the older watchers first: the picture must be the same for all.
            self.push_routes();
            Ok(self.watchers.add(topics, &self.picture))
        };
        let _ = reply.send(answer);
    }

    /// A session whose node does not read is broken.
    fn say(&mut self, session: Ticket, message: SessionDown) {
        let Some(end) = self.sessions.get(&session) else { return };
        if end.down.try_send(message.into()).is_err() {
            // Its pump ends with it and reports the session closed.
            self.sessions.remove(&session);
        }
    }

    fn execute(&mut self, effect: ObserverEffect) {
        match effect {
            ObserverEffect::Persist(write) => self.wal_requests.push(WalRequest::Persist(write)),
            ObserverEffect::Send { node, lane, envelope } => self.transport.send(node, lane, envelope),
            ObserverEffect::Gossip(table) => self.transport.gossip(&table),
            ObserverEffect::Session { session, message } => {
                if let SessionDown::Permits(permits) = message.as_ref() {
                    self.metrics.permits_pushed(permits.len());
                }
                self.say(session, *message);
            }
            ObserverEffect::CloseSession { session } => drop(self.sessions.remove(&session)),
            ObserverEffect::DirectoryChanged { .. } | ObserverEffect::Restored { .. } => {
                self.changed = true;
                self.view_stale = true;
            }
            ObserverEffect::ExitAnswer { ticket, result } => {
                if let Some(reply) = self.exits.remove(&ticket) {
                    let _ = reply.send(result);
                }
            }
            ObserverEffect::AdminAnswer { ticket, result } => {
                if let Some(reply) = self.admins.remove(&ticket) {
                    let _ = reply.send(result.map(|_| ()));
                }
            }
            ObserverEffect::SaveSnapshot { index, term, data } => {
                // The thread lives as long as this queue.
                let _ = self.files.send(FileJob::Snapshot(SnapshotFile { index, term, data }));
            }
            ObserverEffect::LeaderChanged { leader } => {
                self.changed = true;
                tracing::info!(leader = leader.map_or(0, NodeId::get), term = %self.core.term(), "observers' leader");
            }
            ObserverEffect::Fatal(reason) => self.fatal = Some(reason),
            ObserverEffect::Memory { memory, text } => self.remember(memory, &text),
            ObserverEffect::StartAgain { above, forgot } => self.start_again(above, forgot),
            ObserverEffect::Room(room) => match room {
                Room::Ample => tracing::info!("the disk has room again"),
                Room::Scarce => tracing::warn!("the disk is nearly full: leadership is passed on, no topics are added"),
                Room::Full => tracing::error!("the disk is full: only what the protocol needs is logged"),
            },
            ObserverEffect::Ballast(order) => self.gauge.order(order),
            ObserverEffect::Note(note) => tracing::debug!(?note, "raft"),
        }
    }

    fn remember(&mut self, memory: Memory, text: &str) {
        if memory != Memory::Sound {
            tracing::warn!(memory = memory.word(), "{text}");
            return;
        }
        tracing::info!("{text}");
        if let Err(error) = memory::clear(&self.config.data_dir) {
            // The next start only waits for the others once more.
            tracing::warn!(%error, "the marker of a suspect log could not be removed");
        }
    }

    fn start_again(&mut self, above: Incarnation, forgot: Option<String>) {
        if let Some(why) = forgot {
            tracing::error!(
                why,
                "this log contradicts what the other observers know: starting again without trust in it"
            );
            let written = memory::write_suspicion(&self.config.data_dir, &why);
            if let Err(error) = written {
                self.fatal = Some(format!("the marker of a suspect log could not be written: {error}"));
            }
        } else {
            tracing::warn!(
                above = above.get(),
                "the others know greater incarnations of this observer: starting again"
            );
        }
        self.again = Some(above);
    }

    fn wal(&mut self, notice: WalNotice) {
        match notice {
            WalNotice::Persisted { group, id, .. } => self.feed(ObserverEvent::Persisted { group, id }),
            // The core asks for neither; compaction follows its own snapshots.
            WalNotice::Token { .. }
            | WalNotice::Canary { .. }
            | WalNotice::Fetched { .. }
            | WalNotice::CompactWanted(_) => {}
        }
    }

    /// Sends what is different from the last picture, then tells the core (for the failover record).
    fn push_routes(&mut self) {
        if !std::mem::take(&mut self.changed) {
            return;
        }
        let leader = self.core.leader().and_then(|leader| self.config.address_of(leader));
        let picture = Picture::take(&self.core, leader, self.clock.now());
        if let Some(delta) = picture.since(&self.picture) {
            self.watchers.push(&delta);
            self.story.routes(&self.picture, &picture);
        }
        self.picture = picture;
        self.story.directory(self.core.directory(), &self.metrics);
        let version = self.core.directory().version();
        self.feed(ObserverEvent::RoutesPushed { version });
    }

    fn every_second(&mut self) {
        let now = self.clock.now();
        if now < self.second {
            return;
        }
        self.second = now + SECOND;
        // Suspicion is no change of the directory, but clients see it in the nodes' states.
        self.changed = true;
        self.watchers.sweep();
        self.metrics.refresh(&self.core, self.sessions.len(), self.watchers.len(), self.wal.queued_bytes(), now);
        if std::mem::take(&mut self.view_stale) {
            let _ = self.files.send(FileJob::View(Box::new(self.core.directory().clone())));
        }
    }
}

impl Turn for Shell {
    type Event = ShellEvent;

    fn handle(&mut self, event: ShellEvent) {
        match event {
            ShellEvent::Core(event) => self.feed(event),
            ShellEvent::Request(request) => self.request(request),
            ShellEvent::Wal(notice) => self.wal(notice),
            ShellEvent::Saved(SnapshotFile { index, term, data }) => {
                self.feed(ObserverEvent::SnapshotSaved { index, term, data });
            }
            ShellEvent::NotSaved(error) => tracing::error!(error, "the directory's snapshot could not be written"),
            ShellEvent::Poisoned(reason) => {
                tracing::error!(reason, "the write-ahead log failed: stopping with status 74");
                self.poisoned = true;
            }
            ShellEvent::DiskFull => self.gauge.measure(),
            ShellEvent::Terminate => {
                tracing::info!("closing");
                self.terminated = true;
            }
        }
    }

    fn tick(&mut self) {
        let wall = self.clock.wall();
        self.feed(ObserverEvent::Tick { wall });
        self.every_second();
    }

    fn end(&mut self) -> ControlFlow<()> {
        if self.poisoned {
            // Say nothing more; the exit is on its way.
            return ControlFlow::Continue(());
        }
        self.push_routes();
        self.wal.submit(self.wal_requests.drain(..));
        self.transport.flush();
        if self.terminated || self.fatal.is_some() || self.again.is_some() {
            self.closing.send_replace(true);
            self.watchers.close();
            self.sessions.clear();
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }
}
