//! Errors: text on standard error, JSON on standard output, and the exit code.

use std::io::Write;
use std::process::ExitCode;

use quorate_client::{ConnectError, Reason, Refusal, SendError};
use serde_json::json;

use crate::output::Output;

/// Exit codes (`quorate --help`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// All done.
    Ok = 0,
    /// Not done.
    Error = 1,
    /// Wrong arguments.
    Usage = 2,
    /// Done, but the fate of some rows is unknown.
    Undecided = 3,
    /// The cluster is not healthy.
    Unhealthy = 10,
    /// A figure missed its objective.
    Objective = 11,
    /// The audit found a broken promise.
    Verification = 12,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why a command failed.
#[derive(Debug)]
pub struct Fail {
    exit: Exit,
    reason: &'static str,
    message: String,
    retryable: bool,
    maybe_applied: bool,
    leader: Option<String>,
}

impl Fail {
    /// Exit code 1, reason `ERROR`.
    pub fn error(message: impl Into<String>) -> Self {
        Self {
            exit: Exit::Error,
            reason: "ERROR",
            message: message.into(),
            retryable: false,
            maybe_applied: false,
            leader: None,
        }
    }

    /// Exit code 2: the arguments are wrong.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { exit: Exit::Usage, reason: Reason::InvalidArgument.as_str_name(), ..Self::error(message) }
    }

    /// Not done in the time given.
    pub fn deadline(message: impl Into<String>) -> Self {
        Self { reason: Reason::Deadline.as_str_name(), retryable: true, ..Self::error(message) }
    }

    /// It failed for this reason.
    pub fn is(&self, reason: Reason) -> bool {
        self.reason == reason.as_str_name()
    }

    /// With one more line for the reader.
    pub fn with(mut self, line: &str) -> Self {
        self.message.push('\n');
        self.message.push_str(line);
        self
    }

    /// Prints it and gives the exit code.
    pub fn report(self, output: &Output) -> ExitCode {
        if output.json {
            output.json(&json!({
                "schema": "quorate.error.v1",
                "error": {
                    "reason": self.reason,
                    "message": self.message,
                    "retryable": self.retryable,
                    "maybe_applied": self.maybe_applied,
                    "leader": self.leader,
                },
            }));
        }
        let _ = writeln!(std::io::stderr(), "error: {}", self.message);
        self.exit.into()
    }
}

impl From<Refusal> for Fail {
    fn from(refusal: Refusal) -> Self {
        let send = SendError::refused(refusal.clone());
        let exit = if refusal.reason == Reason::InvalidArgument { Exit::Usage } else { Exit::Error };
        Self {
            exit,
            reason: refusal.reason.as_str_name(),
            message: refusal.to_string(),
            retryable: send.retryable() || refusal.maybe_applied,
            maybe_applied: refusal.maybe_applied,
            leader: refusal.leader.map(|node| node.to_string()),
        }
    }
}

impl From<ConnectError> for Fail {
    fn from(error: ConnectError) -> Self {
        let help = "is the cluster running? start one with `quorate dev`, or name its observers with --observers";
        Self { reason: Reason::Unreachable.as_str_name(), retryable: true, ..Self::error(format!("{error}\n{help}")) }
    }
}

impl From<quorate_chaos::Error> for Fail {
    fn from(error: quorate_chaos::Error) -> Self {
        Self::error(error.to_string())
    }
}

/// Wrong arguments, and requests for help, as clap words them; JSON too if it was asked for.
pub fn usage(error: &clap::Error) -> ExitCode {
    // Nothing sensible is left to do if the terminal is gone.
    let _ = error.print();
    if !error.use_stderr() {
        return Exit::Ok.into();
    }
    let wants_json = std::env::args().any(|arg| arg == "--output=json" || arg == "json");
    if wants_json {
        let output = Output { json: true, quiet: true };
        output.json(&json!({
            "schema": "quorate.error.v1",
            "error": {
                "reason": Reason::InvalidArgument.as_str_name(),
                "message": error.to_string(),
                "retryable": false,
                "maybe_applied": false,
                "leader": null,
            },
        }));
    }
    Exit::Usage.into()
}
