//! Entry point: [`Client`].

use std::time::Duration;

use quorate_proto::ids::{ClusterId, Offset, PartitionNo};
use quorate_proto::refusal::Refusal;

use super::{not_yet, Admin, ConsumerBuilder, ProducerBuilder, StartAt};

/// No observer answered in time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no observer gave the routes within {waited:?}:{}", tried.iter().map(|(a, e)| format!("\n  {a}: {e}")).collect::<String>())]
pub struct ConnectError {
    /// How long was tried.
    pub waited: Duration,
    /// Each observer's address, and why it failed.
    pub tried: Vec<(String, String)>,
}

/// Collects the settings of a [`Client`].
#[derive(Clone, Debug)]
pub struct ClientBuilder {
    observers: Vec<String>,
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

    /// Free text that names this application instance to operators.
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

    /// Connects to the observers and waits for the first full picture of the routes.
    ///
    /// # Errors
    /// [`ConnectError`] after the connect time-out; it lists each observer tried and why it failed.
    pub async fn build(self) -> Result<Client, ConnectError> {
        Err(ConnectError { waited: self.connect_timeout, tried: Vec::new() })
    }
}

/// A connection to a cluster. Cheap to clone; survives any number of failovers.
#[derive(Clone, Debug)]
pub struct Client {}

impl Client {
    /// Starts to build a client.
    #[must_use]
    pub fn builder() -> ClientBuilder {
        ClientBuilder {
            observers: Vec::new(),
            client_id: String::new(),
            cluster: None,
            connect_timeout: Duration::from_secs(10),
        }
    }

    /// The cluster's identity.
    #[must_use]
    pub fn cluster_id(&self) -> ClusterId {
        ClusterId::NONE
    }

    /// Starts to build a producer for a topic (`[namespace/]name`).
    #[must_use]
    pub fn producer(&self, topic: impl Into<String>) -> ProducerBuilder {
        ProducerBuilder::new(topic.into())
    }

    /// Starts to build a consumer for a topic (`[namespace/]name`).
    #[must_use]
    pub fn consumer(&self, topic: impl Into<String>) -> ConsumerBuilder {
        ConsumerBuilder::new(topic.into())
    }

    /// Directory and administration calls.
    #[must_use]
    pub fn admin(&self) -> Admin {
        Admin {}
    }

    /// Number of partitions of a topic by the routes known now; `None` if it is unknown.
    #[must_use]
    pub fn partitions(&self, _topic: &str) -> Option<u32> {
        None
    }

    /// Where a partition begins (`Earliest`), ends (`Latest`: linearizable), or stood at a log time.
    ///
    /// # Errors
    /// The server's refusal; `UNREACHABLE` when no leader answered within 15 s.
    pub async fn list_offset(&self, _topic: &str, _partition: PartitionNo, _at: StartAt) -> Result<Offset, Refusal> {
        not_yet()
    }
}
