//! A small deterministic fuzzer over everything that parses bytes from outside. Damaged, cut, spliced and random
//! inputs must be refused or read, never panic, hang, or allocate without bound. Checksums are made right again in
//! half of the cases, so that the checks behind them are reached.

#![allow(clippy::unwrap_used)] // A panic is how a test fails.

use bytes::Bytes;
use quorate_proto::batch::{
    stored_len, BatchBuilder, BatchIdentity, BatchOptions, BatchView, Codec, Record, StoredBatchView, StoredPrefix,
    Suppressed,
};
use quorate_proto::entry::{BatchMeta, EntryBuilder, EntryView, FEATURE_LEVEL};
use quorate_proto::file_header::{FileHeader, FileKind};
use quorate_proto::hash::{KeyHash, PayloadHash};
use quorate_proto::ids::{LogIndex, Offset, ProducerEpoch, ProducerId, Sequence, Term};
use quorate_proto::key_run::{self, KeyItem, KeyRun};
use quorate_proto::limits::UNCOMPRESSED_MAX;
use quorate_proto::names::TopicName;
use quorate_proto::time::LogTime;
use quorate_proto::v1::Header;

const CASES: u32 = 40_000;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    fn bytes(&mut self, max: usize) -> Vec<u8> {
        (0..self.below(max + 1)).map(|_| self.next() as u8).collect()
    }
}

fn record(random: &mut Random) -> Record {
    let optional = |random: &mut Random| (random.below(2) == 0).then(|| Bytes::from(random.bytes(20)));
    Record {
        key: optional(random),
        idempotency_key: optional(random),
        value: match random.below(3) {
            0 => Bytes::from(random.bytes(200)),
            // Compressible, but not beyond the ratio.
            _ => Bytes::from(random.bytes(30).repeat(5)),
        },
        headers: (0..random.below(3))
            .map(|i| Header { name: format!("h{i}"), value: Bytes::from(random.bytes(9)) })
            .collect(),
        key_created_at: LogTime(random.below(1000) as i64),
        ..Record::default()
    }
}

fn batch(random: &mut Random) -> Bytes {
    let codec = [Codec::None, Codec::Lz4, Codec::Zstd][random.below(3)];
    let mut builder = BatchBuilder::new(BatchOptions { codec, ..BatchOptions::default() });
    for _ in 0..1 + random.below(6) {
        builder.push(&record(random)).unwrap();
    }
    let identity = BatchIdentity {
        producer: ProducerId(u128::from(random.next()) + 1),
        epoch: ProducerEpoch(random.below(4) as u32),
        base_sequence: Sequence(random.next() >> 8),
    };
    builder.finish(identity)
}

fn stored(random: &mut Random) -> Bytes {
    let body = batch(random);
    let count = BatchView::parse(body.clone()).unwrap().count();
    let mut suppressed = Suppressed::default();
    (1..count).filter(|_| random.below(2) == 0).for_each(|i| suppressed.mark(i));
    let prefix = StoredPrefix {
        base_offset: Offset(random.next() >> 1),
        epoch: Term(random.next()),
        log_time: LogTime(random.next() as i64),
        count,
        visible: count - suppressed.count(),
        body_len: body.len() as u32,
    };
    let mut out = prefix.encode(&suppressed).to_vec();
    out.extend_from_slice(&body);
    Bytes::from(out)
}

fn entry(random: &mut Random) -> Bytes {
    let mut builder = EntryBuilder::new();
    for _ in 0..1 + random.below(3) {
        let meta = BatchMeta { principal: Bytes::from(random.bytes(30)), ..BatchMeta::default() };
        builder.push(meta, batch(random));
    }
    builder.finish(LogTime(random.next() as i64), FEATURE_LEVEL)
}

fn run(random: &mut Random) -> Bytes {
    let items: Vec<KeyItem> = (0..1 + random.below(9))
        .map(|i| KeyItem {
            key: KeyHash(random.next().into()),
            payload: PayloadHash(random.next()),
            offset: Offset(i as u64),
        })
        .collect();
    key_run::encode(LogIndex(random.next()), LogTime(random.next() as i64), &items)
}

fn damage(random: &mut Random, input: &[u8]) -> Vec<u8> {
    let mut out = input.to_vec();
    for _ in 0..1 + random.below(3) {
        let at = random.below(out.len());
        match random.below(7) {
            0 if !out.is_empty() => out[at] ^= 1 << random.below(8),
            1 => out.truncate(at),
            2 if out.len() >= at + 4 => out[at..at + 4].copy_from_slice(&(random.next() as u32).to_le_bytes()),
            3 if out.len() >= at + 4 => out[at..at + 4].copy_from_slice(&[0xff; 4]),
            4 if out.len() >= at + 8 => out[at..at + 8].copy_from_slice(&[0; 8]),
            5 => out.extend_from_slice(&random.bytes(80)),
            _ => {
                let cut = out.split_off(at);
                out.extend_from_slice(&random.bytes(8));
                out.extend_from_slice(&cut);
            }
        }
    }
    out
}

/// Stores the CRC32C that a reader will compute, as far as the bytes are there.
fn reseal(out: &mut [u8], field: usize, covered: std::ops::Range<usize>, before: std::ops::Range<usize>) {
    if covered.start <= covered.end && covered.end <= out.len() && out.len() >= field + 4 {
        let crc = crc32c::crc32c_append(crc32c::crc32c(&out[before]), &out[covered]);
        out[field..field + 4].copy_from_slice(&crc.to_le_bytes());
    }
}

fn u32_of(bytes: &[u8], at: usize) -> usize {
    bytes.get(at..at + 4).map_or(0, |b| u32::from_le_bytes(b.try_into().unwrap()) as usize)
}

fn read_batch(bytes: Bytes) -> bool {
    let Ok(view) = BatchView::parse(bytes) else { return false };
    assert!(view.header().uncompressed as usize <= UNCOMPRESSED_MAX);
    assert_eq!(view.descriptors().count(), view.count() as usize);
    if let Ok(records) = view.records() {
        assert!(records.count() <= view.count() as usize);
    }
    true
}

fn read_stored(bytes: &Bytes) -> bool {
    let announced = stored_len(bytes);
    let Ok((view, rest)) = StoredBatchView::parse(bytes) else { return false };
    assert_eq!(announced, Ok(bytes.len() - rest.len()));
    if let Ok(records) = view.records() {
        for (offset, _) in records.map_while(Result::ok) {
            assert!(offset < view.end_offset());
        }
    }
    true
}

fn read_entry(bytes: Bytes) -> bool {
    let length = bytes.len();
    let Ok(view) = EntryView::parse(bytes) else { return false };
    let bodies: usize = view.batches().map(|part| part.batch.len()).sum();
    assert!(bodies <= length);
    view.batches().for_each(|part| {
        read_batch(part.batch);
    });
    true
}

fn read_run(bytes: &Bytes) -> bool {
    let Ok((run, rest)) = KeyRun::parse(bytes) else { return false };
    assert_eq!(run.items().len(), run.count());
    assert!(rest.len() < bytes.len());
    true
}

#[test]
fn no_input_makes_a_parser_panic_and_damage_does_not_pass_a_checksum() {
    let random = &mut Random(0x51_0a7e);
    let (mut accepted, mut refused) = (0u32, 0u32);
    for case in 0..CASES {
        let kind = random.below(4);
        let whole = [batch, stored, entry, run][kind](random);
        let mut input = damage(random, &whole);
        let changed = input != whole;
        let sealed = case % 2 == 0;
        if sealed {
            let length = input.len();
            match kind {
                0 => reseal(&mut input, 8, 12..length, 0..0),
                1 => {
                    let prefix = u32_of(&input, 12);
                    reseal(&mut input, 8, 12..prefix, 0..0);
                    let body = prefix.saturating_add(u32_of(&input, 16)).min(length);
                    if prefix < body {
                        let end = body - prefix;
                        reseal(&mut input[prefix..body], 8, 12..end, 0..0);
                    }
                }
                2 => {
                    let head = 32usize.saturating_add(u32_of(&input, 24));
                    reseal(&mut input, 4, 8..head, 0..4.min(length));
                }
                _ => {
                    let end = 40usize.saturating_add(u32_of(&input, 12).saturating_mul(32));
                    reseal(&mut input, 8, 12..end, 0..0);
                }
            }
        }
        let input = Bytes::from(input);
        let passed = match kind {
            0 => read_batch(input.clone()),
            1 => read_stored(&input),
            2 => read_entry(input.clone()),
            _ => read_run(&input),
        };
        *(if passed { &mut accepted } else { &mut refused }) += 1;
        // An entry's batches have checksums of their own, and what follows a stored batch or run is another one.
        let self_contained = kind == 0 || (kind != 2 && input.len() <= whole.len());
        if changed && !sealed && self_contained && input[..] != whole[..input.len().min(whole.len())] {
            assert!(!passed, "case {case}: damage passed unnoticed");
        }
    }
    assert!(accepted > CASES / 100, "{accepted} of {CASES} reached the checks behind the checksums");
    assert!(refused > CASES / 4, "{refused} of {CASES} were refused");
}

#[test]
fn random_bytes_are_refused_everywhere() {
    let random = &mut Random(7);
    for _ in 0..CASES / 4 {
        let mut bytes = random.bytes(300);
        if random.below(2) == 0 {
            let magic: &[u8] = [b"QBAT\x01\0\x88\0".as_slice(), b"QSTB\x01\0\0\0", b"QKRN\x01\0\0\0", b"\x01\x01\0\0"]
                [random.below(4)];
            let length = magic.len().min(bytes.len());
            bytes[..length].copy_from_slice(&magic[..length]);
        }
        let bytes = Bytes::from(bytes);
        assert!(!read_batch(bytes.clone()) && !read_stored(&bytes) && !read_entry(bytes.clone()) && !read_run(&bytes));
        for kind in FileKind::ALL {
            assert!(FileHeader::parse(kind, &bytes).is_err());
        }
        // No claim about names, only that they do not panic and come back as they went in.
        if let Ok(name) = String::from_utf8_lossy(&bytes).parse::<TopicName>() {
            assert_eq!(name.to_string().parse(), Ok(name));
        }
    }
}
