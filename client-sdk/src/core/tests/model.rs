//! A model of one partition as the protocol defines it (I3–I5), with a leader that moves.

use std::collections::BTreeMap;

use bytes::Bytes;
use quorate_proto::batch::{BatchView, StoredPrefix, Suppressed};
use quorate_proto::ids::{Offset, Term};
use quorate_proto::refusal::{Reason, Refusal};
use quorate_proto::time::LogTime;
use quorate_proto::v1;

#[derive(Default)]
struct ProducerState {
    epoch: u32,
    next: u64,
    floor: u64,
    /// Base sequence → (base offset, count).
    results: BTreeMap<u64, (u64, u32)>,
}

/// The replicated log and its producers' states. What it accepted is committed.
#[derive(Default)]
pub(crate) struct Partition {
    pub(crate) log: Vec<u64>,
    /// First offset, offset after the last, and the batch as a consumer gets it.
    pub(crate) stored: Vec<(u64, u64, Bytes)>,
    producers: BTreeMap<u128, ProducerState>,
}

impl Partition {
    /// What the leader answers.
    pub(crate) fn publish(&mut self, bytes: &Bytes) -> Result<v1::Receipt, Refusal> {
        let view = BatchView::parse(bytes.clone()).expect("the client sends valid batches");
        let header = *view.header();
        let base = header.identity.base_sequence.0;
        let epoch = header.identity.epoch.0;
        let known = self.producers.contains_key(&header.identity.producer.0);
        let state = self.producers.entry(header.identity.producer.0).or_default();
        if !known {
            *state = ProducerState { epoch, next: base, floor: base, results: BTreeMap::new() };
        } else if epoch > state.epoch {
            if base != 0 {
                return Err(out_of_sequence(0));
            }
            *state = ProducerState { epoch, ..ProducerState::default() };
        } else if epoch < state.epoch {
            return Err(Refusal::new(Reason::ProducerFenced, "", "", ""));
        }
        if base > state.next || base < state.floor {
            return Err(out_of_sequence(state.next));
        }
        let first = if base < state.next {
            let (offset, count) = *state.results.get(&base).expect("a batch is repeated as it was");
            assert_eq!(count, header.count, "a batch is repeated as it was");
            return Ok(receipt(offset, count, true));
        } else {
            self.log.len() as u64
        };
        for record in view.records().expect("opens") {
            let value = record.expect("valid").value;
            self.log.push(u64::from_be_bytes(value[..].try_into().expect("eight bytes")));
        }
        let prefix = StoredPrefix {
            base_offset: Offset(first),
            epoch: Term(1),
            log_time: LogTime(1),
            count: header.count,
            visible: header.count,
            body_len: header.length,
        };
        let stored = [prefix.encode(&Suppressed::default()), bytes.clone()].concat();
        self.stored.push((first, first + u64::from(header.count), stored.into()));
        state.results.insert(base, (first, header.count));
        state.next = base + u64::from(header.count);
        Ok(receipt(first, header.count, false))
    }
}

fn receipt(base_offset: u64, count: u32, duplicate_batch: bool) -> v1::Receipt {
    v1::Receipt { base_offset, count, duplicate_batch, offsets_known: true, epoch: 1, ..v1::Receipt::default() }
}

fn out_of_sequence(expected: u64) -> Refusal {
    let mut refusal = Refusal::new(Reason::OutOfSequence, "", "", "");
    refusal.expected = Some(quorate_proto::ids::Sequence(expected));
    refusal
}
