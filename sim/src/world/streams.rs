//! Sessions of data nodes with observers, and the client's connections to data nodes.

use std::time::Duration;

use quorate_client::core::effect::Tag;
use quorate_consensus::node::NodeEvent;
use quorate_consensus::observer::ObserverEvent;
use quorate_consensus::policy::Policy;
use quorate_proto::ids::{NodeId, Ticket};
use quorate_proto::refusal::{Reason, Refusal};

use super::observer::{host as observer_host, id_of};
use super::{Asked, Message, What, World, NODES, OBSERVERS, TOPIC};
use crate::net::Host;
use crate::stream::{Stream, Upkeep};

/// Publishes of a thousand that a shell refuses in a tight run.
const SHELL_REFUSES: u64 = 80;

impl<P: Policy> World<P> {
    /// Writes into a stream; the message travels, waits for a cut to heal, or is lost with the stream.
    pub(crate) fn write(&mut self, stream: u64, forward: bool, message: Message) {
        let Some(entry) = self.streams.get_mut(&stream) else { return };
        let (from, to) = if forward { (entry.a, entry.b) } else { (entry.b, entry.a) };
        let cut = self.net.is_cut(from, to);
        self.net.dropped_by_cut += u64::from(cut);
        if let Some(message) = entry.write(forward, cut, message) {
            self.travel(stream, forward, message, from, to);
        }
    }

    fn travel(&mut self, stream: u64, forward: bool, message: Message, from: Host, to: Host) {
        if let Some(at) = self.net.stream(&mut self.chance, self.now, from, to, 3) {
            self.at(at, What::Arrive(stream, forward, message));
        }
    }

    pub(crate) fn arrive(&mut self, stream: u64, forward: bool, message: Message) {
        let Some(entry) = self.streams.get(&stream) else { return };
        let (a, b) = (entry.a, entry.b);
        match (message, forward) {
            (Message::Up(message), true) => {
                let session = Ticket(stream);
                self.post_to_observer(id_of(b), ObserverEvent::Session { session, message });
            }
            (Message::Down(message), false) => {
                let (Host::Node(id), observer) = (a, id_of(b)) else { return };
                self.post_to_node(NodeId(id), NodeEvent::Session { observer, message });
            }
            (Message::Publish(message), true) => {
                let Host::Node(id) = b else { return };
                if self.plan.tight && self.chance.one_in(SHELL_REFUSES) {
                    self.refuse_at_shell(stream, message.tag, message.copies);
                    return;
                }
                let ticket = Ticket(self.fresh_id());
                let asked = Asked { stream, tag: message.tag, group: message.group };
                self.tickets.insert((NodeId(id), ticket), asked);
                self.copies.insert((stream, message.tag), message.copies);
                let deadline = self.nodes[&NodeId(id)].clock.read(self.now) + message.deadline;
                self.post_to_node(NodeId(id), super::publish_event(ticket, &message, deadline));
            }
            (Message::Read(read, group), true) => {
                let Host::Node(id) = b else { return };
                let ticket = Ticket(self.fresh_id());
                self.read_tickets.insert((NodeId(id), ticket), (stream, read));
                self.post_to_node(NodeId(id), NodeEvent::ReadLatest { ticket, group });
            }
            (Message::ReadAnswer(read, result), false) => self.read_answered(read, *result),
            (Message::Answer(tag, result), false) => {
                let Host::Node(id) = b else { return };
                let copies = self.copies.remove(&(stream, tag)).unwrap_or(false);
                self.client_response(NodeId(id), tag, *result, copies);
            }
            _ => unreachable!("messages travel the way they are made for"),
        }
    }

    /// The shell's own queue is full: the core never sees this request, but the one behind it.
    fn refuse_at_shell(&mut self, stream: u64, tag: Tag, copies: bool) {
        self.coverage.count("refused by the shell");
        self.copies.insert((stream, tag), copies);
        let (what, action) = ("requests of this connection wait", "send it again later");
        let refusal = Refusal::new(Reason::Busy, what, TOPIC, action).retry_after(Duration::from_millis(20));
        self.write(stream, false, Message::Answer(tag, Box::new(Err(refusal))));
    }

    /// Opens a stream if both ends are there and the way is free.
    pub(crate) fn open_stream(&mut self, a: Host, b: Host) -> bool {
        if self.net.is_cut(a, b) || self.net.is_cut(b, a) || !self.runs(a) || !self.runs(b) {
            return false;
        }
        let id = self.fresh_id();
        self.streams.insert(id, Stream::new(id, a, b));
        let delay = self.chance.span(Duration::from_micros(200), Duration::from_millis(2));
        self.after(delay, What::StreamUp(id));
        true
    }

    fn runs(&self, host: Host) -> bool {
        match host {
            Host::Node(id) => self.nodes[&NodeId(id)].process.is_some(),
            Host::Observer(_) => self.observers[&id_of(host)].process.is_some(),
            Host::Client | Host::Reader => true,
        }
    }

    pub(crate) fn stream_up(&mut self, stream: u64) {
        let Some(entry) = self.streams.get(&stream) else { return };
        match (entry.a, entry.b) {
            (Host::Node(id), b @ Host::Observer(_)) => {
                self.post_to_observer(id_of(b), ObserverEvent::SessionOpened { session: Ticket(stream) });
                self.post_to_node(NodeId(id), NodeEvent::SessionUp(id_of(b)));
            }
            (Host::Client, Host::Node(id)) => self.client_link(NodeId(id), true),
            (Host::Reader, Host::Node(_)) => {}
            _ => unreachable!("streams go from nodes to observers and from the client to nodes"),
        }
    }

    fn close(&mut self, stream: u64) {
        let Some(entry) = self.streams.remove(&stream) else { return };
        match (entry.a, entry.b) {
            (Host::Node(id), b @ Host::Observer(_)) => {
                self.post_to_observer(id_of(b), ObserverEvent::SessionClosed { session: Ticket(stream) });
                self.post_to_node(NodeId(id), NodeEvent::SessionLost(id_of(b)));
            }
            (Host::Client, Host::Node(id)) => self.client_link(NodeId(id), false),
            _ => {}
        }
    }

    /// The process at `host` is gone: its connections are reset.
    pub(crate) fn break_streams_of(&mut self, host: Host) {
        let ids: Vec<u64> = self.streams.values().filter(|s| s.a == host || s.b == host).map(|s| s.id).collect();
        for id in ids {
            self.close(id);
        }
    }

    pub(crate) fn break_stream(&mut self, id: u64) {
        self.close(id);
    }

    /// Looks after every connection: lets stalled messages flow, breaks dead ones, opens missing sessions.
    pub(crate) fn upkeep(&mut self) {
        let now = self.now;
        let ids: Vec<u64> = self.streams.keys().copied().collect();
        for id in ids {
            let Some(stream) = self.streams.get_mut(&id) else { continue };
            let (a, b) = (stream.a, stream.b);
            let cut = self.net.is_cut(a, b) || self.net.is_cut(b, a);
            match stream.upkeep(now, cut) {
                Upkeep::Fine => {}
                Upkeep::Broken => self.close(id),
                Upkeep::Flows(messages) => {
                    for (forward, message) in messages {
                        let (from, to) = if forward { (a, b) } else { (b, a) };
                        self.travel(id, forward, message, from, to);
                    }
                }
            }
        }
        for node in NODES {
            for observer in OBSERVERS {
                let (a, b) = (Host::Node(node.0), observer_host(observer));
                if !self.streams.values().any(|s| s.a == a && s.b == b) {
                    self.open_stream(a, b);
                }
            }
        }
        for node in NODES {
            let (a, b) = (Host::Reader, Host::Node(node.0));
            if !self.streams.values().any(|s| s.a == a && s.b == b) {
                self.open_stream(a, b);
            }
        }
        self.push_routes();
        self.look_for_majority();
        self.after(Duration::from_millis(100), What::Upkeep);
    }
}
