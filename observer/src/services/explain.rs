//! `Explain`: what partitions are doing, in words (`consensus::why`).

use quorate_consensus::directory::{Partition, Topic};
use quorate_consensus::observer::ObserverCore;
use quorate_consensus::why::{of_observers, Explanation, Remark, Runbook, State};
use quorate_proto::ids::PartitionNo;
use quorate_proto::time::BootTime;
use quorate_proto::v1;

/// Explanations of one answer.
const EXPLAINED: usize = 200;

/// One partition, those of a topic, or all: of several, only those that are not simply served are explained.
/// `None` if there is no such topic or partition.
pub(super) fn explain(
    core: &ObserverCore,
    topic: Option<&str>,
    number: Option<PartitionNo>,
    now: BootTime,
) -> Option<v1::ExplainResponse> {
    let directory = core.directory();
    let partitions = |topic: &'_ Topic| -> Vec<Partition> {
        let chosen = topic.groups.iter().filter_map(|group| directory.partition(*group));
        chosen.filter(|p| number.is_none_or(|number| p.number == number)).cloned().collect()
    };
    let chosen: Vec<(String, Partition)> = match topic {
        Some(name) => {
            let topic = directory.topic_named(name)?;
            partitions(topic).into_iter().map(|p| (topic.name.clone(), p)).collect()
        }
        None => directory.topics().flat_map(|t| partitions(t).into_iter().map(|p| (t.name.clone(), p))).collect(),
    };
    if chosen.is_empty() && number.is_some() {
        return None;
    }
    let mut answer = v1::ExplainResponse {
        partitions: u32::try_from(chosen.len()).unwrap_or(u32::MAX),
        observer: core.me().name.clone(),
        authoritative: core.is_leading(),
        observers_have_majority: core.observers(now).have_majority(),
        as_of_us: core.cluster_time(now).0,
        directory_version: directory.version().get(),
        remarks: of_observers(&core.observers(now)).into_iter().map(remark).collect(),
        ..v1::ExplainResponse::default()
    };
    for (name, partition) in chosen {
        let Some(why) = core.why(partition.group, now) else { continue };
        answer.serving += u32::from(why.state.is_serving());
        let plain = why.state == State::Serving && why.remarks.is_empty();
        if (number.is_some() || !plain) && answer.explanations.len() < EXPLAINED {
            answer.explanations.push(told(name, partition.number, why));
        }
    }
    Some(answer)
}

fn page(runbook: Option<Runbook>) -> String {
    runbook.map(|runbook| runbook.page().to_owned()).unwrap_or_default()
}

fn remark(remark: Remark) -> v1::Remark {
    v1::Remark { text: remark.text, runbook: page(remark.runbook) }
}

fn told(topic: String, partition: PartitionNo, why: Explanation) -> v1::Explanation {
    v1::Explanation {
        topic,
        partition: partition.get(),
        state: why.state.to_string(),
        cause: why.cause.map(|cause| cause.to_string()).unwrap_or_default(),
        serving: why.state.is_serving(),
        leader: why.leader.unwrap_or_default(),
        since_ms: why.since.map_or(-1, |span| i64::try_from(span.as_millis()).unwrap_or(i64::MAX)),
        what: why.what,
        waits_for: why.waits_for,
        next: why.next,
        action: why.action,
        runbook: page(why.runbook),
        remarks: why.remarks.into_iter().map(remark).collect(),
    }
}
