//! Raft messages with what the protocol adds to them.

use std::time::Duration;

use bytes::Bytes;
use quorate_proto::control::{Ended, Permit, Room};
use quorate_proto::ids::{GroupId, Incarnation, LogIndex, OperationId, PermitEpoch, ReplicaId, Term, Ticket};
use quorate_proto::refusal::Refusal;
use quorate_proto::time::BootTime;
use quorate_proto::v1::Receipt;
use raft::eraftpb::{Message, MessageType};

/// Which connection a message takes. Order is kept within a lane only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    /// Votes, heartbeats, responses, read-index: small, never behind a backlog.
    Control,
    /// Appends.
    Bulk,
    /// Snapshots; opened when needed.
    Snapshot,
}

/// A publish that a leader held while it handed over, for the winner (H1).
#[derive(Clone, Debug, PartialEq)]
pub struct ForwardedPublish {
    /// Names the answer, at the sender.
    pub ticket: Ticket,
    /// As in [`crate::node::event::Publish`].
    pub batch: Bytes,
    /// Who sent it to the old leader.
    pub principal: Bytes,
    /// Application instance.
    pub client_id: Bytes,
    /// Connection that it came on.
    pub connection: u64,
    /// Identity of the request over retries of the transport.
    pub operation: OperationId,
    /// What is left of its deadline; `None` = it has none.
    pub deadline: Option<Duration>,
}

/// The winner's answer to a forwarded publish.
#[derive(Clone, Debug, PartialEq)]
pub struct ForwardedAnswer {
    /// The sender's name for it.
    pub ticket: Ticket,
    /// Its fate.
    pub result: Result<Receipt, Refusal>,
}

/// What rides along between the two leaders of a planned handoff (H1). The Raft message is then an empty `MsgHup`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Forwarded {
    /// Old leader to winner.
    pub publishes: Vec<ForwardedPublish>,
    /// Winner to old leader.
    pub answers: Vec<ForwardedAnswer>,
}

/// A Raft message between two replicas of one group. `message.from` and `.to` equal `from` and `to`.
#[derive(Clone, Debug, PartialEq)]
pub struct Envelope {
    /// Partition incarnation; another one is answered `STALE_INCARNATION` and never stepped (M3).
    pub group: GroupId,
    /// Sending replica.
    pub from: ReplicaId,
    /// Receiving replica.
    pub to: ReplicaId,
    /// Incarnation of the sender's node.
    pub from_incarnation: Incarnation,
    /// Sender's clock, read before the message was handed over (C1, V2). On appends, heartbeats, vote requests.
    pub stamp: Option<BootTime>,
    /// On responses: newest stamp of the receiver that the sender processed in this term (C1).
    pub echo: Option<BootTime>,
    /// On messages of a leader: the epoch it won with (P1).
    pub won_epoch: PermitEpoch,
    /// On vote and pre-vote requests: the permit (V1a).
    pub permit: Option<Permit>,
    /// Releases relayed with a vote request or time-out-now (P1, H1), or the sender's own (F3).
    pub ended: Vec<Ended>,
    /// On a crafted pre-vote reject: how long until this voter's gate may pass (P2).
    pub veto_wait: Option<Duration>,
    /// On a reject: the voter's last flushed position (P2).
    pub last: Option<(Term, LogIndex)>,
    /// Publishes and answers of a planned handoff.
    pub forwarded: Option<Box<Forwarded>>,
    /// `STALE_INCARNATION`: the answer to a message that has no receiver here (M3). Nothing else in it counts.
    pub stale: bool,
    /// Room on the sender's disks (B5).
    pub room: Room,
    /// The message itself.
    pub message: Message,
}

impl Envelope {
    /// Around a message, with nothing of the protocol's beside it.
    #[must_use]
    pub fn bare(group: GroupId, from_incarnation: Incarnation, message: Message) -> Self {
        Self {
            group,
            from: ReplicaId(message.from),
            to: ReplicaId(message.to),
            from_incarnation,
            stamp: None,
            echo: None,
            won_epoch: PermitEpoch::ZERO,
            permit: None,
            ended: Vec::new(),
            veto_wait: None,
            last: None,
            forwarded: None,
            stale: false,
            room: Room::Ample,
            message,
        }
    }

    /// The answer to this message where nobody may step it (M3). The answer itself is never answered.
    #[must_use]
    pub fn stale_answer(&self, incarnation: Incarnation) -> Self {
        let mut message = Message { from: self.to.get(), to: self.from.get(), ..Message::default() };
        message.set_msg_type(MessageType::MsgHup);
        Self { stale: true, ..Self::bare(self.group, incarnation, message) }
    }
}
