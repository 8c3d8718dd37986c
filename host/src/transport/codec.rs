//! [`Envelope`] ↔ its protobuf form. The Raft message travels as opaque bytes; on arrival its entries share the
//! frame's buffer instead of being copied.

use std::time::Duration;

use bytes::Bytes;
use protobuf::Message as _;
use quorate_consensus::envelope::Envelope;
use quorate_proto::control::{Ended, LastHeard, Permit, PermitKind};
use quorate_proto::ids::{ConfigVersion, GroupId, Incarnation, LogIndex, PermitEpoch, ReplicaId, Term};
use quorate_proto::internal;
use quorate_proto::time::BootTime;
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
    /// A field is missing or contradicts another one.
    #[error("envelope: {0}")]
    Field(&'static str),
}

/// To the wire. The entries' bytes are copied once, here.
#[must_use]
pub fn encode(envelope: &Envelope) -> internal::Envelope {
    let message = envelope.message.write_to_bytes().expect("a message without required fields is always complete");
    let (last_term, last_index) = envelope.last.unwrap_or_default();
    internal::Envelope {
        group_id: envelope.group.get(),
        from_replica: envelope.from.get(),
        to_replica: envelope.to.get(),
        from_incarnation: envelope.from_incarnation.get(),
        stamp: envelope.stamp.unwrap_or_default().0,
        echo: envelope.echo.unwrap_or_default().0,
        won_epoch: envelope.won_epoch.get(),
        permit: envelope.permit.as_ref().map(permit_out),
        ended: envelope.ended.iter().copied().map(ended_out).collect(),
        // At least 1: zero stands for "no veto".
        veto_wait_us: envelope.veto_wait.map_or(0, |wait| micros(wait).max(1)),
        message: Bytes::from(message),
        last_term: last_term.get(),
        last_index: last_index.get(),
    }
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
        permit: wire.permit.map(permit_in).transpose()?,
        ended: wire.ended.into_iter().map(ended_in).collect::<Result<_, _>>()?,
        veto_wait: (wire.veto_wait_us != 0).then(|| Duration::from_micros(wire.veto_wait_us)),
        last: (last != (Term::ZERO, LogIndex::ZERO)).then_some(last),
        message,
    })
}

/// A last-heard table to the wire.
pub(super) fn heard_out(heard: &LastHeard) -> internal::LastHeard {
    heard.clone().into()
}

/// A last-heard table from the wire; `None` if it means nothing.
pub(super) fn heard_in(wire: internal::LastHeard) -> Option<LastHeard> {
    LastHeard::try_from(wire).ok()
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

fn ended_out(ended: Ended) -> internal::Ended {
    use internal::ended::Fact;
    let fact = match ended {
        Ended::Released { replica, term } => {
            Fact::Released(internal::Released { replica: replica.get(), term: term.get() })
        }
        Ended::Dead { replica, incarnation } => {
            Fact::Dead(internal::Dead { replica: replica.get(), incarnation: incarnation.get() })
        }
    };
    internal::Ended { fact: Some(fact) }
}

fn ended_in(wire: internal::Ended) -> Result<Ended, CodecError> {
    use internal::ended::Fact;
    Ok(match wire.fact.ok_or(CodecError::Field("an ended leader without fact"))? {
        Fact::Released(fact) => Ended::Released { replica: ReplicaId(fact.replica), term: Term(fact.term) },
        Fact::Dead(fact) => {
            Ended::Dead { replica: ReplicaId(fact.replica), incarnation: Incarnation(fact.incarnation) }
        }
    })
}

fn permit_out(permit: &Permit) -> internal::Permit {
    internal::Permit {
        group_id: permit.group.get(),
        epoch: permit.epoch.get(),
        candidate: permit.candidate.get(),
        candidate_incarnation: permit.candidate_incarnation.get(),
        config_version: permit.config_version.get(),
        basis: permit.basis.iter().copied().map(ended_out).collect(),
        clear: permit.clear,
        kind: match permit.kind {
            PermitKind::Normal => 0,
            PermitKind::FullAttendance => 1,
            PermitKind::BreakGlass => 2,
        },
    }
}

fn permit_in(wire: internal::Permit) -> Result<Permit, CodecError> {
    Ok(Permit {
        group: GroupId(wire.group_id),
        epoch: PermitEpoch(wire.epoch),
        candidate: ReplicaId(wire.candidate),
        candidate_incarnation: Incarnation(wire.candidate_incarnation),
        config_version: ConfigVersion(wire.config_version),
        basis: wire.basis.into_iter().map(ended_in).collect::<Result<_, _>>()?,
        clear: wire.clear,
        kind: match wire.kind {
            0 => PermitKind::Normal,
            1 => PermitKind::FullAttendance,
            2 => PermitKind::BreakGlass,
            _ => return Err(CodecError::Field("unknown kind of permit")),
        },
    })
}
