//! Execution of the core's effects, one arm each, in the order given.

use std::sync::Arc;

use quorate_consensus::effect::Note;
use quorate_consensus::envelope::{Envelope, Lane};
use quorate_consensus::node::effect::Observers;
use quorate_consensus::node::{NodeEffect, NodeEvent};
use quorate_host::wal::WalRequest;
use quorate_proto::control::{Assignment, Room, SessionUp};
use quorate_proto::ids::{GroupId, NodeId, ReplicaId, Ticket};
use quorate_proto::internal;
use quorate_proto::refusal::Refusal;
use quorate_proto::v1::Receipt;
use tokio::sync::mpsc::error::TrySendError;

use super::metrics::PartitionMetrics;
use super::shell::{Hosted, Shell};
use crate::storage::snapshot_parts;
use crate::view::PartitionView;

/// The core is told of a group's storage queue from this length on.
const BACKLOG_TOLD: u64 = 8 << 20;

impl Shell {
    /// Executes all effects that wait.
    pub fn execute(&mut self) {
        let mut effects = std::mem::take(&mut self.effects);
        for effect in effects.drain(..) {
            self.perform(effect);
        }
        // Its room is used again.
        self.effects = effects;
    }

    fn perform(&mut self, effect: NodeEffect) {
        match effect {
            NodeEffect::Persist(mut write) => {
                if write.clear {
                    if let Some(hosted) = self.hosted.get_mut(&write.group) {
                        hosted.retire_after = Some(write.id);
                    }
                }
                write.group = self.keys.of(write.group);
                self.wal_requests.push(WalRequest::Persist(write));
            }
            NodeEffect::WalToken { seq } => self.wal_requests.push(WalRequest::Token { seq }),
            NodeEffect::Canary => self.wal_requests.push(WalRequest::Canary),
            NodeEffect::Fetch { group, from, to, max_bytes } => {
                let group = self.keys.of(group);
                self.wal_requests.push(WalRequest::Fetch { group, from, to, max_bytes });
            }
            NodeEffect::Send { node, lane: Lane::Snapshot, envelope } => self.send_snapshot(node, *envelope),
            NodeEffect::Send { node, lane, envelope } => self.transport.send(node, lane, envelope),
            NodeEffect::Session { to, message } => self.tell_observers(to, *message),
            NodeEffect::Peers(peers) => {
                self.transport.set_peers(peers.into_iter().map(|peer| (peer.node, peer.peer_address)));
            }
            NodeEffect::Answer { ticket, result } => self.answer(ticket, result),
            NodeEffect::ReadAnswer { ticket, result } => {
                if let Some(reader) = self.reads.remove(&ticket) {
                    let _ = reader.send(result);
                }
            }
            NodeEffect::Open(assignment) => self.host(assignment),
            NodeEffect::Append { group, entries } => {
                let Some(hosted) = self.hosted.get_mut(&group) else { return };
                hosted.view.append(&entries);
                let waiting = &hosted.view.storage_waiting;
                self.storage.append(self.keys.of(group), entries, waiting);
                let bytes = waiting.load(std::sync::atomic::Ordering::Relaxed);
                if bytes > BACKLOG_TOLD {
                    hosted.backlog_told = true;
                    self.echoes.push(NodeEvent::StorageBacklog { group, bytes });
                }
            }
            NodeEffect::View { group, view } => {
                if let Some(hosted) = self.hosted.get(&group) {
                    hosted.view.set_view(view);
                }
            }
            NodeEffect::ServeUntil { group, until } => {
                if let Some(hosted) = self.hosted.get(&group) {
                    hosted.view.set_serve_until(until);
                }
            }
            NodeEffect::Checkpoint { group, index, term, state } => {
                self.storage.checkpoint(self.keys.of(group), index, term, state);
            }
            NodeEffect::BuildSnapshot { group, to } => self.storage.build_snapshot(self.keys.of(group), to),
            NodeEffect::InstallSnapshot { group, index, data, .. } => {
                if let Some(hosted) = self.hosted.get(&group) {
                    hosted.view.forget();
                }
                self.storage.install(self.keys.of(group), index, data);
            }
            NodeEffect::Quarantined { group, reason } => {
                tracing::error!(%group, %reason, "replica set aside: its data cannot be trusted; its files are kept");
                self.metrics.quarantined.increment(1);
            }
            NodeEffect::Retire { group, replica } => self.retire(group, replica),
            NodeEffect::Reopen { group, replica } => {
                tracing::warn!(
                    %group, %replica,
                    "the replica that was to take this one's place was given up: starting again to open its data"
                );
                self.terminate();
            }
            NodeEffect::RaiseIncarnation(above) => {
                tracing::warn!(%above, "this node's disk is a new one: raising its incarnation and starting again");
                self.raise_above = Some(above);
            }
            NodeEffect::KeepDirectory(directory) => self.keeper.keep(directory),
            NodeEffect::Room(room) => self.room_changed(room),
            NodeEffect::Ballast(order) => self.gauge.order(order),
            NodeEffect::Fatal(reason) => {
                tracing::error!(%reason, "the observers refuse this node for good");
                self.fatal = Some(reason);
            }
            NodeEffect::Note { group, note } => self.note(group, &note),
        }
    }

    fn room_changed(&mut self, room: Room) {
        self.room.store(room.number(), std::sync::atomic::Ordering::Relaxed);
        match room {
            Room::Ample => tracing::info!("the disk has room again: publishes are taken"),
            Room::Scarce => tracing::warn!("the disk is nearly full: no publishes are taken, leaders go elsewhere"),
            Room::Full => tracing::error!("the disk is full: nothing that carries records is appended"),
        }
    }

    fn host(&mut self, assignment: Assignment) {
        let group = assignment.group;
        let same = |hosted: &Hosted| hosted.view.assignment.replica == assignment.replica;
        if self.hosted.get(&group).is_some_and(same) {
            return;
        }
        tracing::info!(
            %group, replica = %assignment.replica, topic = %assignment.topic, partition = %assignment.partition,
            "hosting a replica"
        );
        let key = self.keys.host(&assignment);
        self.storage.open(key);
        let metrics = PartitionMetrics::register(&assignment);
        let view = Arc::new(PartitionView::new(assignment, key, Arc::clone(&self.budget)));
        self.views.insert(&view);
        let hosted = Hosted { view, metrics, snapshot: None, retire_after: None, backlog_told: false };
        self.hosted.insert(group, hosted);
    }

    /// The replica's successor is promoted: its data may go.
    fn retire(&mut self, group: GroupId, replica: ReplicaId) {
        if self.hosted.get(&group).is_some_and(|hosted| hosted.view.assignment.replica == replica) {
            if let Some(hosted) = self.hosted.remove(&group) {
                self.views.remove(&hosted.view);
            }
        }
        if let Some(key) = self.keys.retire(group, replica) {
            tracing::info!(%group, %replica, "the replica was replaced: deleting its data");
            self.removing.insert(key);
            self.storage.remove(key);
        }
    }

    fn answer(&mut self, ticket: Ticket, result: Result<Receipt, Refusal>) {
        // Exactly one answer per ticket: what is not there was answered, which the core never does twice.
        let Some(waiting) = self.waiting.remove(&ticket) else {
            tracing::error!(%ticket, "an answer to a request that nobody waits for");
            return;
        };
        if let Some(hosted) = self.hosted.get(&waiting.group) {
            hosted.metrics.answered(&result, self.clock.now().since(waiting.since), waiting.bytes);
        }
        waiting.reply.send(result);
    }

    fn tell_observers(&mut self, to: Observers, message: SessionUp) {
        if let SessionUp::Phases(marks) = &message {
            self.metrics.failover(marks);
        }
        let message = internal::SessionUp::from(message);
        let observers: Vec<NodeId> = match to {
            Observers::All => self.sessions.keys().copied().collect(),
            Observers::One(observer) => vec![observer],
        };
        for observer in observers {
            let Some(queue) = self.sessions.get(&observer) else { continue };
            if let Err(TrySendError::Full(_)) = queue.try_send(message.clone()) {
                // Minutes of silence: dropping the queue ends the stream, and a new one is opened.
                tracing::warn!(%observer, "the session takes nothing: opening it anew");
                self.sessions.remove(&observer);
            }
        }
    }

    /// A snapshot travels with the files that it was built from.
    fn send_snapshot(&mut self, node: NodeId, envelope: Envelope) {
        let index = envelope.message.get_snapshot().get_metadata().index;
        let (group, to) = (envelope.group, envelope.to);
        let built = self.hosted.get(&group).and_then(|hosted| hosted.snapshot.as_ref());
        let parts = match built.filter(|(checkpoint, _)| checkpoint.index == index) {
            Some((checkpoint, files)) => snapshot_parts(checkpoint, files).map_err(|e| e.to_string()),
            None => Err(format!("no snapshot of index {index} was built")),
        };
        match parts {
            Ok(parts) => {
                tracing::info!(%group, %node, index, "sending a snapshot");
                self.metrics.snapshots_sent.increment(1);
                self.transport.send_snapshot(node, envelope, parts);
            }
            Err(error) => {
                tracing::warn!(%group, %node, %error, "snapshot not sent");
                self.echoes.push(NodeEvent::SnapshotSent { group, to, ok: false });
            }
        }
    }

    fn note(&mut self, group: GroupId, note: &Note) {
        match note {
            Note::Elected(term) => {
                tracing::info!(%group, %term, "elected leader");
                self.metrics.elections.increment(1);
            }
            Note::Resigned(why) => tracing::warn!(%group, why, "leader resigned"),
            Note::Fenced(true) => {
                tracing::warn!(%group, "fence closed: no contact with a majority");
                self.metrics.fences.increment(1);
            }
            Note::Fenced(false) => tracing::info!(%group, "fence open"),
            Note::Vetoed { rule, candidate } => {
                tracing::debug!(%group, rule, %candidate, "vote refused");
                self.metrics.vetoes.increment(1);
            }
            Note::HandoffFailed(why) => tracing::warn!(%group, why, "planned handoff given up"),
            Note::PermitSeen(epoch) => tracing::debug!(%group, %epoch, "permit seen"),
            Note::MembershipStep => tracing::info!(%group, "changing the members"),
            Note::Dropped(why) => tracing::debug!(%group, why, "message dropped"),
            Note::ToldStale { by } => tracing::warn!(
                %group, node = %by,
                "STALE_INCARNATION: that node does not host the replica addressed (not yet, or not any more)"
            ),
        }
    }
}
