//! Directory and administration calls.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use quorate_proto::ids::PartitionNo;
use quorate_proto::refusal::{Reason, Refusal};
use quorate_proto::v1;
use quorate_proto::v1::admin_client::AdminClient;
use quorate_proto::v1::directory_client::DirectoryClient;
use tonic::transport::Channel;
use tonic::{Response, Status};

use super::channels::{Purpose, MESSAGE_MAX};
use super::client::{full_name, Inner};
use super::status;
use crate::core::backoff::Jitter;

/// A call tries every observer in turn for so long.
const CALL_LIMIT: Duration = Duration::from_secs(10);
/// One observer gets so long to answer.
const ATTEMPT_LIMIT: Duration = Duration::from_secs(3);

/// Typed calls to the observers: the observer leader is asked first, because only it answers from fresh reports;
/// then the others. Every call tries for at most 10 s. All futures are cancellation-safe; a `create_topic` that was
/// cancelled may have been done.
#[derive(Clone, Debug)]
pub struct Admin {
    inner: Arc<Inner>,
    limit: Duration,
}

impl Admin {
    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        Self { inner, limit: CALL_LIMIT }
    }

    /// How long each call tries. 10 s.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Creates a topic. Harmless when repeated by the retry inside; a namesake is refused `ALREADY_EXISTS`.
    ///
    /// # Errors
    /// The observers' refusal, or `UNREACHABLE` naming each address tried.
    pub async fn create_topic(&self, topic: &str, partitions: u32) -> Result<v1::TopicDescription, Refusal> {
        let topic = full_name(topic)?;
        let operation: [u8; 16] = rand::random();
        let request =
            v1::CreateTopicRequest { topic, partitions, operation_id: bytes::Bytes::copy_from_slice(&operation) };
        self.call(|channel| {
            let request = request.clone();
            async move { AdminClient::new(channel).create_topic(request).await }
        })
        .await
    }

    /// Moves a partition's leader to the node of this name or number, without a failed request. With `pin` it belongs
    /// there until [`Self::unpin_leader`]. Answered once the target leads.
    ///
    /// # Errors
    /// `LAGGING`, `REFUSED_UNSAFE` (the target is draining, sick, or had a fault within 30 s), `HANDOFF` (it did not take
    /// over), `BUSY`, `NO_LEADER`, `INVALID_ARGUMENT`; each says why and what to do.
    pub async fn handoff(
        &self,
        topic: &str,
        partition: PartitionNo,
        to_node: &str,
        pin: bool,
    ) -> Result<v1::PartitionDescription, Refusal> {
        let request = v1::HandoffRequest {
            topic: full_name(topic)?,
            partition: partition.get(),
            to_node: to_node.to_owned(),
            pin,
        };
        let answer = self
            .call(|channel| {
                let request = request.clone();
                async move { AdminClient::new(channel).handoff(request).await }
            })
            .await?;
        Ok(answer.partition.unwrap_or_default())
    }

    /// Drains a node (its leaders are handed over and it gets none), or takes that back. Answered once recorded; the
    /// leaders follow.
    ///
    /// # Errors
    /// As [`Self::create_topic`]; `INVALID_ARGUMENT` if there is no such node.
    pub async fn drain_node(&self, node: &str, drain: bool) -> Result<v1::NodeDescription, Refusal> {
        let request = v1::DrainNodeRequest { node: node.to_owned(), drain };
        let answer = self
            .call(|channel| {
                let request = request.clone();
                async move { AdminClient::new(channel).drain_node(request).await }
            })
            .await?;
        Ok(answer.node.unwrap_or_default())
    }

    /// Leaves the place of a partition's leader to the cluster again.
    ///
    /// # Errors
    /// As [`Self::describe_partition`].
    pub async fn unpin_leader(&self, topic: &str, partition: PartitionNo) -> Result<v1::PartitionDescription, Refusal> {
        let request = v1::UnpinLeaderRequest { topic: full_name(topic)?, partition: partition.get() };
        let answer = self
            .call(|channel| {
                let request = request.clone();
                async move { AdminClient::new(channel).unpin_leader(request).await }
            })
            .await?;
        Ok(answer.partition.unwrap_or_default())
    }

    /// Begins to replace the replica on one node by a new one on another node, or on the same one. Answered once the
    /// task is recorded.
    ///
    /// # Errors
    /// `REFUSED_UNSAFE` (another member is not healthy, the place does not fit), `INVALID_ARGUMENT`, `UNKNOWN_TOPIC`.
    pub async fn replace_replica(
        &self,
        topic: &str,
        partition: PartitionNo,
        from_node: &str,
        to_node: &str,
    ) -> Result<v1::TaskDescription, Refusal> {
        let request = v1::ReplaceReplicaRequest {
            topic: full_name(topic)?,
            partition: partition.get(),
            from_node: from_node.to_owned(),
            to_node: to_node.to_owned(),
        };
        self.call(|channel| {
            let request = request.clone();
            async move { AdminClient::new(channel).replace_replica(request).await }
        })
        .await
    }

    /// The newest tasks, newest last.
    ///
    /// # Errors
    /// As [`Self::create_topic`].
    pub async fn list_tasks(&self, limit: u32) -> Result<v1::ListTasksResponse, Refusal> {
        self.call(|channel| async move { directory(channel).list_tasks(v1::ListTasksRequest { limit }).await }).await
    }

    /// One task.
    ///
    /// # Errors
    /// As [`Self::create_topic`]; `INVALID_ARGUMENT` if there is none.
    pub async fn describe_task(&self, task: u64) -> Result<v1::TaskDescription, Refusal> {
        self.call(|channel| async move { directory(channel).describe_task(v1::DescribeTaskRequest { task }).await })
            .await
    }

    /// The break-glass permit (`docs/runbooks/needs-operator.md`): without a plan only its effect and a token are told.
    ///
    /// # Errors
    /// `REFUSED_UNSAFE` unless the partition needs an operator; `PLAN_STALE` if anything moved since the plan was shown.
    pub async fn break_glass(
        &self,
        topic: &str,
        partition: PartitionNo,
        node: &str,
        plan: Option<&str>,
    ) -> Result<v1::BreakGlassResponse, Refusal> {
        let request = v1::BreakGlassRequest {
            topic: full_name(topic)?,
            partition: partition.get(),
            node: node.to_owned(),
            plan: plan.unwrap_or_default().to_owned(),
        };
        self.call(|channel| {
            let request = request.clone();
            async move { AdminClient::new(channel).break_glass(request).await }
        })
        .await
    }

    /// Makes the observers' directory anew from what the data nodes know (`docs/runbooks/observers-rebuild.md`): without a plan
    /// only the effect and a token are told.
    ///
    /// # Errors
    /// `REFUSED_UNSAFE` while the observers have a directory, a lease may run, or too few nodes answer; `PLAN_STALE` if
    /// anything moved since the plan was shown.
    pub async fn rebuild_directory(&self, plan: Option<&str>) -> Result<v1::RebuildDirectoryResponse, Refusal> {
        let request = v1::RebuildDirectoryRequest { plan: plan.unwrap_or_default().to_owned() };
        self.call(|channel| {
            let request = request.clone();
            async move { AdminClient::new(channel).rebuild_directory(request).await }
        })
        .await
    }

    /// Dangerous things that operators did, newest last.
    ///
    /// # Errors
    /// As [`Self::create_topic`].
    pub async fn list_audit(&self, limit: u32) -> Result<Vec<v1::AuditRecord>, Refusal> {
        let answer = self
            .call(|channel| async move { directory(channel).list_audit(v1::ListAuditRequest { limit }).await })
            .await?;
        Ok(answer.records)
    }

    /// Gives a change of members up, as long as the new replica only learns.
    ///
    /// # Errors
    /// As [`Self::describe_task`]; `REFUSED_UNSAFE` once it is being promoted, or over.
    pub async fn cancel_task(&self, task: u64) -> Result<v1::TaskDescription, Refusal> {
        self.call(|channel| async move { AdminClient::new(channel).cancel_task(v1::CancelTaskRequest { task }).await })
            .await
    }

    /// All topics.
    ///
    /// # Errors
    /// As [`Self::create_topic`].
    pub async fn list_topics(&self) -> Result<v1::ListTopicsResponse, Refusal> {
        self.call(|channel| async move { directory(channel).list_topics(v1::ListTopicsRequest {}).await }).await
    }

    /// One topic with its partitions.
    ///
    /// # Errors
    /// As [`Self::create_topic`]; `UNKNOWN_TOPIC`.
    pub async fn describe_topic(&self, topic: &str) -> Result<v1::TopicDescription, Refusal> {
        let topic = full_name(topic)?;
        self.call(|channel| {
            let request = v1::DescribeTopicRequest { topic: topic.clone() };
            async move { directory(channel).describe_topic(request).await }
        })
        .await
    }

    /// One partition with its replicas.
    ///
    /// # Errors
    /// As [`Self::describe_topic`].
    pub async fn describe_partition(
        &self,
        topic: &str,
        partition: PartitionNo,
    ) -> Result<v1::PartitionDescription, Refusal> {
        let topic = full_name(topic)?;
        self.call(|channel| {
            let request = v1::DescribePartitionRequest { topic: topic.clone(), partition: partition.get() };
            async move { directory(channel).describe_partition(request).await }
        })
        .await
    }

    /// All data nodes and observers.
    ///
    /// # Errors
    /// As [`Self::create_topic`].
    pub async fn list_nodes(&self) -> Result<v1::ListNodesResponse, Refusal> {
        self.call(|channel| async move { directory(channel).list_nodes(v1::ListNodesRequest {}).await }).await
    }

    /// What a partition is doing, in words; without a number all partitions of the topic that are not simply served, with
    /// neither those of the cluster. Any observer answers, also without a majority of them; `authoritative` says whether
    /// it was the one that leads.
    ///
    /// # Errors
    /// As [`Self::describe_topic`].
    pub async fn explain(
        &self,
        topic: Option<&str>,
        partition: Option<PartitionNo>,
    ) -> Result<v1::ExplainResponse, Refusal> {
        let topic = topic.map(full_name).transpose()?.unwrap_or_default();
        let request = v1::ExplainRequest { topic, partition: partition.map(PartitionNo::get) };
        self.call(|channel| {
            let request = request.clone();
            async move { directory(channel).explain(request).await }
        })
        .await
    }

    /// The newest failovers with their phases, newest last.
    ///
    /// # Errors
    /// As [`Self::create_topic`].
    pub async fn list_failovers(&self, limit: u32) -> Result<v1::ListFailoversResponse, Refusal> {
        self.call(|channel| async move { directory(channel).list_failovers(v1::ListFailoversRequest { limit }).await })
            .await
    }

    /// Asks the observers in turn, the leader first, until one answers or time runs out.
    async fn call<R, F, Fut>(&self, ask: F) -> Result<R, Refusal>
    where
        F: Fn(Channel) -> Fut,
        Fut: Future<Output = Result<Response<R>, Status>>,
    {
        let mut jitter = Jitter::new(rand::random());
        let mut tried: Vec<(String, String)> = Vec::new();
        let rounds = async {
            for round in 0.. {
                for address in self.addresses() {
                    let refusal = match self.attempt(&address, &ask).await {
                        Ok(answer) => return Ok(answer),
                        Err(refusal) => refusal,
                    };
                    if !elsewhere(refusal.reason) {
                        return Err(refusal);
                    }
                    tried.retain(|(known, _)| *known != address);
                    tried.push((address, format!("{} ({})", refusal.what, refusal.reason.as_str_name())));
                }
                tokio::time::sleep(jitter.delay(round)).await;
            }
            unreachable!("the rounds have no end")
        };
        match tokio::time::timeout(self.limit, rounds).await {
            Ok(answer) => answer,
            Err(_) => Err(Refusal::new(
                Reason::Unreachable,
                format!("no observer could answer within {:?}", self.limit),
                tried.iter().map(|(address, why)| format!("{address}: {why}")).collect::<Vec<_>>().join("; "),
                "check that a majority of the observers runs (quorate node list)",
            )
            .of_unknown_fate()),
        }
    }

    async fn attempt<R, F, Fut>(&self, address: &str, ask: &F) -> Result<R, Refusal>
    where
        F: Fn(Channel) -> Fut,
        Fut: Future<Output = Result<Response<R>, Status>>,
    {
        let broken = |why: String| Refusal::new(Reason::Unreachable, why, address, "try again");
        let channel = self.inner.channels.get(Purpose::Observe, address).map_err(broken)?;
        match tokio::time::timeout(ATTEMPT_LIMIT, ask(channel)).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) => Err(status::refusal(&status, address)),
            Err(_) => Err(broken(format!("no answer within {ATTEMPT_LIMIT:?}"))),
        }
    }

    /// The observer leader first.
    fn addresses(&self) -> Vec<String> {
        let leader = self.inner.table().observer_leader.clone();
        let others = self.inner.observers.iter().filter(|address| **address != leader).cloned();
        (!leader.is_empty()).then(|| leader.clone()).into_iter().chain(others).collect()
    }
}

/// Another observer, or this one later, may answer.
fn elsewhere(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::NotLeader
            | Reason::NoLeader
            | Reason::Unreachable
            | Reason::Busy
            | Reason::Deadline
            | Reason::Fenced
            | Reason::Handoff
    )
}

fn directory(channel: Channel) -> DirectoryClient<Channel> {
    DirectoryClient::new(channel).max_decoding_message_size(MESSAGE_MAX)
}
