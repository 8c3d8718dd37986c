//! The processes of a development cluster: started, watched, started again, ended.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use quorate_chaos::layout::NODES;
use quorate_chaos::network::on_host_of;
use quorate_chaos::proc::ProcessId;
use rustix::process::Signal;
use tokio::process::Command;
use tokio::sync::mpsc;
use tokio::time::{Instant, Sleep};

use super::setup::Setup;
use super::Stop;
use crate::fail::Fail;
use crate::output::Output;

/// A supervisor that dies is started again at once; if it dies at once again, not too often.
const RESTART_SUPERVISOR: Duration = Duration::from_secs(1);
/// Nodes close within 20 s by themselves (`close_ms`).
const CLOSE_NODES: Duration = Duration::from_secs(25);
const CLOSE_OBSERVERS: Duration = Duration::from_secs(5);
/// Lines of a log shown when a process fails at the start.
const TAIL: usize = 12;

/// One process: its verb, and its name in files and logs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Member {
    verb: &'static str,
    name: String,
}

/// All of them.
pub struct Processes<'a> {
    setup: &'a Setup,
    restart_observers: Option<Duration>,
    running: BTreeMap<Member, ProcessId>,
    due: BTreeMap<Member, Instant>,
    exits: mpsc::UnboundedReceiver<(Member, ExitStatus)>,
    report: mpsc::UnboundedSender<(Member, ExitStatus)>,
}

impl<'a> Processes<'a> {
    /// Observers first: data nodes look for them.
    pub fn start(setup: &'a Setup, restart_observers: Option<Duration>) -> Result<Self, Fail> {
        let (report, exits) = mpsc::unbounded_channel();
        let mut all = Self { setup, restart_observers, running: BTreeMap::new(), due: BTreeMap::new(), exits, report };
        for verb in ["observer", "server"] {
            for id in 1..=NODES {
                let name = if verb == "observer" { format!("observer-{id}") } else { format!("node-{id}") };
                all.spawn(Member { verb, name })?;
            }
        }
        Ok(all)
    }

    fn spawn(&mut self, member: Member) -> Result<(), Fail> {
        let failed = |e: std::io::Error| Fail::error(format!("cannot start {}: {e}", member.name));
        let path = self.setup.files.output(&member.name);
        let out = File::options().create(true).append(true).open(path).map_err(failed)?;
        let (variable, value) = self.setup.lifeline.environment();
        let mut child = self
            .command(&member)
            .arg(member.verb)
            .arg("--config")
            .arg(self.setup.files.config(&member.name))
            .env(variable, value)
            .stdin(Stdio::null())
            .stdout(out.try_clone().map_err(failed)?)
            .stderr(out)
            // Ctrl-C reaches `quorate dev` alone, which ends them in order.
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        if let Some(pid) = child.id() {
            self.running.insert(member.clone(), ProcessId(pid));
        }
        let report = self.report.clone();
        tokio::spawn(async move {
            if let Ok(status) = child.wait().await {
                // Nobody listens any more once everything stops.
                let _ = report.send((member, status));
            }
        });
        Ok(())
    }

    /// This binary, where the member belongs: a data node may have a network of its own.
    fn command(&self, member: &Member) -> Command {
        let number = member.name.strip_prefix("node-").and_then(|number| number.parse::<usize>().ok());
        let host = number.and_then(|number| self.setup.hosts.get(number.checked_sub(1)?));
        match host {
            Some(holder) => on_host_of(*holder, &self.setup.binary).into(),
            None => Command::new(&self.setup.binary),
        }
    }

    async fn next_exit(&mut self) -> (Member, ExitStatus) {
        let exit = self.exits.recv().await.expect("this side holds a sender");
        self.running.remove(&exit.0);
        exit
    }

    /// While starting, any exit is a failure.
    pub async fn first_exit(&mut self) -> Fail {
        let (member, status) = self.next_exit().await;
        let files = &self.setup.files;
        let said = [files.output(&member.name), files.log(&member.name)].map(|path| tail(&path)).concat();
        Fail::error(format!("{} did not start ({status}):\n{}", member.name, said.trim_end()))
    }

    /// Starts again what ends; never comes back.
    pub async fn watch(&mut self, output: &Output) {
        loop {
            let next = self.due.values().min().copied();
            let timer: Sleep = tokio::time::sleep_until(next.unwrap_or_else(|| Instant::now() + CLOSE_NODES));
            tokio::select! {
                (member, status) = self.next_exit() => self.note_exit(member, status, output),
                () = timer => {}
            }
            let now = Instant::now();
            let due: Vec<Member> = self.due.iter().filter(|(_, at)| **at <= now).map(|(m, _)| m.clone()).collect();
            for member in due {
                self.due.remove(&member);
                output.remark(&format!("{} is started again", member.name));
                if let Err(failed) = self.spawn(member.clone()) {
                    output.remark(&format!("{failed:?}"));
                    self.due.insert(member, now + RESTART_SUPERVISOR);
                }
            }
        }
    }

    fn note_exit(&mut self, member: Member, status: ExitStatus, output: &Output) {
        let after = if member.verb == "observer" { self.restart_observers } else { Some(RESTART_SUPERVISOR) };
        let command = format!("quorate {} --config {}", member.verb, self.setup.files.config(&member.name).display());
        match after {
            Some(after) => {
                let seconds = after.as_secs_f64();
                output.remark(&format!(
                    "{} ended ({status}); started again in {seconds} s, or now by: {command}",
                    member.name
                ));
                self.due.insert(member, Instant::now() + after);
            }
            None => output.remark(&format!("{} ended ({status}); start it again by: {command}", member.name)),
        }
    }

    /// Data nodes first, so that they can tell the observers; then the observers. A second signal ends all at once,
    /// and so does the end of this process (the lifeline).
    pub async fn stop(&mut self, stop: &mut Stop) {
        for (verb, limit) in [("server", CLOSE_NODES), ("observer", CLOSE_OBSERVERS)] {
            self.signal(verb, Signal::TERM);
            let until = Instant::now() + limit;
            while self.running.keys().any(|member| member.verb == verb) {
                tokio::select! {
                    _ = self.next_exit() => {}
                    () = tokio::time::sleep_until(until) => break,
                    () = stop.asked() => {
                        self.signal("server", Signal::KILL);
                        self.signal("observer", Signal::KILL);
                        return;
                    }
                }
            }
            self.signal(verb, Signal::KILL);
        }
    }

    fn signal(&self, verb: &str, signal: Signal) {
        for (member, pid) in &self.running {
            if member.verb == verb {
                // It may have ended a moment ago.
                let _ = pid.signal(signal);
            }
        }
    }
}

fn tail(path: &Path) -> String {
    let text = std::fs::read_to_string(PathBuf::from(path)).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let mut last = lines[lines.len().saturating_sub(TAIL)..].join("\n");
    if !last.is_empty() {
        last.push('\n');
    }
    last
}
