//! The node process: start, turns, stop.

mod boot;
mod effects;
mod inlets;
mod metrics;
mod serve;
mod shell;

pub use inlets::ShellEvent;

use std::sync::Arc;
use std::time::Duration;

use quorate_host::listen;
use quorate_host::telemetry::{self, LogTarget};
use quorate_host::turn;
use quorate_host::wal::install_abort_hook;
use tokio::signal::unix::{signal, SignalKind};
use tokio::sync::watch;

use crate::config::ServerConfig;
use crate::error::ServerError;
use crate::supervisor::{end_with, ENV_DIE_WITH};

/// The core gets a tick this often. Its finest deadline is the candidate's retry of 50 ms (P2).
const TICK: Duration = Duration::from_millis(10);
/// After the last turn, connections get this long to end by themselves.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Runs a data node until it is told to stop (SIGTERM, SIGINT) or must stop.
///
/// # Errors
/// Everything that keeps it from starting, and what made it stop; `ServerError::exit_code` tells the supervisor
/// whether a restart can help.
pub fn run_node(config: ServerConfig) -> Result<(), ServerError> {
    install_abort_hook();
    config.validate()?;
    if let Some(pid) = std::env::var(ENV_DIE_WITH).ok().and_then(|pid| pid.parse().ok()) {
        end_with(pid)?;
    }
    let target = config.log_file.clone().map_or(LogTarget::Stderr, LogTarget::File);
    telemetry::init_logs(&target, &config.log_filter).map_err(|e| ServerError::Config(e.to_string()))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // Snapshots are received on threads of their own: a few at a time are enough.
        .max_blocking_threads(8)
        .build()
        .map_err(|e| ServerError::io("cannot start the runtime", e))?;
    let result = runtime.block_on(run(config));
    // What is left are connections and blocking reads that nobody waits for.
    runtime.shutdown_timeout(LAST_WORDS);
    if let Err(error) = &result {
        tracing::error!(%error, "stopped");
    }
    result
}

async fn run(config: ServerConfig) -> Result<(), ServerError> {
    let refused = |e: listen::ListenError| ServerError::Listen(e.to_string());
    let (_, clients) = listen::incoming("client listener", config.listen).map_err(refused)?;
    let (_, peers) = listen::incoming("peer listener", config.peer_listen).map_err(refused)?;
    if let Some(address) = config.metrics_listen {
        telemetry::serve_metrics(address).map_err(|e| ServerError::Listen(e.to_string()))?;
        telemetry::describe(metrics::METRICS);
    }
    let (closing, closed) = watch::channel(false);
    let boot::Booted { mailbox, mut shell, storage_thread, peer_sink, transport_config, stagings, mut data_dir } =
        boot::boot(&config, closing)?;
    let post = mailbox.post();
    let services = serve::Services {
        clients,
        peers,
        shell: &shell,
        post: &post,
        closing: closed,
        transport: transport_config,
        sink: peer_sink,
        stagings,
        config: &config,
    };
    services.start();
    for observer in &config.observers {
        let (post, id) = (post.clone(), quorate_proto::ids::NodeId(observer.id));
        let tell = move |event| post.push(ShellEvent::Session(event));
        tokio::spawn(crate::session::keep(id, observer.address.clone(), tell));
    }
    listen_for_signals(&post)?;
    tracing::info!(
        node = config.node_id, name = %config.name, incarnation = %data_dir.incarnation(),
        clients = %config.client_address(), peers = %config.peer_address(), "started"
    );
    turn::run(&mailbox, TICK, &mut shell).await;
    let raise_above = shell.raise_above;
    stop(shell, storage_thread).await?;
    if let Some(above) = raise_above {
        let raised = data_dir.raise_above(above);
        raised.map_err(|e| ServerError::DataDir { path: config.data_dir.clone(), what: e.to_string() })?;
        return Err(ServerError::NewDisk);
    }
    Ok(())
}

/// The first signal closes in order, the second ends the process at once.
fn listen_for_signals(post: &turn::Post<ShellEvent>) -> Result<(), ServerError> {
    let io = |e| ServerError::io("cannot listen for signals", e);
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

async fn stop(shell: shell::Shell, storage_thread: std::thread::JoinHandle<()>) -> Result<(), ServerError> {
    let fatal = shell.fatal.clone();
    let leaders = shell.core.status(shell.clock.now()).leaders;
    let (storage, wal) = (shell.storage.clone(), Arc::clone(&shell.wal));
    // Connections of sessions and streams end with what they hold.
    drop(shell);
    storage.stop();
    let ended = tokio::task::spawn_blocking(move || {
        let storage = storage_thread.join();
        if let Some(wal) = Arc::into_inner(wal) {
            wal.close();
        }
        storage
    });
    if ended.await.map_or(true, |storage| storage.is_err()) {
        return Err(ServerError::Storage("the storage thread failed while closing".to_owned()));
    }
    if let Some(reason) = fatal {
        return Err(ServerError::Refused(reason));
    }
    if leaders > 0 {
        return Err(ServerError::Storage(format!("closed while {leaders} partitions were still led from here")));
    }
    tracing::info!("closed");
    Ok(())
}
