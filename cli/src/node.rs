//! `quorate node`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use quorate_client::Admin;
use quorate_proto::v1::NodeDescription;
use serde_json::{json, Value};

use crate::args::{Global, NodeVerb};
use crate::connect::{client, within};
use crate::fail::{Exit, Fail};
use crate::output::Output;
use crate::span::show_instant;

/// Leaders left are counted this often.
const POLL: Duration = Duration::from_millis(200);

pub async fn run(verb: NodeVerb, global: &Global, output: &Output) -> Result<ExitCode, Fail> {
    let admin = client(global).await?.admin();
    match verb {
        NodeVerb::List => {}
        NodeVerb::Drain { node, within: limit } => return drain(&admin, &node, limit, global, output).await,
        NodeVerb::Undrain { node } => {
            let call = async { Ok(admin.drain_node(&node, false).await?) };
            let after = within(global, "node undrain", call).await?;
            if output.json {
                output.json(&json!({ "schema": "quorate.node.v1", "node": value(&after) }));
            } else {
                output.line(&format!("{} may lead again", after.name));
            }
            return Ok(Exit::Ok.into());
        }
    }
    let list = within(global, "node list", async { Ok(admin.list_nodes().await?) }).await?;
    if output.json {
        let nodes: Vec<Value> = list.nodes.iter().map(value).collect();
        output.json(&json!({
            "schema": "quorate.nodes.v1",
            "nodes": nodes,
            "directory_version": list.directory_version,
            "authoritative": list.authoritative,
            "as_of_us": list.as_of_us,
        }));
        return Ok(Exit::Ok.into());
    }
    let row = |n: &NodeDescription| {
        vec![
            n.name.clone(),
            n.role.clone(),
            n.address.clone(),
            n.pid.to_string(),
            [&n.health, &n.state, &n.disk]
                .map(String::as_str)
                .into_iter()
                .filter(|text| !text.is_empty())
                .collect::<Vec<_>>()
                .join(", "),
            if n.role == "server" { n.leaders.to_string() } else { "-".to_owned() },
            if n.role == "server" { n.replicas.to_string() } else { "-".to_owned() },
        ]
    };
    let header = ["name", "role", "address", "pid", "health", "leaders", "replicas"];
    output.table(&header, list.nodes.iter().map(row).collect(), &[3, 5, 6]);
    let source = if list.authoritative { "from the observer leader" } else { "not authoritative" };
    output.line(&format!("as of {}, {source}", show_instant(list.as_of_us)));
    Ok(Exit::Ok.into())
}

/// Records the drain, then waits until the node leads nothing.
async fn drain(admin: &Admin, node: &str, limit: Duration, global: &Global, output: &Output) -> Result<ExitCode, Fail> {
    let call = async { Ok(admin.drain_node(node, true).await?) };
    let mut now = within(global, "node drain", call).await?;
    let (begun, before) = (Instant::now(), now.leaders);
    let id = now.id;
    while now.leaders > 0 {
        output.progress(&format!("{}: {} of {before} leaders are left", now.name, now.leaders));
        if begun.elapsed() >= limit {
            output.progress("");
            let (name, left) = (&now.name, now.leaders);
            return Err(Fail::error(format!(
                "{name} still leads {left} of {before} partitions after {limit:?}; it stays drained and goes on handing \
                 over: see `quorate partition describe`, or take it back with `quorate node undrain {name}`"
            )));
        }
        tokio::time::sleep(POLL).await;
        let list = async { Ok(admin.list_nodes().await?) };
        let list = within(global, "node drain", list).await?;
        if let Some(found) = list.nodes.into_iter().find(|n| n.id == id && n.role == "server") {
            now = found;
        }
    }
    output.progress("");
    if output.json {
        output.json(&json!({ "schema": "quorate.node.v1", "node": value(&now), "handed_over": before }));
    } else {
        let took = begun.elapsed().as_secs_f64();
        output.line(&format!("{}: drained, {before} leaders handed over in {took:.1} s", now.name));
        output.line(&format!("It gets none until `quorate node undrain {}`.", now.name));
    }
    Ok(Exit::Ok.into())
}

fn value(n: &NodeDescription) -> Value {
    json!({
        "name": n.name,
        "id": n.id,
        "role": n.role,
        "address": n.address,
        "pid": n.pid,
        "incarnation": n.incarnation,
        "health": n.health,
        "state": n.state,
        "disk": n.disk,
        "leaders": n.leaders,
        "replicas": n.replicas,
        "version": n.version,
    })
}
