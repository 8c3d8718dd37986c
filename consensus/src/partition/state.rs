//! The machine's state as protobuf, without the key window: that is restored from key runs.

use bytes::Bytes;
use prost::Message;
use quorate_proto::ids::{FeatureLevel, LogIndex, Offset, ProducerEpoch, ProducerId, Sequence, Term};
use quorate_proto::internal::{
    BatchResult as StoredResult, PartitionState, ProducerState, RecordOutcome as StoredOutcome,
};
use quorate_proto::key_run::KeyRun;
use quorate_proto::time::LogTime;

use super::keys::KeyWindow;
use super::outcome::{BatchResult, FateRun};
use super::producers::{Producer, Producers};
use super::{Digest, Partition, PartitionLimits, RestoreError};

/// Version of `PartitionState` that this software writes; it reads this one and older.
pub(super) const SCHEMA: u32 = 1;

impl Partition {
    /// Everything but the key window. With the key runs of all entries from [`Partition::key_runs_from`] to the
    /// applied index it restores the machine exactly.
    #[must_use]
    pub fn state(&self) -> PartitionState {
        PartitionState {
            schema: SCHEMA,
            applied_index: self.applied.0 .0,
            applied_term: self.applied.1 .0,
            log_time_us: self.log_time.0,
            low_watermark: self.low_watermark.0,
            next_offset: self.next_offset.0,
            digest: self.digest.to_bytes(),
            producers: self.producers.iter().map(|(id, producer)| store_producer(*id, producer)).collect(),
            keys: Vec::new(),
            feature_level: self.feature_level.0.into(),
            ageing_stopped: self.ageing_stopped,
            ageing_us: self.ageing.0,
            evicted_through_us: self.keys.evicted_through().0,
            key_count: self.keys.len() as u64,
            key_runs_from: self.keys.oldest_run().map_or(0, LogIndex::get),
        }
    }

    /// [`Self::state`] as bytes.
    #[must_use]
    pub fn state_bytes(&self) -> Bytes {
        Bytes::from(self.state().encode_to_vec())
    }

    /// The machine as it was when `state` was taken. `runs`: the key runs in order, any number in each piece of
    /// bytes, from [`Partition::key_runs_from`] or earlier; runs after the state's applied index are passed over.
    ///
    /// # Errors
    /// Newer schema, damage, missing keys.
    pub fn restore(
        label: impl Into<String>,
        state: &[u8],
        runs: impl IntoIterator<Item = Bytes>,
    ) -> Result<Self, RestoreError> {
        Self::restore_with_limits(label, state, runs, PartitionLimits::default())
    }

    /// The same with other bounds, equal to those that the machine had.
    ///
    /// # Errors
    /// As [`Self::restore`].
    pub fn restore_with_limits(
        label: impl Into<String>,
        state: &[u8],
        runs: impl IntoIterator<Item = Bytes>,
        limits: PartitionLimits,
    ) -> Result<Self, RestoreError> {
        let state = PartitionState::decode(state).map_err(|error| RestoreError::Damaged(error.to_string()))?;
        if state.schema > SCHEMA {
            return Err(RestoreError::Newer(state.schema));
        }
        if state.schema == 0 {
            return Err(RestoreError::Damaged("no schema".to_owned()));
        }
        let applied = LogIndex(state.applied_index);
        let runs = parse_runs(runs, applied)?;
        let count = usize::try_from(state.key_count).unwrap_or(usize::MAX);
        let keys = KeyWindow::rebuild(&runs, count, LogTime(state.evicted_through_us)).ok_or_else(|| {
            let found = runs.iter().map(|run| run.count() as u64).sum();
            RestoreError::KeysMissing { expected: state.key_count, found, applied }
        })?;
        Ok(Self {
            label: label.into(),
            limits,
            applied: (applied, Term(state.applied_term)),
            log_time: LogTime(state.log_time_us),
            ageing: LogTime(state.ageing_us),
            ageing_stopped: state.ageing_stopped,
            low_watermark: Offset(state.low_watermark),
            next_offset: Offset(state.next_offset),
            digest: Digest::from_slice(&state.digest).ok_or_else(|| damaged("digest"))?,
            feature_level: FeatureLevel(u32::try_from(state.feature_level).map_err(|_| damaged("feature level"))?),
            producers: restore_producers(state.producers)?,
            keys,
        })
    }
}

fn damaged(what: &str) -> RestoreError {
    RestoreError::Damaged(what.to_owned())
}

fn parse_runs(pieces: impl IntoIterator<Item = Bytes>, applied: LogIndex) -> Result<Vec<KeyRun>, RestoreError> {
    let mut runs: Vec<KeyRun> = Vec::new();
    for mut rest in pieces {
        while !rest.is_empty() {
            let (run, after) = KeyRun::parse(&rest)?;
            if let Some(previous) = runs.last().map(|run| run.index).filter(|previous| *previous >= run.index) {
                return Err(RestoreError::RunOrder { previous, found: run.index });
            }
            if run.index <= applied {
                runs.push(run);
            }
            rest = after;
        }
    }
    Ok(runs)
}

fn store_producer(id: ProducerId, producer: &Producer) -> ProducerState {
    ProducerState {
        producer_id: Bytes::copy_from_slice(&id.to_bytes()),
        epoch: producer.epoch.0,
        floor_sequence: producer.floor.0,
        next_sequence: producer.next.0,
        last_use_us: producer.last_use.0,
        results: producer.results.iter().map(store_result).collect(),
    }
}

fn store_result(result: &BatchResult) -> StoredResult {
    StoredResult {
        base_sequence: result.base.0,
        count: result.count,
        base_offset: result.base_offset.0,
        epoch: result.epoch.0,
        log_time_us: result.log_time.0,
        outcomes: result.fates.iter().map(store_fate).collect(),
    }
}

fn store_fate(run: &FateRun) -> StoredOutcome {
    StoredOutcome { index: run.index, kind: run.kind(), offset: run.offset().0, count: run.count }
}

fn restore_producers(states: Vec<ProducerState>) -> Result<Producers, RestoreError> {
    let mut producers = Producers::default();
    for state in states {
        let id = ProducerId::from_slice(&state.producer_id).ok_or_else(|| damaged("producer id"))?;
        let mut producer =
            Producer::new(ProducerEpoch(state.epoch), Sequence(state.floor_sequence), LogTime(state.last_use_us));
        producer.next = Sequence(state.next_sequence);
        for result in state.results {
            producer.remember(restore_result(result)?);
        }
        if !producers.restore(id, producer) {
            return Err(damaged("a producer stands twice"));
        }
    }
    Ok(producers)
}

fn restore_result(stored: StoredResult) -> Result<BatchResult, RestoreError> {
    let fates: Option<Box<[FateRun]>> = stored
        .outcomes
        .into_iter()
        .map(|run| {
            let end = run.index.checked_add(run.count)?;
            FateRun::from_parts(run.index, run.count, run.kind, Offset(run.offset)).filter(|_| end <= stored.count)
        })
        .collect();
    Ok(BatchResult {
        base: Sequence(stored.base_sequence),
        count: stored.count,
        base_offset: Offset(stored.base_offset),
        epoch: Term(stored.epoch),
        log_time: LogTime(stored.log_time_us),
        fates: fates.ok_or_else(|| damaged("outcome of a record"))?,
    })
}
