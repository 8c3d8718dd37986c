//! `quorate consume`: prints messages, fit for a pipe. Joins no group and commits nothing.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use quorate_client::{ConsumedRecord, Consumer, LogTime, Offset, PartitionNo, StartAt};
use serde_json::{json, Map, Value};
use tokio::time::Instant;

use crate::args::{ConsumeArgs, Global};
use crate::connect::client;
use crate::fail::{Exit, Fail};
use crate::output::Output;
use crate::span::{now_micros, parse_instant, parse_span, show_instant};

pub async fn run(args: ConsumeArgs, global: &Global, output: &Output) -> Result<ExitCode, Fail> {
    let from = parse_from(&args.from, now_micros())?;
    let template = Template::parse(&args.format)?;
    let limit = args.count.unwrap_or(u64::MAX);
    let until = global.timeout.map(|timeout| Instant::now() + timeout);
    let client = client(global).await?;
    let mut builder = client.consumer(args.topic.as_str()).from(from);
    if let Some(partition) = args.partition {
        builder = builder.partitions([PartitionNo(partition)]);
    }
    let mut consumer = builder.build().await?;
    let mut printer =
        Printer { out: std::io::stdout().lock(), buffer: Vec::new(), topic: &args.topic, json: output.json };
    let mut printed = 0;
    while printed < limit {
        let Some(record) = next(&mut consumer, &mut printer, until).await? else { break };
        if !printer.print(&record, &template) {
            return Ok(Exit::Ok.into());
        }
        printed += 1;
    }
    printer.flush();
    match args.count {
        Some(count) if printed < count => {
            Err(Fail::deadline(format!("{printed} of {count} messages came within the time given")))
        }
        _ => Ok(Exit::Ok.into()),
    }
}

/// The next record; what is printed so far is written out before waiting. `None` when the time is over.
async fn next(
    consumer: &mut Consumer,
    printer: &mut Printer<'_>,
    until: Option<Instant>,
) -> Result<Option<ConsumedRecord>, Fail> {
    // Two milliseconds: long enough to gather what a fetch brought, too short to be noticed.
    let record = match tokio::time::timeout(Duration::from_millis(2), consumer.next()).await {
        Ok(record) => record,
        Err(_) => {
            printer.flush();
            let ended = async {
                match until {
                    Some(until) => tokio::time::sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                record = consumer.next() => record,
                () = ended => return Ok(None),
                _ = tokio::signal::ctrl_c() => return Ok(None),
            }
        }
    };
    match record {
        Some(Ok(record)) => Ok(Some(record)),
        Some(Err(refusal)) => Err(refusal.into()),
        None => Err(Fail::error("every partition has ended with an error")),
    }
}

/// `now`: microseconds since the Unix epoch.
fn parse_from(text: &str, now: i64) -> Result<StartAt, Fail> {
    match text {
        "earliest" => Ok(StartAt::Earliest),
        "latest" => Ok(StartAt::Latest),
        _ => {
            if let Ok(offset) = text.parse() {
                return Ok(StartAt::Offset(Offset(offset)));
            }
            // Without a unit it is no span, but an offset that is mistyped.
            let span = || parse_span(text).ok().filter(|_| text.ends_with(|last: char| last.is_ascii_alphabetic()));
            let ago = || span().and_then(|ago| now.checked_sub(i64::try_from(ago.as_micros()).ok()?));
            let at = parse_instant(text).or_else(ago).map(|micros| StartAt::Time(LogTime(micros)));
            at.ok_or_else(|| {
                let what = "write earliest, latest, an offset, 2026-01-31T09:30:00Z, or 15m for 15 minutes ago";
                Fail::usage(format!("--from {text}: {what}"))
            })
        }
    }
}

/// `--format`, taken apart.
#[derive(Debug, PartialEq, Eq)]
struct Template(Vec<Part>);

#[derive(Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Value,
    Key,
    Offset,
    Partition,
    Headers,
    Time,
}

impl Template {
    fn parse(text: &str) -> Result<Self, Fail> {
        let mut parts = Vec::new();
        let mut literal = String::new();
        let mut chars = text.chars();
        while let Some(c) = chars.next() {
            if c == '\\' {
                match chars.next() {
                    Some('t') => literal.push('\t'),
                    Some('n') => literal.push('\n'),
                    Some(other) => literal.extend(['\\', other]),
                    None => literal.push('\\'),
                }
                continue;
            }
            if c != '%' {
                literal.push(c);
                continue;
            }
            let part = match chars.next() {
                Some('%') => {
                    literal.push('%');
                    continue;
                }
                Some('v') => Part::Value,
                Some('k') => Part::Key,
                Some('o') => Part::Offset,
                Some('p') => Part::Partition,
                Some('h') => Part::Headers,
                Some('T') => Part::Time,
                other => {
                    let shown = other.map(String::from).unwrap_or_default();
                    return Err(Fail::usage(format!("--format: %{shown} is unknown; known are %v %k %o %p %h %T %%")));
                }
            };
            if !literal.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut literal)));
            }
            parts.push(part);
        }
        if !literal.is_empty() {
            parts.push(Part::Text(literal));
        }
        Ok(Self(parts))
    }

    fn render(&self, record: &ConsumedRecord, into: &mut Vec<u8>) {
        for part in &self.0 {
            match part {
                Part::Text(text) => into.extend_from_slice(text.as_bytes()),
                Part::Value => into.extend_from_slice(&record.value),
                Part::Key => into.extend_from_slice(record.key.as_deref().unwrap_or_default()),
                Part::Offset => into.extend_from_slice(record.offset.0.to_string().as_bytes()),
                Part::Partition => into.extend_from_slice(record.partition.0.to_string().as_bytes()),
                Part::Time => into.extend_from_slice(show_instant(record.log_time.0).as_bytes()),
                Part::Headers => {
                    for (number, (name, value)) in record.headers.iter().enumerate() {
                        if number > 0 {
                            into.push(b',');
                        }
                        into.extend_from_slice(name.as_bytes());
                        into.push(b'=');
                        into.extend_from_slice(value);
                    }
                }
            }
        }
        into.push(b'\n');
    }
}

/// Writes in large pieces.
struct Printer<'a> {
    out: std::io::StdoutLock<'static>,
    buffer: Vec<u8>,
    topic: &'a str,
    json: bool,
}

impl Printer<'_> {
    /// False when nobody reads any more.
    fn print(&mut self, record: &ConsumedRecord, template: &Template) -> bool {
        if self.json {
            let text = as_json(self.topic, record).to_string();
            self.buffer.extend_from_slice(text.as_bytes());
            self.buffer.push(b'\n');
        } else {
            template.render(record, &mut self.buffer);
        }
        self.buffer.len() < 64 << 10 || self.flush()
    }

    fn flush(&mut self) -> bool {
        let written = self.out.write_all(&self.buffer).and_then(|()| self.out.flush());
        self.buffer.clear();
        written.is_ok()
    }
}

/// Bytes as text if they are text, else in hexadecimal under another name.
fn put(into: &mut Map<String, Value>, name: &str, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => into.insert(name.to_owned(), text.into()),
        Err(_) => {
            let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
            into.insert(format!("{name}_hex"), hex.into())
        }
    };
}

fn as_json(topic: &str, record: &ConsumedRecord) -> Value {
    let mut headers = Map::new();
    for (name, value) in &record.headers {
        put(&mut headers, name, value);
    }
    let mut object = Map::new();
    object.insert("schema".to_owned(), "quorate.message.v1".into());
    object.insert("topic".to_owned(), topic.into());
    object.insert("partition".to_owned(), record.partition.0.into());
    object.insert("offset".to_owned(), record.offset.0.into());
    object.insert("epoch".to_owned(), record.epoch.0.into());
    object.insert("log_time_us".to_owned(), record.log_time.0.into());
    if let Some(key) = &record.key {
        put(&mut object, "key", key);
    }
    if let Some(key) = &record.idempotency_key {
        put(&mut object, "idempotency_key", key);
    }
    put(&mut object, "value", &record.value);
    object.insert("headers".to_owned(), json!(headers));
    Value::Object(object)
}

#[cfg(test)]
mod tests {
    use quorate_client::Term;

    use super::*;

    fn record() -> ConsumedRecord {
        ConsumedRecord {
            partition: PartitionNo(2),
            offset: Offset(41),
            key: Some("k".into()),
            idempotency_key: Some("k:1".into()),
            value: bytes::Bytes::from_static(b"a\xffb"),
            headers: vec![("n".to_owned(), "1".into()), ("m".to_owned(), "2".into())],
            timestamp: LogTime(0),
            log_time: LogTime(0),
            epoch: Term(3),
        }
    }

    #[test]
    fn a_value_is_printed_byte_for_byte_with_one_newline() {
        let mut out = Vec::new();
        Template::parse("%v").expect("parses").render(&record(), &mut out);
        assert_eq!(out, b"a\xffb\n");
    }

    #[test]
    fn every_part_can_be_printed() {
        let mut out = Vec::new();
        Template::parse("%p/%o %k [%h] 100%%\\t%T").expect("parses").render(&record(), &mut out);
        assert_eq!(String::from_utf8_lossy(&out), "2/41 k [n=1,m=2] 100%\t1970-01-01 00:00:00.000Z\n");
        assert!(Template::parse("%x").is_err() && Template::parse("%").is_err());
    }

    #[test]
    fn json_keeps_bytes_that_are_no_text() {
        let value = as_json("orders", &record());
        assert_eq!(value["value_hex"], "61ff62");
        assert_eq!(value["key"], "k");
    }

    #[test]
    fn the_start_is_a_word_an_offset_or_a_time() {
        assert_eq!(parse_from("12", 0).ok(), Some(StartAt::Offset(Offset(12))));
        assert_eq!(parse_from("1970-01-01T00:00:01Z", 0).ok(), Some(StartAt::Time(LogTime(1_000_000))));
        assert_eq!(parse_from("2s", 5_000_000).ok(), Some(StartAt::Time(LogTime(3_000_000))));
        for wrong in ["soon", "", "-1", "2026-01-31", "5 parsecs", "1.5", "12 ", "1769851800.5"] {
            assert!(parse_from(wrong, 0).is_err(), "{wrong}");
        }
    }
}
