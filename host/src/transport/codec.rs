//! [`Envelope`] ↔ its protobuf form. The Raft message travels as opaque bytes; on arrival its entries share the
//! frame's buffer instead of being copied.

use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;
use protobuf::Message as _;
use quorate_consensus::envelope::{Envelope, Forwarded, ForwardedAnswer, ForwardedPublish};
use quorate_proto::control::{Ended, Permit, Room};
use quorate_proto::convert::ConvertError;
use quorate_proto::ids::{GroupId, Incarnation, LogIndex, OperationId, PermitEpoch, ReplicaId, Term, Ticket};
use quorate_proto::internal;
use quorate_proto::refusal::Refusal;
use quorate_proto::time::BootTime;
use quorate_proto::v1;
use raft::eraftpb::Message;

use super::scan::{check_message, ScanError};

/// Why a received envelope can't be taken.
#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    /// The Raft message is malformed.
    #[error("raft message: {0}")]
    Scan(#[from] ScanError),
    /// The Raft message can't be parsed.
    #[error("raft message: {0}")]
    Parse(#[from] protobuf::ProtobufError),
    /// A permit or a fact in it is malformed.
    #[error("envelope: {0}")]
    Control(#[from] ConvertError),
    /// A field is missing or contradicts another one.
    #[error("envelope: {0}")]
    Field(&'static str),
}

/// To the wire. The entries' bytes are copied once, here.
#[must_use]
pub fn encode(envelope: &Envelope) -> internal::Envelope {
    let message = envelope.message.write_to_bytes().expect("a message without required fields is always complete");
    let (last_term, last_index) = envelope.last.unwrap_or_default();
    let (publishes, answers) = envelope.forwarded.as_deref().map(forwarded_to_wire).unwrap_or_default();
    internal::Envelope {
        group_id: envelope.group.get(),
        from_replica: envelope.from.get(),
        to_replica: envelope.to.get(),
        from_incarnation: envelope.from_incarnation.get(),
        stamp: envelope.stamp.unwrap_or_default().0,
        echo: envelope.echo.unwrap_or_default().0,
        won_epoch: envelope.won_epoch.get(),
        permit: envelope.permit.clone().map(Into::into),
        ended: envelope.ended.iter().copied().map(Into::into).collect(),
        // At least 1: zero stands for "no veto".
        veto_wait_us: envelope.veto_wait.map_or(0, |wait| micros(wait).max(1)),
        message: Bytes::from(message),
        last_term: last_term.get(),
        last_index: last_index.get(),
        publishes,
        answers,
        stale_incarnation: envelope.stale,
        room: envelope.room.number(),
    }
}

fn forwarded_to_wire(forwarded: &Forwarded) -> (Vec<internal::ForwardedPublish>, Vec<internal::ForwardedAnswer>) {
    use internal::forwarded_answer::Result as Fate;
    let publish = |publish: &ForwardedPublish| internal::ForwardedPublish {
        ticket: publish.ticket.0,
        batch: publish.batch.clone(),
        principal: publish.principal.clone(),
        client_id: publish.client_id.clone(),
        connection: publish.connection,
        operation_id: Bytes::copy_from_slice(&publish.operation.to_bytes()),
        // At least 1: zero stands for "no deadline".
        deadline_us: publish.deadline.map_or(0, |left| micros(left).max(1)),
    };
    let answer = |answer: &ForwardedAnswer| internal::ForwardedAnswer {
        ticket: answer.ticket.0,
        result: Some(match &answer.result {
            Ok(receipt) => Fate::Receipt(receipt.encode_to_vec().into()),
            Err(refusal) => Fate::Refusal(v1::Error::from(refusal.clone()).encode_to_vec().into()),
        }),
    };
    (forwarded.publishes.iter().map(publish).collect(), forwarded.answers.iter().map(answer).collect())
}

fn forwarded_from_wire(
    publishes: Vec<internal::ForwardedPublish>,
    answers: Vec<internal::ForwardedAnswer>,
) -> Result<Option<Box<Forwarded>>, CodecError> {
    use internal::forwarded_answer::Result as Fate;
    if publishes.is_empty() && answers.is_empty() {
        return Ok(None);
    }
    let publish = |raw: internal::ForwardedPublish| {
        Ok(ForwardedPublish {
            ticket: Ticket(raw.ticket),
            batch: raw.batch,
            principal: raw.principal,
            client_id: raw.client_id,
            connection: raw.connection,
            operation: OperationId::from_slice(&raw.operation_id)
                .ok_or(CodecError::Field("operation id of a forwarded publish"))?,
            deadline: (raw.deadline_us != 0).then(|| Duration::from_micros(raw.deadline_us)),
        })
    };
    let answer = |raw: internal::ForwardedAnswer| {
        let result = match raw.result.ok_or(CodecError::Field("an answer without result"))? {
            Fate::Receipt(bytes) => {
                Ok(v1::Receipt::decode(bytes).map_err(|_| CodecError::Field("a forwarded receipt"))?)
            }
            Fate::Refusal(bytes) => {
                let error = v1::Error::decode(bytes).map_err(|_| CodecError::Field("a forwarded refusal"))?;
                Err(Refusal::from(error))
            }
        };
        Ok(ForwardedAnswer { ticket: Ticket(raw.ticket), result })
    };
    Ok(Some(Box::new(Forwarded {
        publishes: publishes.into_iter().map(publish).collect::<Result<_, CodecError>>()?,
        answers: answers.into_iter().map(answer).collect::<Result<_, CodecError>>()?,
    })))
}

/// From the wire.
///
/// # Errors
/// [`CodecError`] if anything in it is malformed or contradictory; nothing of it is used then.
pub fn decode(wire: internal::Envelope) -> Result<Envelope, CodecError> {
    check_message(&wire.message)?;
    let message = Message::parse_from_carllerche_bytes(&wire.message)?;
    if (message.from, message.to) != (wire.from_replica, wire.to_replica) {
        return Err(CodecError::Field("sender or receiver differs from the raft message's"));
    }
    let stamp = |value: u64| (value != 0).then_some(BootTime(value));
    let last = (Term(wire.last_term), LogIndex(wire.last_index));
    Ok(Envelope {
        group: GroupId(wire.group_id).non_zero().ok_or(CodecError::Field("no group"))?,
        from: ReplicaId(wire.from_replica).non_zero().ok_or(CodecError::Field("no sender"))?,
        to: ReplicaId(wire.to_replica).non_zero().ok_or(CodecError::Field("no receiver"))?,
        from_incarnation: Incarnation(wire.from_incarnation),
        stamp: stamp(wire.stamp),
        echo: stamp(wire.echo),
        won_epoch: PermitEpoch(wire.won_epoch),
        permit: wire.permit.map(Permit::try_from).transpose()?,
        ended: wire.ended.into_iter().map(Ended::try_from).collect::<Result<_, _>>()?,
        veto_wait: (wire.veto_wait_us != 0).then(|| Duration::from_micros(wire.veto_wait_us)),
        last: (last != (Term::ZERO, LogIndex::ZERO)).then_some(last),
        forwarded: forwarded_from_wire(wire.publishes, wire.answers)?,
        stale: wire.stale_incarnation,
        room: Room::from_number(wire.room),
        message,
    })
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}
