//! Waits until the cluster serves, and makes the topic that a newcomer uses first.

use std::time::Duration;

use indicatif::ProgressBar;
use quorate_chaos::layout::NODES;
use quorate_client::{Client, Reason, Refusal};
use quorate_proto::v1::{NodeDescription, TopicDescription};

use super::setup::Setup;
use super::START_LIMIT;
use crate::fail::Fail;
use crate::output::Output;

pub const TOPIC: &str = "orders";
pub const PARTITIONS: u32 = 3;
const POLL: Duration = Duration::from_millis(50);

/// What runs.
pub struct Picture {
    pub nodes: Vec<NodeDescription>,
    pub topic: TopicDescription,
}

/// Comes back when every node is up and every partition of `orders` has a leader.
pub async fn wait(setup: &Setup, output: &Output) -> Result<Picture, Fail> {
    let progress = Progress::new(output);
    progress.tell("starting three observers");
    let builder = Client::builder().observers(setup.ports.observers()).client_id("quorate-dev");
    let client = builder.connect_timeout(START_LIMIT).build().await?;
    let admin = client.admin();
    progress.tell("starting three data nodes");
    let nodes = loop {
        match admin.list_nodes().await {
            Ok(list) => {
                let up = list.nodes.iter().filter(|node| node.role == "server" && node.health == "up").count() as u64;
                progress.tell(&format!("{up} of {NODES} data nodes are up"));
                if up == NODES {
                    break list.nodes;
                }
            }
            Err(refusal) => starting(refusal)?,
        }
        tokio::time::sleep(POLL).await;
    };
    progress.tell(&format!("topic {TOPIC}"));
    loop {
        match admin.create_topic(TOPIC, PARTITIONS).await {
            Ok(_) => break,
            Err(refusal) if refusal.reason == Reason::AlreadyExists => break,
            Err(refusal) => starting(refusal)?,
        }
        tokio::time::sleep(POLL).await;
    }
    let topic = loop {
        match admin.describe_topic(TOPIC).await {
            Ok(topic) => {
                let led = topic.partition.iter().filter(|p| p.leader_node != 0).count();
                progress.tell(&format!("{led} of {PARTITIONS} partitions have a leader"));
                if led == PARTITIONS as usize {
                    break topic;
                }
            }
            Err(refusal) => starting(refusal)?,
        }
        tokio::time::sleep(POLL).await;
    };
    let nodes = admin.list_nodes().await.map(|list| list.nodes).unwrap_or(nodes);
    progress.done();
    Ok(Picture { nodes, topic })
}

/// Refusals that a starting cluster gives are waited out; others end the start.
fn starting(refusal: Refusal) -> Result<(), Fail> {
    match refusal.reason {
        Reason::NotLeader
        | Reason::NoLeader
        | Reason::Busy
        | Reason::Degraded
        | Reason::Deadline
        | Reason::Unreachable
        | Reason::Fenced
        | Reason::UnknownTopic
        | Reason::RefusedUnsafe => Ok(()),
        _ => Err(refusal.into()),
    }
}

/// A spinner on a terminal, a line for each change elsewhere.
struct Progress<'a> {
    output: &'a Output,
    bar: Option<ProgressBar>,
    last: std::cell::RefCell<String>,
}

impl<'a> Progress<'a> {
    fn new(output: &'a Output) -> Self {
        let bar = output.watched().then(|| {
            let bar = ProgressBar::new_spinner();
            bar.enable_steady_tick(Duration::from_millis(100));
            bar
        });
        Self { output, bar, last: std::cell::RefCell::default() }
    }

    fn tell(&self, text: &str) {
        if *self.last.borrow() == text {
            return;
        }
        text.clone_into(&mut self.last.borrow_mut());
        match &self.bar {
            Some(bar) => bar.set_message(text.to_owned()),
            None => self.output.remark(text),
        }
    }

    fn done(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
