//! The table of ARCHITECTURE.md as a test: which crate may depend on which, and what the pure ones may not touch.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package};
use quorate_consensus::why::Runbook;

/// Crate → our crates that it may depend on.
const ALLOWED: &[(&str, &[&str])] = &[
    ("quorate-proto", &[]),
    ("quorate-consensus", &["quorate-proto"]),
    ("quorate-host", &["quorate-consensus", "quorate-proto"]),
    ("quorate-server", &["quorate-host", "quorate-consensus", "quorate-proto"]),
    ("quorate-observer", &["quorate-host", "quorate-consensus", "quorate-proto"]),
    ("quorate-client", &["quorate-proto"]),
    ("quorate-chaos", &["quorate-client", "quorate-proto"]),
    ("quorate-sim", &["quorate-consensus", "quorate-client", "quorate-proto"]),
    (
        "quorate",
        &[
            "quorate-server",
            "quorate-observer",
            "quorate-chaos",
            "quorate-client",
            "quorate-host",
            "quorate-consensus",
            "quorate-proto",
        ],
    ),
];

/// Crates that must not have these in their own, non-optional dependencies.
const NEVER: &[(&str, &[&str])] = &[
    ("quorate-proto", &["tokio", "raft", "raft-engine", "sled"]),
    ("quorate-consensus", &["tokio", "tonic", "futures", "raft-engine", "sled", "rand", "rustix"]),
    ("quorate-client", &["tokio", "tonic", "futures", "raft", "raft-engine", "sled"]),
    ("quorate-sim", &["tokio", "tonic", "raft-engine", "sled"]),
    ("quorate-chaos", &["raft", "raft-engine", "sled"]),
];

/// What pure code may not say: it takes time, randomness and storage from its caller, and its order of iteration
/// must not depend on a random hash.
const IMPURE: &[&str] = &[
    "Instant::now",
    "SystemTime",
    "thread_rng",
    "rand::rng()",
    "HashMap",
    "HashSet",
    "std::fs",
    "std::net",
    "std::thread",
    "tokio",
    "tonic",
    "async fn",
];

/// Pure source folders.
const PURE: &[&str] = &["consensus/src", "client-sdk/src/core"];

fn metadata() -> Metadata {
    MetadataCommand::new().no_deps().other_options(["--offline".to_owned()]).exec().expect("cargo metadata")
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the workspace").to_path_buf()
}

/// Names of dependencies that are compiled into the crate itself; `optional` ones only if asked for.
fn dependencies(package: &Package, optional: bool) -> BTreeSet<String> {
    package
        .dependencies
        .iter()
        .filter(|d| d.kind == DependencyKind::Normal && (optional || !d.optional))
        .map(|d| d.name.clone())
        .collect()
}

#[test]
fn crates_depend_only_on_what_the_table_allows() {
    let metadata = metadata();
    let table: BTreeMap<&str, &[&str]> = ALLOWED.iter().copied().collect();
    let mut seen = BTreeSet::new();
    for package in metadata.workspace_packages() {
        let allowed =
            table.get(package.name.as_str()).unwrap_or_else(|| panic!("{} is not in the table", package.name));
        for dependency in dependencies(package, true).iter().filter(|name| name.starts_with("quorate")) {
            assert!(allowed.contains(&dependency.as_str()), "{} must not depend on {dependency}", package.name);
        }
        seen.insert(package.name.to_string());
    }
    assert_eq!(seen.len(), ALLOWED.len(), "a crate of the table is missing: {seen:?}");
}

#[test]
fn pure_crates_stay_free_of_runtimes_sockets_and_files() {
    let metadata = metadata();
    for (name, never) in NEVER {
        let package = metadata.workspace_packages().into_iter().find(|p| p.name.as_str() == *name);
        let own = dependencies(package.unwrap_or_else(|| panic!("{name} is missing")), false);
        for crate_name in *never {
            assert!(!own.contains(*crate_name), "{name} must not depend on {crate_name}");
        }
    }
}

#[test]
fn the_simulator_takes_the_client_without_its_network_half() {
    let metadata = metadata();
    let sim = metadata.workspace_packages().into_iter().find(|p| p.name.as_str() == "quorate-sim").expect("sim");
    let client = sim
        .dependencies
        .iter()
        .find(|d| d.name == "quorate-client" && d.kind == DependencyKind::Normal)
        .expect("the simulator drives the client's core");
    assert!(!client.uses_default_features && client.features.is_empty(), "{:?}", client.features);
}

#[test]
fn pure_code_takes_time_chance_and_storage_from_its_caller() {
    let mut files = Vec::new();
    for folder in PURE {
        collect(&root().join(folder), &mut files);
    }
    assert!(files.len() > 10, "only {} files found: the folders have moved", files.len());
    for path in files {
        let text = std::fs::read_to_string(&path).expect("readable");
        // Tests at the end of a file, and comments, may name what the code must not use.
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        for (number, line) in code.lines().enumerate() {
            let line = line.split("//").next().unwrap_or_default();
            for word in IMPURE {
                assert!(!line.contains(word), "{}:{}: {word}", path.display(), number + 1);
            }
        }
    }
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())).flatten() {
        let path = entry.path();
        let name = entry.file_name();
        // Test modules in files of their own.
        let tests = name.to_string_lossy().starts_with("tests");
        if path.is_dir() && !tests {
            collect(&path, files);
        } else if path.extension().is_some_and(|e| e == "rs") && !tests {
            files.push(path);
        }
    }
}

#[test]
fn the_program_in_the_readme_is_the_example() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap_or_else(|e| panic!("{path}: {e}"));
    let (readme, example) = (read("README.md"), read("client-sdk/examples/publish.rs"));
    assert!(readme.contains(example.trim_end()), "README.md shows another program than client-sdk/examples/publish.rs");
}

#[test]
fn every_runbook_is_there_and_says_what_to_do_and_belongs_to_an_alarm() {
    let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    for runbook in Runbook::ALL {
        let text = read(&root().join(runbook.page()));
        for part in ["**Alarm.** ", "**Where.** ", "**Command.** ", "**Expected.** ", "**If that fails.** "] {
            assert!(text.contains(part), "{runbook}: {part}");
        }
    }
    for entry in std::fs::read_dir(root().join("docs/runbooks")).expect("the folder") {
        let name = entry.expect("a file").file_name().to_string_lossy().into_owned();
        let known = Runbook::ALL.iter().any(|runbook| runbook.page().ends_with(&format!("/{name}")));
        assert!(known || name == "README.md", "{name} belongs to no alarm");
    }
}
