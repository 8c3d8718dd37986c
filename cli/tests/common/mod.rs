//! Helpers of the tests that start real processes.

#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use quorate_chaos::cluster::{Cluster, View};
use quorate_chaos::proc::Signal;
use serde_json::Value;

/// Longest wait for what a cluster does by itself, on a loaded machine.
const LIMIT: Duration = Duration::from_secs(120);

/// Looks again and again until something is there.
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(started.elapsed() < LIMIT, "{what}: never seen");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The binary under test.
pub fn binary() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_quorate"))
}

/// A cluster whose dead observers stay dead.
pub fn cluster() -> Cluster {
    Cluster::start(binary()).unwrap_or_else(|e| panic!("{e}"))
}

/// A cluster whose data nodes have this line in their configuration: each process is started by itself, as an operator
/// would.
pub fn configured(line: &str) -> Cluster {
    let mut cluster = cluster();
    cluster.kill_all();
    for id in 1..=quorate_chaos::layout::NODES {
        let path = cluster.files().config(&format!("node-{id}"));
        let text = std::fs::read_to_string(&path).expect("a configuration");
        std::fs::write(&path, format!("{line}\n{text}")).expect("writable");
        cluster.start_alone("observer", id).unwrap_or_else(|e| panic!("{e}"));
        cluster.start_alone("server", id).unwrap_or_else(|e| panic!("{e}"));
    }
    let started = std::time::Instant::now();
    let led = |partition: u32| {
        let place = format!("orders/{partition}");
        let found = quorate(&cluster, &["partition", "describe", &place, "--output", "json"]);
        found.code() == 0 && found.json()["authoritative"] == true && !found.json()["leader"].is_null()
    };
    while !(0..3).all(led) {
        assert!(started.elapsed() < std::time::Duration::from_secs(60), "no leaders\n{}", cluster.logs());
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    cluster
}

/// What a command did.
#[derive(Debug)]
pub struct Done {
    pub status: ExitStatus,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl Done {
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or(-1)
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// The last JSON document on standard output.
    pub fn json(&self) -> Value {
        let text = self.text();
        let line = text.lines().last().unwrap_or_default();
        serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {text}\n{}", self.stderr))
    }

    /// Fails the test unless the command succeeded.
    #[track_caller]
    pub fn ok(self) -> Self {
        assert!(self.status.success(), "{:?}\n{}\n{}", self.status, self.text(), self.stderr);
        self
    }
}

impl From<Output> for Done {
    fn from(output: Output) -> Self {
        Self {
            status: output.status,
            stdout: output.stdout,
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// Runs `quorate …` against a cluster.
pub fn quorate(cluster: &Cluster, args: &[&str]) -> Done {
    cluster.command().args(args).output().expect("the binary runs").into()
}

/// Runs `quorate …` against no cluster.
pub fn alone(args: &[&str]) -> Done {
    let mut command = Command::new(binary());
    command.args(args).env_remove("QUORATE_OBSERVERS").stdin(Stdio::null());
    command.output().expect("the binary runs").into()
}

/// Order rows: the real file where it lies beside the clone, else the generator's. Prints which.
pub fn order_rows() -> &'static [u8] {
    static ROWS: OnceLock<Vec<u8>> = OnceLock::new();
    ROWS.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
        let real = root.join("../shared/data/nasdaq-aapl-orders.csv");
        match std::fs::read(&real) {
            Ok(rows) => {
                println!("order rows: the real NASDAQ file beside the clone");
                rows
            }
            Err(_) => {
                println!("order rows: the seeded generator (no NASDAQ file lies beside the clone)");
                quorate_chaos::orders::rows(quorate_chaos::orders::SEED, quorate_chaos::orders::ROWS).into_bytes()
            }
        }
    })
}

/// The rows without their line ends.
pub fn split_rows(rows: &[u8]) -> Vec<&[u8]> {
    let mut all: Vec<&[u8]> = rows.split(|&b| b == b'\n').collect();
    if all.last().is_some_and(|last| last.is_empty()) {
        all.pop();
    }
    all
}

/// The order rows as a file in a cluster's directory.
pub fn order_file(cluster: &Cluster) -> PathBuf {
    let path = cluster.files().root.join("test-orders.csv");
    std::fs::write(&path, order_rows()).expect("writes");
    path
}

/// A runtime for tests that use the SDK.
pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

/// Runs a command on this input.
pub fn pipe(command: &mut Command, input: &[u8]) -> Done {
    use std::io::Write;
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs");
    child.stdin.take().expect("piped").write_all(input).expect("the command reads its input");
    child.wait_with_output().expect("ends").into()
}

/// What a node's Prometheus listener answers.
pub fn scrape(address: std::net::SocketAddr) -> String {
    use std::io::{Read, Write};
    let mut socket = std::net::TcpStream::connect(address).unwrap_or_else(|e| panic!("{address}: {e}"));
    socket.write_all(b"GET /metrics HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n").expect("a request");
    let mut page = String::new();
    socket.read_to_string(&mut page).expect("text");
    page
}

/// The sum of a metric's samples over all labels; `None` if there is none.
pub fn sample(page: &str, name: &str) -> Option<f64> {
    let mut sum = None;
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let Some((series, value)) = line.rsplit_once(' ') else { continue };
        if series.split('{').next() == Some(name) {
            sum = Some(sum.unwrap_or(0.0) + value.parse::<f64>().unwrap_or(f64::NAN));
        }
    }
    sum
}

/// Kills both processes of each of these data nodes; `quorate dev`, which would start them again, is stopped until it
/// gets SIGCONT.
pub fn take_away(cluster: &Cluster, nodes: &[u64]) {
    let victims = runtime().block_on(async {
        let client = cluster.client().await.unwrap_or_else(|e| panic!("{e}"));
        let view = View::new(&client);
        let mut victims = Vec::new();
        for id in nodes {
            // The supervisor first: it must not see its child die, and start another one.
            victims.push(view.supervisor(*id).await.unwrap_or_else(|e| panic!("{e}")));
            victims.push(view.pid("server", *id).await.unwrap_or_else(|e| panic!("{e}")));
        }
        victims
    });
    cluster.dev_pid().expect("runs").signal(Signal::STOP).expect("our child");
    for victim in victims {
        victim.kill().expect("it runs");
    }
}
