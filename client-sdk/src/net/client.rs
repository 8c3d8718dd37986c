//! Entry point: [`Client`].

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use quorate_proto::ids::{ClusterId, Offset, PartitionNo};
use quorate_proto::names::TopicName;
use quorate_proto::refusal::{Reason, Refusal};
use quorate_proto::time::BootTime;
use quorate_proto::v1;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::channels::Channels;
use super::leader::LeaderPath;
use super::watch::{follow, RouteState, Watchers};
use super::{Admin, ConsumerBuilder, ProducerBuilder, StartAt};
use crate::core::routes::{RouteTable, TopicRoutes};

/// How long a topic that the routes do not name yet is waited for: it may have been created a moment ago.
const TOPIC_WAIT: Duration = Duration::from_secs(5);
/// How long a read of offsets looks for a leader that answers.
const OFFSET_WAIT: Duration = Duration::from_secs(15);
/// Highest protocol version that this client speaks.
const PROTOCOL_VERSION: u32 = 1;

/// No observer answered in time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no observer gave the routes within {waited:?}:{}", list(tried))]
pub struct ConnectError {
    /// How long was tried.
    pub waited: Duration,
    /// Each observer's address, and why it failed.
    pub tried: Vec<(String, String)>,
}

fn list(tried: &[(String, String)]) -> String {
    if tried.is_empty() {
        return " no observer address was given".to_owned();
    }
    tried.iter().map(|(address, why)| format!("\n  {address}: {why}")).collect()
}

/// Collects the settings of a [`Client`].
#[derive(Clone, Debug)]
pub struct ClientBuilder {
    observers: BTreeSet<String>,
    client_id: String,
    cluster: Option<ClusterId>,
    connect_timeout: Duration,
}

impl ClientBuilder {
    /// Addresses (`host:port`) of the observers; one that answers is enough.
    #[must_use]
    pub fn observers<I, S>(mut self, addresses: I) -> Self
    where
        I: IntoIterator<Item = S>,
        S: Into<String>,
    {
        self.observers = addresses.into_iter().map(Into::into).collect();
        self
    }

    /// Free text that names this application instance to operators. The principal comes from the server's own
    /// authentication, never from here.
    #[must_use]
    pub fn client_id(mut self, id: impl Into<String>) -> Self {
        self.client_id = id.into();
        self
    }

    /// Refuses to talk to any other cluster.
    #[must_use]
    pub fn cluster(mut self, id: ClusterId) -> Self {
        self.cluster = Some(id);
        self
    }

    /// How long [`Self::build`] tries. 10 s.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Connects to the observers and waits for the first full picture of the routes. Must be called within a Tokio
    /// runtime; the client's tasks live there.
    ///
    /// Cancellation: safe; nothing is left behind.
    ///
    /// # Errors
    /// [`ConnectError`] after the connect time-out; it lists each observer tried and why it failed.
    pub async fn build(self) -> Result<Client, ConnectError> {
        let preset = RouteTable { cluster: self.cluster.unwrap_or_default(), ..RouteTable::default() };
        let (state, mut routes) = watch::channel(RouteState { table: Arc::new(preset), ..RouteState::default() });
        let watchers = Arc::new(Watchers { state, failures: Default::default() });
        let channels = Arc::new(Channels::default());
        let request = v1::WatchRoutesRequest {
            topics: Vec::new(),
            protocol_version: PROTOCOL_VERSION,
            client_id: self.client_id.clone(),
            client_version: env!("CARGO_PKG_VERSION").to_owned(),
            cluster_id: self.cluster.map(|id| id.to_string()).unwrap_or_default(),
        };
        let follow_one = |address: &String| {
            let (watchers, channels) = (Arc::clone(&watchers), Arc::clone(&channels));
            tokio::spawn(follow(watchers, channels, address.clone(), request.clone(), rand::random())).abort_handle()
        };
        let tasks = Tasks(self.observers.iter().map(follow_one).collect());
        if self.observers.is_empty() {
            return Err(ConnectError { waited: Duration::ZERO, tried: Vec::new() });
        }
        let first = async { routes.wait_for(|state| state.known).await.is_ok() };
        if !tokio::time::timeout(self.connect_timeout, first).await.unwrap_or(false) {
            let failures = watchers.failures.lock().unwrap_or_else(PoisonError::into_inner);
            let why = |address: &String| failures.get(address).map_or("no answer", String::as_str).to_owned();
            let tried = self.observers.iter().map(|address| (address.clone(), why(address))).collect();
            return Err(ConnectError { waited: self.connect_timeout, tried });
        }
        let inner = Inner {
            observers: self.observers.into_iter().collect(),
            client_id: self.client_id,
            routes,
            channels,
            origin: Instant::now(),
            _tasks: tasks,
        };
        Ok(Client { inner: Arc::new(inner) })
    }
}

/// Ends the route watchers with the last clone of the client.
#[derive(Debug)]
struct Tasks(Vec<AbortHandle>);

impl Drop for Tasks {
    fn drop(&mut self) {
        self.0.iter().for_each(AbortHandle::abort);
    }
}

/// What everything made by one client shares.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) observers: Vec<String>,
    pub(crate) client_id: String,
    pub(crate) routes: watch::Receiver<RouteState>,
    pub(crate) channels: Arc<Channels>,
    origin: Instant,
    _tasks: Tasks,
}

impl Inner {
    /// This process's own monotonic clock.
    pub(crate) fn now(&self) -> BootTime {
        BootTime(1) + self.origin.elapsed()
    }

    pub(crate) fn instant(&self, at: BootTime) -> Instant {
        self.origin + at.since(BootTime(1))
    }

    pub(crate) fn table(&self) -> Arc<RouteTable> {
        Arc::clone(&self.routes.borrow().table)
    }

    /// Waits until the routes name the topic.
    pub(crate) async fn topic(&self, topic: &str) -> Result<Arc<TopicRoutes>, Refusal> {
        let name = full_name(topic)?;
        let mut routes = self.routes.clone();
        let known = routes.wait_for(|state| state.table.topic(&name).is_some());
        if let Ok(Ok(state)) = tokio::time::timeout(TOPIC_WAIT, known).await {
            if let Some(found) = state.table.topic(&name) {
                return Ok(Arc::clone(found));
            }
        }
        Err(Refusal::new(
            Reason::UnknownTopic,
            "the directory has no such topic",
            name,
            "check the name, or create the topic (quorate topic create)",
        ))
    }
}

/// `namespace/name` of a topic as an application names it.
pub(crate) fn full_name(topic: &str) -> Result<String, Refusal> {
    let parsed: Result<TopicName, _> = topic.parse();
    parsed
        .map(|name| name.to_string())
        .map_err(|bad| Refusal::new(Reason::InvalidArgument, bad.to_string(), topic, "use `name` or `namespace/name`"))
}

/// A connection to a cluster. Cheap to clone; survives any number of failovers.
#[derive(Clone, Debug)]
pub struct Client {
    pub(crate) inner: Arc<Inner>,
}

impl Client {
    /// Starts to build a client.
    #[must_use]
    pub fn builder() -> ClientBuilder {
        ClientBuilder {
            observers: BTreeSet::new(),
            client_id: String::new(),
            cluster: None,
            connect_timeout: Duration::from_secs(10),
        }
    }

    /// The cluster's identity.
    #[must_use]
    pub fn cluster_id(&self) -> ClusterId {
        self.inner.table().cluster
    }

    /// The routes as known now: nodes, topics, leaders.
    #[must_use]
    pub fn routes(&self) -> Arc<RouteTable> {
        self.inner.table()
    }

    /// Starts to build a producer for a topic (`[namespace/]name`).
    #[must_use]
    pub fn producer(&self, topic: impl Into<String>) -> ProducerBuilder {
        ProducerBuilder::new(Arc::clone(&self.inner), topic.into())
    }

    /// Starts to build a consumer for a topic (`[namespace/]name`).
    #[must_use]
    pub fn consumer(&self, topic: impl Into<String>) -> ConsumerBuilder {
        ConsumerBuilder::new(Arc::clone(&self.inner), topic.into())
    }

    /// Directory and administration calls.
    #[must_use]
    pub fn admin(&self) -> Admin {
        Admin::new(Arc::clone(&self.inner))
    }

    /// Number of partitions of a topic by the routes known now; `None` if it is unknown.
    #[must_use]
    pub fn partitions(&self, topic: &str) -> Option<u32> {
        let name = full_name(topic).ok()?;
        let table = self.inner.table();
        table.topic(&name).and_then(|topic| u32::try_from(topic.partitions.len()).ok())
    }

    /// Where a partition begins (`Earliest`), ends (`Latest`: linearizable), or stood at a log time. An offset is
    /// itself.
    ///
    /// Cancellation: safe.
    ///
    /// # Errors
    /// The server's refusal; `UNREACHABLE` or `DEADLINE` when no leader answered within 15 s.
    pub async fn list_offset(&self, topic: &str, partition: PartitionNo, at: StartAt) -> Result<Offset, Refusal> {
        let topic = self.inner.topic(topic).await?;
        let mut path = LeaderPath::new(Arc::clone(&self.inner), &topic, partition)?;
        path.list_offset(at, OFFSET_WAIT).await
    }
}
