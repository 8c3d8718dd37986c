//! What a group keeps in the WAL besides its entries and hard state: one key–value pair, [`META_KEY`], written in
//! the same atomic write as the compaction or snapshot that it describes.
//!
//! ```text
//! "raft" → start index u64 BE | start term u64 BE | applied u64 BE | ConfState (protobuf)
//! ```
//!
//! *start* is the position that the log begins after, *applied* that of the machine's checkpoint, the membership is
//! that at *applied*: so replaying the log from *applied* on meets each configuration entry exactly once.

use bytes::{BufMut, Bytes, BytesMut};
use protobuf::Message as _;
use quorate_proto::ids::{LogIndex, ReplicaId, Term};
use raft::eraftpb::{ConfState, Entry, HardState};

use super::config::Quarantine;
use crate::effect::Restored;

/// Key of the pair.
pub const META_KEY: &str = "raft";

/// A new group starts after this position, so that a learner with an empty membership is always given a snapshot.
pub const BOOTSTRAP_INDEX: LogIndex = LogIndex(5);
/// Term of the bootstrap position.
pub const BOOTSTRAP_TERM: Term = Term(1);

/// State of a replica of a group that was just made: an empty log after [`BOOTSTRAP_INDEX`], everybody a voter.
/// Equal on every replica given the same members.
#[must_use]
pub fn bootstrap(members: &[ReplicaId]) -> Restored {
    let hard_state = HardState { term: BOOTSTRAP_TERM.0, commit: BOOTSTRAP_INDEX.0, ..Default::default() };
    let mut voters: Vec<u64> = members.iter().map(|m| m.0).collect();
    voters.sort_unstable();
    voters.dedup();
    let mut conf_state = ConfState::default();
    conf_state.set_voters(voters);
    Restored {
        hard_state,
        conf_state,
        compacted: (BOOTSTRAP_INDEX, BOOTSTRAP_TERM),
        entries: Vec::new(),
        applied: BOOTSTRAP_INDEX,
    }
}

/// State of a replica that is to learn everything from the leader (M1): no log, no members. It votes for nobody and
/// waits for a snapshot, which no log of a group can do without ([`BOOTSTRAP_INDEX`]).
#[must_use]
pub fn learner() -> Restored {
    let hard_state = HardState { term: BOOTSTRAP_TERM.0, ..Default::default() };
    Restored { hard_state, ..Restored::default() }
}

/// Value of [`META_KEY`].
#[must_use]
pub fn encode_meta(start: (LogIndex, Term), applied: LogIndex, conf_state: &ConfState) -> Bytes {
    let conf = conf_state.write_to_bytes().expect("a ConfState in memory always encodes");
    let mut out = BytesMut::with_capacity(24 + conf.len());
    out.put_u64(start.0 .0);
    out.put_u64(start.1 .0);
    out.put_u64(applied.0);
    out.put_slice(&conf);
    out.freeze()
}

/// What the WAL recovered for one group, put together. `entries` may begin before the start position (compaction
/// is lazy): those are left out.
///
/// # Errors
/// [`Quarantine`] if the pair cannot be read.
pub fn restored(meta: &[u8], hard_state: Option<HardState>, mut entries: Vec<Entry>) -> Result<Restored, Quarantine> {
    let word = |at: usize| -> Result<u64, Quarantine> {
        let bytes = meta.get(at..at + 8).ok_or_else(|| Quarantine::new("raft meta record too short"))?;
        Ok(u64::from_be_bytes(bytes.try_into().expect("eight bytes were taken")))
    };
    let (start, term, applied) = (word(0)?, word(8)?, word(16)?);
    let conf_state = ConfState::parse_from_bytes(&meta[24..])
        .map_err(|e| Quarantine::new(format!("raft meta record holds no membership: {e}")))?;
    entries.retain(|e| e.index > start);
    Ok(Restored {
        hard_state: hard_state.unwrap_or_default(),
        conf_state,
        compacted: (LogIndex(start), Term(term)),
        entries,
        applied: LogIndex(applied),
    })
}
