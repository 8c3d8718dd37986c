//! `quorate produce`: publishes every row, in order per key, and says what became of each.

pub mod fields;
pub mod rows;
mod tally;

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use quorate_client::{Pending, Producer, Record};

use crate::args::{Global, ProduceArgs};
use crate::connect::client;
use crate::fail::Fail;
use crate::output::Output;

use fields::{FieldError, Fields, Selector};
use rows::{read_whole, Format, Row, Rows};
use tally::Tally;

type Input = Box<dyn BufRead + Send>;

pub async fn run(args: ProduceArgs, global: &Global, output: &Output) -> Result<ExitCode, Fail> {
    if args.rate.is_some_and(|rate| !(rate.is_finite() && rate > 0.0)) {
        return Err(Fail::usage("--rate must be above 0"));
    }
    if args.idempotency_key.as_deref() == Some("") {
        return Err(Fail::usage("--idempotency-key is empty: without a key a repeat is a second message"));
    }
    let (input, bytes) = open(&args)?;
    let mut feed = Feed::new(&args, input)?;
    let client = client(global).await?;
    let mut builder = client.producer(args.topic.as_str());
    if let Some(timeout) = global.timeout {
        builder = builder.deadline(timeout);
    }
    let producer = builder.build().await?;
    let mut sender = Sender::new(&producer, args.rate, progress(output, bytes));
    let ended = match global.timeout {
        Some(limit) => tokio::time::timeout(limit, sender.publish_all(&mut feed)).await.unwrap_or_else(|_| {
            let text = format!("--timeout {limit:?} is over; the rest of the input was not read");
            Err(std::io::Error::new(std::io::ErrorKind::TimedOut, text))
        }),
        None => sender.publish_all(&mut feed).await,
    };
    let tally = sender.finish().await;
    // Every outcome is known: there is nothing that closing could give up.
    producer.close(Duration::from_secs(1)).await;
    tally.show(output);
    ended.map_err(|e| Fail::error(format!("reading stopped: {e}; what stands above was published")))?;
    Ok(tally.exit().into())
}

/// The input, and its length if it is a file.
fn open(args: &ProduceArgs) -> Result<(Input, Option<u64>), Fail> {
    let Some(path) = &args.file else { return Ok((Box::new(BufReader::new(std::io::stdin())), None)) };
    let failed = |e: std::io::Error| Fail::usage(format!("cannot read {}: {e}", path.display()));
    let file = File::open(path).map_err(failed)?;
    let meta = file.metadata().map_err(failed)?;
    if meta.is_dir() {
        return Err(Fail::usage(format!("{} is a directory", path.display())));
    }
    let length = meta.is_file().then_some(meta.len());
    Ok((Box::new(BufReader::with_capacity(256 << 10, file)), length))
}

fn progress(output: &Output, bytes: Option<u64>) -> ProgressBar {
    if !output.watched() {
        return ProgressBar::hidden();
    }
    let (bar, template) = match bytes {
        Some(bytes) => (ProgressBar::new(bytes), "{bar:30} {percent:>3} %  {msg}  {elapsed}"),
        None => (ProgressBar::new_spinner(), "{spinner} {msg}  {elapsed}"),
    };
    bar.with_style(ProgressStyle::with_template(template).expect("the template is constant"))
}

/// Turns the input into records.
struct Feed {
    rows: Source,
    format: Format,
    key_field: Option<Selector>,
    idempotency_field: Option<Selector>,
    key: Option<String>,
    idempotency_key: Option<String>,
}

enum Source {
    Rows(Rows<Input>),
    Whole(Option<Input>),
}

/// What the input gave.
enum Next {
    Record(u64, Record),
    /// A row that cannot be published: its line, and why.
    Unfit(u64, String),
    End,
}

impl Feed {
    fn new(args: &ProduceArgs, input: Input) -> Result<Self, Fail> {
        let selectors = [&args.key_field, &args.idempotency_field];
        let mut feed = Self {
            rows: Source::Whole(None),
            format: args.format,
            key_field: None,
            idempotency_field: None,
            key: args.key.clone(),
            idempotency_key: args.idempotency_key.clone(),
        };
        if args.idempotency_key.is_some() {
            feed.rows = Source::Whole(Some(input));
            if args.key_field.is_some() {
                return Err(Fail::usage("--idempotency-key publishes one message: give its key with --key"));
            }
            return Ok(feed);
        }
        let mut rows = Rows::new(input, args.format);
        let needs_header = selectors.iter().any(|s| s.as_ref().is_some_and(Selector::needs_header));
        let header = if args.format == Format::Csv && needs_header {
            let header = rows.next_row().map_err(|e| Fail::error(format!("cannot read the header row: {e}")))?;
            Some(header.ok_or_else(|| Fail::usage("the input is empty: no header row names the columns"))?)
        } else {
            None
        };
        let bind = |selector: &Option<Selector>| -> Result<Option<Selector>, Fail> {
            let bound = selector.as_ref().map(|s| s.bind(args.format, header.as_ref())).transpose();
            bound.map_err(|e: FieldError| Fail::usage(e.to_string()))
        };
        feed.key_field = bind(&args.key_field)?;
        feed.idempotency_field = bind(&args.idempotency_field)?;
        feed.rows = Source::Rows(rows);
        Ok(feed)
    }

    fn next(&mut self) -> std::io::Result<Next> {
        let row = match &mut self.rows {
            Source::Rows(rows) => rows.next_row()?,
            Source::Whole(input) => match input.take() {
                Some(input) => Some(Row { line: 1, bytes: read_whole(input)? }),
                None => None,
            },
        };
        let Some(row) = row else { return Ok(Next::End) };
        Ok(match self.record(&row) {
            Ok(record) => Next::Record(row.line, record),
            Err(e) => Next::Unfit(row.line, e.to_string()),
        })
    }

    fn record(&self, row: &Row) -> Result<Record, FieldError> {
        let mut record = Record::new(row.bytes.clone());
        if let Some(key) = &self.key {
            record = record.key(key.clone());
        }
        if let Some(key) = &self.idempotency_key {
            record = record.idempotency_key(key.clone());
        }
        // What is said to be JSON must be.
        let looked_at = self.format == Format::Json && self.idempotency_key.is_none();
        if looked_at || self.key_field.is_some() || self.idempotency_field.is_some() {
            let fields = Fields::of(self.format, row)?;
            if let Some(selector) = &self.key_field {
                record = record.key(selector.value(row, &fields)?);
            }
            if let Some(selector) = &self.idempotency_field {
                record = record.idempotency_key(selector.value(row, &fields)?);
            }
        }
        Ok(record)
    }
}

/// Publishes, with many rows in flight, and collects the outcomes in the order of the rows.
struct Sender<'a> {
    producer: &'a Producer,
    rate: Option<f64>,
    bar: ProgressBar,
    tally: Tally,
    in_flight: VecDeque<(u64, Instant, Pending)>,
    started: Instant,
    taken: u64,
}

/// Rows whose outcome is awaited; the producer itself admits more, in bytes.
const IN_FLIGHT: usize = 8_192;

impl<'a> Sender<'a> {
    fn new(producer: &'a Producer, rate: Option<f64>, bar: ProgressBar) -> Self {
        let started = Instant::now();
        Self { producer, rate, bar, tally: Tally::default(), in_flight: VecDeque::new(), started, taken: 0 }
    }

    async fn publish_all(&mut self, feed: &mut Feed) -> std::io::Result<()> {
        loop {
            match feed.next()? {
                Next::End => return Ok(()),
                Next::Unfit(line, why) => self.tally.unfit(line, &why),
                Next::Record(line, record) => {
                    self.keep_pace().await;
                    let bytes = record.value().len() as u64 + 1;
                    let handed = Instant::now();
                    match self.producer.send(record).await {
                        Ok(pending) => self.in_flight.push_back((line, handed, pending)),
                        Err(error) => self.tally.outcome(line, handed.elapsed(), Err(error)),
                    }
                    self.bar.inc(bytes);
                }
            }
            self.collect_ready().await;
        }
    }

    /// Row `n` goes out no earlier than `n / rate` after the first; outcomes are collected meanwhile.
    async fn keep_pace(&mut self) {
        let number = self.taken;
        self.taken += 1;
        let Some(rate) = self.rate else { return };
        #[allow(clippy::cast_precision_loss)]
        let due = self.started + Duration::from_secs_f64(number as f64 / rate);
        let mut sleep = std::pin::pin!(tokio::time::sleep_until(due.into()));
        while let Some((line, handed, pending)) = self.in_flight.front_mut() {
            tokio::select! {
                biased;
                outcome = pending => {
                    let (line, took) = (*line, handed.elapsed());
                    self.in_flight.pop_front();
                    self.tally.outcome(line, took, outcome);
                }
                () = &mut sleep => return,
            }
        }
        sleep.await;
    }

    /// Takes the outcomes that are there, and waits for the oldest if too many rows are in flight.
    async fn collect_ready(&mut self) {
        loop {
            let full = self.in_flight.len() > IN_FLIGHT;
            let Some((_, _, pending)) = self.in_flight.front_mut() else { break };
            let outcome = if full { Some(pending.await) } else { futures::FutureExt::now_or_never(pending) };
            let Some(outcome) = outcome else { break };
            if let Some((line, handed, _)) = self.in_flight.pop_front() {
                self.tally.outcome(line, handed.elapsed(), outcome);
            }
        }
        if self.bar.is_hidden() {
            return;
        }
        self.bar.set_message(format!("{} committed", self.tally.committed()));
    }

    /// Waits for every outcome.
    async fn finish(mut self) -> Tally {
        while let Some((line, handed, pending)) = self.in_flight.pop_front() {
            let outcome = pending.await;
            self.tally.outcome(line, handed.elapsed(), outcome);
            if self.in_flight.len().is_multiple_of(64) {
                self.bar.set_message(format!("{} committed", self.tally.committed()));
            }
        }
        self.bar.finish_and_clear();
        self.tally.ended(self.started.elapsed());
        self.tally
    }
}
