//! What the lanes of one producer share: settings, links, totals, halted keys, the incident.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quorate_proto::batch::BatchOptions;
use quorate_proto::ids::{PartitionNo, ProducerId};
use quorate_proto::refusal::{Reason, Refusal};
use quorate_proto::time::BootTime;

use super::backoff::Jitter;
use super::config::{OnGap, ProducerConfig};
use super::effect::{Effect, Incident, Outcome};
use super::links::Links;
use super::receipt::CloseReport;

/// Beyond this many halted keys the whole producer is halted: memory stays bounded and no gap slips through.
const HALTED_KEYS_MAX: usize = 65_536;

/// An incident that lasts is logged this often.
const INCIDENT_EVERY: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) config: ProducerConfig,
    pub(super) options: BatchOptions,
    pub(super) producer: ProducerId,
    pub(super) topic: Arc<str>,
    pub(super) jitter: Jitter,
    pub(super) links: Links,
    /// The observers' routes are current: at least one of their streams is connected.
    pub(super) routes_live: bool,
    pub(super) totals: CloseReport,
    /// Records without outcome.
    pub(super) waiting: u32,
    /// Their bytes.
    pub(super) bytes: usize,
    pub(super) halted: Halted,
    /// Partition of every undecided batch.
    pub(super) serials: BTreeMap<u64, PartitionNo>,
    pub(super) next_serial: u64,
    pub(super) incident: Option<Trouble>,
}

/// Keys, or everything, whose later records must not be sent.
#[derive(Debug, Default)]
pub(super) struct Halted {
    pub(super) keys: BTreeSet<Bytes>,
    pub(super) all: bool,
    /// `all` was brought to every partition's queue.
    pub(super) swept: bool,
}

impl Halted {
    pub(super) fn contains(&self, key: Option<&Bytes>) -> bool {
        self.all || (!self.keys.is_empty() && key.is_some_and(|key| self.keys.contains(key)))
    }

    pub(super) fn is_empty(&self) -> bool {
        !self.all && self.keys.is_empty()
    }
}

#[derive(Debug)]
pub(super) struct Trouble {
    since: BootTime,
    next_report: BootTime,
    lanes: BTreeSet<PartitionNo>,
    cause: Arc<Refusal>,
}

impl Shared {
    /// Gives a record its outcome and its room back.
    pub(super) fn resolve<T>(&mut self, token: T, size: u32, outcome: Outcome, out: &mut Vec<Effect<T>>) {
        match &outcome {
            Ok(receipt) => {
                self.totals.committed += 1;
                self.totals.duplicates += u64::from(receipt.duplicate.is_some());
            }
            Err(error) if error.decisive() => self.totals.refused += 1,
            Err(_) => self.totals.unresolved += 1,
        }
        self.waiting -= 1;
        self.bytes -= size as usize;
        out.push(Effect::Resolve { token, size, outcome });
    }

    /// A record was given up: what follows it must know.
    pub(super) fn gap(&mut self, key: Option<&Bytes>) {
        match (self.config.on_gap, key) {
            (OnGap::Continue, _) | (OnGap::HaltKey, None) => {}
            (OnGap::HaltProducer, _) => self.halted.all = true,
            (OnGap::HaltKey, Some(key)) => {
                if self.halted.keys.len() < HALTED_KEYS_MAX {
                    self.halted.keys.insert(key.clone());
                } else {
                    self.halted.all = true;
                }
            }
        }
    }

    pub(super) fn halted_refusal(&self) -> Refusal {
        let (what, action) = if self.halted.all {
            ("an earlier record of this producer was given up, so this one was not sent", "release the producer")
        } else {
            ("an earlier record with this record key was given up, so this one was not sent", "release the key")
        };
        let action = format!("find out what became of the earlier record, then {action}");
        Refusal::new(Reason::RefusedUnsafe, what, &*self.topic, action)
    }

    pub(super) fn trouble<T>(
        &mut self,
        now: BootTime,
        partition: PartitionNo,
        cause: &Arc<Refusal>,
        out: &mut Vec<Effect<T>>,
    ) {
        let trouble = self.incident.get_or_insert_with(|| {
            out.push(Effect::Incident(Incident::Began { partition, cause: Arc::clone(cause) }));
            Trouble { since: now, next_report: now + INCIDENT_EVERY, lanes: BTreeSet::new(), cause: Arc::clone(cause) }
        });
        trouble.lanes.insert(partition);
        trouble.cause = Arc::clone(cause);
    }

    /// The partition acknowledged something or has nothing left.
    pub(super) fn well<T>(&mut self, now: BootTime, partition: PartitionNo, out: &mut Vec<Effect<T>>) {
        let Some(trouble) = &mut self.incident else { return };
        trouble.lanes.remove(&partition);
        if trouble.lanes.is_empty() {
            out.push(Effect::Incident(Incident::Ended { lasted: now.since(trouble.since) }));
            self.incident = None;
        }
    }

    pub(super) fn report_incident<T>(&mut self, now: BootTime, out: &mut Vec<Effect<T>>) {
        let waiting = self.waiting;
        let Some(trouble) = self.incident.as_mut().filter(|trouble| trouble.next_report <= now) else { return };
        trouble.next_report = now + INCIDENT_EVERY;
        out.push(Effect::Incident(Incident::Continues {
            lasted: now.since(trouble.since),
            partitions: trouble.lanes.len(),
            waiting,
            cause: Arc::clone(&trouble.cause),
        }));
    }

    pub(super) fn incident_deadline(&self) -> Option<BootTime> {
        self.incident.as_ref().map(|trouble| trouble.next_report)
    }
}
