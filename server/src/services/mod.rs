//! The public `Log` service of a data node.

mod fetch;
mod log;
mod outbox;
mod publish;
mod records;
pub mod status;
mod subscribe;

#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::sync::Arc;
use std::time::Duration;

use quorate_consensus::node::event::Publish;
use quorate_host::clock::Clock;
use quorate_host::turn::Post;
use quorate_proto::control::Role;
use quorate_proto::ids::{ClusterId, GroupId, NodeId, Offset, Term};
use quorate_proto::names::TopicName;
use quorate_proto::refusal::{Reason, Refusal};
use quorate_proto::v1::{self, Receipt};
use tokio::sync::{oneshot, watch};

pub use log::LogService;
pub use outbox::Outbox;

use crate::storage::StorageHandle;
use crate::view::{PartitionView, Views};

/// A publish or read that the services hand to the shell.
#[derive(Debug)]
pub enum Request {
    /// A verified batch; `publish.ticket` is set by the shell.
    Publish {
        /// What.
        publish: Publish,
        /// Where its fate goes.
        reply: Reply,
    },
    /// A linearizable end offset.
    ReadLatest {
        /// Of which partition.
        group: GroupId,
        /// Where the answer goes.
        reply: oneshot::Sender<Result<(Offset, Term), Refusal>>,
    },
}

/// Where the fate of a publish goes.
#[derive(Debug)]
pub enum Reply {
    /// To a stream.
    Stream {
        /// The stream's answers.
        outbox: Arc<Outbox>,
        /// The client's tag.
        tag: u64,
        /// Bytes reserved.
        cost: u64,
    },
    /// To a unary call.
    Once(oneshot::Sender<Result<Receipt, Refusal>>),
}

impl Reply {
    /// Delivers the fate.
    pub fn send(self, result: Result<Receipt, Refusal>) {
        match self {
            Self::Stream { outbox, tag, cost } => outbox.answer(response(tag, result), cost),
            // The caller may have given up; the fate stands nonetheless.
            Self::Once(caller) => drop(caller.send(result)),
        }
    }
}

fn response(tag: u64, result: Result<Receipt, Refusal>) -> v1::PublishResponse {
    let result = match result {
        Ok(receipt) => v1::publish_response::Result::Receipt(receipt),
        Err(refusal) => v1::publish_response::Result::Error(refusal.into()),
    };
    v1::PublishResponse { tag, result: Some(result) }
}

/// Bounds of the services.
#[derive(Clone, Debug)]
pub struct ServiceLimits {
    /// Bytes of one stream's publishes without an answer handed over.
    pub connection_bytes: u64,
    /// A client that takes no answer for this long is cut off.
    pub client_stall: Duration,
}

/// What all services of a node share.
pub struct Shared<E> {
    /// The cluster's identity.
    pub cluster: ClusterId,
    /// This node.
    pub node: NodeId,
    /// Hosted partitions.
    pub views: Arc<Views>,
    /// Segments.
    pub storage: StorageHandle,
    /// The shell's mailbox.
    pub core: Post<E>,
    /// Clock of F1's test.
    pub clock: Arc<dyn Clock>,
    /// Bounds.
    pub limits: ServiceLimits,
    /// Numbers connections.
    pub connections: AtomicU64,
    /// True once the node is about to close.
    pub closing: watch::Receiver<bool>,
}

impl<E> Shared<E> {
    /// Refuses a request meant for another cluster; an empty id means any.
    fn check_cluster(&self, cluster_id: &str) -> Result<(), Refusal> {
        if cluster_id.is_empty() || ClusterId::from_hex(cluster_id) == Some(self.cluster) {
            return Ok(());
        }
        Err(Refusal::new(
            Reason::ClusterMismatch,
            "the request is meant for another cluster",
            format!("this is cluster {}, {}", self.cluster, self.node),
            "check the addresses and the cluster id that the client was given",
        ))
    }

    /// The partition that a request names.
    fn find(&self, partition: Option<&v1::Partition>) -> Result<Arc<PartitionView>, Refusal> {
        let named = partition.ok_or_else(|| {
            Refusal::new(
                Reason::InvalidArgument,
                "the request names no partition",
                self.node.to_string(),
                "set the field `partition`",
            )
        })?;
        let name: TopicName = named.topic.parse().map_err(|bad: quorate_proto::names::BadTopicName| {
            Refusal::new(Reason::InvalidArgument, bad.to_string(), self.node.to_string(), "correct the topic's name")
        })?;
        let view = self.views.find(&name.to_string(), named.partition).map_err(|topic_known| {
            let what = if topic_known { "the topic has no such partition on this node" } else { "no such topic on this node" };
            Refusal::new(
                Reason::UnknownTopic,
                what,
                format!("{}/{} on {}", name.short(), named.partition, self.node),
                "topics are never created by use: create it (`quorate topic create`), or ask the observers for the route",
            )
            .retry_after(Duration::from_millis(500))
        })?;
        if named.group_id != 0 && named.group_id != view.assignment.group.get() {
            return Err(Refusal::new(
                Reason::StaleIncarnation,
                format!("the request is meant for {}", GroupId(named.group_id)),
                view.subject(),
                "fetch the routes again: the topic was made anew",
            ));
        }
        Ok(view)
    }

    /// F1 at arrival: who does not serve says who may.
    fn check_serving(&self, view: &PartitionView) -> Result<Term, Refusal> {
        let seen = view.view();
        if view.serves(self.clock.now(), seen.term) {
            return Ok(seen.term);
        }
        Err(self.not_serving(view))
    }

    /// Why this node does not serve the partition now.
    fn not_serving(&self, view: &PartitionView) -> Refusal {
        let seen = view.view();
        if seen.role == Role::Leader {
            return Refusal::new(
                Reason::Fenced,
                "the leader has no majority contact or no lease at the moment",
                view.subject(),
                "try again after the given delay, or at the leader that the observers name",
            )
            .retry_after(Duration::from_millis(100))
            .led_by(Some(self.node));
        }
        match seen.leader.filter(|leader| *leader != self.node) {
            Some(leader) => Refusal::new(
                Reason::NotLeader,
                format!("{} does not lead this partition", self.node),
                view.subject(),
                format!("go to {leader}, which leads"),
            )
            .led_by(Some(leader)),
            None => Refusal::new(
                Reason::NoLeader,
                "no leader is known at the moment",
                view.subject(),
                "try again after the given delay, or wait for the observers' route",
            )
            .retry_after(Duration::from_millis(100)),
        }
    }
}

/// Until a certificate says who it is, a client is known by its address.
fn principal(remote: Option<SocketAddr>) -> String {
    remote.map_or_else(|| "anonymous".to_owned(), |address| format!("anonymous@{}", address.ip()))
}
