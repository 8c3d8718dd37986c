//! `quorate task` and `quorate replica`: changes of a partition's members.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use quorate_client::{Admin, PartitionNo};
use quorate_proto::v1::TaskDescription;
use serde_json::{json, Value};

use crate::args::{Global, ReplicaVerb, TaskVerb};
use crate::connect::{client, within};
use crate::fail::{Exit, Fail};
use crate::output::Output;
use crate::partition;
use crate::span::show_instant;

/// A task that is waited for is looked at this often.
const POLL: Duration = Duration::from_millis(300);
/// Tasks listed.
const LISTED: u32 = 50;

pub async fn run(verb: TaskVerb, global: &Global, output: &Output) -> Result<ExitCode, Fail> {
    let admin = client(global).await?.admin();
    match verb {
        TaskVerb::List => {
            let list = within(global, "task list", async { Ok(admin.list_tasks(LISTED).await?) }).await?;
            if output.json {
                let tasks: Vec<Value> = list.tasks.iter().map(value).collect();
                output.json(
                    &json!({ "schema": "quorate.tasks.v1", "tasks": tasks, "authoritative": list.authoritative }),
                );
            } else if list.tasks.is_empty() {
                output.line("No task runs or ran.");
            } else {
                let row = |t: &TaskDescription| {
                    vec![t.id.to_string(), t.subject.clone(), path(t), state(t), show_instant(t.begun_us)]
                };
                let header = ["task", "partition", "replica", "state", "begun"];
                output.table(&header, list.tasks.iter().map(row).collect(), &[0]);
            }
            Ok(Exit::Ok.into())
        }
        TaskVerb::Show { task } => {
            let found = within(global, "task show", async { Ok(admin.describe_task(task).await?) }).await?;
            show(&found, output);
            Ok(Exit::Ok.into())
        }
        TaskVerb::Wait { task } => wait(&admin, task, global, output).await,
        TaskVerb::Cancel { task } => {
            let found = within(global, "task cancel", async { Ok(admin.cancel_task(task).await?) }).await?;
            show(&found, output);
            Ok(Exit::Ok.into())
        }
    }
}

pub async fn replica(verb: ReplicaVerb, global: &Global, output: &Output) -> Result<ExitCode, Fail> {
    let (name, partition, from, to, wait_for_it) = match verb {
        ReplicaVerb::Replace { partition, on, to, wait } => {
            let to = to.unwrap_or_else(|| on.clone());
            ("replica replace", partition, on, to, wait)
        }
        ReplicaVerb::Move { partition, from, to, wait } => ("replica move", partition, from, to, wait),
    };
    let (topic, number) = partition::parse(&partition)?;
    let admin = client(global).await?.admin();
    let call = Box::pin(async { Ok(admin.replace_replica(&topic, PartitionNo(number), &from, &to).await?) });
    let begun = within(global, name, call).await?;
    if wait_for_it {
        return wait(&admin, begun.id, global, output).await;
    }
    show(&begun, output);
    if !output.json {
        output.remark(&format!("`quorate task wait {0}` follows it, `quorate task cancel {0}` gives it up.", begun.id));
    }
    Ok(Exit::Ok.into())
}

async fn wait(admin: &Admin, task: u64, global: &Global, output: &Output) -> Result<ExitCode, Fail> {
    let begun = Instant::now();
    loop {
        let found = within(global, "task wait", async { Ok(admin.describe_task(task).await?) }).await?;
        if found.ended_us != 0 {
            output.progress("");
            show(&found, output);
            return Ok(if found.state == "done" { Exit::Ok.into() } else { Exit::Error.into() });
        }
        if global.timeout.is_some_and(|limit| begun.elapsed() >= limit) {
            output.progress("");
            let waits = if found.waits_for.is_empty() { "its next step".to_owned() } else { found.waits_for };
            return Err(Fail::error(format!(
                "task {task} is still {} and waits for {waits}; it goes on, look again with `quorate task show {task}`",
                found.state
            )));
        }
        output.progress(&format!("{}: {}", found.subject, state(&found)));
        tokio::time::sleep(POLL).await;
    }
}

fn path(t: &TaskDescription) -> String {
    if t.from_node == t.to_node {
        format!("{} anew", t.to_node)
    } else {
        format!("{} -> {}", t.from_node, t.to_node)
    }
}

fn state(t: &TaskDescription) -> String {
    match (t.state.as_str(), t.goal) {
        ("learning", goal) if goal > 0 => format!("learning, {} of {goal}", t.progress),
        _ => t.state.clone(),
    }
}

fn show(t: &TaskDescription, output: &Output) {
    if output.json {
        let mut value = value(t);
        value["schema"] = "quorate.task.v1".into();
        output.json(&value);
        return;
    }
    output.line(&format!("task {}: {}, {}, {}", t.id, t.subject, path(t), state(t)));
    output.line(&format!("  why        {}", t.reason));
    output.line(&format!("  replicas   {} takes the place of {}", t.add_replica, t.remove_replica));
    output.line(&format!("  begun      {}", show_instant(t.begun_us)));
    if t.ended_us != 0 {
        output.line(&format!("  ended      {}", show_instant(t.ended_us)));
    }
    if !t.waits_for.is_empty() {
        output.line(&format!("  waits for  {}", t.waits_for));
    }
    if !t.cancelled.is_empty() {
        output.line(&format!("  given up   {}", t.cancelled));
    }
}

fn value(t: &TaskDescription) -> Value {
    json!({
        "task": t.id,
        "kind": t.kind,
        "subject": t.subject,
        "state": t.state,
        "reason": t.reason,
        "from_node": t.from_node,
        "to_node": t.to_node,
        "remove_replica": t.remove_replica,
        "add_replica": t.add_replica,
        "progress": t.progress,
        "goal": t.goal,
        "waits_for": t.waits_for,
        "cancelled": t.cancelled,
        "begun_us": t.begun_us,
        "ended_us": t.ended_us,
    })
}
