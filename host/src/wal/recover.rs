//! Reading the whole log at open.

use std::collections::BTreeMap;

use bytes::Bytes;
use protobuf::Message;
use quorate_proto::ids::GroupId;
use raft::eraftpb::{Entry, HardState};
use raft_engine::{Engine, Error, MessageExt};

use super::files::Files;
use super::RecoveredGroup;

/// Key of the hard state.
pub(super) const HARD_STATE: &str = "hard_state";
/// Group id of the canary's key–value; the directory never gives out 0.
pub(super) const CANARY_GROUP: u64 = 0;
/// Key of the number of flushes.
pub(super) const FLUSHES: &str = "flushes";
/// How often a fetch is tried when a purge moves the entries under it (fixed only in unreleased raft-engine).
const FETCH_TRIES: usize = 3;

/// Tells raft-engine where an entry's index is.
pub(super) struct RaftEntry;

impl MessageExt for RaftEntry {
    type Entry = Entry;
    fn index(entry: &Entry) -> u64 {
        entry.index
    }
}

/// Number of the newest flush that the log knows of; zero in a log of before such numbers, or in none.
pub(super) fn flushes(engine: &Engine<Files>) -> u64 {
    let stored = engine.get(CANARY_GROUP, FLUSHES.as_bytes());
    stored.and_then(|value| Some(u64::from_be_bytes(value.try_into().ok()?))).unwrap_or(0)
}

/// Everything of every group. Group by group: a flush of many groups is decoded once per group in it, which the
/// bound on the un-checkpointed tail keeps small.
pub(super) fn groups(engine: &Engine<Files>) -> Result<BTreeMap<GroupId, RecoveredGroup>, String> {
    let mut ids = engine.raft_groups();
    ids.sort_unstable();
    let mut groups = BTreeMap::new();
    for id in ids.into_iter().filter(|&id| id != CANARY_GROUP) {
        let group = group(engine, id).map_err(|reason| format!("{}: {reason}", GroupId(id)))?;
        groups.insert(GroupId(id), group);
    }
    Ok(groups)
}

fn group(engine: &Engine<Files>, id: u64) -> Result<RecoveredGroup, String> {
    let mut group = RecoveredGroup::default();
    engine
        .scan_raw_messages(id, None, None, false, |key, value| {
            group.kv.insert(String::from_utf8_lossy(key).into_owned(), Bytes::copy_from_slice(value));
            true
        })
        .map_err(|error| error.to_string())?;
    if let Some(value) = group.kv.remove(HARD_STATE) {
        group.hard_state = Some(HardState::parse_from_bytes(&value).map_err(|error| format!("hard state: {error}"))?);
    }
    if let (Some(first), Some(last)) = (engine.first_index(id), engine.last_index(id)) {
        match fetch(engine, id, first, last + 1, None) {
            Ok(entries) => group.entries = entries,
            // This group's, and nobody else's: the others go on.
            Err(error @ Error::Corruption(_)) => {
                tracing::error!(group = id, %error, "write-ahead log: entries are damaged");
                group.damage = Some(format!("its log is damaged between {first} and {last}: {error}"));
            }
            Err(error) => return Err(error.to_string()),
        }
    }
    Ok(group)
}

/// Entries `from..to`, at most `max_bytes` but one at least.
pub(super) fn fetch(
    engine: &Engine<Files>,
    group: u64,
    from: u64,
    to: u64,
    max_bytes: Option<usize>,
) -> Result<Vec<Entry>, Error> {
    let mut tries = 0;
    loop {
        tries += 1;
        let mut entries = Vec::new();
        match engine.fetch_entries_to::<RaftEntry>(group, from, to, max_bytes, &mut entries) {
            Ok(_) => return Ok(entries),
            Err(Error::Corruption(_)) if tries < FETCH_TRIES => {}
            Err(error) => return Err(error),
        }
    }
}
