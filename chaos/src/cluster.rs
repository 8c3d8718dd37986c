//! A handle on a real cluster of real processes: starts `quorate dev`, kills its processes, starts them again.

mod view;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use quorate_client::Client;
use rustix::process::Signal;

use crate::layout::{Files, Hosts, Ports, ReservedPorts};
use crate::lifeline::Lifeline;
use crate::network::Networks;
use crate::proc::{descendants, ProcessId};
use crate::volume::Volume;
use crate::Error;

pub use view::{connect, View};

/// A cold start on a loaded machine with two cores; a healthy one takes two seconds.
const START_LIMIT: Duration = Duration::from_secs(120);
/// Longest wait for a state that the cluster must reach by itself.
const WAIT_LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

/// The line with which `quorate dev` says that everything is ready.
pub const READY: &str = "Ready";

/// One `quorate dev` and all below it. Dropping it kills every process and deletes a temporary data directory.
#[derive(Debug)]
pub struct Cluster {
    binary: PathBuf,
    ports: ReservedPorts,
    files: Files,
    _temporary: Option<tempfile::TempDir>,
    dev: Option<Child>,
    alone: Vec<(String, Child)>,
    output: Arc<Mutex<String>>,
    lifeline: Option<Lifeline>,
    restart_observers: &'static str,
    volumes: Vec<Arc<Volume>>,
    networks: Option<Networks>,
}

impl Cluster {
    /// Starts a cluster in a temporary directory on ports of its own and waits until it serves.
    ///
    /// # Errors
    /// It did not come up; the text holds what it said.
    pub fn start(binary: &Path) -> Result<Self, Error> {
        Self::start_with(binary, "never")
    }

    /// The same; observers that die are started again after `restart_observers` (`2s`, `never`).
    ///
    /// # Errors
    /// It did not come up.
    pub fn start_with(binary: &Path, restart_observers: &'static str) -> Result<Self, Error> {
        let mut cluster = Self::temporary(binary, restart_observers)?;
        cluster.start_again()?;
        Ok(cluster)
    }

    /// The same, then stopped and started again on the file systems that `mount` makes meanwhile.
    ///
    /// # Errors
    /// It did not come up.
    pub fn start_on(
        binary: &Path,
        restart_observers: &'static str,
        mount: impl FnOnce(&Files) -> Result<Vec<Arc<Volume>>, Error>,
    ) -> Result<Self, Error> {
        let mut cluster = Self::start_with(binary, restart_observers)?;
        cluster.interrupt()?;
        cluster.volumes = mount(&cluster.files)?;
        cluster.start_again()?;
        Ok(cluster)
    }

    /// The same with each data node and its supervisor on a network host of its own, which can be cut off.
    ///
    /// # Errors
    /// This process is not in a network of its own ([`crate::network::enter`]), or the cluster did not come up.
    pub fn start_on_networks(binary: &Path, restart_observers: &'static str) -> Result<Self, Error> {
        let mut cluster = Self::temporary(binary, restart_observers)?;
        cluster.networks = Some(Networks::new()?);
        cluster.ports.ports.hosts = Hosts::Several;
        cluster.start_again()?;
        Ok(cluster)
    }

    /// Starts a cluster on what `unpack` puts into its data directory.
    ///
    /// # Errors
    /// It did not come up.
    pub fn start_on_copy(binary: &Path, unpack: impl FnOnce(&Path)) -> Result<Self, Error> {
        let mut cluster = Self::temporary(binary, "never")?;
        unpack(&cluster.files.root);
        cluster.start_again()?;
        Ok(cluster)
    }

    /// Not started yet, in a temporary directory.
    fn temporary(binary: &Path, restart_observers: &'static str) -> Result<Self, Error> {
        let temporary = tempfile::Builder::new()
            .prefix("quorate-")
            .tempdir()
            .map_err(|e| Error::new(format!("no temporary directory: {e}")))?;
        let files = Files::new(temporary.path().join("data"));
        Self::not_started(binary, files, Some(temporary), restart_observers)
    }

    fn not_started(
        binary: &Path,
        files: Files,
        temporary: Option<tempfile::TempDir>,
        restart_observers: &'static str,
    ) -> Result<Self, Error> {
        let ports = ReservedPorts::find().map_err(|e| Error::new(format!("no free ports: {e}")))?;
        Ok(Self {
            binary: binary.to_path_buf(),
            ports,
            files,
            _temporary: temporary,
            dev: None,
            alone: Vec::new(),
            output: Arc::default(),
            lifeline: None,
            restart_observers,
            volumes: Vec::new(),
            networks: None,
        })
    }

    /// Starts a cluster in this directory, whose old contents are deleted first and which stays afterwards. Its
    /// processes end with this one in any case, so it may be shared by tests through a `static`.
    ///
    /// # Errors
    /// It did not come up.
    pub fn start_in(binary: &Path, directory: &Path) -> Result<Self, Error> {
        let failed = |e: std::io::Error| Error::new(format!("{}: {e}", directory.display()));
        match std::fs::remove_dir_all(directory) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(failed(e)),
            _ => {}
        }
        std::fs::create_dir_all(directory).map_err(failed)?;
        let mut cluster = Self::not_started(binary, Files::new(directory.join("data")), None, "never")?;
        cluster.start_again()?;
        Ok(cluster)
    }

    /// Starts `quorate dev` on the data that is there and waits until it serves.
    ///
    /// # Errors
    /// It did not come up.
    pub fn start_again(&mut self) -> Result<(), Error> {
        let lifeline = Lifeline::new().map_err(|e| Error::new(format!("no pipe: {e}")))?;
        let (variable, value) = lifeline.environment();
        let mut child = self
            .dev_command()
            .env(variable, value)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| Error::new(format!("cannot start {}: {e}", self.binary.display())))?;
        if let Ok(mut output) = self.output.lock() {
            output.clear();
        }
        let streams: [Option<Box<dyn std::io::Read + Send>>; 2] = [
            child.stdout.take().map(|s| Box::new(s) as Box<dyn std::io::Read + Send>),
            child.stderr.take().map(|s| Box::new(s) as Box<dyn std::io::Read + Send>),
        ];
        for stream in streams.into_iter().flatten() {
            let output = self.output.clone();
            // Ends with the process's output.
            std::thread::spawn(move || {
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    if let Ok(mut output) = output.lock() {
                        output.push_str(&line);
                        output.push('\n');
                    }
                }
            });
        }
        self.dev = Some(child);
        self.lifeline = Some(lifeline);
        self.wait_ready()
    }

    fn wait_ready(&mut self) -> Result<(), Error> {
        let started = Instant::now();
        loop {
            if self.said().lines().any(|line| line.starts_with(READY)) {
                return Ok(());
            }
            let ended = match &mut self.dev {
                Some(child) => child.try_wait().ok().flatten(),
                None => return Err(Error::new("the cluster was not started")),
            };
            if let Some(status) = ended {
                return Err(Error::new(format!("quorate dev ended with {status}:\n{}{}", self.said(), self.logs())));
            }
            if started.elapsed() > START_LIMIT {
                return Err(Error::new(format!("not ready after {START_LIMIT:?}:\n{}{}", self.said(), self.logs())));
            }
            std::thread::sleep(POLL);
        }
    }

    /// `quorate dev` with this cluster's data and ports.
    #[must_use]
    pub fn dev_command(&self) -> Command {
        let mut command = Command::new(&self.binary);
        command.arg("dev").arg("--data").arg(&self.files.root);
        command.arg("--port-base").arg(self.ports.ports.base.to_string());
        command.arg("--restart-observers").arg(self.restart_observers);
        if let Some(networks) = &self.networks {
            command.arg("--hosts").arg(networks.hosts());
        }
        command
    }

    /// `quorate` talking to this cluster.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.binary);
        command.env("QUORATE_OBSERVERS", self.observers().join(",")).stdin(Stdio::null());
        command
    }

    /// What `quorate dev` has printed since its last start.
    #[must_use]
    pub fn said(&self) -> String {
        self.output.lock().map(|output| output.clone()).unwrap_or_default()
    }

    /// The last lines of all processes' logs.
    #[must_use]
    pub fn logs(&self) -> String {
        const LINES: usize = 30;
        let mut all = String::new();
        let Ok(entries) = std::fs::read_dir(self.files.root.join("logs")) else { return all };
        let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        paths.sort();
        for path in paths {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            if !lines.is_empty() {
                let tail = &lines[lines.len().saturating_sub(LINES)..];
                all.push_str(&format!("--- {}\n{}\n", path.display(), tail.join("\n")));
            }
        }
        all
    }

    /// Its observers.
    #[must_use]
    pub fn observers(&self) -> Vec<String> {
        self.ports.ports.observers()
    }

    /// Its ports.
    #[must_use]
    pub fn ports(&self) -> Ports {
        self.ports.ports
    }

    /// Its files.
    #[must_use]
    pub fn files(&self) -> &Files {
        &self.files
    }

    /// The file systems made for it, in the order in which they were.
    #[must_use]
    pub fn volumes(&self) -> &[Arc<Volume>] {
        &self.volumes
    }

    /// Its data nodes' networks.
    #[must_use]
    pub fn networks(&self) -> Option<&Networks> {
        self.networks.as_ref()
    }

    /// A new client.
    ///
    /// # Errors
    /// No observer answers.
    pub async fn client(&self) -> Result<Client, Error> {
        connect(&self.observers()).await
    }

    /// Process id of `quorate dev`.
    #[must_use]
    pub fn dev_pid(&self) -> Option<ProcessId> {
        self.dev.as_ref().map(|child| ProcessId(child.id()))
    }

    /// Every process of the cluster, `quorate dev` last.
    #[must_use]
    pub fn pids(&self) -> Vec<ProcessId> {
        let mut all = Vec::new();
        if let Some(dev) = self.dev_pid() {
            all.extend(descendants(dev));
            all.push(dev);
        }
        for (_, child) in &self.alone {
            let pid = ProcessId(child.id());
            all.extend(descendants(pid));
            all.push(pid);
        }
        all
    }

    /// Starts one process by itself, from its configuration file, as an operator would: `kind` is `observer` or
    /// `server`, `id` its number.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start_alone(&mut self, kind: &str, id: u64) -> Result<(), Error> {
        let name = if kind == "observer" { format!("observer-{id}") } else { format!("node-{id}") };
        let failed = |e: std::io::Error| Error::new(format!("cannot start {name}: {e}"));
        let output = File::options().create(true).append(true).open(self.files.output(&name)).map_err(failed)?;
        let lifeline = self.lifeline.as_ref().ok_or_else(|| Error::new("the cluster was not started"))?;
        let (variable, value) = lifeline.environment();
        let mut command = match self.networks.as_ref().filter(|_| kind == "server") {
            Some(networks) => networks.command(id, &self.binary)?,
            None => Command::new(&self.binary),
        };
        let child = command
            .env(variable, value)
            .arg(kind)
            .arg("--config")
            .arg(self.files.config(&name))
            .stdin(Stdio::null())
            .stdout(output.try_clone().map_err(failed)?)
            .stderr(output)
            .spawn()
            .map_err(failed)?;
        self.alone.push((name, child));
        Ok(())
    }

    /// `kill -9` for every process at once, `quorate dev` included.
    pub fn kill_all(&mut self) {
        let all = self.pids();
        // Stopped first, so that no supervisor starts anything in between.
        for pid in &all {
            let _ = pid.signal(Signal::STOP);
        }
        for pid in all.iter().chain(&self.pids()) {
            let _ = pid.kill();
        }
        if let Some(mut dev) = self.dev.take() {
            let _ = dev.wait();
        }
        for (_, child) in &mut self.alone {
            let _ = child.wait();
        }
        self.alone.clear();
        let started = Instant::now();
        while all.iter().any(|pid| pid.alive()) && started.elapsed() < WAIT_LIMIT {
            std::thread::sleep(POLL);
        }
    }

    /// SIGINT to `quorate dev`; waits for its end.
    ///
    /// # Errors
    /// It was not running, or did not end in time.
    pub fn interrupt(&mut self) -> Result<std::process::ExitStatus, Error> {
        let mut dev = self.dev.take().ok_or_else(|| Error::new("quorate dev does not run"))?;
        ProcessId(dev.id()).signal(Signal::INT).map_err(|e| Error::new(format!("SIGINT: {e}")))?;
        let started = Instant::now();
        loop {
            match dev.try_wait() {
                Ok(Some(status)) => return Ok(status),
                Ok(None) if started.elapsed() < WAIT_LIMIT => std::thread::sleep(POLL),
                other => {
                    self.dev = Some(dev);
                    return Err(Error::new(format!("quorate dev did not end on SIGINT: {other:?}\n{}", self.logs())));
                }
            }
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("quorate dev said:\n{}\n{}", self.said(), self.logs());
        }
        for volume in &self.volumes {
            // A process that waits for a frozen disk does not even die.
            let _ = volume.thaw();
        }
        self.kill_all();
    }
}
