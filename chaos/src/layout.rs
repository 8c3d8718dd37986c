//! Where a `quorate dev` cluster's processes listen and where their files lie.

use std::fs::{File, OpenOptions};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

use rustix::fs::{flock, FlockOperation};

use crate::network;

/// Data nodes, and observers, of a development cluster.
pub const NODES: u64 = 3;

/// First port of a development cluster if nothing else is said.
pub const DEFAULT_BASE: u16 = 7300;

/// Ports that a cluster takes from its base on.
pub const PORTS: u16 = 60;

/// Where the processes of one cluster listen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hosts {
    /// All on the loopback address.
    #[default]
    One,
    /// Each data node on a network host of its own ([`crate::network`]), everything else on another.
    Several,
}

/// The ports of one cluster: `base + 10 × kind + node`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    /// First of [`PORTS`] ports.
    pub base: u16,
    /// On which addresses.
    pub hosts: Hosts,
}

impl Default for Ports {
    fn default() -> Self {
        Self { base: DEFAULT_BASE, hosts: Hosts::One }
    }
}

impl Ports {
    fn at(self, kind: u16, node: u64) -> SocketAddr {
        let address = match (self.hosts, kind) {
            (Hosts::One, _) => Ipv4Addr::LOCALHOST,
            (Hosts::Several, 0..=2) => network::OBSERVERS,
            (Hosts::Several, _) => network::data_address(node),
        };
        let node = u16::try_from(node).expect("few nodes");
        SocketAddr::from((address, self.base + 10 * kind + node))
    }

    /// Data node, for clients.
    #[must_use]
    pub fn node(self, id: u64) -> SocketAddr {
        self.at(3, id)
    }

    /// Data node, for other data nodes.
    #[must_use]
    pub fn node_peer(self, id: u64) -> SocketAddr {
        self.at(4, id)
    }

    /// Data node, for Prometheus.
    #[must_use]
    pub fn node_metrics(self, id: u64) -> SocketAddr {
        self.at(5, id)
    }

    /// Observer, for clients and data nodes.
    #[must_use]
    pub fn observer(self, id: u64) -> SocketAddr {
        self.at(0, id)
    }

    /// Observer, for other observers.
    #[must_use]
    pub fn observer_peer(self, id: u64) -> SocketAddr {
        self.at(1, id)
    }

    /// Observer, for Prometheus.
    #[must_use]
    pub fn observer_metrics(self, id: u64) -> SocketAddr {
        self.at(2, id)
    }

    /// All ports, with what they are for.
    #[must_use]
    pub fn all(self) -> Vec<(SocketAddr, String)> {
        let mut all = Vec::new();
        for id in 1..=NODES {
            all.push((self.node(id), format!("node-{id}")));
            all.push((self.node_peer(id), format!("node-{id}, for its peers")));
            all.push((self.node_metrics(id), format!("node-{id}, metrics")));
            all.push((self.observer(id), format!("observer-{id}")));
            all.push((self.observer_peer(id), format!("observer-{id}, for its peers")));
            all.push((self.observer_metrics(id), format!("observer-{id}, metrics")));
        }
        all
    }

    /// The observers' addresses, for clients.
    #[must_use]
    pub fn observers(self) -> Vec<String> {
        (1..=NODES).map(|id| self.observer(id).to_string()).collect()
    }

    /// Ports of this cluster that something listens on.
    #[must_use]
    pub fn taken(self) -> Vec<(SocketAddr, String)> {
        self.all().into_iter().filter(|(address, _)| TcpListener::bind(address).is_err()).collect()
    }
}

/// Ports that no other user of this type on this host holds, for as long as it lives.
#[derive(Debug)]
pub struct ReservedPorts {
    /// The ports.
    pub ports: Ports,
    _lock: File,
}

impl ReservedPorts {
    /// Finds a free block. Blocks lie below the ports that the kernel gives to outgoing connections.
    ///
    /// # Errors
    /// None is free.
    pub fn find() -> io::Result<Self> {
        let dir = std::env::temp_dir().join("quorate-ports");
        std::fs::create_dir_all(&dir)?;
        const FIRST: u16 = 10_000;
        const BLOCKS: u16 = 300;
        // Start at different places, so that parallel tests seldom meet.
        let seed = u16::try_from(std::process::id() % u32::from(BLOCKS)).expect("below 300");
        for step in 0..BLOCKS {
            let base = FIRST + (seed + step * 7) % BLOCKS * PORTS;
            let lock = OpenOptions::new().create(true).truncate(false).write(true).open(dir.join(base.to_string()))?;
            if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
                continue;
            }
            let ports = Ports { base, hosts: Hosts::One };
            if ports.taken().is_empty() {
                return Ok(Self { ports, _lock: lock });
            }
        }
        Err(io::Error::new(io::ErrorKind::AddrInUse, "no free block of ports below 32 768"))
    }
}

/// Files of a development cluster below its data directory.
#[derive(Clone, Debug)]
pub struct Files {
    /// The data directory.
    pub root: PathBuf,
}

impl Files {
    /// Below `root`.
    #[must_use]
    pub fn new(root: impl AsRef<Path>) -> Self {
        Self { root: root.as_ref().to_path_buf() }
    }

    /// Marks the directory as a development cluster's, and holds its identity.
    #[must_use]
    pub fn marker(&self) -> PathBuf {
        self.root.join("cluster.toml")
    }

    /// Held by the one running instance.
    #[must_use]
    pub fn lock(&self) -> PathBuf {
        self.root.join("lock")
    }

    /// A process's configuration; `name` is `node-1`, `observer-2` …
    #[must_use]
    pub fn config(&self, name: &str) -> PathBuf {
        self.root.join(format!("{name}.toml"))
    }

    /// A process's data directory.
    #[must_use]
    pub fn data(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// A process's log.
    #[must_use]
    pub fn log(&self, name: &str) -> PathBuf {
        self.root.join("logs").join(format!("{name}.log"))
    }

    /// What a process wrote to its standard output and error.
    #[must_use]
    pub fn output(&self, name: &str) -> PathBuf {
        self.root.join("logs").join(format!("{name}.out"))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn all_ports_differ_and_lie_within_the_block() {
        let ports = Ports { base: 20_000, hosts: Hosts::One };
        let all: BTreeSet<u16> = ports.all().iter().map(|(address, _)| address.port()).collect();
        assert_eq!(all.len(), 18);
        assert!(all.iter().all(|port| (20_000..20_000 + PORTS).contains(port)));
    }

    #[test]
    fn on_several_hosts_each_data_node_has_an_address_of_its_own_and_observers_share_another() {
        let ports = Ports { base: 20_000, hosts: Hosts::Several };
        assert_eq!(ports.node(1).ip(), ports.node_peer(1).ip());
        assert_ne!(ports.node(1).ip(), ports.node(2).ip());
        assert_eq!(ports.observer(1).ip(), ports.observer_peer(3).ip());
        assert!(ports.all().iter().all(|(address, _)| !address.ip().is_loopback()));
    }

    #[test]
    fn reserved_blocks_never_overlap() {
        let one = ReservedPorts::find().expect("a block");
        let two = ReservedPorts::find().expect("another block");
        assert_ne!(one.ports, two.ports);
    }
}
