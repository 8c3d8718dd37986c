//! `quorate dev`: a whole cluster on this machine, as separate processes, gone with Ctrl-C.

mod processes;
mod ready;
mod screen;
mod setup;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use tokio::signal::unix::{signal, Signal, SignalKind};

use crate::args::DevArgs;
use crate::fail::{Exit, Fail};
use crate::output::Output;

use processes::Processes;
use setup::Setup;

/// A cold start takes about two seconds; a machine that is busy otherwise may need much longer.
const START_LIMIT: Duration = Duration::from_secs(90);

pub fn run(args: &DevArgs, output: &Output) -> Result<ExitCode, Fail> {
    let started = Instant::now();
    let setup = Setup::prepare(args)?;
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|e| Fail::error(format!("cannot start: {e}")))?
        .block_on(serve(args, &setup, output, started))
}

async fn serve(args: &DevArgs, setup: &Setup, output: &Output, started: Instant) -> Result<ExitCode, Fail> {
    let mut stop = Stop::new()?;
    let mut processes = Processes::start(setup, args.restart_observers.0)?;
    let ready = tokio::select! {
        biased;
        () = stop.asked() => {
            processes.stop(&mut stop).await;
            return Ok(Exit::Ok.into());
        }
        failed = processes.first_exit() => Err(failed),
        ready = tokio::time::timeout(START_LIMIT, ready::wait(setup, output)) => match ready {
            Ok(ready) => ready,
            Err(_) => Err(Fail::error(format!("not ready after {START_LIMIT:?}; the logs are in {}", setup.logs()))),
        },
    };
    let picture = match ready {
        Ok(picture) => picture,
        Err(failed) => {
            processes.stop(&mut stop).await;
            return Err(failed);
        }
    };
    screen::show(setup, &picture, started.elapsed(), output);
    tokio::select! {
        biased;
        () = stop.asked() => {}
        () = processes.watch(output) => {}
    }
    output.remark("stopping (once more to stop at once)");
    processes.stop(&mut stop).await;
    Ok(Exit::Ok.into())
}

/// SIGINT and SIGTERM.
pub struct Stop {
    interrupt: Signal,
    terminate: Signal,
}

impl Stop {
    fn new() -> Result<Self, Fail> {
        let listen = |kind| signal(kind).map_err(|e| Fail::error(format!("cannot listen for signals: {e}")));
        Ok(Self { interrupt: listen(SignalKind::interrupt())?, terminate: listen(SignalKind::terminate())? })
    }

    /// Comes back when one arrives.
    async fn asked(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
