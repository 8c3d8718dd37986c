//! A cluster in this process: data nodes and observers on loopback, one partition, the log as the protocol defines it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use futures::{Stream, StreamExt};
use quorate_proto::ids::{ClusterId, NodeId, TopicId};
use quorate_proto::refusal::{Reason, Refusal};
use quorate_proto::slot::{SLOT_COUNT, SLOT_HASH};
use quorate_proto::v1::{self, admin_server, directory_server, log_server};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tonic::transport::server::TcpIncoming;
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming};

use crate::core::tests::model::Partition;

pub(super) const CLUSTER: ClusterId = ClusterId(77);

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[derive(Default)]
pub(super) struct State {
    pub(super) leader: u64,
    pub(super) term: u64,
    pub(super) partition: Partition,
    pub(super) created: Vec<String>,
    addresses: BTreeMap<u64, SocketAddr>,
}

/// Handle of the whole cluster; its servers end with it.
pub(super) struct Fake {
    state: Arc<Mutex<State>>,
    changed: watch::Sender<u64>,
    /// A runtime for each, so that killing one closes its connections too.
    servers: BTreeMap<String, Runtime>,
    pub(super) observers: Vec<String>,
}

impl Fake {
    /// Two data nodes (1 leads) and `observers` observers, of which the last leads.
    pub(super) async fn start(observers: u64) -> Self {
        let state = State { leader: 1, term: 1, ..State::default() };
        let (changed, _) = watch::channel(1);
        let state = Arc::new(Mutex::new(state));
        let mut fake = Self { state, changed, servers: BTreeMap::new(), observers: Vec::new() };
        for node in 1..=2 {
            let (runtime, incoming, address) = listen();
            fake.state().addresses.insert(node, address);
            let log = Node { node, state: Arc::clone(&fake.state), changed: fake.changed.subscribe() };
            let log = log_server::LogServer::new(log).max_decoding_message_size(5 << 20);
            let server = Server::builder().add_service(log).serve_with_incoming(incoming);
            runtime.spawn(server);
            fake.servers.insert(format!("node {node}"), runtime);
        }
        for n in 1..=observers {
            let (runtime, incoming, address) = listen();
            let observer =
                Observer { state: Arc::clone(&fake.state), changed: fake.changed.subscribe(), leads: n == observers };
            let server = Server::builder()
                .add_service(directory_server::DirectoryServer::new(observer.clone()))
                .add_service(admin_server::AdminServer::new(observer))
                .serve_with_incoming(incoming);
            runtime.spawn(server);
            fake.servers.insert(address.to_string(), runtime);
            fake.observers.push(address.to_string());
        }
        fake
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test panics while it holds it")
    }

    /// The process dies: its listener and connections are gone.
    pub(super) fn kill(&mut self, server: &str) {
        self.servers.remove(server).expect("it runs").shutdown_background();
    }

    /// Another leader, at once known to all observers.
    pub(super) fn elect(&self, leader: u64) {
        let mut state = self.state();
        state.leader = leader;
        state.term += 1;
        drop(state);
        self.changed.send_modify(|version| *version += 1);
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        std::mem::take(&mut self.servers).into_values().for_each(Runtime::shutdown_background);
    }
}

fn listen() -> (Runtime, TcpIncoming, SocketAddr) {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let entered = runtime.enter();
    let incoming = TcpIncoming::bind("127.0.0.1:0".parse().expect("an address")).expect("a free port");
    let address = incoming.local_addr().expect("bound");
    drop(entered);
    (runtime, incoming.with_nodelay(Some(true)), address)
}

struct Node {
    node: u64,
    state: Arc<Mutex<State>>,
    changed: watch::Receiver<u64>,
}

impl Node {
    fn lead(&self) -> Result<MutexGuard<'_, State>, Refusal> {
        let state = self.state.lock().expect("no test panics while it holds it");
        if state.leader == self.node {
            return Ok(state);
        }
        let refusal =
            Refusal::new(Reason::NotLeader, "this node does not lead", "default/orders/0", "follow the routes");
        Err(refusal.led_by(NodeId(state.leader).non_zero()))
    }
}

impl Node {
    /// End of the log, and the batch that holds `offset`, which may begin below it.
    fn read(&self, offset: u64) -> Result<(u64, u64, Bytes), Refusal> {
        let state = self.lead()?;
        let end = state.partition.log.len() as u64;
        if offset > end {
            let subject = format!("default/orders/0, offset {offset}");
            return Err(Refusal::new(Reason::OffsetOutOfRange, "no such offset", subject, "use a kept offset"));
        }
        let batch = state.partition.stored.iter().find(|(_, end, _)| *end > offset);
        Ok(batch.map_or((end, offset, Bytes::new()), |(_, after, bytes)| (end, *after, bytes.clone())))
    }
}

fn answer(node: &Node, request: v1::PublishRequest) -> v1::PublishResponse {
    let Some(v1::publish_request::Payload::Batch(batch)) = request.payload else { panic!("the client sends batches") };
    assert_eq!(request.cluster_id, CLUSTER.to_string());
    let published = node.lead().and_then(|mut state| state.partition.publish(&batch));
    let result = match published {
        Ok(receipt) => v1::publish_response::Result::Receipt(receipt),
        Err(refusal) => v1::publish_response::Result::Error(refusal.into()),
    };
    v1::PublishResponse { tag: request.tag, result: Some(result) }
}

/// A refusal as unary calls carry it.
fn status(refusal: Refusal) -> Status {
    crate::net::status::tests::status_of(refusal)
}

#[tonic::async_trait]
impl log_server::Log for Node {
    type PublishStream = Answers<v1::PublishResponse>;
    type SubscribeStream = Answers<v1::SubscribeResponse>;

    async fn publish(
        &self,
        request: Request<Streaming<v1::PublishRequest>>,
    ) -> Result<Response<Self::PublishStream>, Status> {
        let node = Self { node: self.node, state: Arc::clone(&self.state), changed: self.changed.clone() };
        let answers = request.into_inner().map(move |request| request.map(|request| answer(&node, request)));
        Ok(Response::new(Box::pin(answers)))
    }

    async fn publish_once(&self, _: Request<v1::PublishRequest>) -> Result<Response<v1::PublishResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn fetch(&self, request: Request<v1::FetchRequest>) -> Result<Response<v1::FetchResponse>, Status> {
        let request = request.into_inner();
        let (end, next_offset, batches) = self.read(request.offset).map_err(status)?;
        if batches.is_empty() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        let payload = Some(v1::fetch_response::Payload::Batches(batches));
        Ok(Response::new(v1::FetchResponse { payload, next_offset, high_watermark: end, low_watermark: 0, epoch: 1 }))
    }

    async fn subscribe(
        &self,
        _: Request<Streaming<v1::SubscribeRequest>>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn list_offsets(
        &self,
        request: Request<v1::ListOffsetsRequest>,
    ) -> Result<Response<v1::ListOffsetsResponse>, Status> {
        let state = self.lead().map_err(status)?;
        let offset = match request.into_inner().at {
            Some(v1::list_offsets_request::At::Latest(_)) => state.partition.log.len() as u64,
            _ => 0,
        };
        Ok(Response::new(v1::ListOffsetsResponse { offset, epoch: state.term }))
    }
}

#[derive(Clone)]
struct Observer {
    state: Arc<Mutex<State>>,
    changed: watch::Receiver<u64>,
    leads: bool,
}

fn picture(state: &Mutex<State>, version: u64) -> v1::Routes {
    let state = state.lock().expect("no test panics while it holds it");
    let node = |(id, address): (&u64, &SocketAddr)| v1::Node {
        id: *id,
        name: format!("n{id}"),
        address: address.to_string(),
        state: v1::NodeState::NodeUp.into(),
    };
    v1::Routes {
        directory_version: version,
        full: true,
        cluster_id: CLUSTER.to_string(),
        protocol_version: 1,
        nodes: state.addresses.iter().map(node).collect(),
        topics: vec![v1::TopicRoute {
            topic_id: TopicId(9).to_bytes().to_vec().into(),
            name: "default/orders".into(),
            hash: SLOT_HASH.into(),
            slot_count: u32::from(SLOT_COUNT),
            slots: vec![v1::SlotRun { first: 0, count: u32::from(SLOT_COUNT), partition: 0 }],
            partitions: vec![v1::PartitionRoute {
                partition: 0,
                group_id: 2,
                leader_node: state.leader,
                epoch: state.term,
                handed_over: false,
            }],
        }],
        ..v1::Routes::default()
    }
}

#[tonic::async_trait]
impl directory_server::Directory for Observer {
    type WatchRoutesStream = Answers<v1::Routes>;

    async fn watch_routes(
        &self,
        _: Request<v1::WatchRoutesRequest>,
    ) -> Result<Response<Self::WatchRoutesStream>, Status> {
        let mut changed = self.changed.clone();
        changed.mark_changed();
        let next = |(mut changed, state): (watch::Receiver<u64>, Arc<Mutex<State>>)| async move {
            changed.changed().await.ok()?;
            let version = *changed.borrow_and_update();
            let routes = picture(&state, version);
            Some((Ok(routes), (changed, state)))
        };
        Ok(Response::new(Box::pin(futures::stream::unfold((changed, Arc::clone(&self.state)), next))))
    }

    async fn describe_topic(
        &self,
        request: Request<v1::DescribeTopicRequest>,
    ) -> Result<Response<v1::TopicDescription>, Status> {
        let topic = request.into_inner().topic;
        let what = "there is no such topic";
        Err(status(Refusal::new(Reason::UnknownTopic, what, topic, "check the name")))
    }

    async fn list_topics(&self, _: Request<v1::ListTopicsRequest>) -> Result<Response<v1::ListTopicsResponse>, Status> {
        Ok(Response::new(v1::ListTopicsResponse::default()))
    }

    async fn describe_partition(
        &self,
        _: Request<v1::DescribePartitionRequest>,
    ) -> Result<Response<v1::PartitionDescription>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn list_nodes(&self, _: Request<v1::ListNodesRequest>) -> Result<Response<v1::ListNodesResponse>, Status> {
        Ok(Response::new(v1::ListNodesResponse::default()))
    }

    async fn list_audit(&self, _: Request<v1::ListAuditRequest>) -> Result<Response<v1::ListAuditResponse>, Status> {
        Err(Status::unimplemented("no test asks for it"))
    }

    async fn list_tasks(&self, _: Request<v1::ListTasksRequest>) -> Result<Response<v1::ListTasksResponse>, Status> {
        Err(Status::unimplemented("no test asks for it"))
    }

    async fn describe_task(
        &self,
        _: Request<v1::DescribeTaskRequest>,
    ) -> Result<Response<v1::TaskDescription>, Status> {
        Err(Status::unimplemented("no test asks for it"))
    }

    async fn list_failovers(
        &self,
        _: Request<v1::ListFailoversRequest>,
    ) -> Result<Response<v1::ListFailoversResponse>, Status> {
        Ok(Response::new(v1::ListFailoversResponse::default()))
    }

    async fn explain(&self, _: Request<v1::ExplainRequest>) -> Result<Response<v1::ExplainResponse>, Status> {
        Ok(Response::new(v1::ExplainResponse::default()))
    }
}

#[tonic::async_trait]
impl admin_server::Admin for Observer {
    async fn create_topic(
        &self,
        request: Request<v1::CreateTopicRequest>,
    ) -> Result<Response<v1::TopicDescription>, Status> {
        if !self.leads {
            return Err(status(Refusal::new(Reason::NotLeader, "this observer does not lead", "", "ask the leader")));
        }
        let request = request.into_inner();
        let mut state = self.state.lock().expect("no test panics while it holds it");
        state.created.push(request.topic.clone());
        let name = request.topic;
        Ok(Response::new(v1::TopicDescription { name, partitions: request.partitions, ..Default::default() }))
    }

    async fn handoff(&self, _: Request<v1::HandoffRequest>) -> Result<Response<v1::HandoffResponse>, Status> {
        Err(Status::unimplemented("no test asks for it"))
    }

    async fn drain_node(&self, _: Request<v1::DrainNodeRequest>) -> Result<Response<v1::DrainNodeResponse>, Status> {
        Err(Status::unimplemented("no test asks for it"))
    }

    async fn replace_replica(
        &self,
        _: Request<v1::ReplaceReplicaRequest>,
    ) -> Result<Response<v1::TaskDescription>, Status> {
        Err(Status::unimplemented("no test asks for it"))
    }

    async fn break_glass(&self, _: Request<v1::BreakGlassRequest>) -> Result<Response<v1::BreakGlassResponse>, Status> {
        Err(Status::unimplemented("no test asks for it"))
    }
    async fn rebuild_directory(
        &self,
        _: Request<v1::RebuildDirectoryRequest>,
    ) -> Result<Response<v1::RebuildDirectoryResponse>, Status> {
        Err(Status::unimplemented("no test asks for it"))
    }

    async fn cancel_task(&self, _: Request<v1::CancelTaskRequest>) -> Result<Response<v1::TaskDescription>, Status> {
        Err(Status::unimplemented("no test asks for it"))
    }

    async fn unpin_leader(
        &self,
        _: Request<v1::UnpinLeaderRequest>,
    ) -> Result<Response<v1::UnpinLeaderResponse>, Status> {
        Err(Status::unimplemented("no test asks for it"))
    }
}
