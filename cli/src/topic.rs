//! `quorate topic`.

use std::process::ExitCode;

use quorate_proto::ids::TopicId;
use quorate_proto::v1::TopicDescription;
use serde_json::{json, Value};

use crate::args::{Global, TopicVerb};
use crate::connect::{client, within};
use crate::fail::{Exit, Fail};
use crate::output::Output;
use crate::span::show_instant;

pub async fn run(verb: TopicVerb, global: &Global, output: &Output) -> Result<ExitCode, Fail> {
    let admin = client(global).await?.admin();
    match verb {
        TopicVerb::Create { topic, partitions } => {
            let call = async { Ok(admin.create_topic(&topic, partitions).await?) };
            let made = within(global, "topic create", call).await?;
            if output.json {
                output.json(&described("quorate.topic.v1", &made));
            } else if !output.quiet {
                output.line(&format!("created {} with {} partitions", made.name, made.partitions));
            }
        }
        TopicVerb::List => {
            let list = within(global, "topic list", async { Ok(admin.list_topics().await?) }).await?;
            if output.json {
                let topics: Vec<Value> = list.topics.iter().map(summary).collect();
                output.json(&json!({
                    "schema": "quorate.topics.v1",
                    "directory_version": list.directory_version,
                    "topics": topics,
                }));
            } else {
                let row = |t: &TopicDescription| {
                    vec![t.name.clone(), t.partitions.to_string(), led(t), show_instant(t.created_at_us)]
                };
                output.table(
                    &["topic", "partitions", "led", "created"],
                    list.topics.iter().map(row).collect(),
                    &[1, 2],
                );
            }
        }
        TopicVerb::Describe { topic } => {
            let call = async { Ok(admin.describe_topic(&topic).await?) };
            let found = within(global, "topic describe", call).await?;
            if output.json {
                output.json(&described("quorate.topic.v1", &found));
            } else {
                show(output, &found);
            }
        }
    }
    Ok(Exit::Ok.into())
}

/// Partitions with a leader.
fn led(topic: &TopicDescription) -> String {
    topic.partition.iter().filter(|p| p.leader_node != 0).count().to_string()
}

fn summary(topic: &TopicDescription) -> Value {
    json!({
        "topic": topic.name,
        "topic_id": TopicId::from_slice(&topic.topic_id).unwrap_or_default().to_string(),
        "partitions": topic.partitions,
        "created_at_us": topic.created_at_us,
    })
}

fn described(schema: &str, topic: &TopicDescription) -> Value {
    let mut value = summary(topic);
    value["schema"] = schema.into();
    value["directory_version"] = topic.directory_version.into();
    value["partition"] = topic.partition.iter().map(crate::partition::value).collect();
    value
}

fn show(output: &Output, topic: &TopicDescription) {
    output.line(&format!(
        "{}: {} partitions, created {}",
        topic.name,
        topic.partitions,
        show_instant(topic.created_at_us)
    ));
    let rows = topic.partition.iter().map(|p| {
        let replicas: Vec<String> = p.replicas.iter().map(|r| format!("{}={}", r.node_name, r.state)).collect();
        vec![
            p.partition.to_string(),
            crate::partition::leader(p),
            p.epoch.to_string(),
            p.high_watermark.to_string(),
            replicas.join(" "),
        ]
    });
    output.table(&["partition", "leader", "epoch", "end", "replicas"], rows.collect(), &[0, 2, 3]);
}
