//! `quorate leader`.

use std::process::ExitCode;
use std::time::Instant;

use quorate_client::PartitionNo;

use crate::args::{Global, LeaderVerb};
use crate::connect::{client, within};
use crate::fail::{Exit, Fail};
use crate::output::Output;
use crate::partition;

pub async fn run(verb: LeaderVerb, global: &Global, output: &Output) -> Result<ExitCode, Fail> {
    let admin = client(global).await?.admin();
    match verb {
        LeaderVerb::Handoff { partition, to, no_pin } => {
            let (topic, number) = partition::parse(&partition)?;
            let number = PartitionNo(number);
            let before = Box::pin(async { Ok(admin.describe_partition(&topic, number).await?) });
            let before = within(global, "leader handoff", before).await?;
            let begun = Instant::now();
            let call = async { Ok(admin.handoff(&topic, number, &to, !no_pin).await?) };
            let after = within(global, "leader handoff", call).await?;
            let took = begun.elapsed();
            if output.json {
                let mut value = partition::value(&after);
                value["schema"] = "quorate.handoff.v1".into();
                value["from"] = before.leader.clone().into();
                value["took_ms"] = (took.as_secs_f64() * 1000.0).into();
                output.json(&value);
            } else {
                let (from, to) = (partition::leader(&before), partition::leader(&after));
                let kept = if no_pin { "" } else { ", pinned there" };
                output.line(&format!("{partition}: {from} -> {to} in {:.1} ms{kept}", took.as_secs_f64() * 1000.0));
                output.line("`quorate slo` shows what the clients saw of it.");
            }
        }
        LeaderVerb::Unpin { partition } => {
            let (topic, number) = partition::parse(&partition)?;
            let call = async { Ok(admin.unpin_leader(&topic, PartitionNo(number)).await?) };
            let after = within(global, "leader unpin", call).await?;
            if output.json {
                let mut value = partition::value(&after);
                value["schema"] = "quorate.partition.v1".into();
                output.json(&value);
            } else {
                output.line(&format!("{partition}: its leader may be anywhere ({} now)", partition::leader(&after)));
            }
        }
    }
    Ok(Exit::Ok.into())
}
