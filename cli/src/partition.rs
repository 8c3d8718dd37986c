//! `quorate partition`.

use std::process::ExitCode;

use quorate_client::PartitionNo;
use quorate_proto::v1::{AuditRecord, PartitionDescription};
use serde_json::{json, Value};

use crate::args::{Global, PartitionVerb};
use crate::connect::{client, within};
use crate::fail::{Exit, Fail};
use crate::output::Output;
use crate::span::show_instant;

/// Audit records shown.
const AUDITED: u32 = 100;

pub async fn run(verb: PartitionVerb, global: &Global, output: &Output) -> Result<ExitCode, Fail> {
    let partition = match verb {
        PartitionVerb::Describe { partition } => partition,
        PartitionVerb::BreakGlass { partition, node, plan } => {
            return break_glass(&partition, &node, plan.as_deref(), global, output).await;
        }
    };
    let (topic, number) = parse(&partition)?;
    let admin = client(global).await?.admin();
    let call = async { Ok(admin.describe_partition(&topic, PartitionNo(number)).await?) };
    let found = within(global, "partition describe", call).await?;
    if output.json {
        let mut value = value(&found);
        value["schema"] = "quorate.partition.v1".into();
        output.json(&value);
    } else {
        show(output, &found);
    }
    // 10: a partition that nobody leads is what scripts ask about.
    Ok(if found.leader_node == 0 { Exit::Unhealthy.into() } else { Exit::Ok.into() })
}

async fn break_glass(
    partition: &str,
    node: &str,
    plan: Option<&str>,
    global: &Global,
    output: &Output,
) -> Result<ExitCode, Fail> {
    let (topic, number) = parse(partition)?;
    let admin = client(global).await?.admin();
    let call = Box::pin(async { Ok(admin.break_glass(&topic, PartitionNo(number), node, plan).await?) });
    let answer = within(global, "partition break-glass", call).await?;
    if output.json {
        output.json(&json!({
            "schema": "quorate.break_glass.v1",
            "done": answer.done,
            "plan": answer.plan,
            "effect": answer.effect,
        }));
    } else if answer.done {
        output.line(&format!("{partition}: {node} is permitted, and audited (`quorate audit show`)."));
        output.line(&format!("`quorate why {partition}` tells whether it leads."));
    } else {
        output.line(&format!("{partition}: nothing was done yet. This is what would happen:"));
        for line in &answer.effect {
            output.line(&format!("  {line}"));
        }
        output.line(&format!("plan {}, valid 10 min. To execute it:", answer.plan));
        output.line(&format!("  quorate partition break-glass {partition} --node {node} --plan {}", answer.plan));
    }
    Ok(Exit::Ok.into())
}

/// `quorate audit show`.
pub async fn audit(global: &Global, output: &Output) -> Result<ExitCode, Fail> {
    let admin = client(global).await?.admin();
    let records = within(global, "audit show", async { Ok(admin.list_audit(AUDITED).await?) }).await?;
    if output.json {
        let value = |r: &AuditRecord| {
            json!({
                "id": r.id,
                "at_us": r.at_us,
                "principal": r.principal,
                "verb": r.verb,
                "subject": r.subject,
                "arguments": r.arguments,
                "effect": r.effect,
            })
        };
        let records: Vec<Value> = records.iter().map(value).collect();
        output.json(&json!({ "schema": "quorate.audit.v1", "records": records }));
    } else if records.is_empty() {
        output.line("No operator did anything dangerous.");
    } else {
        for r in &records {
            let when = show_instant(r.at_us);
            output.line(&format!("{} {when} {} {} {} ({})", r.id, r.principal, r.verb, r.subject, r.arguments));
            output.line(&format!("    {}", r.effect));
        }
    }
    Ok(Exit::Ok.into())
}

/// `T/P`; topics may hold a slash themselves (`namespace/name`).
pub fn parse(text: &str) -> Result<(String, u32), Fail> {
    let parts = text.rsplit_once('/').and_then(|(topic, number)| Some((topic.to_owned(), number.parse().ok()?)));
    parts.ok_or_else(|| Fail::usage(format!("`{text}` names no partition; write topic/number, as in orders/0")))
}

/// The leader's name, or a dash.
pub fn leader(partition: &PartitionDescription) -> String {
    if partition.leader_node == 0 {
        "-".to_owned()
    } else {
        partition.leader.clone()
    }
}

/// One partition as JSON.
pub fn value(p: &PartitionDescription) -> Value {
    let replicas: Vec<Value> = p
        .replicas
        .iter()
        .map(|r| {
            json!({
                "node": r.node_name,
                "node_id": r.node,
                "replica": r.replica,
                "state": r.state,
                "disk": r.disk,
                "last_index": r.last_index,
                "lag": r.lag,
            })
        })
        .collect();
    json!({
        "topic": p.topic,
        "partition": p.partition,
        "group_id": p.group_id,
        "leader": (p.leader_node != 0).then(|| p.leader.clone()),
        "leader_id": (p.leader_node != 0).then_some(p.leader_node),
        "epoch": p.epoch,
        "term": p.term,
        "permit_epoch": p.permit_epoch,
        "replicas": replicas,
        "lease_remaining_ms": (p.lease_remaining_ms >= 0).then_some(p.lease_remaining_ms),
        "high_watermark": p.high_watermark,
        "digest": (!p.digest.is_empty()).then(|| p.digest.clone()),
        "pinned_to": (!p.pinned_to.is_empty()).then(|| p.pinned_to.clone()),
        "authoritative": p.authoritative,
        "as_of_us": p.as_of_us,
    })
}

fn show(output: &Output, p: &PartitionDescription) {
    let lease = if p.lease_remaining_ms < 0 { "unknown".to_owned() } else { format!("{} ms", p.lease_remaining_ms) };
    output.line(&format!("{}/{} (group {})", p.topic, p.partition, p.group_id));
    output.line(&format!("leader {}, epoch {}, lease {lease}, end {}", leader(p), p.epoch, p.high_watermark));
    if !p.pinned_to.is_empty() {
        output.line(&format!("pinned to {} (`quorate leader unpin` takes that back)", p.pinned_to));
    }
    if !p.digest.is_empty() {
        output.line(&format!("digest {}", p.digest));
    }
    let rows = p.replicas.iter().map(|r| {
        vec![
            r.node_name.clone(),
            r.replica.to_string(),
            if r.disk.is_empty() { r.state.clone() } else { format!("{}, {}", r.state, r.disk) },
            r.last_index.to_string(),
            r.lag.to_string(),
        ]
    });
    output.table(&["node", "replica", "state", "last index", "lag"], rows.collect(), &[1, 3, 4]);
    let source = if p.authoritative {
        "from the observer leader"
    } else {
        "not authoritative: the observer leader did not answer"
    };
    output.line(&format!("as of {}, {source}", show_instant(p.as_of_us)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_is_named_by_topic_and_number() {
        assert_eq!(parse("orders/2").ok(), Some(("orders".to_owned(), 2)));
        assert_eq!(parse("bank/orders/2").ok(), Some(("bank/orders".to_owned(), 2)));
        assert!(parse("orders").is_err() && parse("orders/x").is_err());
    }
}
