//! The machine's own limits, measured in the same run as the figures that stand beside them.

use std::fs::File;
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Instant;

use serde::Serialize;
use tonic::transport::server::TcpIncoming;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::HealthCheckRequest;

use crate::Error;

/// Limits of disk and loopback.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Machine {
    /// Median of a 4 KiB append with `fdatasync`, microseconds.
    pub flush_us: f64,
    /// The same, 99th percentile.
    pub flush_p99_us: f64,
    /// Sequential write bandwidth, flushed, 10⁶ bytes per second.
    pub write_mb_s: f64,
    /// Median of a unary gRPC call over loopback, microseconds.
    pub grpc_rtt_us: f64,
    /// Logical CPUs.
    pub cpus: usize,
}

const FLUSHES: usize = 200;
const FLUSH_BYTES: usize = 4096;
const STREAM_BYTES: usize = 64 << 20;
const STREAM_CHUNK: usize = 1 << 20;
const CALLS: usize = 500;

/// Measures all limits; files go to `dir`, which should lie on the disk that the nodes use, and are deleted.
///
/// # Errors
/// `dir` cannot be written, or loopback does not work.
pub async fn machine(dir: &Path) -> Result<Machine, Error> {
    let place = dir.to_path_buf();
    let mut found = tokio::task::spawn_blocking(move || disk(&place))
        .await
        .map_err(|e| Error::new(format!("disk probe: {e}")))?
        .map_err(|e| Error::new(format!("cannot measure the disk at {}: {e}", dir.display())))?;
    found.grpc_rtt_us = grpc_rtt().await?;
    found.cpus = std::thread::available_parallelism().map_or(1, usize::from);
    Ok(found)
}

#[allow(clippy::cast_precision_loss)]
fn disk(dir: &Path) -> std::io::Result<Machine> {
    let mut file = tempfile::tempfile_in(dir)?;
    let flushes = append_and_flush(&mut file)?;
    let mut file = tempfile::tempfile_in(dir)?;
    let chunk = vec![0xA5_u8; STREAM_CHUNK];
    let start = Instant::now();
    for _ in 0..STREAM_BYTES / STREAM_CHUNK {
        file.write_all(&chunk)?;
    }
    file.sync_data()?;
    let write_mb_s = STREAM_BYTES as f64 / 1e6 / start.elapsed().as_secs_f64();
    Ok(Machine {
        flush_us: quantile(&flushes, 50),
        flush_p99_us: quantile(&flushes, 99),
        write_mb_s: (write_mb_s * 10.0).round() / 10.0,
        ..Machine::default()
    })
}

fn append_and_flush(file: &mut File) -> std::io::Result<Vec<f64>> {
    let block = [0x5A_u8; FLUSH_BYTES];
    let mut took = Vec::with_capacity(FLUSHES);
    for _ in 0..FLUSHES {
        let start = Instant::now();
        file.write_all(&block)?;
        file.sync_data()?;
        took.push(start.elapsed().as_secs_f64() * 1e6);
    }
    Ok(took)
}

/// Nearest-rank quantile with one decimal.
fn quantile(values: &[f64], percent: usize) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).map_or(0.0, |v| (v * 10.0).round() / 10.0)
}

async fn grpc_rtt() -> Result<f64, Error> {
    let incoming = TcpIncoming::bind(SocketAddr::from(([127, 0, 0, 1], 0)))
        .map_err(|e| Error::new(format!("cannot listen on loopback: {e}")))?
        .with_nodelay(Some(true));
    let address = incoming.local_addr().map_err(|e| Error::new(format!("loopback listener: {e}")))?;
    // The standard health service answers at once: what is left is the cost of gRPC itself.
    let (_, health) = tonic_health::server::health_reporter();
    let server = tokio::spawn(tonic::transport::Server::builder().serve_with_incoming(health, incoming));
    let measured = call_often(address).await;
    server.abort();
    measured
}

async fn call_often(address: SocketAddr) -> Result<f64, Error> {
    let channel = tonic::transport::Endpoint::from_shared(format!("http://{address}"))
        .map_err(|e| Error::new(format!("loopback gRPC: {e}")))?
        .tcp_nodelay(true)
        .connect()
        .await
        .map_err(|e| Error::new(format!("loopback gRPC: {e}")))?;
    let mut client = HealthClient::new(channel);
    let mut took = Vec::with_capacity(CALLS);
    for _ in 0..CALLS {
        let start = Instant::now();
        client.check(HealthCheckRequest::default()).await.map_err(|e| Error::new(format!("loopback gRPC: {e}")))?;
        took.push(start.elapsed().as_secs_f64() * 1e6);
    }
    Ok(quantile(&took, 50))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_limit_is_measured_and_no_file_stays() {
        let dir = tempfile::tempdir().expect("a directory");
        let machine = machine(dir.path()).await.expect("measures");
        assert!(machine.flush_us > 0.0 && machine.write_mb_s > 0.0 && machine.grpc_rtt_us > 0.0, "{machine:?}");
        assert!(machine.flush_p99_us >= machine.flush_us);
        assert_eq!(std::fs::read_dir(dir.path()).expect("readable").count(), 0);
    }
}
