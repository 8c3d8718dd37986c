//! Logs and metrics.

use std::fs::OpenOptions;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Mutex;

use metrics::Unit;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use tracing_subscriber::EnvFilter;

use crate::listen::{self, ListenError};
use crate::repeats::LimitedLines;

/// Where log lines go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LogTarget {
    /// Standard error.
    #[default]
    Stderr,
    /// Appended to a file.
    File(PathBuf),
}

/// Why telemetry can't start.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The filter is no filter.
    #[error("log filter `{filter}`: {reason}")]
    Filter {
        /// As given.
        filter: String,
        /// What is wrong.
        reason: String,
    },
    /// The log file can't be opened.
    #[error("log file {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The metrics' port.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The exporter refused.
    #[error("metrics: {0}")]
    Metrics(String),
}

/// Installs the process-wide log subscriber: one line per event, UTC, to `target`, filtered by `filter`
/// (`info`, `quorate_server=debug,info` …), repeated lines limited to 20 of one kind in 10 s. A second call in one process changes nothing.
///
/// # Errors
/// If the filter can't be parsed or the file not opened.
pub fn init_logs(target: &LogTarget, filter: &str) -> Result<(), TelemetryError> {
    let filter = EnvFilter::try_new(filter)
        .map_err(|error| TelemetryError::Filter { filter: filter.into(), reason: error.to_string() })?;
    let format = tracing_subscriber::fmt::format().with_target(false);
    let lines = tracing_subscriber::fmt().with_env_filter(filter);
    // `try_init` fails only if one is installed already, which tests of many nodes in one process do.
    let _ = match target {
        LogTarget::Stderr => lines.event_format(LimitedLines::new(format)).with_writer(io::stderr).try_init(),
        LogTarget::File(path) => {
            let file = OpenOptions::new().create(true).append(true).open(path);
            let file = file.map_err(|source| TelemetryError::File { path: path.clone(), source })?;
            let format = LimitedLines::new(format.with_ansi(false));
            lines.with_ansi(false).event_format(format).with_writer(Mutex::new(file)).try_init()
        }
    };
    Ok(())
}

/// Histogram bounds for durations in seconds: 50 µs to 10 s.
const SECONDS: [f64; 17] =
    [0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0];

/// Histogram bounds for sizes in bytes: 1 KiB to 4 MiB, the longest write.
const BYTES: [f64; 13] = [
    1_024.0,
    2_048.0,
    4_096.0,
    8_192.0,
    16_384.0,
    32_768.0,
    65_536.0,
    131_072.0,
    262_144.0,
    524_288.0,
    1_048_576.0,
    2_097_152.0,
    4_194_304.0,
];

/// Installs the process-wide metrics recorder and serves it for Prometheus at `http://<address>/metrics`, on a
/// listener of its own. Call it within a runtime; gives the bound address back.
///
/// # Errors
/// If the port is taken or a recorder is installed already.
pub fn serve_metrics(address: SocketAddr) -> Result<SocketAddr, TelemetryError> {
    // The exporter's own bind error does not say who has the port.
    let bound = {
        let probe = listen::bind("metrics listener", address)?;
        probe.local_addr().map_err(|error| TelemetryError::Metrics(error.to_string()))?
    };
    let failed = |error: &dyn std::fmt::Display| TelemetryError::Metrics(error.to_string());
    let (recorder, exporter) = PrometheusBuilder::new()
        .set_buckets(&SECONDS)
        .and_then(|builder| builder.set_buckets_for_metric(Matcher::Suffix("_bytes".to_owned()), &BYTES))
        .map_err(|error| failed(&error))?
        .with_http_listener(bound)
        .build()
        .map_err(|error| failed(&error))?;
    metrics::set_global_recorder(recorder).map_err(|error| failed(&error))?;
    tokio::spawn(async move {
        if let Err(error) = exporter.await {
            tracing::warn!(?error, "metrics listener ended");
        }
    });
    Ok(bound)
}

/// What kind of metric one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Distribution.
    Histogram,
}

/// A metric with its unit and meaning.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// `quorate_…`, ending in its unit.
    pub name: &'static str,
    /// Kind.
    pub kind: MetricKind,
    /// Unit.
    pub unit: Unit,
    /// One sentence.
    pub help: &'static str,
}

/// What this crate itself measures, on either kind of node.
const HOST: [Metric; 4] = [
    Metric {
        name: "quorate_wal_flush_seconds",
        kind: MetricKind::Histogram,
        unit: Unit::Seconds,
        help: "One append and flush of the write-ahead log",
    },
    Metric {
        name: "quorate_wal_flush_bytes",
        kind: MetricKind::Histogram,
        unit: Unit::Bytes,
        help: "Payload of one flush",
    },
    Metric {
        name: "quorate_wal_purge_seconds",
        kind: MetricKind::Histogram,
        unit: Unit::Seconds,
        help: "One purge of old files of the write-ahead log, between two flushes",
    },
    Metric {
        name: "quorate_peer_frames_dropped_total",
        kind: MetricKind::Counter,
        unit: Unit::Count,
        help: "Frames to a peer that were dropped because its queue was full",
    },
];

/// Describes metrics to the exporter, those of this crate among them; call it after [`serve_metrics`].
pub fn describe(metrics: &[Metric]) {
    for metric in HOST.iter().chain(metrics) {
        match metric.kind {
            MetricKind::Counter => metrics::describe_counter!(metric.name, metric.unit, metric.help),
            MetricKind::Gauge => metrics::describe_gauge!(metric.name, metric.unit, metric.help),
            MetricKind::Histogram => metrics::describe_histogram!(metric.name, metric.unit, metric.help),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_filter_is_named() {
        let error = init_logs(&LogTarget::Stderr, "quorate=loud").unwrap_err().to_string();
        assert!(error.contains("`quorate=loud`"), "{error}");
    }

    #[test]
    fn metrics_are_served_with_their_meaning() {
        use std::io::{Read, Write};
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let address = {
            let _within = runtime.enter();
            serve_metrics("127.0.0.1:0".parse().unwrap()).unwrap()
        };
        describe(&[Metric {
            name: "quorate_test_seconds",
            kind: MetricKind::Histogram,
            unit: Unit::Seconds,
            help: "A test.",
        }]);
        metrics::histogram!("quorate_test_seconds").record(0.003);
        // The exporter binds its listener once the runtime runs it.
        let mut socket = loop {
            match std::net::TcpStream::connect(address) {
                Ok(socket) => break socket,
                Err(_) => std::thread::yield_now(),
            }
        };
        socket.write_all(b"GET /metrics HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n").unwrap();
        let mut page = String::new();
        socket.read_to_string(&mut page).unwrap();
        assert!(page.contains("# HELP quorate_test_seconds A test."), "{page}");
        assert!(page.contains("quorate_test_seconds_bucket{le=\"0.005\"} 1"), "{page}");
    }
}
