//! The `quorate` binary: every process of a cluster, and the tools around it.

mod args;
mod bench;
mod config;
mod connect;
mod consume;
mod dev;
mod fail;
mod leader;
mod node;
mod observer;
mod output;
mod partition;
mod produce;
mod server;
mod slo;
mod span;
mod task;
mod timelines;
mod topic;
mod why;

use std::process::ExitCode;

use clap::Parser;

use args::{Args, Verb};
use fail::Fail;
use output::Output;

fn main() -> ExitCode {
    // First of all: a panic in any thread of a node must end the process, not a part of it (protocol B3).
    quorate_host::wal::install_abort_hook();
    quorate_chaos::lifeline::watch();
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return fail::usage(&error),
    };
    let output = Output::new(&args.global);
    match run(args, &output) {
        Ok(code) => code,
        Err(failed) => failed.report(&output),
    }
}

fn run(args: Args, output: &Output) -> Result<ExitCode, Fail> {
    let global = args.global;
    // The processes of a cluster log as they are configured to.
    let process = matches!(args.verb, Verb::Server(_) | Verb::Observer(args::ObserverArgs { verb: None, .. }));
    if let Some(filter) = global.client_log.as_ref().filter(|_| !process) {
        quorate_host::telemetry::init_logs(&quorate_host::telemetry::LogTarget::Stderr, filter)
            .map_err(|error| Fail::usage(error.to_string()))?;
    }
    match args.verb {
        Verb::Dev(dev) => dev::run(&dev, output),
        Verb::Server(server) => server::run(&server),
        Verb::Observer(args::ObserverArgs { verb: None, process }) => observer::run(&process),
        Verb::Observer(args::ObserverArgs { verb: Some(args::ObserverVerb::Rebuild { plan, .. }), .. }) => {
            client_side(observer::rebuild(plan.as_deref(), &global, output))
        }
        Verb::Config(config) => config::run(&config, output),
        Verb::Topic(topic) => client_side(topic::run(topic, &global, output)),
        Verb::Partition(partition) => client_side(partition::run(partition, &global, output)),
        Verb::Node(node) => client_side(node::run(node, &global, output)),
        Verb::Leader(leader) => client_side(leader::run(leader, &global, output)),
        Verb::Replica(replica) => client_side(task::replica(replica, &global, output)),
        Verb::Task(task) => client_side(task::run(task, &global, output)),
        Verb::Audit(args::AuditVerb::Show) => client_side(partition::audit(&global, output)),
        Verb::Produce(produce) => client_side(produce::run(produce, &global, output)),
        Verb::Consume(consume) => client_side(consume::run(consume, &global, output)),
        Verb::Why(why) => client_side(why::run(why, &global, output)),
        Verb::Slo(slo) => client_side(slo::run(slo, &global, output)),
        Verb::Bench(bench) => {
            bench::enter_network(&bench, &global)?;
            client_side(bench::run(bench, &global, output))
        }
    }
}

/// Runs a command that talks to a cluster.
fn client_side(command: impl std::future::Future<Output = Result<ExitCode, Fail>>) -> Result<ExitCode, Fail> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|e| Fail::error(format!("cannot start: {e}")))?
        .block_on(command)
}
