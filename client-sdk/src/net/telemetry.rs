//! Metrics and log lines of a producer: per batch and per incident, never per message.

use metrics::{counter, gauge, histogram, Counter, Gauge, Histogram};

use crate::core::effect::Incident;
use crate::core::receipt::CloseReport;

/// Handles, registered once per producer.
pub(crate) struct Telemetry {
    topic: String,
    pub(crate) batches: Counter,
    pub(crate) repeated: Counter,
    pub(crate) refusals: Counter,
    pub(crate) links_lost: Counter,
    pub(crate) batch_seconds: Histogram,
    pub(crate) buffered: Gauge,
    committed: Counter,
    duplicates: Counter,
    refused: Counter,
    unresolved: Counter,
}

impl Telemetry {
    pub(crate) fn new(topic: &str) -> Self {
        let topic = topic.to_owned();
        let outcome = |outcome: &'static str| counter!("quorate_client_records_total", "topic" => topic.clone(), "outcome" => outcome);
        Self {
            batches: counter!("quorate_client_batches_total", "topic" => topic.clone()),
            repeated: counter!("quorate_client_batches_repeated_total", "topic" => topic.clone()),
            refusals: counter!("quorate_client_refusals_total", "topic" => topic.clone()),
            links_lost: counter!("quorate_client_links_lost_total", "topic" => topic.clone()),
            batch_seconds: histogram!("quorate_client_batch_seconds", "topic" => topic.clone()),
            buffered: gauge!("quorate_client_buffered_bytes", "topic" => topic.clone()),
            committed: outcome("committed"),
            duplicates: outcome("duplicate"),
            refused: outcome("refused"),
            unresolved: outcome("unresolved"),
            topic,
        }
    }

    pub(crate) fn totals(&self, totals: &CloseReport) {
        self.committed.absolute(totals.committed);
        self.duplicates.absolute(totals.duplicates);
        self.refused.absolute(totals.refused);
        self.unresolved.absolute(totals.unresolved);
    }

    pub(crate) fn incident(&self, incident: &Incident) {
        let topic = &self.topic;
        match incident {
            Incident::Began { partition, cause } => {
                tracing::warn!(%topic, %partition, reason = cause.reason.as_str_name(), "publishing is held up: {}", cause.what);
            }
            Incident::Continues { lasted, partitions, waiting, cause } => {
                tracing::warn!(
                    %topic, ?lasted, partitions, waiting, reason = cause.reason.as_str_name(),
                    "publishing is still held up: {} ({})", cause.what, cause.subject
                );
            }
            Incident::Ended { lasted } => tracing::info!(%topic, ?lasted, "publishing goes on"),
        }
    }
}
