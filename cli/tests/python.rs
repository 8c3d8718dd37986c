//! A client in another language, with nothing but the `.proto` files: Python's grpcio from PyPI.

mod common;

use std::path::Path;
use std::process::Command;

use common::{cluster, Done};

#[test]
fn python_publishes_repeats_fetches_in_the_clear_and_finds_every_service_by_reflection() {
    let script =
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").join("client-sdk/python/run.py");
    let cluster = cluster();
    // Kept between runs: the packages are fetched once.
    let environment = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python");
    let mut command = Command::new("python3");
    command.arg(script).arg("--venv").arg(environment).args(cluster.observers());
    let done = Done::from(command.output().expect("python3 is installed"));
    let said = done.text();
    print!("{said}");
    assert_ne!(done.code(), 3, "needs python3 with venv, and PyPI: {}", done.stderr);
    done.ok();
    for kind in ["data node", "observer"] {
        let asked = said.lines().filter(|line| line.starts_with(kind) && line.contains("reflection"));
        assert_eq!(asked.count(), 3, "{said}");
    }
}
