//! What a full disk means for the log (B5).
//!
//! A replica whose disk is full takes no entries that carry records: of an append it takes those before the first such one,
//! which is a valid append by itself. It goes on answering its leader, voting, and taking entries that are small and that
//! must go on (a new leader's no-op, trims, positions). It tells its peers with every message; a leader does not send it
//! what it would not take, and refuses publishes when a majority would not take them.

use quorate_proto::control::Room;
use quorate_proto::entry::EntryKind;
use quorate_proto::ids::ReplicaId;
use raft::eraftpb::{Entry, EntryType, Message, MessageType};

use super::Replica;
use crate::policy::Policy;

impl<P: Policy> Replica<P> {
    /// Room on this node's disks, told to the peers.
    pub fn set_room(&mut self, room: Room) {
        self.room = room;
    }

    /// What a peer said of its disks last.
    #[must_use]
    pub fn room_of(&self, peer: ReplicaId) -> Room {
        self.peer_rooms.get(&peer).copied().unwrap_or_default()
    }

    /// A majority (of both halves, if joint) has room for records.
    #[must_use]
    pub fn majority_has_room(&self) -> bool {
        let half = |voters: &[u64]| {
            let takes = |id: &&u64| {
                let room = if **id == self.cfg.me.0 { self.room } else { self.room_of(ReplicaId(**id)) };
                room != Room::Full
            };
            voters.is_empty() || voters.iter().filter(takes).count() > voters.len() / 2
        };
        half(&self.conf.voters) && half(&self.conf.voters_outgoing)
    }

    pub(super) fn learn_room(&mut self, peer: ReplicaId, room: Room) {
        if room == Room::Ample {
            self.peer_rooms.remove(&peer);
        } else {
            self.peer_rooms.insert(peer, room);
        }
    }

    /// A leader spares a full peer what it would not take. (The observers' log carries no records.)
    pub(super) fn spare(&self, message: &mut Message) {
        let append = self.governed() && message.get_msg_type() == MessageType::MsgAppend;
        if append && self.room_of(ReplicaId(message.to)) == Room::Full {
            without_records(message);
        }
    }
}

/// Leaves of an append the entries before the first that carries records.
pub fn without_records(message: &mut Message) {
    let records =
        |entry: &Entry| entry.get_entry_type() == EntryType::EntryNormal && EntryKind::carries_records(&entry.data);
    let first = message.entries.iter().position(records);
    if let Some(first) = first {
        message.entries.truncate(first);
    }
}
