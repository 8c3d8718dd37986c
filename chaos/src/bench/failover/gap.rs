//! After each fault: the gap at the client, and the observers' record of what happened.

use std::time::Duration;

use quorate_proto::v1::Failover;

use super::calm::Stage;
use super::Series;
use crate::measure::Gap;
use crate::Error;

/// The gap has ended when acknowledgements came for this long after the fault and after the gap.
const SETTLED: Duration = Duration::from_secs(1);
/// Acknowledgements come again if the last one is not older.
const RECENT: Duration = Duration::from_millis(200);
/// Beyond every objective: an unfinished failover is an error of the cluster.
const GIVE_UP: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);
/// Records that are looked through for the newest ones.
const RECORDS: u32 = 50;

impl Series<'_> {
    /// The longest pause that ended after the fault, and its partition, once acknowledgements of every partition have
    /// come for a while again; where a leader must move, once it has: what was in force before may go on for a while.
    pub(super) async fn wait_for_gap(&self, stage: &Stage, at: Duration, known: u64) -> Result<(u32, Gap), Error> {
        if self.settings.fault.moves_leader() {
            self.wait_for_records(stage, at, known).await?;
        }
        loop {
            tokio::time::sleep(POLL).await;
            let now = self.run.now();
            let progress = self.run.look();
            let all = (0..self.settings.partitions).map(|number| (number, progress.timeline.partition(number)));
            let all: Vec<_> = all.collect();
            let over = all.iter().all(|(_, gaps)| {
                let last = gaps.last_ack().unwrap_or_default();
                let going_on = last > at && now.saturating_sub(last) < RECENT;
                going_on && now > at + SETTLED && now > gaps.longest().to + SETTLED
            });
            if over {
                let longest = all.iter().max_by_key(|(_, gaps)| gaps.longest().length());
                return longest
                    .map(|(number, gaps)| (*number, gaps.longest()))
                    .ok_or_else(|| Error::new("no partition"));
            }
            if now > at + GIVE_UP {
                let failures = progress.failures.join("\n");
                return Err(Error::new(format!("no acknowledgement for {GIVE_UP:?} after the fault\n{failures}")));
            }
        }
    }

    async fn wait_for_records(&self, stage: &Stage, at: Duration, known: u64) -> Result<(), Error> {
        loop {
            // Observers may be electing a leader of their own.
            let records = self.records().await.unwrap_or_default();
            let moved = |group: u64| records.iter().any(|r| r.group_id == group && r.id > known && !r.withdrawn);
            if stage.partitions.iter().all(|partition| moved(partition.group_id)) {
                return Ok(());
            }
            if self.run.now() > at + GIVE_UP {
                let failures = self.run.look().failures.join("\n");
                return Err(Error::new(format!("no new leader for {GIVE_UP:?} after the fault\n{failures}")));
            }
            tokio::time::sleep(POLL).await;
        }
    }

    async fn records(&self) -> Result<Vec<Failover>, Error> {
        let all = self.bench.client.admin().list_failovers(RECORDS).await;
        all.map(|all| all.failovers).map_err(|refusal| Error::new(format!("failovers: {refusal}")))
    }

    /// The number of the newest record.
    pub(super) async fn newest_record(&self) -> Result<u64, Error> {
        Ok(self.records().await?.iter().map(|record| record.id).max().unwrap_or_default())
    }

    /// The record of this partition's new leader, if it has moved.
    pub(super) async fn record_of(&self, stage: &Stage, partition: u32, known: u64) -> Result<Option<Failover>, Error> {
        let group = stage.partitions.iter().find(|p| p.partition == partition).map(|p| p.group_id);
        let records = self.records().await?;
        // The first after the fault: later ones are what came of it.
        let first = records.into_iter().find(|r| Some(r.group_id) == group && r.id > known && !r.withdrawn);
        Ok(first.filter(|_| self.settings.fault.concerns_leader()))
    }
}
