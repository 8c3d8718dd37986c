//! A look over the bytes of a Raft message before protobuf parses them (RUSTSEC-2024-0437): no groups, no length
//! beyond its frame, no deeper nesting than the message has. Payloads are skipped, not read.

/// Why bytes are no acceptable Raft message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScanError {
    /// A varint or fixed field runs past the end.
    #[error("truncated field")]
    Truncated,
    /// A length reaches beyond what contains it.
    #[error("length beyond the message")]
    TooLong,
    /// Wire types 3, 4 (groups) or none at all.
    #[error("wire type {0} is not accepted")]
    WireType(u8),
}

/// Message kinds of `eraftpb` that nest others; everything else is payload.
#[derive(Clone, Copy)]
enum Kind {
    Message,
    Entry,
    Snapshot,
    SnapshotMetadata,
    ConfState,
}

impl Kind {
    /// What a length-delimited field holds; `None` = payload.
    const fn nested(self, field: u64) -> Option<Self> {
        match (self, field) {
            (Self::Message, 7) => Some(Self::Entry),
            (Self::Message, 9) => Some(Self::Snapshot),
            (Self::Snapshot, 2) => Some(Self::SnapshotMetadata),
            (Self::SnapshotMetadata, 1) => Some(Self::ConfState),
            _ => None,
        }
    }
}

/// Checks an encoded `eraftpb.Message`.
pub(super) fn check_message(bytes: &[u8]) -> Result<(), ScanError> {
    check(bytes, Kind::Message)
}

fn check(mut bytes: &[u8], kind: Kind) -> Result<(), ScanError> {
    while !bytes.is_empty() {
        let tag = varint(&mut bytes)?;
        match (tag & 7) as u8 {
            0 => {
                varint(&mut bytes)?;
            }
            1 => skip(&mut bytes, 8)?,
            5 => skip(&mut bytes, 4)?,
            2 => {
                let len = usize::try_from(varint(&mut bytes)?).map_err(|_| ScanError::TooLong)?;
                let (inner, rest) = bytes.split_at_checked(len).ok_or(ScanError::TooLong)?;
                // The depth is bounded by the kinds: four levels.
                if let Some(nested) = kind.nested(tag >> 3) {
                    check(inner, nested)?;
                }
                bytes = rest;
            }
            other => return Err(ScanError::WireType(other)),
        }
    }
    Ok(())
}

fn skip(bytes: &mut &[u8], count: usize) -> Result<(), ScanError> {
    *bytes = bytes.get(count..).ok_or(ScanError::Truncated)?;
    Ok(())
}

fn varint(bytes: &mut &[u8]) -> Result<u64, ScanError> {
    let mut value = 0_u64;
    for shift in (0..70).step_by(7) {
        let (&byte, rest) = bytes.split_first().ok_or(ScanError::Truncated)?;
        *bytes = rest;
        if shift < 64 {
            value |= u64::from(byte & 0x7f) << shift;
        }
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(ScanError::Truncated)
}

#[cfg(test)]
mod tests {
    use protobuf::Message as _;
    use raft::eraftpb::{ConfState, Entry, Message, Snapshot};

    use super::*;

    #[test]
    fn real_messages_pass() {
        let mut message = Message { to: 1, from: u64::MAX, term: 3, priority: -1, ..Message::default() };
        message.entries.push(Entry { index: 4, data: vec![0xff; 100].into(), ..Entry::default() });
        let mut snapshot = Snapshot { data: vec![3; 9].into(), ..Snapshot::default() };
        snapshot.mut_metadata().set_conf_state(ConfState { voters: vec![1, 2, 3], ..ConfState::default() });
        message.set_snapshot(snapshot);
        assert_eq!(check_message(&message.write_to_bytes().unwrap()), Ok(()));
    }

    #[test]
    fn a_million_nested_groups_are_refused_at_the_first() {
        let groups = vec![0x9b; 1_000_000];
        assert!(check_message(&groups).is_err());
        let groups = vec![(20 << 3) as u8 & 0x7f | 3; 1_000_000];
        assert_eq!(check_message(&groups), Err(ScanError::WireType(3)));
    }

    #[test]
    fn lengths_beyond_the_frame_are_refused() {
        // Field 7 (entries), length 1 GiB, nothing behind it.
        assert_eq!(check_message(&[0x3a, 0x80, 0x80, 0x80, 0x80, 0x04]), Err(ScanError::TooLong));
        assert_eq!(
            check_message(&[0x3a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01]),
            Err(ScanError::TooLong)
        );
        assert_eq!(check_message(&[0x09, 1, 2, 3]), Err(ScanError::Truncated));
    }
}
