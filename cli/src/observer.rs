//! `quorate observer`, and `quorate observer rebuild`.

use std::path::Path;
use std::process::ExitCode;

use quorate_host::config::{load as load_layers, ConfigError, Effective};
use quorate_observer::{run_observer, Ended, ObserverConfig};

use serde_json::json;

use crate::args::{Global, ProcessArgs};
use crate::config::{flags, layers, shown};
use crate::connect::{client, within};
use crate::fail::{Exit, Fail};
use crate::output::Output;

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

/// `quorate observer rebuild --from-nodes` (M5): the effect, or with a plan the deed.
pub async fn rebuild(plan: Option<&str>, global: &Global, output: &Output) -> Result<ExitCode, Fail> {
    let admin = client(global).await?.admin();
    let answer = within(global, "observer rebuild", async { Ok(admin.rebuild_directory(plan).await?) }).await?;
    if output.json {
        output.json(&json!({
            "schema": "quorate.rebuild.v1",
            "done": answer.done,
            "plan": answer.plan,
            "effect": answer.effect,
        }));
    } else if answer.done {
        output.line("The directory is rebuilt, and audited (`quorate audit show`).");
        output.line("`quorate why` tells whether every partition serves.");
    } else {
        output.line("Nothing was done yet. This is what would happen:");
        for line in &answer.effect {
            output.line(&format!("  {line}"));
        }
        output.line(&format!("plan {}, valid 10 min. To execute it:", answer.plan));
        output.line(&format!("  quorate observer rebuild --from-nodes --plan {}", answer.plan));
    }
    Ok(Exit::Ok.into())
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
