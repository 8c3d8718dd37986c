//! The observer's process: start, turns, stop.

mod boot;
mod inlets;
mod memory;
mod metrics;
mod serve;
mod shell;
mod story;

pub(crate) use inlets::ShellEvent;

use std::sync::Arc;
use std::time::Duration;

use quorate_host::listen;
use quorate_host::telemetry::{self, LogTarget};
use quorate_host::turn;
use quorate_host::wal::install_abort_hook;
use tokio::signal::unix::{signal, SignalKind};
use tokio::sync::watch;

use crate::config::ObserverConfig;
use crate::error::ObserverError;

/// The core gets a tick this often: half of the observers' own Raft tick.
const TICK: Duration = Duration::from_millis(10);
/// After the last turn, connections get this long to end by themselves.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// How an observer's life ended without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It was told to stop.
    Stopped,
    /// It goes on in a new life: with a greater incarnation, or without trust in its log (B2). Replace the process by a new
    /// one with the same arguments.
    Again,
}

/// Runs an observer until it is told to stop (SIGTERM, SIGINT) or must stop.
///
/// # Errors
/// Everything that keeps it from starting, one line each, and what made it stop; `ObserverError::exit_code`.
pub fn run_observer(config: ObserverConfig) -> Result<Ended, ObserverError> {
    install_abort_hook();
    config.validate()?;
    let target = config.log_file.clone().map_or(LogTarget::Stderr, LogTarget::File);
    telemetry::init_logs(&target, &config.log_filter).map_err(|e| ObserverError::Config(e.to_string()))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(4)
        .build()
        .map_err(|e| ObserverError::io("cannot start the runtime", e))?;
    let result = runtime.block_on(run(Arc::new(config)));
    runtime.shutdown_timeout(LAST_WORDS);
    if let Err(error) = &result {
        tracing::error!(%error, "stopped");
    }
    result
}

async fn run(config: Arc<ObserverConfig>) -> Result<Ended, ObserverError> {
    let refused = |e: listen::ListenError| ObserverError::Listen(e.to_string());
    let (_, clients) = listen::incoming("observer listener", config.listen).map_err(refused)?;
    let (_, peers) = listen::incoming("observers' peer listener", config.peer_listen).map_err(refused)?;
    if let Some(address) = config.metrics_listen {
        telemetry::serve_metrics(address).map_err(|e| ObserverError::Listen(e.to_string()))?;
        telemetry::describe(metrics::METRICS);
    }
    let (closing, closed) = watch::channel(false);
    let boot::Booted { mailbox, mut shell, sink, transport_config, mut data_dir, files } =
        boot::boot(Arc::clone(&config), closing)?;
    let post = mailbox.post();
    serve::start(serve::Services {
        clients,
        peers,
        post: &post,
        closing: closed,
        transport: transport_config,
        sink,
        config: &config,
    });
    listen_for_signals(&post)?;
    tracing::info!(
        observer = config.node_id, name = %config.name, incarnation = %data_dir.incarnation(),
        clients = %config.listen, peers = %config.peer_listen, "started"
    );
    turn::run(&mailbox, TICK, &mut shell).await;
    let again = shell.again;
    stop(shell, files, &config).await?;
    let Some(above) = again else { return Ok(Ended::Stopped) };
    data_dir.raise_above(above).map_err(|e| ObserverError::DataDir(e.to_string()))?;
    Ok(Ended::Again)
}

/// The first signal closes in order, the second ends the process at once.
fn listen_for_signals(post: &turn::Post<ShellEvent>) -> Result<(), ObserverError> {
    let io = |e| ObserverError::io("cannot listen for signals", e);
    let mut terminate = signal(SignalKind::terminate()).map_err(io)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(io)?;
    let post = post.clone();
    tokio::spawn(async move {
        let mut asked = false;
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if asked {
                tracing::warn!("asked to stop a second time: stopping at once");
                std::process::exit(1);
            }
            asked = true;
            post.push(ShellEvent::Terminate);
        }
    });
    Ok(())
}

async fn stop(
    shell: shell::Shell,
    files: std::thread::JoinHandle<()>,
    config: &ObserverConfig,
) -> Result<(), ObserverError> {
    let fatal = shell.fatal.clone();
    let wal = Arc::clone(&shell.wal);
    // Sessions, watchers and the files' queue end with what they hold.
    drop(shell);
    let ended = tokio::task::spawn_blocking(move || {
        let files = files.join();
        if let Some(wal) = Arc::into_inner(wal) {
            wal.close();
        }
        files
    });
    match tokio::time::timeout(config.close_within(), ended).await {
        Ok(Ok(Ok(()))) => {}
        _ => return Err(ObserverError::Files("snapshot or log could not be closed in time".to_owned())),
    }
    if let Some(reason) = fatal {
        return Err(ObserverError::Directory(reason));
    }
    tracing::info!("closed");
    Ok(())
}
