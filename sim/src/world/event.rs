//! What happens in a run, and who handles it.

use std::time::Duration;

use quorate_client::core::effect::Tag;
use quorate_consensus::envelope::Envelope;
use quorate_consensus::node::event::Publish;
use quorate_consensus::node::NodeEvent;
use quorate_consensus::observer::ObserverEvent;
use quorate_consensus::policy::Policy;
use quorate_proto::control::{ExitNotice, LastHeard, SessionDown, SessionUp};
use quorate_proto::ids::{GroupId, Incarnation, NodeId, Offset, Term, Ticket};
use quorate_proto::refusal::Refusal;
use quorate_proto::v1::Receipt;

use super::World;
use crate::disk::Free;
use crate::net::Host;
use crate::plan::Fault;
use crate::storage::Parcel;

/// What travels on a stream.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Message {
    Up(Box<SessionUp>),
    Down(Box<SessionDown>),
    Publish(Box<PublishMessage>),
    Answer(Tag, Box<Result<Receipt, Refusal>>),
    /// A reader wants a partition's end offset: which read, which group.
    Read(u64, GroupId),
    ReadAnswer(u64, Box<Result<(Offset, Term), Refusal>>),
}

/// A batch on its way to a node; `copies` = from the second producer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PublishMessage {
    pub tag: Tag,
    pub copies: bool,
    pub group: GroupId,
    pub batch: bytes::Bytes,
    pub deadline: Duration,
}

/// A publish that waits for its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub stream: u64,
    pub tag: Tag,
    pub group: GroupId,
}

/// Something that happens at an instant.
#[derive(Debug)]
pub(crate) enum What {
    /// A process handles its mailbox.
    Turn(Host, Incarnation),
    /// A process asked to be woken.
    Tick(Host, Incarnation),
    /// A flush ends.
    Flushed(Host, Incarnation),
    /// A Raft message of one data node arrives at another one.
    Peer(NodeId, NodeId, Box<Envelope>, Option<Parcel>),
    /// A Raft message arrives at an observer.
    ObserverPeer(NodeId, Box<Envelope>),
    /// A last-heard table arrives at an observer.
    Gossip(NodeId, LastHeard),
    /// Goes into a mailbox when the storage or the supervisor is done.
    ToNode(NodeId, Incarnation, Box<NodeEvent>),
    ToObserver(NodeId, Incarnation, Box<ObserverEvent>),
    /// A message arrives at the other end of a stream.
    Arrive(u64, bool, Message),
    /// Both ends of a stream learn that it is gone.
    StreamUp(u64),
    /// An observer closed the stream.
    Close(u64),
    /// A supervisor (again) tells the observers of an exit.
    Notice(ExitNotice, u32),
    /// A closing process is killed if it still runs; then it stays down for so long.
    Kill(NodeId, Incarnation, Duration),
    /// A process starts.
    Start(Host),
    /// A stopped process goes on.
    Resume(Host),
    Fault(Fault),
    EndCut(Host, Host),
    EndSlow(NodeId),
    /// A disk is emptied.
    Emptied(Host),
    Upkeep,
    Heal,
    Produce,
    Read,
    ClientWake,
    /// A connection attempt of the client was refused.
    LinkRefused(NodeId),
    Replay,
}

impl<P: Policy> World<P> {
    pub(crate) fn happen(&mut self, what: What) {
        match what {
            What::Turn(Host::Node(id), incarnation) => self.node_turn(NodeId(id), incarnation),
            What::Turn(Host::Observer(id), incarnation) => self.observer_turn(NodeId(id), incarnation),
            What::Tick(host, incarnation) => self.tick(host, incarnation),
            What::Flushed(Host::Node(id), incarnation) => self.node_flushed(NodeId(id), incarnation),
            What::Flushed(Host::Observer(id), incarnation) => self.observer_flushed(NodeId(id), incarnation),
            What::Turn(..) | What::Flushed(..) => unreachable!("applications have neither turns nor disks"),
            What::Peer(from, to, envelope, parcel) => self.node_peer(from, to, envelope, parcel),
            What::ObserverPeer(to, envelope) => self.post_to_observer(to, ObserverEvent::Peer(envelope)),
            What::Gossip(to, table) => self.post_to_observer(to, ObserverEvent::LastHeard(table)),
            What::ToNode(to, incarnation, event) => {
                if self.nodes[&to].incarnation == incarnation {
                    self.post_to_node(to, *event);
                }
            }
            What::ToObserver(to, incarnation, event) => {
                if self.observers[&to].incarnation == incarnation {
                    self.post_to_observer(to, *event);
                }
            }
            What::Arrive(stream, forward, message) => self.arrive(stream, forward, message),
            What::Emptied(host) => self.set_free(host, Free::PLENTY),
            What::StreamUp(stream) => self.stream_up(stream),
            What::Close(stream) => self.break_stream(stream),
            What::Notice(notice, again) => self.notice(notice, again),
            What::Kill(id, incarnation, down) => self.kill(id, incarnation, down),
            What::Start(host) => self.start(host),
            What::Resume(host) => self.resume(host),
            What::Fault(fault) => self.strike(fault),
            What::EndCut(from, to) => self.end_cut(from, to),
            What::EndSlow(id) => self.node_mut(id).disk.slow = Duration::ZERO,
            What::Upkeep => self.upkeep(),
            What::Heal => self.heal(),
            What::Produce => self.produce(),
            What::Read => self.read(),
            What::ClientWake => self.client_wake(),
            What::LinkRefused(node) => self.client_link(node, false),
            What::Replay => self.replay(),
        }
    }
}

/// Keeps `Publish` construction in one place.
pub(crate) fn publish_event(
    ticket: Ticket,
    message: &PublishMessage,
    deadline: quorate_proto::time::BootTime,
) -> NodeEvent {
    NodeEvent::Publish(Publish {
        ticket,
        group: message.group,
        batch: message.batch.clone(),
        principal: bytes::Bytes::from_static(b"anonymous@sim"),
        client_id: bytes::Bytes::from_static(b"sim"),
        connection: 1,
        operation: quorate_proto::ids::OperationId(u128::from(ticket.0)),
        deadline,
    })
}
