//! Before the first process: directory, lock, identity, ports, configuration files.

use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use quorate_chaos::layout::{Files, Hosts, Ports, NODES, PORTS};
use quorate_chaos::lifeline::Lifeline;
use quorate_chaos::orders;
use quorate_proto::ids::ClusterId;
use rand::Rng;
use rustix::fs::{flock, FlockOperation};

use crate::args::DevArgs;
use crate::fail::Fail;

/// Version of the directory's layout.
const FORMAT: u32 = 1;

/// Processes of a `quorate dev` that was killed a moment ago are still ending.
const LEFTOVERS: Duration = Duration::from_secs(5);

/// A prepared cluster.
pub struct Setup {
    pub files: Files,
    /// As the user wrote it.
    pub shown: PathBuf,
    pub ports: Ports,
    pub lifeline: Lifeline,
    pub binary: PathBuf,
    /// A process in the network namespace of each data node; empty where all share one.
    pub hosts: Vec<u32>,
    _lock: File,
}

impl Setup {
    /// Makes or checks the directory, takes its lock, checks the ports, writes the configuration files.
    pub fn prepare(args: &DevArgs) -> Result<Self, Fail> {
        let shown = args.data.clone();
        let io = |what: &str, e: std::io::Error| Fail::error(format!("{what} {}: {e}", shown.display()));
        fs::create_dir_all(&shown).map_err(|e| io("cannot make", e))?;
        let files = Files::new(fs::canonicalize(&shown).map_err(|e| io("cannot use", e))?);
        let marker = read_marker(&files, &shown)?;
        let lock = take_lock(&files, &shown)?;
        let hosts = if args.hosts.is_empty() { Hosts::One } else { Hosts::Several };
        let ports = Ports { base: args.port_base, hosts };
        check_ports(ports)?;
        let cluster = match marker {
            Some(cluster) => cluster,
            None => write_marker(&files).map_err(|e| io("cannot write to", e))?,
        };
        fs::create_dir_all(files.root.join("logs")).map_err(|e| io("cannot write to", e))?;
        write_orders(&files).map_err(|e| io("cannot write to", e))?;
        for id in 1..=NODES {
            let write = |name: String, text: String| fs::write(files.config(&name), text);
            write(format!("node-{id}"), node_config(&files, ports, cluster, id))
                .map_err(|e| io("cannot write to", e))?;
            write(format!("observer-{id}"), observer_config(&files, ports, cluster, id))
                .map_err(|e| io("cannot write to", e))?;
        }
        let lifeline = Lifeline::new().map_err(|e| Fail::error(format!("cannot make a pipe: {e}")))?;
        let binary = std::env::current_exe().map_err(|e| Fail::error(format!("where is this binary? {e}")))?;
        Ok(Self { files, shown, ports, lifeline, binary, hosts: args.hosts.clone(), _lock: lock })
    }

    /// Where the logs are, for people.
    pub fn logs(&self) -> String {
        self.shown.join("logs").display().to_string()
    }

    /// The sample rows, for people.
    pub fn orders(&self) -> String {
        self.shown.join("orders.csv").display().to_string()
    }
}

/// The cluster id of an existing directory; `None` for an empty one. Anything else is foreign.
fn read_marker(files: &Files, shown: &Path) -> Result<Option<ClusterId>, Fail> {
    let marker = files.marker();
    let text = match fs::read_to_string(&marker) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            let foreign = fs::read_dir(&files.root)
                .map_err(|e| Fail::error(format!("cannot read {}: {e}", shown.display())))?
                .flatten()
                .any(|entry| entry.file_name() != "lock");
            if foreign {
                let shown = shown.display();
                return Err(Fail::error(format!(
                    "{shown} is not empty and was not made by `quorate dev`; choose another directory with --data"
                )));
            }
            return Ok(None);
        }
        Err(e) => return Err(Fail::error(format!("cannot read {}: {e}", marker.display()))),
    };
    let value = |key: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(key)?.trim().strip_prefix('=').map(|v| v.trim().trim_matches('"')))
    };
    let damaged = || Fail::error(format!("{} is damaged: it names no format and cluster id", marker.display()));
    let format: u32 = value("format").and_then(|v| v.parse().ok()).ok_or_else(damaged)?;
    if format > FORMAT {
        let shown = shown.display();
        return Err(Fail::error(format!("{shown} has format {format}; this binary reads up to format {FORMAT}")));
    }
    let cluster = value("cluster_id").and_then(ClusterId::from_hex).ok_or_else(damaged)?;
    Ok(Some(cluster))
}

fn write_marker(files: &Files) -> std::io::Result<ClusterId> {
    let cluster = ClusterId(rand::rng().random());
    let text = format!("# Made by `quorate dev`.\nformat = {FORMAT}\ncluster_id = \"{cluster}\"\n");
    // Renamed into place: a half-written identity would make the directory useless.
    let beside = files.root.join("cluster.toml.new");
    let mut file = File::create(&beside)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&beside, files.marker())?;
    File::open(&files.root)?.sync_all()?;
    Ok(cluster)
}

fn take_lock(files: &Files, shown: &Path) -> Result<File, Fail> {
    let failed = |e: std::io::Error| Fail::error(format!("cannot lock {}: {e}", shown.display()));
    let mut lock =
        File::options().create(true).truncate(false).read(true).write(true).open(files.lock()).map_err(failed)?;
    let mut holder = String::new();
    lock.read_to_string(&mut holder).map_err(failed)?;
    if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        let (shown, holder) = (shown.display(), holder.trim());
        return Err(Fail::error(format!("{shown} is in use by another `quorate dev` (process {holder})")));
    }
    lock.rewind().map_err(failed)?;
    lock.set_len(0).map_err(failed)?;
    write!(lock, "{}", std::process::id()).map_err(failed)?;
    Ok(lock)
}

fn check_ports(ports: Ports) -> Result<(), Fail> {
    if ports.base.checked_add(PORTS).is_none() || ports.base < 1_024 {
        return Err(Fail::usage(format!("--port-base must lie between 1024 and {}", u16::MAX - PORTS)));
    }
    if ports.hosts == Hosts::Several {
        // Networks of their own: nobody else is there, and from here they cannot be listened on.
        return Ok(());
    }
    let started = Instant::now();
    loop {
        let taken =
            ports.all().into_iter().find_map(|(address, what)| quorate_host::listen::bind(&what, address).err());
        let Some(error) = taken else { return Ok(()) };
        if started.elapsed() > LEFTOVERS {
            return Err(Fail::error(format!("{error} with --port-base")));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Rows to publish, so that the first command to type needs nothing else.
fn write_orders(files: &Files) -> std::io::Result<()> {
    let path = files.root.join("orders.csv");
    if path.exists() {
        return Ok(());
    }
    fs::write(path, orders::rows(orders::SEED, orders::ROWS))
}

const HEADER: &str = "# Written by `quorate dev` at every start: changes made here are lost.\n";

/// A laptop's disk: what counts as little room on a server is much here.
const MARKS: &str = "disk_soft_bytes = 134217728\ndisk_hard_bytes = 67108864\ndisk_ballast_bytes = 16777216\n\
                     disk_soft_inodes = 2000\ndisk_hard_inodes = 500\n";

fn quoted(path: &Path) -> String {
    // TOML basic strings escape as JSON does.
    serde_json::to_string(&path.to_string_lossy()).expect("a string is JSON")
}

/// Networks that were made for one cluster may carry plain text.
fn plaintext(ports: Ports) -> &'static str {
    if ports.hosts == Hosts::Several {
        "allow_plaintext = true\n"
    } else {
        ""
    }
}

fn node_config(files: &Files, ports: Ports, cluster: ClusterId, id: u64) -> String {
    let name = format!("node-{id}");
    let observers: Vec<String> =
        (1..=NODES).map(|n| format!("    {{ id = {n}, address = \"{}\" }},\n", ports.observer(n))).collect();
    format!(
        "{HEADER}cluster_id = \"{cluster}\"\nnode_id = {id}\nname = \"{name}\"\nfault_domain = \"{name}\"\n\
         data_dir = {}\nwal_size = \"dev\"\nlisten = \"{}\"\npeer_listen = \"{}\"\nmetrics_listen = \"{}\"\n\
         log_file = {}\n{}{MARKS}observers = [\n{}]\n",
        quoted(&files.data(&name)),
        ports.node(id),
        ports.node_peer(id),
        ports.node_metrics(id),
        quoted(&files.log(&name)),
        plaintext(ports),
        observers.concat(),
    )
}

fn observer_config(files: &Files, ports: Ports, cluster: ClusterId, id: u64) -> String {
    let name = format!("observer-{id}");
    let peers: Vec<String> = (1..=NODES)
        .map(|n| {
            let (address, peer) = (ports.observer(n), ports.observer_peer(n));
            format!(
                "    {{ id = {n}, name = \"observer-{n}\", address = \"{address}\", peer_address = \"{peer}\" }},\n"
            )
        })
        .collect();
    format!(
        "{HEADER}cluster_id = \"{cluster}\"\nnode_id = {id}\nname = \"{name}\"\ndata_dir = {}\nlisten = \"{}\"\n\
         peer_listen = \"{}\"\nmetrics_listen = \"{}\"\nlog_file = {}\n{}{MARKS}observers = [\n{}]\n",
        quoted(&files.data(&name)),
        ports.observer(id),
        ports.observer_peer(id),
        ports.observer_metrics(id),
        quoted(&files.log(&name)),
        plaintext(ports),
        peers.concat(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(data: &Path, base: u16) -> DevArgs {
        DevArgs {
            data: data.to_path_buf(),
            port_base: base,
            restart_observers: crate::args::Restart(None),
            hosts: Vec::new(),
        }
    }

    #[test]
    fn a_second_start_finds_the_same_cluster_and_a_second_instance_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let ports = quorate_chaos::layout::ReservedPorts::find().expect("ports");
        let args = args(&dir.path().join("data"), ports.ports.base);
        let first = Setup::prepare(&args).map_err(|_| "refused").expect("prepares");
        let id = fs::read_to_string(first.files.marker()).expect("marker");
        assert!(Setup::prepare(&args).is_err(), "the lock is held");
        drop(first);
        let again = Setup::prepare(&args).map_err(|_| "refused").expect("prepares again");
        assert_eq!(fs::read_to_string(again.files.marker()).expect("marker"), id);
    }

    #[test]
    fn a_foreign_directory_is_refused_and_left_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join("letter.txt"), "mine").expect("writes");
        let ports = quorate_chaos::layout::ReservedPorts::find().expect("ports");
        assert!(Setup::prepare(&args(dir.path(), ports.ports.base)).is_err());
        assert_eq!(fs::read_dir(dir.path()).expect("readable").count(), 1);
    }

    #[test]
    fn configuration_files_are_what_the_processes_read() {
        let files = Files::new("/tmp/with \"quotes\"");
        let written = |text: String| {
            let mut file = tempfile::NamedTempFile::new().expect("a file");
            file.write_all(text.as_bytes()).expect("writes");
            file
        };
        let file = written(node_config(&files, Ports::default(), ClusterId(7), 2));
        let config = crate::server::load(file.path(), &[]).expect("loads").value;
        assert_eq!((config.node_id, config.observers.len()), (2, 3));
        config.validate().expect("valid");
        let file = written(observer_config(&files, Ports::default(), ClusterId(7), 3));
        let config = crate::observer::load(file.path()).expect("loads").value;
        assert_eq!((config.node_id, config.observers.len()), (3, 3));
        config.validate().expect("valid");
    }
}
