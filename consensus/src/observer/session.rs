//! Sessions with data nodes and their supervisors (protocol S2, P2, V4).

use bytes::Bytes;
use quorate_proto::control::{ExitNotice, Heartbeat, Hello, SessionDown, SessionUp};
use quorate_proto::ids::{ClusterId, DirectoryVersion, GroupId, Incarnation, NodeId, ReplicaId, Term, Ticket};
use quorate_proto::refusal::Refusal;
use quorate_proto::time::{BootTime, LogTime};
use quorate_proto::v1::Reason;

use super::core::{ObserverCore, Out};
use super::pending::Pending;
use super::ObserverEffect;
use crate::directory::{CommandKind, Death, Directory};
use crate::policy::Policy;

/// One open session.
#[derive(Clone, Debug, Default)]
pub(super) struct Session {
    /// Who it is, once it said so; `cluster` is left out as in the directory.
    pub(super) hello: Option<Box<Hello>>,
    /// Topology version of the assignments sent last.
    pub(super) assigned: Option<DirectoryVersion>,
    /// Version of the directory that the node keeps, and that directory once it told it (M5).
    pub(super) knows: DirectoryVersion,
    pub(super) born: LogTime,
    /// It knew more than this observer when that began to lead, or when it said so: a directory put back from an old copy
    /// does not become the newer one by growing.
    pub(super) ahead: bool,
    pub(super) told: Option<Box<Directory>>,
}

impl<P: Policy> ObserverCore<P> {
    /// The node and incarnation of a session that said who it is.
    pub(super) fn identity(&self, session: Ticket) -> Option<(NodeId, Incarnation)> {
        let hello = self.sessions.get(&session)?.hello.as_ref()?;
        Some((hello.node, hello.incarnation))
    }

    pub(super) fn session_message(&mut self, now: BootTime, session: Ticket, message: SessionUp, out: &mut Out) {
        if let SessionUp::Hello(hello) = message {
            self.hello(now, session, hello, out);
            return;
        }
        let Some((node, _)) = self.identity(session) else {
            // The first message must say who it is.
            self.refuse(session, "hello expected".to_owned(), false, out);
            return;
        };
        match message {
            SessionUp::Hello(_) => {}
            SessionUp::Heartbeat(beat) => self.heartbeat(now, session, node, beat, out),
            SessionUp::Lease(request) => self.lease_request(now, session, request, out),
            SessionUp::Release { group, replica, term, for_fence, stood } => {
                if !stood.is_zero() {
                    self.view.hung(group, term, now - stood);
                }
                self.release(now, node, (group, replica, term, for_fence), out);
            }
            SessionUp::AskPermit { group, .. } => {
                if self.leading {
                    self.arbiter.event(group);
                    self.examine(now, [group], out);
                }
            }
            SessionUp::Directory(snapshot) => self.told(session, &snapshot),
            SessionUp::Phases(marks) => {
                self.failovers.marks(marks);
                self.record_failovers(now, out);
            }
        }
    }

    fn hello(&mut self, now: BootTime, session: Ticket, mut hello: Hello, out: &mut Out) {
        if hello.cluster != self.cfg.cluster {
            let reason = format!("{}: this is cluster {}", Reason::ClusterMismatch.as_str_name(), self.cfg.cluster);
            self.refuse(session, reason, true, out);
            return;
        }
        hello.cluster = ClusterId::NONE;
        let (knows, born) = (std::mem::take(&mut hello.knows), std::mem::take(&mut hello.knows_born));
        let ahead = self.leading && knows > self.directory.version();
        if self.turned_away(now, session, &hello, out) {
            return;
        }
        // A node has one session here: the newest.
        let older = self.view.node(hello.node).and_then(|v| v.session).filter(|older| *older != session);
        if let Some(older) = older {
            self.forget(older);
            out.push(ObserverEffect::CloseSession { session: older });
        }
        let node = hello.node;
        self.view.session_opened(node, hello.incarnation, session, now);
        self.sessions
            .insert(session, Session { hello: Some(Box::new(hello)), knows, born, ahead, ..Session::default() });
        let welcome = SessionDown::Welcome {
            observer: self.cfg.node(),
            observer_leader: self.known_leader,
            cluster_time: self.clock.read(now),
        };
        Self::say(session, welcome, out);
        if self.knows_more(session) {
            Self::say(session, SessionDown::Directory(Bytes::new()), out);
        }
        if self.leading {
            self.register(now, session, out);
        }
        self.push_assignments(out);
    }

    /// A node that may not register (now, or as it is) is told so.
    pub(super) fn turned_away(&mut self, now: BootTime, session: Ticket, hello: &Hello, out: &mut Out) -> bool {
        let replaces = self.directory.node(hello.node).filter(|n| hello.fresh && n.registered.disk != hello.disk);
        if let Some(node) = replaces {
            // M1: the disk is another one, and empty. Who ran on the old one must be gone.
            let heard = self.view.node(hello.node).map(|view| view.incarnation);
            let silent =
                heard == Some(hello.incarnation) || self.view.silent_for(hello.node, now) >= self.cfg.timing.lease;
            if node.is_live() && !silent {
                let reason = format!(
                    "{}: {} runs with another disk; stop that process, or give this one another node id",
                    Reason::RefusedUnsafe.as_str_name(),
                    hello.node
                );
                self.refuse(session, reason, false, out);
                return true;
            }
            let known = node.registered.incarnation.max(node.dead);
            if hello.incarnation <= known {
                let reason = format!("a new disk of {}: its incarnation must be above {}", hello.node, known.get());
                let refused = SessionDown::Refused { reason, fatal: false, raise_above: Some(known) };
                Self::say(session, refused, out);
                out.push(ObserverEffect::CloseSession { session });
                self.forget(session);
                return true;
            }
        }
        if let Err(refusal) = self.directory.check_registration(hello) {
            self.refuse_registration(session, hello, &refusal, out);
            return true;
        }
        false
    }

    /// Refused for good only where no restart could help.
    pub(super) fn refuse_registration(&mut self, session: Ticket, hello: &Hello, refusal: &Refusal, out: &mut Out) {
        let dead = self.directory.node(hello.node).is_some_and(|n| hello.incarnation <= n.dead);
        self.refuse(session, refusal.to_string(), !dead, out);
    }

    pub(super) fn refuse(&mut self, session: Ticket, reason: String, fatal: bool, out: &mut Out) {
        Self::say(session, SessionDown::Refused { reason, fatal, raise_above: None }, out);
        out.push(ObserverEffect::CloseSession { session });
        self.forget(session);
    }

    fn forget(&mut self, session: Ticket) {
        self.sessions.remove(&session);
        self.leases.forget_session(session);
    }

    pub(super) fn session_closed(&mut self, now: BootTime, session: Ticket) {
        if let Some((node, _)) = self.identity(session) {
            self.view.session_closed(node, session, now);
            if self.leading {
                for group in self.groups_on(node) {
                    self.arbiter.event(group);
                }
            }
        }
        self.forget(session);
    }

    fn heartbeat(&mut self, now: BootTime, session: Ticket, node: NodeId, beat: Heartbeat, out: &mut Out) {
        let (seq, sent, draining) = (beat.seq, beat.sent, beat.draining);
        let all: Vec<GroupId> = beat.reports.iter().map(|r| r.group).collect();
        let changed = self.view.heartbeat(node, beat, now);
        let ack = SessionDown::HeartbeatAck {
            seq,
            sent,
            cluster_time: self.clock.read(now),
            observer_leader: self.known_leader,
            nobody_else: draining && self.cannot_drain(now, node),
        };
        Self::say(session, ack, out);
        if self.leading {
            for group in changed {
                self.arbiter.event(group);
            }
            self.examine(now, all, out);
            if draining {
                self.begin_moves(now, out);
            }
        }
    }

    fn release(
        &mut self,
        now: BootTime,
        node: NodeId,
        (group, replica, term, for_fence): (GroupId, ReplicaId, Term, bool),
        out: &mut Out,
    ) {
        let Some(partition) = self.directory.partition(group) else { return };
        let its_own = partition.node_of(replica) == Some(node);
        if !self.leading || !its_own || partition.is_released(replica, term) {
            return;
        }
        if self.releasing.insert((replica, term)) {
            let command = CommandKind::Release { group, replica, term, for_fence };
            if !self.propose(now, command, Pending::Release(replica, term), out) {
                self.releasing.remove(&(replica, term));
            }
        }
    }

    /// S2: accepted only from that very node's supervisor, by the secret whose hash the node registered.
    pub(super) fn exit_notice(&mut self, now: BootTime, ticket: Ticket, notice: &ExitNotice, out: &mut Out) {
        let answer = |result, out: &mut Out| out.push(ObserverEffect::ExitAnswer { ticket, result });
        let subject = format!("{} incarnation {}", notice.node, notice.incarnation.get());
        let Some(node) = self.directory.node(notice.node) else {
            let refusal = if self.leading {
                Refusal::new(Reason::InvalidArgument, "this node never registered", subject, "check the node id")
            } else {
                self.not_leading(subject)
            };
            answer(Err(refusal), out);
            return;
        };
        let hash = blake3::hash(notice.secret.as_bytes()).to_hex();
        let expected = node.registered.supervisor_hash.as_str();
        if expected.is_empty() || hash.as_str() != expected {
            let what = "the secret is not that of the node's supervisor";
            let action = "only the supervisor that started the node may report its exit";
            answer(Err(Refusal::new(Reason::Forbidden, what, subject, action)), out);
            return;
        }
        if notice.incarnation <= node.dead {
            answer(Ok(()), out);
            return;
        }
        if !self.leading {
            answer(Err(self.not_leading(subject)), out);
            return;
        }
        let key = (notice.node, notice.incarnation);
        let waiting = self.exits.entry(key).or_default();
        waiting.push(ticket);
        if waiting.len() == 1 {
            self.propose_death(now, Death::noticed(key.0, key.1, notice.status), out);
        }
    }

    /// Sends assignments to the sessions whose node is registered and does not have the newest topology.
    pub(super) fn push_assignments(&mut self, out: &mut Out) {
        let topology = self.directory.topology();
        // Built once, and only if somebody gets it.
        let mut kept: Option<Bytes> = None;
        for (session, state) in &mut self.sessions {
            let Some(hello) = &state.hello else { continue };
            let registered = self.directory.node(hello.node).is_some_and(|n| n.incarnation() == hello.incarnation);
            if registered && state.assigned != Some(topology) {
                state.assigned = Some(topology);
                let assignments = self.directory.assignments_for(hello.node);
                Self::say(*session, SessionDown::Assignments(assignments), out);
                let kept = kept.get_or_insert_with(|| self.directory.for_nodes());
                Self::say(*session, SessionDown::Directory(kept.clone()), out);
            }
        }
    }

    /// Partitions with a replica on the node.
    pub(super) fn groups_on(&self, node: NodeId) -> Vec<GroupId> {
        let partitions = self.directory.partitions().values();
        partitions.filter(|p| p.replica_on(node).is_some()).map(|p| p.group).collect()
    }
}
