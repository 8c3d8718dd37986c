//! The independent reader: finds out what is really in the log.

use std::time::Duration;

use quorate_client::{Client, Offset, PartitionNo, StartAt};

use crate::ledger::Ledger;
use crate::Error;

/// Where each partition of a topic ends: start a run here, so that only its own records are read back.
pub type Positions = Vec<(PartitionNo, Offset)>;

/// Without a record for this long the reader gives up short of the end.
const PATIENCE: Duration = Duration::from_secs(30);

/// The ends of all partitions (linearizable).
///
/// # Errors
/// Unknown topic, or no leader answers.
pub async fn ends(client: &Client, topic: &str) -> Result<Positions, Error> {
    let description = client
        .admin()
        .describe_topic(topic)
        .await
        .map_err(|refusal| Error::new(format!("cannot describe {topic}: {refusal}")))?;
    let mut ends = Vec::new();
    for number in 0..description.partitions {
        let partition = PartitionNo(number);
        let end = client
            .list_offset(topic, partition, StartAt::Latest)
            .await
            .map_err(|refusal| Error::new(format!("where does {topic}/{number} end? {refusal}")))?;
        ends.push((partition, end));
    }
    Ok(ends)
}

/// Reads every record from `from` to the partitions' ends into `ledger`. True if it came to every end.
///
/// # Errors
/// The topic cannot be read.
pub async fn read_back(client: &Client, topic: &str, from: &Positions, ledger: &mut Ledger) -> Result<bool, Error> {
    let ends = ends(client, topic).await?;
    let mut complete = true;
    for ((partition, start), (_, end)) in from.iter().zip(&ends) {
        complete &= read_partition(client, topic, *partition, *start, *end, ledger).await?;
    }
    Ok(complete)
}

async fn read_partition(
    client: &Client,
    topic: &str,
    partition: PartitionNo,
    start: Offset,
    end: Offset,
    ledger: &mut Ledger,
) -> Result<bool, Error> {
    if start >= end {
        return Ok(true);
    }
    let mut consumer = client
        .consumer(topic)
        .from(StartAt::Offset(start))
        .partitions([partition])
        .build()
        .await
        .map_err(|refusal| Error::new(format!("cannot read {topic}: {refusal}")))?;
    let mut next = start;
    while next < end {
        let record = match tokio::time::timeout(PATIENCE, consumer.next()).await {
            Ok(Some(Ok(record))) => record,
            Ok(Some(Err(refusal))) => {
                return Err(Error::new(format!("reading {topic}/{}: {refusal}", partition.0)));
            }
            Ok(None) | Err(_) => return Ok(false),
        };
        if record.offset != next {
            // A reader never skips or goes back: what follows would be no audit.
            return Err(Error::new(format!(
                "{topic}/{}: offset {} came where {} was due",
                partition.0, record.offset.0, next.0
            )));
        }
        ledger.read(record.partition.0, record.offset.0, &record.value);
        next = next.next();
    }
    Ok(true)
}
