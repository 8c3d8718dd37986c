//! The way to a partition's leader for reads: follows pushes and refusals, never asks a node known not to lead.

use std::sync::Arc;
use std::time::Duration;

use quorate_proto::ids::{NodeId, Offset, PartitionNo};
use quorate_proto::refusal::{Reason, Refusal};
use quorate_proto::v1;
use quorate_proto::v1::log_client::LogClient;
use tokio::sync::watch;
use tonic::transport::Channel;

use super::channels::Purpose;
use super::client::Inner;
use super::watch::RouteState;
use super::{status, StartAt};
use crate::core::backoff::Jitter;
use crate::core::routes::TopicRoutes;
use crate::core::target::{Class, Target};

pub(crate) struct LeaderPath {
    inner: Arc<Inner>,
    routes: watch::Receiver<RouteState>,
    topic: Arc<TopicRoutes>,
    pub(crate) partition: PartitionNo,
    target: Target,
    jitter: Jitter,
    /// Broken attempts in a row.
    broken: u32,
    pub(crate) trouble: Option<Refusal>,
}

/// A leader to ask.
pub(crate) struct Leader {
    pub(crate) node: NodeId,
    pub(crate) log: LogClient<Channel>,
}

impl LeaderPath {
    pub(crate) fn new(inner: Arc<Inner>, topic: &Arc<TopicRoutes>, partition: PartitionNo) -> Result<Self, Refusal> {
        let route = topic.partitions.get(&partition).ok_or_else(|| {
            Refusal::new(
                Reason::InvalidArgument,
                "the topic has no such partition",
                format!("{}/{}: it has {} partitions", topic.name, partition.get(), topic.partitions.len()),
                "use a partition below that number",
            )
        })?;
        let target = Target::new(*route);
        let jitter = Jitter::new(rand::random());
        let routes = inner.routes.clone();
        let topic = Arc::clone(topic);
        Ok(Self { inner, routes, topic, partition, target, jitter, broken: 0, trouble: None })
    }

    pub(crate) fn wire_partition(&self) -> v1::Partition {
        v1::Partition {
            topic: self.topic.name.to_string(),
            partition: self.partition.get(),
            group_id: self.target.route().group.get(),
        }
    }

    pub(crate) fn subject(&self) -> String {
        format!("{}/{}", self.topic.name, self.partition.get())
    }

    pub(crate) fn cluster_id(&self) -> String {
        self.inner.table().cluster.to_string()
    }

    /// Takes the newest routes in; true if the way has changed.
    fn refresh(&mut self) -> bool {
        let state = self.routes.borrow_and_update();
        let route = state.table.topics.get(&self.topic.id).and_then(|topic| topic.partitions.get(&self.partition));
        route.copied().is_some_and(|route| self.target.on_route(route))
    }

    /// Waits until there is a leader to ask. Cancellation: safe.
    pub(crate) async fn leader(&mut self) -> Leader {
        loop {
            self.refresh();
            let now = self.inner.now();
            if let Some(node) = self.target.choose(now) {
                let table = self.inner.table();
                let address = table.nodes.get(&node).map(|info| info.address.clone());
                match address.map(|address| self.inner.channels.log(Purpose::Consume, &address)) {
                    Some(Ok(log)) => return Leader { node, log },
                    Some(Err(why)) => self.unreachable(node, &why),
                    None => self.unreachable(node, "the observers give no address for it"),
                }
            }
            let wake = self.target.deadline(self.inner.now()).map(|at| self.inner.instant(at));
            let sleep = async {
                match wake {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = sleep => {}
                changed = self.routes.changed() => {
                    // The client is gone only when its last clone is; this path holds one.
                    let _ = changed;
                }
            }
        }
    }

    /// Completes when the route has changed since [`Self::leader`] answered. Cancellation: safe.
    pub(crate) async fn moved(&mut self) {
        loop {
            if self.routes.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
            if self.refresh() {
                return;
            }
        }
    }

    fn unreachable(&mut self, node: NodeId, why: &str) {
        let refusal = Refusal::new(Reason::Unreachable, why, format!("{}, {node}", self.subject()), "try again");
        self.refused(node, refusal);
    }

    /// Learns from a refusal. `Err` if asking again cannot help.
    pub(crate) fn failed(&mut self, node: NodeId, status: &tonic::Status) -> Result<(), Refusal> {
        let address = self.inner.table().nodes.get(&node).map_or_else(String::new, |info| info.address.clone());
        let refusal = status::refusal(status, &format!("{}, {node} at {address}", self.subject()));
        if Class::of(&refusal) == Class::Final {
            return Err(refusal);
        }
        self.refused(node, refusal);
        Ok(())
    }

    pub(crate) fn refused(&mut self, node: NodeId, refusal: Refusal) {
        let now = self.inner.now();
        if Class::of(&refusal) == Class::Broken {
            self.target.wait_until(now + self.jitter.delay(self.broken));
            self.broken = self.broken.saturating_add(1);
        } else {
            self.target.on_refusal(now, node, &refusal, &mut self.jitter);
        }
        self.trouble = Some(refusal);
    }

    pub(crate) fn succeeded(&mut self) {
        self.broken = 0;
        self.trouble = None;
        self.target.on_success();
    }

    /// Asks the leader, whoever it is by then, within `limit`.
    pub(crate) async fn list_offset(&mut self, at: StartAt, limit: Duration) -> Result<Offset, Refusal> {
        use v1::list_offsets_request::At;
        let at = match at {
            StartAt::Offset(offset) => return Ok(offset),
            StartAt::Earliest => At::Earliest(true),
            StartAt::Latest => At::Latest(true),
            StartAt::Time(time) => At::LogTimeUs(time.0),
        };
        let ask = async {
            loop {
                let mut leader = self.leader().await;
                let request = v1::ListOffsetsRequest {
                    partition: Some(self.wire_partition()),
                    at: Some(at),
                    cluster_id: self.cluster_id(),
                };
                let answer = tokio::select! {
                    answer = leader.log.list_offsets(request) => answer,
                    () = self.moved() => continue,
                };
                match answer {
                    Ok(answer) => return Ok(Offset(answer.into_inner().offset)),
                    Err(status) => self.failed(leader.node, &status)?,
                }
            }
        };
        match tokio::time::timeout(limit, ask).await {
            Ok(answer) => answer,
            Err(_) => Err(self.out_of_time(limit)),
        }
    }

    fn out_of_time(&self, limit: Duration) -> Refusal {
        match &self.trouble {
            Some(last) => Refusal { what: format!("no answer within {limit:?}; last: {}", last.what), ..last.clone() },
            None => Refusal::new(
                Reason::NoLeader,
                format!("no leader is known since {limit:?}"),
                self.subject(),
                "see `quorate partition describe` and `quorate node list`",
            ),
        }
    }
}
