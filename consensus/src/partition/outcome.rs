//! Fates of records and batches, remembered compactly and told to clients.

use std::time::Duration;

use quorate_proto::batch::BatchHeader;
use quorate_proto::ids::{Offset, ProducerEpoch, Sequence, Term};
use quorate_proto::refusal::{Reason, Refusal};
use quorate_proto::time::LogTime;
use quorate_proto::v1::{record_exception, Receipt, RecordException};

/// Refused records of one receipt that come with a full text; the rest have reason and fate only, so that a receipt
/// stays below the message limit.
const TEXTS_MAX: usize = 16;

/// Why a record got no offset of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Same key, same payload: the first copy stands there.
    Duplicate(Offset),
    /// Same key, other payload: the first copy stands there.
    Conflict(Offset),
    /// Like `Conflict`, but the first copy was a record of the same all-or-nothing batch and is not stored either.
    ConflictWithin,
    /// The key is older than the window's horizon.
    TooOld {
        /// Keys of its age have left the window: a first copy may stand in the log.
        forgotten: bool,
    },
    /// The key is void (I8).
    Void,
    /// The record's `not_after` has passed.
    Expired,
}

impl Fate {
    /// Refused, not merely known.
    pub(super) fn is_refusal(self) -> bool {
        !matches!(self, Self::Duplicate(_))
    }

    fn offset(self) -> Option<Offset> {
        match self {
            Self::Duplicate(offset) | Self::Conflict(offset) => Some(offset),
            _ => None,
        }
    }

    /// The same fate, `by` records later in a run.
    fn later(self, by: u32) -> Self {
        let later = |offset: Offset| Offset(offset.0.saturating_add(u64::from(by)));
        match self {
            Self::Duplicate(offset) => Self::Duplicate(later(offset)),
            Self::Conflict(offset) => Self::Conflict(later(offset)),
            other => other,
        }
    }

    fn reason(self) -> Reason {
        match self {
            Self::Duplicate(_) => Reason::Unspecified,
            Self::Conflict(_) | Self::ConflictWithin => Reason::KeyConflict,
            Self::TooOld { .. } => Reason::KeyTooOld,
            Self::Void => Reason::KeyVoid,
            Self::Expired => Reason::Expired,
        }
    }

    const fn number(self) -> u32 {
        match self {
            Self::Duplicate(_) => 1,
            Self::Conflict(_) => 2,
            Self::TooOld { forgotten: false } => 3,
            Self::Void => 4,
            Self::Expired => 5,
            Self::ConflictWithin => 6,
            Self::TooOld { forgotten: true } => 7,
        }
    }

    fn from_number(number: u32, offset: Offset) -> Option<Self> {
        match number {
            1 => Some(Self::Duplicate(offset)),
            2 => Some(Self::Conflict(offset)),
            3 => Some(Self::TooOld { forgotten: false }),
            4 => Some(Self::Void),
            5 => Some(Self::Expired),
            6 => Some(Self::ConflictWithin),
            7 => Some(Self::TooOld { forgotten: true }),
            _ => None,
        }
    }
}

/// Records `index .. index + count` of a batch met the same fate; offsets of first copies go up by one per record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FateRun {
    pub(super) index: u32,
    pub(super) count: u32,
    pub(super) fate: Fate,
    /// Not this record's own fate: another record of an all-or-nothing batch was refused for it.
    pub(super) with_batch: bool,
}

const WITH_BATCH: u32 = 16;

impl FateRun {
    /// Kind as in `PartitionState`.
    pub(super) fn kind(&self) -> u32 {
        self.fate.number() + if self.with_batch { WITH_BATCH } else { 0 }
    }

    /// Record by record.
    pub(super) fn each(&self) -> impl Iterator<Item = (u32, Fate)> + '_ {
        (0..self.count).map(|i| (self.index + i, self.fate.later(i)))
    }

    pub(super) fn offset(&self) -> Offset {
        self.fate.offset().unwrap_or_default()
    }

    pub(super) fn from_parts(index: u32, count: u32, kind: u32, offset: Offset) -> Option<Self> {
        let fate = Fate::from_number(kind & !WITH_BATCH, offset)?;
        (count > 0).then_some(Self { index, count, fate, with_batch: kind & WITH_BATCH != 0 })
    }
}

/// Adds a record's fate, joining it to the run before where it continues it.
pub(super) fn push_fate(runs: &mut Vec<FateRun>, index: u32, fate: Fate, with_batch: bool) {
    if let Some(last) = runs.last_mut() {
        let continues = last.index + last.count == index && last.with_batch == with_batch;
        if continues && last.fate.later(last.count) == fate {
            last.count += 1;
            return;
        }
    }
    runs.push(FateRun { index, count: 1, fate, with_batch });
}

/// The remembered result of one batch (I2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BatchResult {
    pub(super) base: Sequence,
    pub(super) count: u32,
    pub(super) base_offset: Offset,
    pub(super) epoch: Term,
    pub(super) log_time: LogTime,
    pub(super) fates: Box<[FateRun]>,
}

impl BatchResult {
    pub(super) fn receipt(&self, duplicate_batch: bool) -> Receipt {
        Receipt {
            base_offset: self.base_offset.0,
            count: self.count,
            epoch: self.epoch.0,
            log_time_us: self.log_time.0,
            duplicate_batch,
            offsets_known: true,
            durable_on: Vec::new(),
            exceptions: exceptions(&self.fates),
        }
    }
}

/// Receipt for a batch that was applied before; `None` = so long ago that its offsets are forgotten.
pub(super) fn duplicate_receipt(header: &BatchHeader, result: Option<&BatchResult>) -> Receipt {
    match result {
        Some(result) => result.receipt(true),
        None => Receipt { count: header.count, duplicate_batch: true, ..Receipt::default() },
    }
}

fn exceptions(fates: &[FateRun]) -> Vec<RecordException> {
    let mut texts = TEXTS_MAX;
    let total: usize = fates.iter().map(|run| run.count as usize).sum();
    let mut out = Vec::with_capacity(total);
    for run in fates {
        for (index, fate) in run.each() {
            let kind = match fate {
                Fate::Duplicate(offset) => record_exception::Kind::DuplicateOf(offset.0),
                fate => {
                    let full = texts > 0;
                    texts = texts.saturating_sub(1);
                    record_exception::Kind::Refused(record_refusal(index, fate, run.with_batch, full).into())
                }
            };
            out.push(RecordException { index, kind: Some(kind) });
        }
    }
    out
}

fn record_refusal(index: u32, fate: Fate, with_batch: bool, full: bool) -> Refusal {
    let (what, action) = match fate {
        _ if !full => (String::new(), ""),
        _ if with_batch => (
            "another record of this all-or-nothing batch was refused".to_owned(),
            "correct the refused record and send all records again as a new batch",
        ),
        Fate::Conflict(offset) => (
            format!("the idempotency key was used at {offset} with another record key or payload"),
            "use a new idempotency key for a new message; read the first one at that offset",
        ),
        Fate::ConflictWithin => (
            "another record of the same batch has this idempotency key with another record key or payload".to_owned(),
            "use one idempotency key for one message",
        ),
        Fate::TooOld { forgotten: true } => (
            "the idempotency key is older than the key window: a first copy may have been applied and forgotten"
                .to_owned(),
            "find out whether the message had its effect before you send it under a new key",
        ),
        Fate::TooOld { forgotten: false } => (
            "the idempotency key is older than the key window".to_owned(),
            "send the message under a new idempotency key if it is still wanted",
        ),
        Fate::Void => (
            "the idempotency key was declared void".to_owned(),
            "send the message under a new idempotency key if it is still wanted",
        ),
        Fate::Expired | Fate::Duplicate(_) => (
            "the log time of its entry is later than its `not_after`".to_owned(),
            "decide whether the message is still wanted; if so send it with a later `not_after`",
        ),
    };
    let subject = if full { format!("record {index} of the batch") } else { String::new() };
    let refusal = Refusal::new(fate.reason(), what, subject, action);
    if fate == (Fate::TooOld { forgotten: true }) && !with_batch {
        refusal.of_unknown_fate()
    } else {
        refusal
    }
}

/// Why a whole batch is refused: nothing of it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BatchRefusal {
    /// Its sequence is not the next one (I3, I5).
    OutOfSequence { expected: Sequence },
    /// A newer epoch of the producer is known (I4).
    Fenced { newest: ProducerEpoch },
    /// Too many producers, none of them idle (I5).
    Quota { producers: usize },
}

/// As told to the client.
pub(super) fn refuse_batch(label: &str, header: &BatchHeader, why: BatchRefusal) -> Refusal {
    let id = &header.identity;
    let subject = format!("{label}, producer {}, {}, {}", id.producer, id.epoch, id.base_sequence);
    match why {
        BatchRefusal::OutOfSequence { expected } => {
            let mut refusal = Refusal::new(
                Reason::OutOfSequence,
                format!("the producer's next batch must begin at {expected}"),
                subject,
                "send the missing batches first, or raise the producer's epoch and start at sequence 0",
            );
            refusal.expected = Some(expected);
            // What lies below was decided earlier, but not under these bounds: only the producer can know.
            refusal.maybe_applied = id.base_sequence < expected;
            refusal
        }
        BatchRefusal::Fenced { newest } => Refusal::new(
            Reason::ProducerFenced,
            format!("the producer has gone on to {newest}; whether an earlier copy was applied is not kept"),
            subject,
            "let the newer producer go on, or raise the epoch above it if this one is to be the only one",
        )
        .of_unknown_fate(),
        BatchRefusal::Quota { producers } => Refusal::new(
            Reason::Quota,
            format!("the partition remembers {producers} producers and all were used in the last 10 minutes"),
            subject,
            "use fewer producers (one client object can serve a whole process) and try again later",
        )
        .retry_after(Duration::from_secs(10)),
    }
}
