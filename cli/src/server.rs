//! `quorate server`: a supervisor, and the data node below it (protocol S2).

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use quorate_host::config::{load as load_layers, ConfigError, Effective};
use quorate_server::{run_node, run_supervisor, ChildCommand, ServerConfig, ServerError};

use crate::args::ProcessArgs;
use crate::config::{flags, layers, shown};
use crate::fail::Fail;

/// Keys that have no default.
pub const OPTIONAL: &[&str] = &["wal_dir", "advertise", "peer_advertise", "metrics_listen", "log_file"];

pub fn run(args: &ProcessArgs) -> Result<ExitCode, Fail> {
    let flags = flags(&args.set)?;
    let config = effective(args.config.as_deref(), &flags).map_err(shown)?.value;
    let ended = if args.node_process {
        run_node(config).map(|()| 0)
    } else {
        let child = child(args).map_err(|e| Fail::error(format!("where is this binary? {e}")))?;
        run_supervisor(&config, &child)
    };
    match ended {
        Ok(status) => Ok(exit_code(status)),
        Err(error) => Ok(stopped(&error)),
    }
}

/// One line for the operator; the exit status tells the supervisor whether a restart can help.
fn stopped(error: &ServerError) -> ExitCode {
    eprintln!("error: {error}");
    exit_code(error.exit_code())
}

fn exit_code(status: i32) -> ExitCode {
    u8::try_from(status).unwrap_or(1).into()
}

/// The node process: this very binary with the same arguments.
fn child(args: &ProcessArgs) -> std::io::Result<ChildCommand> {
    let mut all: Vec<OsString> = vec!["server".into(), "--node-process".into()];
    if let Some(path) = &args.config {
        all.extend(["--config".into(), path.into()]);
    }
    for set in &args.set {
        all.extend(["--set".into(), set.into()]);
    }
    Ok(ChildCommand { program: std::env::current_exe()?, args: all })
}

/// The effective configuration from all layers.
pub fn effective(file: Option<&Path>, flags: &[(String, String)]) -> Result<Effective<ServerConfig>, ConfigError> {
    load_layers(&layers(file, flags, OPTIONAL).with_process_env())
}

/// The same without the environment.
#[cfg(test)]
pub fn load(file: &Path, flags: &[(String, String)]) -> Result<Effective<ServerConfig>, ConfigError> {
    load_layers(&layers(Some(file), flags, OPTIONAL))
}
