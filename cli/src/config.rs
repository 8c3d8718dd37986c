//! `quorate config`, and how the layers of a configuration are put together.

use std::path::Path;
use std::process::ExitCode;

use quorate_host::config::{ConfigError, Layers, Setting};
use serde_json::{json, Value};

use crate::args::{ConfigArgs, ConfigVerb, ProcessKind};
use crate::fail::{Exit, Fail};
use crate::output::Output;

/// Variables with the prefix of configuration keys that the tools read.
const OTHER_VARIABLES: &[&str] = &["QUORATE_OBSERVERS"];

/// `--set KEY=VALUE`.
pub fn flags(set: &[String]) -> Result<Vec<(String, String)>, Fail> {
    let parse = |text: &String| {
        let pair = text.split_once('=').map(|(key, value)| (key.trim().to_owned(), value.to_owned()));
        pair.ok_or_else(|| Fail::usage(format!("--set {text}: write KEY=VALUE")))
    };
    set.iter().map(parse).collect()
}

/// Flags over environment over file over defaults.
pub fn layers<'a>(file: Option<&'a Path>, flags: &[(String, String)], optional_keys: &'a [&'a str]) -> Layers<'a> {
    Layers { file, other_env: OTHER_VARIABLES, flags: flags.to_vec(), optional_keys, ..Layers::default() }
}

/// A configuration that cannot be loaded is a usage error.
pub fn shown(error: ConfigError) -> Fail {
    Fail::usage(error.to_string())
}

pub fn run(verb: &ConfigVerb, output: &Output) -> Result<ExitCode, Fail> {
    let (ConfigVerb::Show(args) | ConfigVerb::Lint(args)) = verb;
    let (settings, faults) = load(args)?;
    match verb {
        ConfigVerb::Show(_) => show(&settings, output),
        ConfigVerb::Lint(_) => {}
    }
    match faults {
        Some(text) => Err(Fail::usage(text)),
        None => {
            if matches!(verb, ConfigVerb::Lint(_)) && !output.quiet && !output.json {
                output.line("no fault found");
            }
            Ok(Exit::Ok.into())
        }
    }
}

/// Every key as it takes effect, and what the rules between keys say.
fn load(args: &ConfigArgs) -> Result<(Vec<Setting>, Option<String>), Fail> {
    let flags = flags(&args.process.set)?;
    let file = args.process.config.as_deref();
    match args.kind {
        ProcessKind::Server => {
            let loaded = crate::server::effective(file, &flags).map_err(shown)?;
            Ok((loaded.settings, loaded.value.validate().err().map(|e| e.to_string())))
        }
        ProcessKind::Observer => {
            let loaded = crate::observer::effective(file, &flags).map_err(shown)?;
            Ok((loaded.settings, loaded.value.validate().err().map(|e| e.to_string())))
        }
    }
}

fn show(settings: &[Setting], output: &Output) {
    if output.json {
        let all: Vec<Value> = settings
            .iter()
            .map(|s| json!({"key": s.key, "value": s.value, "default": s.default, "source": s.source.to_string()}))
            .collect();
        output.json(&json!({"schema": "quorate.config.v1", "settings": all}));
        return;
    }
    let or_dash = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
    let row = |s: &Setting| vec![s.key.clone(), or_dash(&s.value), or_dash(&s.default), s.source.to_string()];
    output.table(&["key", "value", "default", "source"], settings.iter().map(row).collect(), &[]);
}
