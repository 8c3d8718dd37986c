//! The node process: started or adopted, watched by pidfd, told to stop.

use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::process::{ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use quorate_proto::ids::Incarnation;
use rustix::event::{poll, PollFd, PollFlags};
use rustix::process::{pidfd_open, pidfd_send_signal, Pid, PidfdFlags, Signal};
use tokio::sync::watch;

use super::{ChildCommand, ENV_DIE_WITH, ENV_LAST_EXIT, ENV_SUPERVISOR_HASH};
use crate::error::ServerError;

/// The line by which a node tells its supervisor which incarnation it is, on its standard output.
pub(crate) const INCARNATION_LINE: &str = "incarnation ";
/// A node that died has said its incarnation by then, if it got that far.
const INCARNATION_WAIT: Duration = Duration::from_millis(100);

/// One node process.
#[derive(Debug)]
pub(super) struct Child {
    pid: i32,
    pidfd: Arc<OwnedFd>,
    gone: watch::Receiver<bool>,
    /// Absent for an adopted one: its exit status is not ours to collect.
    process: Option<std::process::Child>,
    incarnation: watch::Receiver<Option<Incarnation>>,
}

impl Child {
    /// Starts a node.
    pub fn start(
        command: &ChildCommand,
        secret: &str,
        last_exit: Option<i32>,
        end_with: Option<i32>,
    ) -> Result<Self, ServerError> {
        let mut builder = Command::new(&command.program);
        builder
            .args(&command.args)
            .env(ENV_SUPERVISOR_HASH, hash(secret))
            .env_remove(ENV_LAST_EXIT)
            .env_remove(ENV_DIE_WITH)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        if let Some(status) = last_exit {
            builder.env(ENV_LAST_EXIT, status.to_string());
        }
        if let Some(pid) = end_with {
            builder.env(ENV_DIE_WITH, pid.to_string());
        }
        let program = command.program.display();
        let mut process =
            builder.spawn().map_err(|e| ServerError::Supervisor(format!("cannot start {program}: {e}")))?;
        let pid = i32::try_from(process.id()).map_err(|e| ServerError::Supervisor(e.to_string()))?;
        let (sender, incarnation) = watch::channel(None);
        if let Some(output) = process.stdout.take() {
            listen(output, sender)?;
        }
        let (pidfd, gone) = open(pid)?;
        Ok(Self { pid, pidfd, gone, process: Some(process), incarnation })
    }

    /// Watches a node that another supervisor started.
    pub fn adopt(pid: i32, incarnation: Incarnation) -> Result<Self, ServerError> {
        let (_, incarnation) = watch::channel(Some(incarnation));
        let (pidfd, gone) = open(pid)?;
        Ok(Self { pid, pidfd, gone, process: None, incarnation })
    }

    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Waits for the exit. Exit code (≥ 0) or minus the signal; `None` if it was not our child.
    pub async fn exited(&mut self) -> Result<Option<i32>, ServerError> {
        use std::os::unix::process::ExitStatusExt;
        let fault = |e| ServerError::io("cannot watch the node", e);
        // The watching thread ends only by saying so.
        let _ = self.gone.wait_for(|gone| *gone).await;
        let Some(process) = &mut self.process else { return Ok(None) };
        let status = process.wait().map_err(fault)?;
        Ok(status.code().or_else(|| status.signal().map(|signal| -signal)))
    }

    /// Asks it to stop.
    pub fn terminate(&self) {
        // It may be gone already: then its exit is on the way to us.
        let _ = pidfd_send_signal(&self.pidfd, Signal::TERM);
    }

    /// Which incarnation it was; `None` if it died before it had one: then there is nothing to tell.
    pub async fn incarnation(&mut self) -> Option<Incarnation> {
        let known = tokio::time::timeout(INCARNATION_WAIT, self.incarnation.wait_for(Option::is_some)).await;
        known.ok()?.ok().and_then(|incarnation| *incarnation)
    }
}

/// BLAKE3 of the secret, as the node shows it to the observers.
pub(super) fn hash(secret: &str) -> String {
    blake3::hash(secret.as_bytes()).to_hex().to_string()
}

/// Reads what the node says, on a thread of its own: it lives as long as the node does.
fn listen(output: ChildStdout, incarnation: watch::Sender<Option<Incarnation>>) -> Result<(), ServerError> {
    let reader = move || {
        for line in BufReader::new(output).lines() {
            let Ok(line) = line else { return };
            if let Some(number) = line.strip_prefix(INCARNATION_LINE).and_then(|n| n.trim().parse().ok()) {
                incarnation.send_replace(Some(Incarnation(number)));
            }
        }
    };
    std::thread::Builder::new()
        .name("node-output".to_owned())
        .spawn(reader)
        .map(drop)
        .map_err(|e| ServerError::io("cannot start a thread", e))
}

/// Opens a handle on the process and watches it on a thread of its own.
fn open(pid: i32) -> Result<(Arc<OwnedFd>, watch::Receiver<bool>), ServerError> {
    let fd = Arc::new(pidfd(pid).map_err(|e| ServerError::io(format!("cannot watch process {pid}"), e))?);
    let (sender, gone) = watch::channel(false);
    let watched = Arc::clone(&fd);
    let watch = move || {
        wait(&watched);
        sender.send_replace(true);
    };
    let thread = std::thread::Builder::new().name("node-exit".to_owned()).spawn(watch);
    thread.map_err(|e| ServerError::io("cannot start a thread", e))?;
    Ok((fd, gone))
}

/// Returns when the process has ended.
fn wait(pidfd: &OwnedFd) {
    // Only a signal interrupts the wait.
    while poll(&mut [PollFd::new(pidfd, PollFlags::IN)], None).is_err() {}
}

fn pidfd(pid: i32) -> std::io::Result<OwnedFd> {
    let pid = Pid::from_raw(pid).ok_or(std::io::ErrorKind::InvalidInput)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

/// The parent process, which this one will not outlive; `None` if it is gone already and there is only init.
pub(super) fn end_with_parent() -> Result<Option<i32>, ServerError> {
    let parent = rustix::process::getppid().map(Pid::as_raw_pid);
    if let Some(parent) = parent {
        end_with(parent)?;
    }
    Ok(parent)
}

/// Ends this process when process `pid` ends. A parent-death signal would not do: it comes when the parent's
/// *thread* ends, and not to grandchildren.
pub(crate) fn end_with(pid: i32) -> Result<(), ServerError> {
    let watched = pidfd(pid);
    let watch = move || {
        if let Ok(fd) = watched {
            wait(&fd);
        }
        // No process, no watch: it ended before we looked.
        std::process::exit(0);
    };
    std::thread::Builder::new()
        .name("end-with".to_owned())
        .spawn(watch)
        .map(drop)
        .map_err(|e| ServerError::io("cannot start a thread", e))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> ChildCommand {
        ChildCommand { program: "/bin/sh".into(), args: vec!["-c".into(), script.into()] }
    }

    #[tokio::test]
    async fn the_exit_of_a_node_is_learnt_with_status_and_incarnation() {
        let mut child = Child::start(&shell("echo incarnation 7; exit 3"), "s", None, None).unwrap();
        assert_eq!(child.exited().await.unwrap(), Some(3));
        assert_eq!(child.incarnation().await, Some(Incarnation(7)));
    }

    #[tokio::test]
    async fn a_killed_node_has_the_signal_as_status() {
        let mut child = Child::start(&shell("kill -9 $$"), "s", None, None).unwrap();
        assert_eq!(child.exited().await.unwrap(), Some(-9));
        assert_eq!(child.incarnation().await, None);
    }

    #[tokio::test]
    async fn an_adopted_node_is_watched_too() {
        let mut process = Command::new("/bin/sh").args(["-c", "read x"]).stdin(Stdio::piped()).spawn().unwrap();
        let mut child = Child::adopt(i32::try_from(process.id()).unwrap(), Incarnation(4)).unwrap();
        drop(process.stdin.take());
        assert_eq!(child.exited().await.unwrap(), None);
        assert_eq!(child.incarnation().await, Some(Incarnation(4)));
        process.wait().unwrap();
    }

    #[tokio::test]
    async fn the_node_gets_the_hash_and_never_the_secret() {
        let script = format!("test \"${ENV_SUPERVISOR_HASH}\" = {} && ! env | grep -q hidden", hash("hidden"));
        let mut child = Child::start(&shell(&script), "hidden", None, None).unwrap();
        assert_eq!(child.exited().await.unwrap(), Some(0));
    }
}
