//! The supervisor process (protocol S2).

use std::ffi::OsString;
use std::path::PathBuf;

use crate::config::ServerConfig;
use crate::error::ServerError;

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
    let _ = child;
    Err(ServerError::Supervisor("not built yet".to_owned()))
}
