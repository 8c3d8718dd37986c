//! `quorate node`.

use std::process::ExitCode;

use quorate_proto::v1::NodeDescription;
use serde_json::{json, Value};

use crate::args::{Global, NodeVerb};
use crate::connect::{client, within};
use crate::fail::{Exit, Fail};
use crate::output::Output;
use crate::span::show_instant;

pub async fn run(verb: NodeVerb, global: &Global, output: &Output) -> Result<ExitCode, Fail> {
    let NodeVerb::List = verb;
    let admin = client(global).await?.admin();
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
            if n.state.is_empty() { n.health.clone() } else { format!("{}, {}", n.health, n.state) },
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
        "leaders": n.leaders,
        "replicas": n.replicas,
        "version": n.version,
    })
}
