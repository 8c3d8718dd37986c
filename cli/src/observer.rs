//! `quorate observer`.

use std::path::Path;
use std::process::ExitCode;

use quorate_host::config::{load as load_layers, ConfigError, Effective};
use quorate_observer::{run_observer, Ended, ObserverConfig};

use crate::args::ProcessArgs;
use crate::config::{flags, layers, shown};
use crate::fail::Fail;

/// Keys that have no default.
const OPTIONAL: &[&str] = &["metrics_listen", "log_file"];

pub fn run(args: &ProcessArgs) -> Result<ExitCode, Fail> {
    let config = effective(args.config.as_deref(), &flags(&args.set)?).map_err(shown)?.value;
    match run_observer(config) {
        Ok(Ended::Stopped) => Ok(ExitCode::SUCCESS),
        Ok(Ended::Again) => Err(again()),
        Err(error) => {
            // One line for the operator.
            eprintln!("error: {error}");
            Ok(u8::try_from(error.exit_code()).unwrap_or(1).into())
        }
    }
}

/// This very program anew, in the same process: connections, threads and locks of the old life are gone. Comes back only if
/// the system refuses.
fn again() -> Fail {
    use std::os::unix::process::CommandExt;
    let error = std::process::Command::new("/proc/self/exe").args(std::env::args_os().skip(1)).exec();
    Fail::error(format!("cannot start again: {error}; start this observer again"))
}

/// The effective configuration from all layers.
pub fn effective(file: Option<&Path>, flags: &[(String, String)]) -> Result<Effective<ObserverConfig>, ConfigError> {
    load_layers(&layers(file, flags, OPTIONAL).with_process_env())
}

/// The same without the environment.
#[cfg(test)]
pub fn load(file: &Path) -> Result<Effective<ObserverConfig>, ConfigError> {
    load_layers(&layers(Some(file), &[], OPTIONAL))
}
