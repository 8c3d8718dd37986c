//! `Directory` and `Admin` (`4-interfaces`): any observer answers reads and pushes routes; its leader makes topics.

use std::pin::Pin;

use quorate_consensus::directory::PARTITIONS_MAX;
use quorate_consensus::observer::event::AdminRequest;
use quorate_consensus::observer::ObserverCore;
use quorate_proto::ids::{ClusterId, OperationId, PartitionNo, TaskId, TopicId};
use quorate_proto::names::TopicName;
use quorate_proto::refusal::{Reason, Refusal};
use quorate_proto::status::status;
use quorate_proto::v1;
use quorate_proto::v1::admin_server::{Admin, AdminServer};
use quorate_proto::v1::directory_server::{Directory, DirectoryServer};
use tokio::sync::oneshot;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request as Call, Response, Status};

use super::{describe, explain, tasks, Loop, Request, MESSAGE_MAX};
use crate::routes::PROTOCOL_VERSION;

/// Failovers listed when the caller names no limit.
const FAILOVERS: u32 = 100;
/// Tasks listed if the caller does not say how many.
const TASKS: u32 = 100;

/// Both services.
#[derive(Clone)]
pub struct DirectoryService {
    core: Loop,
}

impl DirectoryService {
    /// Ready for a tonic router.
    #[must_use]
    pub fn servers(core: Loop) -> (DirectoryServer<Self>, AdminServer<Self>) {
        let service = Self { core };
        let directory = DirectoryServer::new(service.clone());
        let admin = AdminServer::new(service);
        (
            directory.max_decoding_message_size(MESSAGE_MAX).max_encoding_message_size(MESSAGE_MAX),
            admin.max_decoding_message_size(MESSAGE_MAX).max_encoding_message_size(MESSAGE_MAX),
        )
    }

    async fn watch(&self, request: v1::WatchRoutesRequest) -> Result<Routes, Refusal> {
        let refuse = |reason, what: String, action: &str| Err(Refusal::new(reason, what, self.core.subject(), action));
        let cluster = self.core.config.cluster();
        if !request.cluster_id.is_empty() && ClusterId::from_hex(&request.cluster_id) != Some(cluster) {
            let what = format!("this is cluster {cluster}, not {}", request.cluster_id);
            return refuse(Reason::ClusterMismatch, what, "check the addresses of the observers");
        }
        if request.protocol_version < PROTOCOL_VERSION {
            let what = format!("routes have protocol version {PROTOCOL_VERSION}, not {}", request.protocol_version);
            return refuse(
                Reason::UnsupportedVersion,
                what,
                "set protocol_version to what the client speaks, or upgrade it",
            );
        }
        let topics = request.topics.iter().map(|name| full_name(name)).collect::<Result<Vec<_>, _>>()?;
        let (reply, watching) = oneshot::channel();
        self.core.ask(Request::Watch(topics, reply))?;
        let routes = self.core.answer(watching).await??;
        Ok(Box::pin(ReceiverStream::new(routes).map(Ok)))
    }

    async fn topic(&self, name: String) -> Result<v1::TopicDescription, Refusal> {
        let name = full_name(&name)?;
        let unknown = unknown_topic(&name);
        let found = self.core.look(move |core, _, now| describe::topic(core, &name, now)).await?;
        found.ok_or(unknown)
    }

    async fn create(&self, request: v1::CreateTopicRequest) -> Result<v1::TopicDescription, Refusal> {
        let name = full_name(&request.topic)?;
        let wrong = |what: String, action: &str| {
            Err(Refusal::new(Reason::InvalidArgument, what, format!("topic {name}"), action))
        };
        if request.partitions == 0 || request.partitions > PARTITIONS_MAX {
            let what = format!("{} partitions, allowed are 1 to {PARTITIONS_MAX}", request.partitions);
            return wrong(what, "choose another number");
        }
        let operation = if request.operation_id.is_empty() {
            OperationId(rand::random())
        } else {
            match OperationId::from_slice(&request.operation_id) {
                Some(operation) => operation,
                None => return wrong("operation_id has not 16 bytes".to_owned(), "send 16 random bytes, or none"),
            }
        };
        let topic_id = TopicId(rand::random());
        let partitions = request.partitions;
        self.admin(AdminRequest::CreateTopic { name: name.clone(), partitions, operation, topic_id }).await?;
        self.topic(name).await
    }

    /// Asks the core for a change and waits for its outcome.
    async fn admin(&self, request: AdminRequest) -> Result<(), Refusal> {
        let (reply, done) = oneshot::channel();
        self.core.ask(Request::Admin(request, reply))?;
        self.core.answer(done).await?.map_err(|mut refusal| {
            let address = refusal.leader.and_then(|leader| self.core.config.address_of(leader));
            if let Some(address) = address.filter(|_| refusal.reason == Reason::NotLeader) {
                refusal.action = format!("ask the observer that leads, at {address}");
            }
            refusal
        })
    }

    async fn partition(&self, name: String, number: PartitionNo) -> Result<v1::PartitionDescription, Refusal> {
        let missing = unknown_partition(&name, number);
        let found = self.core.look(move |core, _, now| describe::partition_of(core, &name, number, now)).await?;
        found.ok_or(missing)
    }

    async fn explain(&self, request: v1::ExplainRequest) -> Result<v1::ExplainResponse, Refusal> {
        let topic = if request.topic.is_empty() { None } else { Some(full_name(&request.topic)?) };
        let number = request.partition.map(PartitionNo);
        let named = topic.clone().unwrap_or_default();
        let unknown = match number {
            Some(number) => unknown_partition(&named, number),
            None => unknown_topic(&named),
        };
        let look = move |core: &ObserverCore, now| explain::explain(core, topic.as_deref(), number, now);
        self.core.look(move |core, _, now| look(core, now)).await?.ok_or(unknown)
    }

    async fn handoff(&self, request: v1::HandoffRequest) -> Result<v1::HandoffResponse, Refusal> {
        let v1::HandoffRequest { topic, partition, to_node: to, pin } = request;
        let (topic, partition) = (full_name(&topic)?, PartitionNo(partition));
        self.admin(AdminRequest::Handoff { topic: topic.clone(), partition, to, pin }).await?;
        Ok(v1::HandoffResponse { partition: Some(self.partition(topic, partition).await?) })
    }

    async fn drain(&self, request: v1::DrainNodeRequest) -> Result<v1::DrainNodeResponse, Refusal> {
        let v1::DrainNodeRequest { node, drain: draining } = request;
        self.admin(AdminRequest::Drain { node: node.clone(), draining }).await?;
        let node = self.core.look(move |core, _, now| describe::node_named(core, &node, now)).await?;
        Ok(v1::DrainNodeResponse { node })
    }

    async fn replace(&self, request: v1::ReplaceReplicaRequest) -> Result<v1::TaskDescription, Refusal> {
        let v1::ReplaceReplicaRequest { topic, partition, from_node: from, to_node: to } = request;
        let (topic, partition) = (full_name(&topic)?, PartitionNo(partition));
        self.admin(AdminRequest::Replace { topic: topic.clone(), partition, from, to }).await?;
        let look = move |core: &quorate_consensus::observer::ObserverCore, now| {
            let directory = core.directory();
            let group = directory.topic_named(&topic)?.groups.get(usize::try_from(partition.get()).ok()?)?;
            let newest = directory.tasks().rev().find(|task| task.group == *group)?;
            tasks::find(core, newest.id, now)
        };
        let found = self.core.look(move |core, _, now| look(core, now)).await?;
        found.ok_or_else(|| unknown_task("the new task"))
    }

    async fn break_glass(
        &self,
        request: v1::BreakGlassRequest,
        principal: String,
    ) -> Result<v1::BreakGlassResponse, Refusal> {
        let v1::BreakGlassRequest { topic, partition, node, plan } = request;
        let (topic, partition) = (full_name(&topic)?, PartitionNo(partition));
        if plan.is_empty() {
            let look = move |core: &quorate_consensus::observer::ObserverCore, now| {
                core.break_glass_plan(now, (&topic, partition), &node)
            };
            let plan = self.core.look(move |core, _, now| look(core, now)).await??;
            return Ok(v1::BreakGlassResponse { plan: plan.token, effect: plan.effect, done: false });
        }
        self.admin(AdminRequest::BreakGlass { topic, partition, node, plan, principal }).await?;
        Ok(v1::BreakGlassResponse { done: true, ..v1::BreakGlassResponse::default() })
    }

    async fn rebuild(
        &self,
        request: v1::RebuildDirectoryRequest,
        principal: String,
    ) -> Result<v1::RebuildDirectoryResponse, Refusal> {
        let plan = request.plan;
        if plan.is_empty() {
            let plan = self.core.look(|core, _, now| core.rebuild_plan(now)).await??;
            return Ok(v1::RebuildDirectoryResponse { plan: plan.token, effect: plan.effect, done: false });
        }
        self.admin(AdminRequest::Rebuild { plan, principal }).await?;
        Ok(v1::RebuildDirectoryResponse { done: true, ..v1::RebuildDirectoryResponse::default() })
    }

    async fn task(&self, id: u64) -> Result<v1::TaskDescription, Refusal> {
        let found = self.core.look(move |core, _, now| tasks::find(core, TaskId(id), now)).await?;
        found.ok_or_else(|| unknown_task(&TaskId(id).to_string()))
    }

    async fn unpin(&self, request: v1::UnpinLeaderRequest) -> Result<v1::UnpinLeaderResponse, Refusal> {
        let (topic, partition) = (full_name(&request.topic)?, PartitionNo(request.partition));
        self.admin(AdminRequest::Unpin { topic: topic.clone(), partition }).await?;
        Ok(v1::UnpinLeaderResponse { partition: Some(self.partition(topic, partition).await?) })
    }
}

/// `namespace/name`, checked.
fn full_name(text: &str) -> Result<String, Refusal> {
    text.parse::<TopicName>().map(|name| name.to_string()).map_err(|error| {
        let action = "use 1 to 200 of A-Z a-z 0-9 . _ -, with `namespace/` before it if you need one";
        Refusal::new(Reason::InvalidArgument, error.to_string(), format!("topic {text}"), action)
    })
}

fn unknown_task(subject: &str) -> Refusal {
    let action = "see `quorate task list`; tasks that ended long ago are forgotten";
    Refusal::new(Reason::InvalidArgument, "there is no such task", subject, action)
}

fn unknown_topic(name: &str) -> Refusal {
    let action = "check the name (`quorate topic list`), or create it: topics are never made by use";
    Refusal::new(Reason::UnknownTopic, "there is no such topic", format!("topic {name}"), action)
}

fn unknown_partition(topic: &str, number: PartitionNo) -> Refusal {
    let (what, action) = ("there is no such topic or partition", "check it with `quorate topic describe`");
    Refusal::new(Reason::UnknownTopic, what, format!("{topic}/{}", number.get()), action)
}

type Routes = Pin<Box<dyn Stream<Item = Result<v1::Routes, Status>> + Send>>;

#[tonic::async_trait]
impl Directory for DirectoryService {
    type WatchRoutesStream = Routes;

    async fn watch_routes(&self, call: Call<v1::WatchRoutesRequest>) -> Result<Response<Routes>, Status> {
        self.watch(call.into_inner()).await.map(Response::new).map_err(status)
    }

    async fn describe_topic(
        &self,
        call: Call<v1::DescribeTopicRequest>,
    ) -> Result<Response<v1::TopicDescription>, Status> {
        self.topic(call.into_inner().topic).await.map(Response::new).map_err(status)
    }

    async fn list_topics(&self, _: Call<v1::ListTopicsRequest>) -> Result<Response<v1::ListTopicsResponse>, Status> {
        self.core.look(|core, _, now| describe::topics(core, now)).await.map(Response::new).map_err(status)
    }

    async fn describe_partition(
        &self,
        call: Call<v1::DescribePartitionRequest>,
    ) -> Result<Response<v1::PartitionDescription>, Status> {
        let v1::DescribePartitionRequest { topic, partition } = call.into_inner();
        let name = full_name(&topic).map_err(status)?;
        self.partition(name, PartitionNo(partition)).await.map(Response::new).map_err(status)
    }

    async fn list_nodes(&self, _: Call<v1::ListNodesRequest>) -> Result<Response<v1::ListNodesResponse>, Status> {
        self.core.look(describe::nodes).await.map(Response::new).map_err(status)
    }

    async fn list_failovers(
        &self,
        call: Call<v1::ListFailoversRequest>,
    ) -> Result<Response<v1::ListFailoversResponse>, Status> {
        let limit = call.into_inner().limit;
        let limit = if limit == 0 { FAILOVERS } else { limit } as usize;
        let list = self.core.look(move |core, _, now| describe::failovers(core, limit, now)).await;
        list.map(Response::new).map_err(status)
    }

    async fn explain(&self, call: Call<v1::ExplainRequest>) -> Result<Response<v1::ExplainResponse>, Status> {
        self.explain(call.into_inner()).await.map(Response::new).map_err(status)
    }

    async fn list_tasks(&self, call: Call<v1::ListTasksRequest>) -> Result<Response<v1::ListTasksResponse>, Status> {
        let limit = call.into_inner().limit;
        let limit = if limit == 0 { TASKS } else { limit } as usize;
        self.core.look(move |core, _, now| tasks::list(core, limit, now)).await.map(Response::new).map_err(status)
    }

    async fn list_audit(&self, call: Call<v1::ListAuditRequest>) -> Result<Response<v1::ListAuditResponse>, Status> {
        let limit = call.into_inner().limit;
        let limit = if limit == 0 { TASKS } else { limit } as usize;
        let look = move |core: &quorate_consensus::observer::ObserverCore| {
            let all = core.directory().audit();
            let skip = all.len().saturating_sub(limit);
            v1::ListAuditResponse { records: all.iter().skip(skip).cloned().collect() }
        };
        self.core.look(move |core, _, _| look(core)).await.map(Response::new).map_err(status)
    }

    async fn describe_task(
        &self,
        call: Call<v1::DescribeTaskRequest>,
    ) -> Result<Response<v1::TaskDescription>, Status> {
        self.task(call.into_inner().task).await.map(Response::new).map_err(status)
    }
}

#[tonic::async_trait]
impl Admin for DirectoryService {
    async fn create_topic(&self, call: Call<v1::CreateTopicRequest>) -> Result<Response<v1::TopicDescription>, Status> {
        self.create(call.into_inner()).await.map(Response::new).map_err(status)
    }

    async fn handoff(&self, call: Call<v1::HandoffRequest>) -> Result<Response<v1::HandoffResponse>, Status> {
        self.handoff(call.into_inner()).await.map(Response::new).map_err(status)
    }

    async fn drain_node(&self, call: Call<v1::DrainNodeRequest>) -> Result<Response<v1::DrainNodeResponse>, Status> {
        self.drain(call.into_inner()).await.map(Response::new).map_err(status)
    }

    async fn unpin_leader(
        &self,
        call: Call<v1::UnpinLeaderRequest>,
    ) -> Result<Response<v1::UnpinLeaderResponse>, Status> {
        self.unpin(call.into_inner()).await.map(Response::new).map_err(status)
    }

    async fn replace_replica(
        &self,
        call: Call<v1::ReplaceReplicaRequest>,
    ) -> Result<Response<v1::TaskDescription>, Status> {
        self.replace(call.into_inner()).await.map(Response::new).map_err(status)
    }

    async fn break_glass(&self, call: Call<v1::BreakGlassRequest>) -> Result<Response<v1::BreakGlassResponse>, Status> {
        let principal = principal(&call);
        self.break_glass(call.into_inner(), principal).await.map(Response::new).map_err(status)
    }

    async fn rebuild_directory(
        &self,
        call: Call<v1::RebuildDirectoryRequest>,
    ) -> Result<Response<v1::RebuildDirectoryResponse>, Status> {
        let principal = principal(&call);
        self.rebuild(call.into_inner(), principal).await.map(Response::new).map_err(status)
    }

    async fn cancel_task(&self, call: Call<v1::CancelTaskRequest>) -> Result<Response<v1::TaskDescription>, Status> {
        let id = call.into_inner().task;
        self.admin(AdminRequest::CancelTask(TaskId(id))).await.map_err(status)?;
        self.task(id).await.map(Response::new).map_err(status)
    }
}

/// Who calls, until there is TLS.
fn principal<T>(call: &Call<T>) -> String {
    let from = call.remote_addr().map_or_else(|| "unknown".to_owned(), |address| address.ip().to_string());
    format!("anonymous@{from}")
}
