//! Merging the layers.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde::Serialize;
use toml::{Table, Value};

use super::{nearest, ConfigError, Effective, Layers, Setting, Source, ENV_PREFIX};

/// Loads a configuration from its layers. Cross-field rules are the caller's (`validate`).
///
/// # Errors
/// [`ConfigError`]: unreadable or malformed file, unknown key, value of the wrong type.
pub fn load<T>(layers: &Layers<'_>) -> Result<Effective<T>, ConfigError>
where
    T: DeserializeOwned + Serialize + Default,
{
    let defaults = flatten(&Table::try_from(T::default()).expect("a configuration struct is a TOML table"));
    let mut known: BTreeMap<String, Option<Value>> =
        defaults.iter().map(|(key, value)| (key.clone(), Some(value.clone()))).collect();
    for key in layers.optional_keys {
        known.entry((*key).to_owned()).or_default();
    }
    let mut effective: BTreeMap<String, (Value, Source)> =
        defaults.into_iter().map(|(key, value)| (key, (value, Source::Default))).collect();

    if let Some(path) = layers.file {
        let source = Source::File(path.to_owned());
        for (key, value) in flatten(&read(path)?) {
            check_known(&known, &key, &source)?;
            effective.insert(key, (value, source.clone()));
        }
    }
    for (name, text) in &layers.env {
        if !name.starts_with(ENV_PREFIX) || layers.other_env.contains(&name.as_str()) {
            continue;
        }
        let source = Source::Env(name.clone());
        let key = known.keys().find(|key| env_name(key) == *name).cloned();
        let Some(key) = key else {
            let like: Vec<String> = known.keys().map(|key| env_name(key)).collect();
            let like = nearest(name, like.iter().map(String::as_str)).map(str::to_owned);
            return Err(ConfigError::UnknownKey {
                key: name.clone(),
                source_text: "environment".into(),
                nearest: like,
            });
        };
        effective.insert(key.clone(), (typed(&key, text, known[&key].as_ref(), &source)?, source));
    }
    for (key, text) in &layers.flags {
        let source = Source::Flag(format!("--{}", key.replace(['.', '_'], "-")));
        check_known(&known, key, &source)?;
        effective.insert(key.clone(), (typed(key, text, known[key].as_ref(), &source)?, source));
    }
    finish(known, effective)
}

fn finish<T: DeserializeOwned>(
    known: BTreeMap<String, Option<Value>>,
    effective: BTreeMap<String, (Value, Source)>,
) -> Result<Effective<T>, ConfigError> {
    let mut table = Table::new();
    for (key, (value, _)) in &effective {
        insert(&mut table, key, value.clone());
    }
    let value = table.try_into().map_err(|error: toml::de::Error| {
        // serde names the innermost field; the layers know where its value came from.
        let text = error.message().to_owned();
        let culprit = error_key(&effective, &error.to_string());
        let (key, source_text) = culprit.unwrap_or_else(|| ("configuration".into(), "all layers".into()));
        ConfigError::BadValue { key, source_text, reason: text }
    })?;
    let settings = known
        .into_iter()
        .map(|(key, default)| {
            let found = effective.get(&key);
            Setting {
                value: found.map(|(value, _)| value.to_string()),
                default: default.map(|value| value.to_string()),
                source: found.map_or(Source::Default, |(_, source)| source.clone()),
                key,
            }
        })
        .collect();
    Ok(Effective { value, settings })
}

/// The overridden key that an error text of the TOML reader speaks of.
fn error_key(effective: &BTreeMap<String, (Value, Source)>, text: &str) -> Option<(String, String)> {
    effective
        .iter()
        .filter(|(_, (_, source))| *source != Source::Default)
        .find(|(key, _)| key.rsplit('.').next().is_some_and(|last| text.contains(&format!("`{last}`"))))
        .or_else(|| effective.iter().find(|(_, (_, source))| *source != Source::Default))
        .map(|(key, (_, source))| (key.clone(), source.to_string()))
}

fn read(path: &Path) -> Result<Table, ConfigError> {
    let text = fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.into(), source })?;
    text.parse::<Table>()
        .map_err(|error| ConfigError::Syntax { path: path.into(), reason: error.to_string().trim_end().to_owned() })
}

fn check_known(known: &BTreeMap<String, Option<Value>>, key: &str, source: &Source) -> Result<(), ConfigError> {
    if known.contains_key(key) {
        return Ok(());
    }
    let nearest = nearest(key, known.keys().map(String::as_str)).map(str::to_owned);
    Err(ConfigError::UnknownKey { key: key.into(), source_text: source.to_string(), nearest })
}

fn env_name(key: &str) -> String {
    format!("{ENV_PREFIX}{}", key.replace(['.', '-'], "_").to_uppercase())
}

/// Text as a value of the type that the default has; without a default whatever TOML makes of it, else a string.
fn typed(key: &str, text: &str, like: Option<&Value>, source: &Source) -> Result<Value, ConfigError> {
    let bad = |wanted: &str| ConfigError::BadValue {
        key: key.into(),
        source_text: source.to_string(),
        reason: format!("`{text}` is no {wanted}"),
    };
    Ok(match like {
        Some(Value::String(_)) => Value::String(text.into()),
        Some(Value::Integer(_)) => Value::Integer(text.parse().map_err(|_| bad("whole number"))?),
        Some(Value::Float(_)) => Value::Float(text.parse().map_err(|_| bad("number"))?),
        Some(Value::Boolean(_)) => Value::Boolean(text.parse().map_err(|_| bad("`true` or `false`"))?),
        Some(Value::Array(items)) => Value::Array(
            text.split(',')
                .map(str::trim)
                .filter(|item| !item.is_empty())
                .map(|item| typed(key, item, items.first(), source))
                .collect::<Result<_, _>>()?,
        ),
        _ => literal(text).unwrap_or_else(|| Value::String(text.into())),
    })
}

fn literal(text: &str) -> Option<Value> {
    format!("value = {text}").parse::<Table>().ok()?.remove("value")
}

/// Leaves by dotted key. Arrays are leaves.
fn flatten(table: &Table) -> BTreeMap<String, Value> {
    let mut leaves = BTreeMap::new();
    for (key, value) in table {
        match value {
            Value::Table(inner) => {
                leaves.extend(flatten(inner).into_iter().map(|(rest, value)| (format!("{key}.{rest}"), value)));
            }
            leaf => {
                leaves.insert(key.clone(), leaf.clone());
            }
        }
    }
    leaves
}

fn insert(table: &mut Table, key: &str, value: Value) {
    match key.split_once('.') {
        None => {
            table.insert(key.into(), value);
        }
        Some((first, rest)) => {
            let inner = table.entry(first).or_insert_with(|| Value::Table(Table::new()));
            if let Value::Table(inner) = inner {
                insert(inner, rest, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use serde::{Deserialize, Serialize};

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Config {
        data_dir: String,
        observers: Vec<String>,
        timing: Timing,
        metrics: Option<String>,
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Timing {
        fence_ms: u64,
        observed: bool,
    }

    impl Default for Config {
        fn default() -> Self {
            Self {
                data_dir: "./data".into(),
                observers: vec!["127.0.0.1:1".into()],
                timing: Timing { fence_ms: 1_200, observed: true },
                metrics: None,
            }
        }
    }

    const OPTIONAL: &[&str] = &["metrics"];

    fn file(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    fn pair(key: &str, value: &str) -> (String, String) {
        (key.into(), value.into())
    }

    #[test]
    fn the_stronger_layer_wins_and_is_named_as_the_source() {
        let file = file("data_dir = 'from-file'\nobservers = ['a:1', 'b:2']\n[timing]\nfence_ms = 900\n");
        let layers = Layers {
            file: Some(file.path()),
            env: vec![pair("QUORATE_TIMING_FENCE_MS", "800"), pair("QUORATE_DATA_DIR", "from-env"), pair("HOME", "/")],
            flags: vec![pair("data_dir", "from-flag"), pair("metrics", "127.0.0.1:9")],
            optional_keys: OPTIONAL,
            ..Layers::default()
        };
        let loaded = load::<Config>(&layers).unwrap();
        assert_eq!(loaded.value.data_dir, "from-flag");
        assert_eq!(loaded.value.timing, Timing { fence_ms: 800, observed: true });
        assert_eq!(loaded.value.observers, ["a:1", "b:2"]);
        assert_eq!(loaded.value.metrics.as_deref(), Some("127.0.0.1:9"));
        let setting = |key: &str| loaded.settings.iter().find(|setting| setting.key == key).unwrap();
        assert_eq!(setting("data_dir").source.to_string(), "flag --data-dir");
        assert_eq!(setting("timing.fence_ms").source.to_string(), "environment QUORATE_TIMING_FENCE_MS");
        assert_eq!(setting("timing.fence_ms").default.as_deref(), Some("1200"));
        assert_eq!(setting("timing.observed").source, Source::Default);
        assert!(matches!(setting("observers").source, Source::File(_)));
    }

    #[test]
    fn an_unset_optional_key_is_shown_without_value() {
        let loaded = load::<Config>(&Layers { optional_keys: OPTIONAL, ..Layers::default() }).unwrap();
        let metrics = loaded.settings.iter().find(|setting| setting.key == "metrics").unwrap();
        assert_eq!((metrics.value.as_ref(), metrics.default.as_ref()), (None, None));
        assert_eq!(loaded.value, Config::default());
    }

    #[test]
    fn an_unknown_key_names_the_nearest_one() {
        let file = file("[timing]\nfense_ms = 1\n");
        let error = load::<Config>(&Layers { file: Some(file.path()), ..Layers::default() }).unwrap_err();
        assert!(error.to_string().contains("did you mean `timing.fence_ms`?"), "{error}");
        let env = vec![pair("QUORATE_DATADIR", "x")];
        let error = load::<Config>(&Layers { env, ..Layers::default() }).unwrap_err();
        assert!(error.to_string().contains("did you mean `QUORATE_DATA_DIR`?"), "{error}");
    }

    #[test]
    fn variables_read_elsewhere_are_let_be() {
        let env = vec![pair("QUORATE_SUPERVISOR_SECRET", "x")];
        let layers = Layers { env, other_env: &["QUORATE_SUPERVISOR_SECRET"], ..Layers::default() };
        assert!(load::<Config>(&layers).is_ok());
    }

    #[test]
    fn a_value_of_the_wrong_type_names_key_and_source() {
        let env = vec![pair("QUORATE_TIMING_FENCE_MS", "soon")];
        let error = load::<Config>(&Layers { env, ..Layers::default() }).unwrap_err().to_string();
        assert!(error.contains("timing.fence_ms") && error.contains("QUORATE_TIMING_FENCE_MS"), "{error}");
        let file = file("data_dir = 5\n");
        let error = load::<Config>(&Layers { file: Some(file.path()), ..Layers::default() }).unwrap_err().to_string();
        assert!(error.contains("data_dir") && error.contains("file "), "{error}");
    }
}
