//! Directory and administration calls.

use quorate_proto::ids::PartitionNo;
use quorate_proto::refusal::Refusal;
use quorate_proto::v1;

use super::not_yet;

/// Typed calls to the observers: the observer leader is asked first, others where they may answer.
#[derive(Clone, Debug)]
pub struct Admin {}

impl Admin {
    /// Creates a topic. Harmless when repeated by the retry inside; a namesake is refused `ALREADY_EXISTS`.
    ///
    /// # Errors
    /// The observers' refusal, or `UNREACHABLE` naming each address tried.
    pub async fn create_topic(&self, _topic: &str, _partitions: u32) -> Result<v1::TopicDescription, Refusal> {
        not_yet()
    }

    /// All topics.
    ///
    /// # Errors
    /// As [`Self::create_topic`].
    pub async fn list_topics(&self) -> Result<v1::ListTopicsResponse, Refusal> {
        not_yet()
    }

    /// One topic with its partitions.
    ///
    /// # Errors
    /// As [`Self::create_topic`]; `UNKNOWN_TOPIC`.
    pub async fn describe_topic(&self, _topic: &str) -> Result<v1::TopicDescription, Refusal> {
        not_yet()
    }

    /// One partition with its replicas.
    ///
    /// # Errors
    /// As [`Self::describe_topic`].
    pub async fn describe_partition(
        &self,
        _topic: &str,
        _partition: PartitionNo,
    ) -> Result<v1::PartitionDescription, Refusal> {
        not_yet()
    }

    /// All data nodes and observers.
    ///
    /// # Errors
    /// As [`Self::create_topic`].
    pub async fn list_nodes(&self) -> Result<v1::ListNodesResponse, Refusal> {
        not_yet()
    }

    /// The newest failovers with their phases, newest last.
    ///
    /// # Errors
    /// As [`Self::create_topic`].
    pub async fn list_failovers(&self, _limit: u32) -> Result<Vec<v1::Failover>, Refusal> {
        not_yet()
    }
}
