//! `quorate why`: what a partition is doing, in words.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use quorate_client::{PartitionNo, Reason};
use quorate_proto::time::spoken;
use quorate_proto::v1::{ExplainResponse, Explanation, Remark};
use serde_json::{json, Value};

use crate::args::{Global, WhyArgs};
use crate::connect::{client, within};
use crate::fail::{Exit, Fail};
use crate::output::Output;
use crate::partition::parse;
use crate::span::show_instant;

/// Where the label of a paragraph ends.
const INDENT: usize = 11;
const WIDTH: usize = 80;
/// The page for what no observer can say.
const NO_OBSERVER: &str =
    "no observer answers: leaders stop serving when their leases end, within 8 s, and nobody is elected. \
                           Start the observers, then ask again: docs/runbooks/observers-lost.md";

pub async fn run(args: WhyArgs, global: &Global, output: &Output) -> Result<ExitCode, Fail> {
    let (topic, number) = target(args.partition.as_deref());
    let admin = match client(global).await {
        Ok(client) => client.admin(),
        Err(failed) if failed.is(Reason::Unreachable) => return Err(failed.with(NO_OBSERVER)),
        Err(failed) => return Err(failed),
    };
    let call = async { Ok(admin.explain(topic.as_deref(), number.map(PartitionNo)).await?) };
    let answer = within(global, "why", call).await?;
    if output.json {
        output.json(&value(&answer));
    } else {
        show(&answer, number.is_some(), output);
    }
    Ok(if answer.serving == answer.partitions { Exit::Ok.into() } else { Exit::Unhealthy.into() })
}

/// `orders/0`, `orders`, `bank/orders/0`, `bank/orders` or nothing.
fn target(text: Option<&str>) -> (Option<String>, Option<u32>) {
    match text {
        None => (None, None),
        Some(text) => match parse(text) {
            Ok((topic, number)) => (Some(topic), Some(number)),
            Err(_) => (Some(text.to_owned()), None),
        },
    }
}

fn optional(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

fn remark(remark: &Remark) -> Value {
    json!({ "text": remark.text, "runbook": optional(&remark.runbook) })
}

fn value(answer: &ExplainResponse) -> Value {
    let one = |e: &Explanation| {
        let remarks: Vec<Value> = e.remarks.iter().map(remark).collect();
        json!({
            "topic": e.topic,
            "partition": e.partition,
            "state": e.state,
            "cause": optional(&e.cause),
            "serving": e.serving,
            "leader": optional(&e.leader),
            "since_ms": (e.since_ms >= 0).then_some(e.since_ms),
            "what": e.what,
            "waits_for": e.waits_for,
            "next": e.next,
            "action": e.action,
            "runbook": optional(&e.runbook),
            "remarks": remarks,
        })
    };
    json!({
        "schema": "quorate.why.v1",
        "partitions": answer.partitions,
        "serving": answer.serving,
        "remarks": answer.remarks.iter().map(remark).collect::<Vec<Value>>(),
        "explanations": answer.explanations.iter().map(one).collect::<Vec<Value>>(),
        "observer": answer.observer,
        "authoritative": answer.authoritative,
        "observers_have_majority": answer.observers_have_majority,
        "directory_version": answer.directory_version,
        "as_of_us": answer.as_of_us,
    })
}

fn show(answer: &ExplainResponse, one: bool, output: &Output) {
    if one {
        answer.explanations.iter().for_each(|explanation| show_one(explanation, output));
    } else {
        show_all(answer, output);
    }
    answer.remarks.iter().for_each(|remark| also(remark, output));
    let source = if answer.authoritative {
        format!("from {}, which leads the observers", answer.observer)
    } else if answer.observers_have_majority {
        format!("from {}, not the observers' leader", answer.observer)
    } else {
        format!("from {} alone (no majority)", answer.observer)
    };
    output.line(&format!("as of {}, {source}", show_instant(answer.as_of_us)));
}

/// Partitions in the same state together, with the words of the first.
fn show_all(answer: &ExplainResponse, output: &Output) {
    let (all, serving) = (answer.partitions, answer.serving);
    output.line(&match (serving == all, answer.explanations.len()) {
        (true, 0) => format!("All {all} partitions serve. Nothing to do."),
        (true, left) => format!("All {all} partitions serve; {left} of them not with everything in order."),
        (false, _) => format!("{} of {all} partitions are not served.", all - serving),
    });
    let mut groups: BTreeMap<(bool, &str, &str), Vec<&Explanation>> = BTreeMap::new();
    for explanation in &answer.explanations {
        let key = (explanation.serving, explanation.state.as_str(), explanation.cause.as_str());
        groups.entry(key).or_default().push(explanation);
    }
    for group in groups.values() {
        output.line("");
        for other in group.iter().skip(1) {
            header(other, output);
        }
        show_one(group[0], output);
    }
    if !answer.explanations.is_empty() {
        output.line("");
    }
}

fn also(remark: &Remark, output: &Output) {
    let page = if remark.runbook.is_empty() { String::new() } else { format!(" ({})", remark.runbook) };
    paragraph("also", &format!("{}{page}", remark.text), output);
}

fn header(e: &Explanation, output: &Output) {
    let cause = if e.cause.is_empty() { String::new() } else { format!(" ({})", e.cause.replace('_', " ")) };
    let since = u64::try_from(e.since_ms)
        .map_or_else(|_| String::new(), |ms| format!(", for {}", spoken(Duration::from_millis(ms))));
    output.line(&format!("{}/{}: {}{cause}{since}", e.topic, e.partition, e.state.replace('_', " ")));
}

fn show_one(e: &Explanation, output: &Output) {
    header(e, output);
    paragraph("", &e.what, output);
    paragraph("waits", &e.waits_for, output);
    paragraph("next", &e.next, output);
    paragraph("do", &e.action, output);
    if !e.runbook.is_empty() {
        paragraph("runbook", &e.runbook, output);
    }
    e.remarks.iter().for_each(|remark| also(remark, output));
}

/// A labelled paragraph, broken at 80 columns.
fn paragraph(label: &str, text: &str, output: &Output) {
    for (number, line) in wrapped(text, WIDTH - INDENT).iter().enumerate() {
        let label = if number == 0 { label } else { "" };
        output.line(&format!("  {label:<9}{line}"));
    }
}

fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("never empty");
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= width {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_a_topic_or_everything_can_be_asked_about() {
        assert_eq!(target(Some("orders/2")), (Some("orders".to_owned()), Some(2)));
        assert_eq!(target(Some("bank/orders")), (Some("bank/orders".to_owned()), None));
        assert_eq!(target(None), (None, None));
    }

    #[test]
    fn paragraphs_are_broken_between_words() {
        let text = "one two three four five";
        assert_eq!(wrapped(text, 9), ["one two", "three", "four five"]);
        assert_eq!(wrapped("alonglongword", 5), ["alonglongword"]);
    }
}
