//! Configuration of an observer. Defaults are stated here; `docs/` repeats them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use quorate_consensus::space::Marks;
use quorate_consensus::timing::Timing;
use quorate_host::space::Disks;
use quorate_proto::ids::{ClusterId, NodeId};
use serde::{Deserialize, Serialize};

use crate::error::ObserverError;

/// An observer writes little: its log is at most 64 MB in files of 16 MB, a snapshot of the directory a few MB.
const MARKS: Marks = Marks {
    soft_bytes: 512 << 20,
    hard_bytes: 256 << 20,
    soft_inodes: 2_000,
    hard_inodes: 500,
    ballast_bytes: 64 << 20,
};

/// One observer of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Member {
    /// Its number, from 1, unique among observers.
    pub id: u64,
    /// Its name, for people.
    pub name: String,
    /// host:port for clients and data nodes.
    pub address: String,
    /// host:port for the other observers.
    pub peer_address: String,
}

/// An observer's configuration. Unknown keys are errors. Times are in the units that the names say.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ObserverConfig {
    /// Identity of the cluster, 32 hexadecimal digits.
    pub cluster_id: String,
    /// This observer's number, from 1, unique among observers.
    pub node_id: u64,
    /// Its name, for people.
    pub name: String,
    /// Where the directory's log, snapshots, view and the identity live.
    pub data_dir: PathBuf,
    /// Listener for clients, data nodes and supervisors.
    pub listen: SocketAddr,
    /// Listener for the other observers.
    pub peer_listen: SocketAddr,
    /// Listener for Prometheus; none = no metrics.
    pub metrics_listen: Option<SocketAddr>,
    /// All observers, this one included. Three or five.
    pub observers: Vec<Member>,
    /// Listeners outside loopback carry plain text: they must be asked for by name.
    pub allow_plaintext: bool,
    /// Log file; none = standard error.
    pub log_file: Option<PathBuf>,
    /// Filter for logs, as in `RUST_LOG`.
    pub log_filter: String,
    /// A snapshot of the directory is written after this many changes.
    pub snapshot_entries: u64,
    /// With fewer free bytes on a disk the observer passes its leadership on and adds no topics (B5).
    pub disk_soft_bytes: u64,
    /// With fewer it says that its disk is full; what the protocol logs goes on.
    pub disk_hard_bytes: u64,
    /// As `disk_soft_bytes`, for inodes. 0 = no such mark.
    pub disk_soft_inodes: u64,
    /// As `disk_hard_bytes`, for inodes. 0 = no such mark.
    pub disk_hard_inodes: u64,
    /// Size of the file that is removed when a disk is full, so that what must go on can. 0 = none.
    pub disk_ballast_bytes: u64,
    /// Watchers of routes; more are refused `BUSY`.
    pub watchers_max: usize,
    /// Closing takes at most this long.
    pub close_ms: u64,
}

impl Default for ObserverConfig {
    fn default() -> Self {
        let marks = MARKS;
        Self {
            cluster_id: String::new(),
            node_id: 0,
            name: String::new(),
            data_dir: PathBuf::from("quorate-observer"),
            listen: SocketAddr::from(([127, 0, 0, 1], 7101)),
            peer_listen: SocketAddr::from(([127, 0, 0, 1], 7201)),
            metrics_listen: None,
            observers: Vec::new(),
            allow_plaintext: false,
            log_file: None,
            log_filter: String::from("info"),
            snapshot_entries: quorate_consensus::observer::SNAPSHOT_ENTRIES,
            disk_soft_bytes: marks.soft_bytes,
            disk_hard_bytes: marks.hard_bytes,
            disk_soft_inodes: marks.soft_inodes,
            disk_hard_inodes: marks.hard_inodes,
            disk_ballast_bytes: marks.ballast_bytes,
            watchers_max: 10_000,
            close_ms: 5_000,
        }
    }
}

impl ObserverConfig {
    /// Checks every value and the rules between them.
    ///
    /// # Errors
    /// One text that names every value at fault.
    pub fn validate(&self) -> Result<(), ObserverError> {
        let mut faults = Vec::new();
        if ClusterId::from_hex(&self.cluster_id).is_none_or(|id| id == ClusterId::NONE) {
            faults.push(format!("cluster_id '{}' must be 32 hexadecimal digits, not all zero", self.cluster_id));
        }
        if self.node_id == 0 || !self.observers.iter().any(|o| o.id == self.node_id) {
            faults.push(format!("node_id {} must be one of the ids in observers", self.node_id));
        }
        if self.name.is_empty() {
            faults.push("name must not be empty".to_owned());
        }
        let mut ids: Vec<u64> = self.observers.iter().map(|o| o.id).collect();
        ids.sort_unstable();
        ids.dedup();
        if ids.len() != self.observers.len() || ids.first() == Some(&0) {
            faults.push("observers need distinct ids of at least 1".to_owned());
        }
        if self.observers.len().is_multiple_of(2) {
            let count = self.observers.len();
            faults.push(format!("{count} observers: an odd number (three or five) survives as many losses with less"));
        }
        if self.observers.iter().any(|o| !o.address.contains(':') || !o.peer_address.contains(':')) {
            faults.push("each observer needs address and peer_address as host:port".to_owned());
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
        if self.snapshot_entries == 0 {
            faults.push("snapshot_entries must be at least 1".to_owned());
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
            Err(ObserverError::Config(faults.join("; ")))
        }
    }

    /// The cluster; `NONE` if the text is none (refused by [`Self::validate`]).
    #[must_use]
    pub fn cluster(&self) -> ClusterId {
        ClusterId::from_hex(&self.cluster_id).unwrap_or(ClusterId::NONE)
    }

    /// Free space at which the observer changes what it does (B5).
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

    /// The disk that must have room, if it is there yet.
    ///
    /// # Errors
    /// The directory cannot be examined.
    pub fn disks(&self) -> Result<Disks, ObserverError> {
        let disks = Disks::new([self.data_dir.clone()], self.marks());
        disks.map_err(|e| ObserverError::io("cannot examine the disk", e))
    }

    /// This observer.
    #[must_use]
    pub fn node(&self) -> NodeId {
        NodeId(self.node_id)
    }

    /// The protocol's durations.
    #[must_use]
    pub fn timing(&self) -> Timing {
        Timing::default()
    }

    /// host:port of an observer for clients.
    #[must_use]
    pub fn address_of(&self, observer: NodeId) -> Option<&str> {
        self.observers.iter().find(|o| o.id == observer.get()).map(|o| o.address.as_str())
    }

    /// Closing takes at most this long.
    #[must_use]
    pub fn close_within(&self) -> Duration {
        Duration::from_millis(self.close_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn valid() -> ObserverConfig {
        let member = |id: u64| Member {
            id,
            name: format!("o{id}"),
            address: format!("127.0.0.1:{}", 7_100 + id),
            peer_address: format!("127.0.0.1:{}", 7_200 + id),
        };
        ObserverConfig {
            cluster_id: "0000000000000000000000000000002a".to_owned(),
            node_id: 1,
            name: "o1".to_owned(),
            observers: (1..=3).map(member).collect(),
            ..ObserverConfig::default()
        }
    }

    #[test]
    fn a_valid_configuration_passes_and_each_fault_is_named() {
        valid().validate().expect("valid");
        let mut wrong = valid();
        wrong.node_id = 9;
        wrong.listen = SocketAddr::from(([0, 0, 0, 0], 7_101));
        wrong.observers.pop();
        let text = wrong.validate().expect_err("three faults").to_string();
        for part in ["node_id 9", "allow_plaintext", "2 observers"] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn unknown_keys_are_errors() {
        assert!(toml::from_str::<ObserverConfig>("node_idd = 1").is_err());
    }
}
