//! Configuration of a data node. Defaults are stated here; `docs/` repeats them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use quorate_consensus::space::Marks;
use quorate_consensus::timing::Timing;
use quorate_host::space::Disks;
use quorate_proto::ids::{ClusterId, NodeId};
use serde::{Deserialize, Serialize};

use crate::error::ServerError;

/// One observer: where its session service listens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObserverAddress {
    /// Its node id.
    pub id: u64,
    /// host:port.
    pub address: String,
}

/// How large the write-ahead log is (`3-architecture`, storage).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WalSize {
    /// 2 GB in files of 128 MB, recycled and prefilled.
    #[default]
    Production,
    /// 64 MB in files of 16 MB, not prefilled: for `quorate dev` and tests.
    Dev,
}

/// What leaders do that cannot renew their lease, because no observer majority answers (protocol L6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ObserverLossSetting {
    /// Stop serving when the lease ends.
    #[default]
    Stop,
    /// Go on with the data majority, each read confirmed by it.
    ReadIndex,
}

/// A data node's configuration. Unknown keys are errors. Times are in the units that the names say.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServerConfig {
    /// Identity of the cluster, 32 hexadecimal digits.
    pub cluster_id: String,
    /// This node's number, from 1, unique in the cluster.
    pub node_id: u64,
    /// Its name, for people.
    pub name: String,
    /// Rack, host or zone: replicas of a partition go to distinct ones. Empty = the node's name.
    pub fault_domain: String,
    /// Where segments, key runs and the identity live.
    pub data_dir: PathBuf,
    /// Where the write-ahead log lives; default `data_dir/wal`.
    pub wal_dir: Option<PathBuf>,
    /// Size of the write-ahead log.
    pub wal_size: WalSize,
    /// Listener for clients.
    pub listen: SocketAddr,
    /// Listener for the other data nodes.
    pub peer_listen: SocketAddr,
    /// host:port that clients are told; default: `listen`.
    pub advertise: Option<String>,
    /// host:port that other nodes are told; default: `peer_listen`.
    pub peer_advertise: Option<String>,
    /// Listener for Prometheus; none = no metrics.
    pub metrics_listen: Option<SocketAddr>,
    /// What leaders do that cannot renew their lease.
    pub observer_loss: ObserverLossSetting,
    /// All observers.
    pub observers: Vec<ObserverAddress>,
    /// Listeners outside loopback carry plain text: they must be asked for by name.
    pub allow_plaintext: bool,
    /// Log file; none = standard error.
    pub log_file: Option<PathBuf>,
    /// Filter for logs, as in `RUST_LOG`.
    pub log_filter: String,
    /// Children die with their parent (`quorate dev`).
    pub die_with_parent: bool,
    /// Bytes of one connection's publishes that may wait for their fate.
    pub connection_max_bytes: u64,
    /// Bytes that all tail caches of the node may hold together.
    pub tail_cache_bytes: u64,
    /// Bytes that may wait for the storage thread before the shell stops taking publishes.
    pub storage_queue_bytes: u64,
    /// A segment is closed and a new one begun at this length.
    pub segment_bytes: u64,
    /// With fewer free bytes on a disk no publishes are taken and leaders go elsewhere (B5).
    pub disk_soft_bytes: u64,
    /// With fewer, nothing that carries records is appended.
    pub disk_hard_bytes: u64,
    /// As `disk_soft_bytes`, for inodes. 0 = no such mark.
    pub disk_soft_inodes: u64,
    /// As `disk_hard_bytes`, for inodes. 0 = no such mark.
    pub disk_hard_inodes: u64,
    /// Size of the file that is removed when a disk is full, so that what must go on can. 0 = none.
    pub disk_ballast_bytes: u64,
    /// Stored records are read back at this pace at most, to find damage before a reader does (B6). 0 = never.
    pub scrub_bytes_per_second: u64,
    /// A snapshot is sent to a follower at this pace at most (M2).
    pub snapshot_bytes_per_second: u64,
    /// So long after one pass over everything the next begins.
    pub scrub_every_s: u64,
    /// A client whose stream takes no answer for this long is cut off.
    pub client_stall_ms: u64,
    /// A closing node hands its leaders over for at most this long …
    pub drain_ms: u64,
    /// … and then takes at most this long to close.
    pub close_ms: u64,
}

impl Default for ServerConfig {
    fn default() -> Self {
        let marks = Marks::default();
        Self {
            cluster_id: String::new(),
            node_id: 0,
            name: String::new(),
            fault_domain: String::new(),
            data_dir: PathBuf::from("quorate-data"),
            wal_dir: None,
            wal_size: WalSize::Production,
            listen: SocketAddr::from(([127, 0, 0, 1], 7301)),
            peer_listen: SocketAddr::from(([127, 0, 0, 1], 7401)),
            advertise: None,
            peer_advertise: None,
            metrics_listen: None,
            observer_loss: ObserverLossSetting::Stop,
            observers: Vec::new(),
            allow_plaintext: false,
            log_file: None,
            log_filter: String::from("info"),
            die_with_parent: false,
            connection_max_bytes: 16 << 20,
            tail_cache_bytes: 64 << 20,
            storage_queue_bytes: 64 << 20,
            segment_bytes: 64 << 20,
            disk_soft_bytes: marks.soft_bytes,
            disk_hard_bytes: marks.hard_bytes,
            disk_soft_inodes: marks.soft_inodes,
            disk_hard_inodes: marks.hard_inodes,
            disk_ballast_bytes: marks.ballast_bytes,
            scrub_bytes_per_second: 8 << 20,
            snapshot_bytes_per_second: 64 << 20,
            scrub_every_s: 24 * 3_600,
            client_stall_ms: 30_000,
            drain_ms: 20_000,
            close_ms: 5_000,
        }
    }
}

impl ServerConfig {
    /// Checks every value and the rules between them.
    ///
    /// # Errors
    /// One text that names every value at fault.
    pub fn validate(&self) -> Result<(), ServerError> {
        let mut faults = Vec::new();
        if ClusterId::from_hex(&self.cluster_id).is_none_or(|id| id == ClusterId::NONE) {
            faults.push(format!("cluster_id '{}' must be 32 hexadecimal digits, not all zero", self.cluster_id));
        }
        if self.node_id == 0 {
            faults.push("node_id must be at least 1".to_owned());
        }
        if self.name.is_empty() {
            faults.push("name must not be empty".to_owned());
        }
        if self.observers.is_empty() {
            faults.push("observers must name at least one observer".to_owned());
        }
        if self.observers.iter().any(|o| o.id == 0 || !o.address.contains(':')) {
            faults.push("each observer needs an id of at least 1 and an address host:port".to_owned());
        }
        for (name, address) in [("listen", self.listen), ("peer_listen", self.peer_listen)] {
            if !address.ip().is_loopback() && !self.allow_plaintext {
                faults
                    .push(format!("{name} {address} is outside loopback and unencrypted: set allow_plaintext = true"));
            }
        }
        if self.listen.port() != 0 && self.listen == self.peer_listen {
            faults.push(format!("listen and peer_listen are both {}", self.listen));
        }
        if self.connection_max_bytes < 4 << 20 {
            faults.push("connection_max_bytes must be at least 4 MiB (one batch)".to_owned());
        }
        if self.snapshot_bytes_per_second < 1 << 16 {
            faults.push("snapshot_bytes_per_second must be at least 64 KiB".to_owned());
        }
        if self.segment_bytes < 1 << 16 {
            faults.push("segment_bytes must be at least 64 KiB".to_owned());
        }
        if self.scrub_every_s == 0 {
            faults.push("scrub_every_s must be at least 1".to_owned());
        }
        if let Err(clashes) = self.marks().validate() {
            faults.extend(clashes);
        }
        if let Err(clashes) = self.timing().validate() {
            faults.extend(clashes);
        }
        if faults.is_empty() {
            Ok(())
        } else {
            Err(ServerError::Config(faults.join("; ")))
        }
    }

    /// The protocol's durations.
    #[must_use]
    pub fn timing(&self) -> Timing {
        Timing::default()
    }

    /// Free space at which the node changes what it does (B5).
    #[must_use]
    pub fn marks(&self) -> Marks {
        Marks {
            soft_bytes: self.disk_soft_bytes,
            hard_bytes: self.disk_hard_bytes,
            soft_inodes: self.disk_soft_inodes,
            hard_inodes: self.disk_hard_inodes,
            ballast_bytes: self.disk_ballast_bytes,
        }
    }

    /// The disks that must have room: the data directory's and the log's, as far as they are there yet.
    ///
    /// # Errors
    /// A directory cannot be examined.
    pub fn disks(&self) -> Result<Disks, ServerError> {
        let disks = Disks::new([self.data_dir.clone(), self.wal_dir()], self.marks());
        disks.map_err(|e| ServerError::io("cannot examine the disks", e))
    }

    /// The cluster's identity; call after [`Self::validate`].
    #[must_use]
    pub fn cluster(&self) -> ClusterId {
        ClusterId::from_hex(&self.cluster_id).unwrap_or(ClusterId::NONE)
    }

    /// This node's id.
    #[must_use]
    pub fn node(&self) -> NodeId {
        NodeId(self.node_id)
    }

    /// Where the write-ahead log lives.
    #[must_use]
    pub fn wal_dir(&self) -> PathBuf {
        self.wal_dir.clone().unwrap_or_else(|| self.data_dir.join("wal"))
    }

    /// host:port for clients.
    #[must_use]
    pub fn client_address(&self) -> String {
        self.advertise.clone().unwrap_or_else(|| self.listen.to_string())
    }

    /// host:port for other data nodes.
    #[must_use]
    pub fn peer_address(&self) -> String {
        self.peer_advertise.clone().unwrap_or_else(|| self.peer_listen.to_string())
    }

    /// Rack, host or zone.
    #[must_use]
    pub fn domain(&self) -> &str {
        if self.fault_domain.is_empty() {
            &self.name
        } else {
            &self.fault_domain
        }
    }

    /// How long a closing node hands its leaders over before it gives up what is left.
    #[must_use]
    pub fn drain_within(&self) -> Duration {
        Duration::from_millis(self.drain_ms)
    }

    /// Pause between two passes of the scrub.
    #[must_use]
    pub fn scrub_every(&self) -> Duration {
        Duration::from_secs(self.scrub_every_s)
    }

    /// How long closing may take.
    #[must_use]
    pub fn close_within(&self) -> Duration {
        Duration::from_millis(self.close_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_and_pace_that_make_no_sense_are_refused_by_name() {
        let valid = ServerConfig {
            cluster_id: "0000000000000000000000000000002a".to_owned(),
            node_id: 1,
            name: "n1".to_owned(),
            observers: vec![ObserverAddress { id: 1, address: "127.0.0.1:7101".to_owned() }],
            ..ServerConfig::default()
        };
        valid.validate().expect("valid");
        let wrong = ServerConfig { disk_hard_bytes: 3 << 30, disk_ballast_bytes: 4 << 30, scrub_every_s: 0, ..valid };
        let text = wrong.validate().expect_err("refused").to_string();
        for part in [
            "disk_soft_bytes (2147483648) must be more than disk_hard_bytes (3221225472)",
            "disk_hard_bytes (3221225472) must be more than disk_ballast_bytes (4294967296)",
            "scrub_every_s must be at least 1",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }
}
