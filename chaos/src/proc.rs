//! Processes of this host: signals, parents, CPU time.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

pub use rustix::process::Signal;
use rustix::process::{kill_process, test_kill_process, Pid};

/// Process id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId(pub u32);

impl std::fmt::Display for ProcessId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "pid {}", self.0)
    }
}

/// `USER_HZ`: the unit of `/proc/<pid>/stat`, 100 on every Linux ABI.
const TICKS_PER_SECOND: u64 = 100;

/// What `/proc/<pid>/stat` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// `R`, `S`, `D`, `T`, `Z` …
    pub state: char,
    /// Its parent.
    pub parent: ProcessId,
    /// CPU time used by all its threads, user and kernel, in steps of 10 ms.
    pub cpu: Duration,
    /// Start time in ticks after boot: with the pid, names the process for good.
    pub start: u64,
}

impl Stat {
    /// When it was started, after the boot of this host, in steps of 10 ms.
    #[must_use]
    pub fn started(&self) -> Duration {
        Duration::from_millis(self.start * 1_000 / TICKS_PER_SECOND)
    }
}

impl ProcessId {
    fn pid(self) -> io::Result<Pid> {
        i32::try_from(self.0)
            .ok()
            .and_then(Pid::from_raw)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, format!("{self} is not a process id")))
    }

    /// This process.
    #[must_use]
    pub fn own() -> Self {
        Self(std::process::id())
    }

    /// Sends `signal`.
    ///
    /// # Errors
    /// No such process, or not ours.
    pub fn signal(self, signal: Signal) -> io::Result<()> {
        kill_process(self.pid()?, signal).map_err(Into::into)
    }

    /// `kill -9`.
    ///
    /// # Errors
    /// As [`Self::signal`].
    pub fn kill(self) -> io::Result<()> {
        self.signal(Signal::KILL)
    }

    /// It runs (a zombie does not).
    #[must_use]
    pub fn alive(self) -> bool {
        match self.stat() {
            Ok(stat) => stat.state != 'Z' && stat.state != 'X',
            Err(_) => self.pid().is_ok_and(|pid| test_kill_process(pid).is_ok()),
        }
    }

    /// Reads `/proc/<pid>/stat`.
    ///
    /// # Errors
    /// No such process.
    pub fn stat(self) -> io::Result<Stat> {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.0))?;
        parse_stat(&text).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "unexpected form of /proc/pid/stat"))
    }
}

fn parse_stat(text: &str) -> Option<Stat> {
    // The second field is the command in parentheses and may hold anything.
    let (_, rest) = text.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let ticks = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    Some(Stat {
        state: fields.first()?.chars().next()?,
        parent: ProcessId(fields.get(1)?.parse().ok()?),
        cpu: Duration::from_millis(ticks * 1_000 / TICKS_PER_SECOND),
        start: fields.get(19)?.parse().ok()?,
    })
}

/// All processes below `root`, children before grandchildren, without `root` itself.
#[must_use]
pub fn descendants(root: ProcessId) -> Vec<ProcessId> {
    let mut parents: Vec<(ProcessId, ProcessId)> = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if let Ok(stat) = ProcessId(pid).stat() {
            parents.push((stat.parent, ProcessId(pid)));
        }
    }
    let mut found = vec![root];
    let mut at = 0;
    while at < found.len() {
        let parent = found[at];
        found.extend(parents.iter().filter(|(p, _)| *p == parent).map(|(_, child)| *child));
        at += 1;
    }
    found.remove(0);
    found
}

/// CPU time of several processes together; those that are gone count as zero.
#[must_use]
pub fn cpu_of(pids: &[ProcessId]) -> Duration {
    pids.iter().filter_map(|pid| pid.stat().ok()).map(|stat| stat.cpu).sum()
}

/// CPU time of each thread of a process by its name; threads of the same name together. Empty if it is gone.
#[must_use]
pub fn cpu_by_thread(pid: ProcessId) -> BTreeMap<String, Duration> {
    let mut threads = BTreeMap::new();
    for entry in std::fs::read_dir(format!("/proc/{}/task", pid.0)).into_iter().flatten().flatten() {
        let Ok(text) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        let name = text.split_once('(').and_then(|(_, rest)| rest.rsplit_once(')')).map(|(name, _)| name.to_owned());
        if let (Some(name), Some(stat)) = (name, parse_stat(&text)) {
            *threads.entry(name).or_default() += stat.cpu;
        }
    }
    threads
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_is_read_whatever_the_command_is_called() {
        let text = "42 (a) b (c)) S 7 42 42 0 -1 4194560 1 0 0 0 150 50 0 0 20 0 3 0 9999 1 1";
        let stat = parse_stat(text).expect("parses");
        assert_eq!(stat.parent, ProcessId(7));
        assert_eq!(stat.cpu, Duration::from_secs(2));
        assert_eq!((stat.state, stat.start), ('S', 9999));
    }

    #[test]
    fn this_process_is_alive_and_has_a_parent() {
        let own = ProcessId::own();
        assert!(own.alive());
        assert!(!cpu_by_thread(own).is_empty());
        assert!(descendants(own.stat().expect("own stat").parent).contains(&own));
    }

    #[test]
    fn a_killed_child_is_not_alive_even_as_a_zombie() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep starts");
        let pid = ProcessId(child.id());
        assert!(pid.alive());
        pid.kill().expect("our own child");
        while pid.alive() {
            std::thread::yield_now();
        }
        child.wait().expect("reaped");
    }
}
