//! The segments of one simulated replica: applied entries, the checkpoint that covers some of them, and snapshots.

use bytes::{BufMut, Bytes, BytesMut};
use quorate_consensus::node::effect::{AppliedEntry, StoredBatch};
use quorate_consensus::node::MachineImage;
use quorate_proto::batch::StoredBatchView;
use quorate_proto::ids::{LogIndex, Offset, Term};

/// Key of the checkpoint in the group's pairs.
pub const CHECKPOINT: &str = "checkpoint";

/// All files of one replica.
#[derive(Clone, Debug, Default)]
pub struct Segments {
    /// Applied entries in order, since the beginning.
    pub entries: Vec<AppliedEntry>,
}

/// Files of a snapshot on their way.
#[derive(Clone, Debug)]
pub struct Parcel {
    /// Position.
    pub index: LogIndex,
    /// Everything up to it.
    pub segments: Segments,
}

impl Segments {
    /// Appends what was applied.
    pub fn append(&mut self, entries: Vec<AppliedEntry>) {
        for entry in entries {
            let last = self.entries.last().map_or(LogIndex::ZERO, |last| last.index);
            assert!(entry.index > last, "applied {} after {last}", entry.index);
            self.entries.push(entry);
        }
    }

    /// Everything up to `index`.
    #[must_use]
    pub fn up_to(&self, index: LogIndex) -> Self {
        let end = self.entries.partition_point(|entry| entry.index <= index);
        Self { entries: self.entries[..end].to_vec() }
    }

    /// The machine at `index`, whose state is `state`.
    #[must_use]
    pub fn image(&self, index: LogIndex, state: Bytes) -> MachineImage {
        let runs = self.entries.iter().take_while(|entry| entry.index <= index);
        MachineImage { state, key_runs: runs.map(|entry| entry.keys.clone()).filter(|keys| !keys.is_empty()).collect() }
    }

    /// The entry at `index` is there and holds `offset`.
    #[must_use]
    pub fn holds(&self, index: LogIndex, offset: Offset) -> bool {
        let found = self.entries.binary_search_by_key(&index, |entry| entry.index);
        let within = |batch: &StoredBatch| batch.base_offset <= offset && offset < batch.end_offset;
        found.is_ok_and(|at| self.entries[at].batches.iter().any(within))
    }

    /// Every readable record: offset and value.
    #[must_use]
    pub fn records(&self) -> Vec<(Offset, Bytes)> {
        let batches = self.entries.iter().flat_map(|entry| &entry.batches);
        batches.flat_map(read).collect()
    }
}

/// Offset and value of each visible record of a stored batch.
#[must_use]
pub fn read(batch: &StoredBatch) -> Vec<(Offset, Bytes)> {
    let mut whole = BytesMut::with_capacity(batch.prefix.len() + batch.body.len());
    whole.put_slice(&batch.prefix);
    whole.put_slice(&batch.body);
    let (view, rest) = StoredBatchView::parse(&whole.freeze()).expect("apply writes batches that can be read");
    assert!(rest.is_empty(), "a stored batch is followed by nothing");
    let records = view.records().expect("apply stores only batches that decode");
    records
        .map(|item| item.map(|(offset, record)| (offset, record.value)))
        .collect::<Result<_, _>>()
        .expect("a stored batch decodes")
}

/// Value of [`CHECKPOINT`]: index, term, state.
#[must_use]
pub fn encode_checkpoint(index: LogIndex, term: Term, state: &Bytes) -> Bytes {
    let mut out = BytesMut::with_capacity(16 + state.len());
    out.put_u64(index.0);
    out.put_u64(term.0);
    out.put_slice(state);
    out.freeze()
}

/// Reads it back.
#[must_use]
pub fn decode_checkpoint(value: &Bytes) -> (LogIndex, Term, Bytes) {
    let word = |at: usize| u64::from_be_bytes(value[at..at + 8].try_into().expect("eight bytes"));
    (LogIndex(word(0)), Term(word(8)), value.slice(16..))
}
