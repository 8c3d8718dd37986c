//! The supervisor process (protocol S2): parent of the node process.
//!
//! It starts the node, learns its exit from the kernel (pidfd), tells all observers over warm streams at once and
//! again until one has logged it, and starts the node again. If the supervisor dies, the node goes on; the next
//! supervisor of the same data directory finds it and watches it. Of the data disk it touches only its own file.

mod child;
mod notices;
mod state_file;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use quorate_host::telemetry::{self, LogTarget};
use tokio::signal::unix::{signal, SignalKind};

use crate::config::ServerConfig;
use crate::error::{ServerError, EXIT_CONFIG, EXIT_DISK, EXIT_REFUSED};
use child::Child;
pub(crate) use child::{end_with, INCARNATION_LINE};
use notices::{Exit, Notices};
use state_file::StateFile;

/// Environment of the node process: BLAKE3 of the supervisor's secret, hexadecimal. (Not `QUORATE_…`: those are
/// configuration keys.)
pub const ENV_SUPERVISOR_HASH: &str = "QUORATED_SUPERVISOR_HASH";
/// Environment of the node process: exit status of the one before, if it was the disk's (B2).
pub const ENV_LAST_EXIT: &str = "QUORATED_LAST_EXIT";
/// Environment of supervisor and node: they end when this process does (`quorate dev`).
pub const ENV_DIE_WITH: &str = "QUORATED_DIE_WITH";

/// First delay before a restart; doubled up to the last.
const RESTART_FIRST: Duration = Duration::from_secs(1);
const RESTART_LAST: Duration = Duration::from_secs(30);
/// A node that was up for this long is restarted after the first delay again.
const RESTART_RESET: Duration = Duration::from_secs(10);
/// The exit notice is worth waiting for this long when the supervisor itself ends.
const LAST_NOTICE: Duration = Duration::from_secs(2);

/// How to start the node process: usually this very binary.
#[derive(Clone, Debug)]
pub struct ChildCommand {
    /// Program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
}

/// Stands over a node process until told to stop: starts it, tells the observers of its exit, starts it again.
/// Returns the status to exit with.
///
/// # Errors
/// When the supervisor itself could not do its work.
pub fn run_supervisor(config: &ServerConfig, child: &ChildCommand) -> Result<i32, ServerError> {
    config.validate()?;
    // The node appends to the same file.
    let target = config.log_file.clone().map_or(LogTarget::Stderr, LogTarget::File);
    telemetry::init_logs(&target, &config.log_filter).map_err(|e| ServerError::Config(e.to_string()))?;
    let end_with = if config.die_with_parent { child::end_with_parent()? } else { None };
    // B5: its own state file must find room too.
    config.disks()?.make_room().map_err(|e| ServerError::io("cannot release the ballast", e))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| ServerError::io("cannot start the runtime", e))?;
    runtime.block_on(supervise(config, child, end_with))
}

/// When to start a node again, or not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Restart(Duration),
    /// A restart cannot help: exit with the node's status.
    GiveUp,
}

/// S2: after 1, 2, 4 … ≤ 30 s, from 1 s again after 10 s up; not after a disk error, a refused identity, or a start
/// that a person must mend.
fn verdict(status: Option<i32>, up: Duration, last: Duration) -> Verdict {
    if matches!(status, Some(EXIT_DISK | EXIT_REFUSED | EXIT_CONFIG)) {
        return Verdict::GiveUp;
    }
    if up >= RESTART_RESET || last.is_zero() {
        Verdict::Restart(RESTART_FIRST)
    } else {
        Verdict::Restart((last * 2).min(RESTART_LAST))
    }
}

async fn supervise(config: &ServerConfig, command: &ChildCommand, end_with: Option<i32>) -> Result<i32, ServerError> {
    let mut file = StateFile::open(&config.data_dir)?;
    let mut adopted = file.orphan(&config.data_dir);
    if adopted.is_none() {
        file.renew_secret()?;
    }
    let notices = Notices::start(config, file.secret());
    let io = |what: &'static str| move |e| ServerError::io(what, e);
    let mut terminate = signal(SignalKind::terminate()).map_err(io("cannot listen for SIGTERM"))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(io("cannot listen for SIGINT"))?;
    let mut delay = Duration::ZERO;
    loop {
        let mut child = match adopted.take() {
            Some((pid, incarnation)) => {
                tracing::info!(pid, %incarnation, "watching the node that an earlier supervisor left behind");
                Child::adopt(pid, incarnation)?
            }
            None => {
                let child = Child::start(command, file.secret(), file.last_exit(), end_with)?;
                if let Err(error) = file.set_node(child.pid()) {
                    tracing::error!(%error, "a later supervisor will not find this node");
                }
                tracing::info!(pid = child.pid(), "started the node");
                child
            }
        };
        let started = Instant::now();
        let mut asked = 0_u32;
        let status = loop {
            tokio::select! {
                status = child.exited() => break status?,
                _ = terminate.recv() => asked += 1,
                _ = interrupt.recv() => asked += 1,
            }
            // The node drains at the first signal and stops at once at the second; it needs no third.
            child.terminate();
        };
        let incarnation = child.incarnation().await;
        tracing::warn!(?status, ?incarnation, pid = child.pid(), "the node exited");
        let logged = incarnation.map(|incarnation| notices.tell(Exit { incarnation, status }));
        if let Err(error) = file.set_exit(status) {
            // On a full disk, say: the node is started again all the same.
            tracing::error!(%error, "how the node ended is not remembered");
        }
        if asked > 0 {
            last_notice(logged).await;
            return Ok(status.filter(|s| *s >= 0).unwrap_or(1));
        }
        match verdict(status, started.elapsed(), delay) {
            Verdict::GiveUp => {
                tracing::error!(?status, "not starting the node again: a restart cannot help");
                last_notice(logged).await;
                return Ok(status.unwrap_or(1));
            }
            Verdict::Restart(after) => {
                delay = after;
                tokio::select! {
                    () = tokio::time::sleep(after) => {}
                    _ = terminate.recv() => return Ok(0),
                    _ = interrupt.recv() => return Ok(0),
                }
            }
        }
    }
}

async fn last_notice(logged: Option<notices::Logged>) {
    if let Some(logged) = logged {
        // Without an observer there is nobody to tell: silence will do it, later.
        let _ = tokio::time::timeout(LAST_NOTICE, logged.done()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::EXIT_HUNG;

    #[test]
    fn restarts_wait_longer_each_time_until_the_node_stays_up() {
        let second = Duration::from_secs(1);
        assert_eq!(verdict(Some(-9), second, Duration::ZERO), Verdict::Restart(second));
        assert_eq!(verdict(Some(-9), second, second), Verdict::Restart(2 * second));
        assert_eq!(verdict(Some(1), second, 16 * second), Verdict::Restart(30 * second));
        assert_eq!(verdict(Some(1), 11 * second, 30 * second), Verdict::Restart(second));
        // A disk that hung loses nothing, and may be well by then.
        assert_eq!(verdict(Some(EXIT_HUNG), 60 * second, Duration::ZERO), Verdict::Restart(second));
    }

    #[test]
    fn no_restart_after_a_disk_error_or_a_refused_identity() {
        for status in [EXIT_DISK, EXIT_REFUSED, EXIT_CONFIG] {
            assert_eq!(verdict(Some(status), Duration::ZERO, Duration::ZERO), Verdict::GiveUp);
        }
    }
}
