//! The node core's own refusals, each in four parts. Texts are made only when something is refused.

use std::time::Duration;

use quorate_proto::control::{Assignment, Room};
use quorate_proto::ids::{GroupId, NodeId, Term};
use quorate_proto::refusal::{Reason, Refusal};

/// Advice where the end of the state is not foreseeable: a push of new routes usually comes first.
pub(super) const SOON: Duration = Duration::from_millis(100);
/// Advice of a fenced leader: it reopens or resigns within R = 300 ms (F3).
pub(super) const FENCE_RETRY: Duration = Duration::from_millis(50);

/// Advice while a disk is full: a leader that can move has moved by then.
const FULL_RETRY: Duration = Duration::from_millis(250);

/// `topic/partition`, as every text names it.
pub(super) fn subject(assignment: &Assignment) -> String {
    format!("{}/{}", assignment.topic, assignment.partition.get())
}

/// The partition is not hosted here.
pub(super) fn not_hosted(group: GroupId, node: NodeId) -> Refusal {
    Refusal::new(
        Reason::StaleIncarnation,
        "this node hosts no replica of the partition",
        format!("{group}, {node}"),
        "fetch the routes anew and send it to the leader they name",
    )
    .retry_after(SOON)
}

/// The replica does not lead; the leader, if known, is named.
pub(super) fn not_leader(assignment: &Assignment, leader: Option<NodeId>) -> Refusal {
    match leader {
        Some(leader) => Refusal::new(
            Reason::NotLeader,
            format!("another replica leads: {leader}"),
            subject(assignment),
            "send it to the leader",
        )
        .led_by(Some(leader)),
        None => Refusal::new(
            Reason::NoLeader,
            "no leader is known",
            subject(assignment),
            "wait for the routes to name a leader",
        )
        .retry_after(SOON),
    }
}

/// Leadership ended while the request was undecided (W4).
pub(super) fn undecided(assignment: &Assignment, leader: Option<NodeId>, term: Term) -> Refusal {
    let mut refusal = not_leader(assignment, leader).of_unknown_fate();
    refusal.what = format!("leadership of {term} ended before the fate of the request was decided");
    refusal.action = "send it again under the same identity: the answer tells its one true fate".into();
    refusal
}

/// A leader that may not serve now (F1).
pub(super) fn fenced(assignment: &Assignment, node: NodeId) -> Refusal {
    Refusal::new(
        Reason::Fenced,
        "the leader may not serve: contact to a majority or its lease is missing",
        format!("{}, {node}", subject(assignment)),
        "try again; another leader follows if this one does not recover",
    )
    .retry_after(FENCE_RETRY)
}

/// A planned handoff did not come to its end (H2).
pub(super) fn handed_over(assignment: &Assignment, leader: Option<NodeId>) -> Refusal {
    Refusal::new(
        Reason::Handoff,
        "the leader handed over and the next one did not take the request",
        subject(assignment),
        "send it again under the same identity, to the leader that the routes name",
    )
    .led_by(leader)
    .retry_after(SOON)
}

/// The node is closing.
pub(super) fn closing(assignment: &Assignment, node: NodeId) -> Refusal {
    Refusal::new(
        Reason::Handoff,
        "the node is closing and takes no more publishes",
        format!("{}, {node}", subject(assignment)),
        "send it to the new leader once the routes name it",
    )
    .retry_after(SOON)
}

/// The leader's disk is nearly full (B5).
pub(super) fn storage_full(assignment: &Assignment, node: NodeId, room: Room) -> Refusal {
    Refusal::new(
        Reason::StorageFull,
        format!("the disk of the leader's node is {room}"),
        format!("{}, {node}", subject(assignment)),
        "try again: leadership moves to a node with room, if there is one; see docs/runbooks/disk-full.md",
    )
    .retry_after(FULL_RETRY)
}

/// A majority of the replicas could not append it (B5).
pub(super) fn replicas_full(assignment: &Assignment) -> Refusal {
    Refusal::new(
        Reason::StorageFull,
        "the disks of a majority of the replicas are full",
        subject(assignment),
        "make room on their nodes, see `quorate node list` and docs/runbooks/disk-full.md; writing goes on by itself",
    )
    .retry_after(FULL_RETRY)
}

/// A bound is reached.
pub(super) fn busy(assignment: &Assignment, what: &str, bytes: u64, limit: u64, delay: Duration) -> Refusal {
    Refusal::new(
        Reason::Busy,
        format!("{what}: {bytes} of {limit} bytes"),
        subject(assignment),
        "send it again after the given delay",
    )
    .retry_after(delay)
}

/// Too many requests of one kind wait.
pub(super) fn busy_count(assignment: &Assignment, what: &str, limit: usize, delay: Duration) -> Refusal {
    Refusal::new(
        Reason::Busy,
        format!("{what}: {limit} wait already"),
        subject(assignment),
        "send it again after the given delay",
    )
    .retry_after(delay)
}

/// It came after its deadline.
pub(super) fn late(assignment: &Assignment) -> Refusal {
    Refusal::new(
        Reason::Deadline,
        "the deadline had passed when the request came to the partition",
        subject(assignment),
        "give it a later deadline if it is still wanted",
    )
}

/// The replica was set aside.
pub(super) fn quarantined(assignment: &Assignment, reason: &str) -> Refusal {
    Refusal::new(
        Reason::NoLeader,
        format!("this replica is set aside: {reason}"),
        subject(assignment),
        "wait for the routes to name another leader",
    )
    .retry_after(SOON)
}

/// The shell let a batch through that cannot be read.
pub(super) fn bad_batch(assignment: &Assignment, what: impl Into<String>) -> Refusal {
    Refusal::new(Reason::BadBatch, what, subject(assignment), "build the batch as docs/format.md says")
}
