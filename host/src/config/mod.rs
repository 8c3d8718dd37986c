//! Layered configuration: flags > environment (`QUORATE_…`) > TOML file > default.
//!
//! A configuration is a plain serde struct whose `Default` holds every default. Keys are dotted paths
//! (`timing.fence_ms`); the environment variable of a key is `QUORATE_` and the key in capitals with `_` for `.`.
//! Units are in the keys' names. An unknown key is an error that names the nearest known one.

mod layers;
mod nearest;

use std::fmt;
use std::path::{Path, PathBuf};

pub use layers::load;
pub use nearest::nearest;

/// Prefix of environment variables that set configuration keys.
pub const ENV_PREFIX: &str = "QUORATE_";

/// Where an effective value came from; later variants win.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// Built in.
    Default,
    /// A file.
    File(PathBuf),
    /// An environment variable.
    Env(String),
    /// The command line.
    Flag(String),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Env(name) => write!(f, "environment {name}"),
            Self::Flag(name) => write!(f, "flag {name}"),
        }
    }
}

/// One key as it takes effect, for `config show`.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// Dotted key.
    pub key: String,
    /// Effective value, as TOML; `None` if it is unset.
    pub value: Option<String>,
    /// Default, as TOML; `None` if it has none.
    pub default: Option<String>,
    /// Where the value came from.
    pub source: Source,
}

/// A loaded configuration.
#[derive(Clone, Debug)]
pub struct Effective<T> {
    /// The values.
    pub value: T,
    /// Every known key, in order.
    pub settings: Vec<Setting>,
}

/// What to load from. Values of environment and flags are text; they take the type of the key's default.
#[derive(Clone, Debug, Default)]
pub struct Layers<'a> {
    /// TOML file; an absent file is an error.
    pub file: Option<&'a Path>,
    /// Environment variables; only those that start with [`ENV_PREFIX`] are looked at.
    pub env: Vec<(String, String)>,
    /// Variables with the prefix that are no configuration keys (read elsewhere).
    pub other_env: &'a [&'a str],
    /// Dotted key and text of each flag given.
    pub flags: Vec<(String, String)>,
    /// Keys without a default (`Option` fields), which the default value can't show.
    pub optional_keys: &'a [&'a str],
}

impl Layers<'_> {
    /// With the process's own environment.
    #[must_use]
    pub fn with_process_env(mut self) -> Self {
        self.env = std::env::vars().filter(|(name, _)| name.starts_with(ENV_PREFIX)).collect();
        self
    }
}

/// Why a configuration can't be loaded.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file can't be read.
    #[error("configuration file {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The file is no TOML.
    #[error("configuration file {}: {reason}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Where and why.
        reason: String,
    },
    /// A key that does not exist.
    #[error("unknown key `{key}` ({source_text}); {}", advice(nearest))]
    UnknownKey {
        /// As written.
        key: String,
        /// Where.
        source_text: String,
        /// The known key most like it.
        nearest: Option<String>,
    },
    /// A value of the wrong type or out of range.
    #[error("key `{key}` ({source_text}): {reason}")]
    BadValue {
        /// The key.
        key: String,
        /// Where it was set.
        source_text: String,
        /// What is wrong.
        reason: String,
    },
}

fn advice(nearest: &Option<String>) -> String {
    nearest
        .as_ref()
        .map_or_else(|| "see `quorate config show` for all keys".into(), |key| format!("did you mean `{key}`?"))
}
