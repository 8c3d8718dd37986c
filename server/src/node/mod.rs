//! The node process.

use crate::config::ServerConfig;
use crate::error::ServerError;

/// Runs a data node until it is told to stop (SIGTERM, SIGINT) or must stop.
///
/// # Errors
/// Everything that keeps it from starting, and what made it stop; `ServerError::exit_code` tells the supervisor
/// whether a restart can help.
pub fn run_node(config: ServerConfig) -> Result<(), ServerError> {
    config.validate()?;
    Err(ServerError::Config("not built yet".to_owned()))
}
