//! Where to begin to look for an offset or a time, and that a wrong index is never believed.

use bytes::Bytes;
use quorate_consensus::node::effect::AppliedEntry;
use quorate_proto::ids::{LogIndex, Offset, Term};
use quorate_proto::time::LogTime;

use super::{entry, newest, ten, GROUP};
use crate::storage::files::PartitionFiles;

/// Ten entries of two records each, one a second from second 1 on; entries 4 and 5 at the same instant.
fn timed() -> Vec<AppliedEntry> {
    let second = |i: u64| i64::try_from(if i == 5 { 4 } else { i } + 1).unwrap() * 1_000_000;
    ten().into_iter().zip(0..).map(|(entry, i)| AppliedEntry { log_time: LogTime(second(i)), ..entry }).collect()
}

/// The offset before the first record at or after each instant, by looking at every entry.
fn by_looking(entries: &[AppliedEntry], time: LogTime) -> Offset {
    let first = entries.iter().find(|entry| entry.log_time >= time);
    first.map_or(Offset(20), |entry| entry.batches[0].base_offset)
}

#[test]
fn an_offset_is_found_by_log_time_in_open_and_closed_segments_and_after_a_start() {
    for segment_bytes in [300, 600, 1 << 20] {
        let dir = tempfile::tempdir().unwrap();
        let mut files = PartitionFiles::create(dir.path(), GROUP, segment_bytes).unwrap();
        assert_eq!(files.offset_at(LogTime(5)).unwrap(), Offset(0), "nothing is there yet");
        for entry in timed() {
            files.append(&[entry]).unwrap();
        }
        let checkpoint = files.checkpoint(LogIndex(15), Term(2), Bytes::new()).unwrap();
        let instants = (0..12).flat_map(|s| [s * 1_000_000 - 1, s * 1_000_000, s * 1_000_000 + 1]).map(LogTime);
        let right: Vec<_> = instants.map(|at| (at, by_looking(&timed(), at))).collect();
        for (at, offset) in &right {
            assert_eq!(files.offset_at(*at).unwrap(), *offset, "{at:?}, segments of {segment_bytes}");
        }
        drop(files);
        let (mut files, _) = PartitionFiles::open(dir.path(), GROUP, checkpoint, segment_bytes).unwrap();
        for (at, offset) in &right {
            assert_eq!(files.offset_at(*at).unwrap(), *offset, "{at:?} after a start, segments of {segment_bytes}");
        }
    }
}

#[test]
fn an_index_that_is_missing_damaged_or_of_another_length_is_made_anew() {
    let dir = tempfile::tempdir().unwrap();
    // So long that an index has many points, and a wrong one would lead astray.
    let many: Vec<_> = (0..200).map(|i| entry(6 + i, 2 * i, 2, 4_000)).collect();
    let mut files = PartitionFiles::create(dir.path(), GROUP, 400_000).unwrap();
    for entry in &many {
        files.append(std::slice::from_ref(entry)).unwrap();
    }
    let checkpoint = files.checkpoint(LogIndex(205), Term(2), Bytes::new()).unwrap();
    drop(files);
    let path = newest(dir.path(), "index");
    let segment = path.with_extension("segment");
    let length = std::fs::metadata(&segment).unwrap().len();
    let intact = std::fs::read(&path).unwrap();
    let points = (intact.len() - 48) / 24;
    assert!(points > 8, "{points}");
    let file = std::fs::File::open(&segment).unwrap();
    let made = |bytes: Option<&[u8]>| {
        let _ = std::fs::remove_file(&path);
        if let Some(bytes) = bytes {
            std::fs::write(&path, bytes).unwrap();
        }
        crate::storage::index::Index::of(&file, &segment, length, true).unwrap()
    };
    let right = made(None);
    assert_eq!(right, made(Some(&intact)));
    for at in 0..intact.len() {
        let mut damaged = intact.clone();
        damaged[at] ^= 1 << (at % 8);
        assert_eq!(made(Some(&damaged)), right, "byte {at} was believed");
        assert_eq!(made(Some(&intact[..at])), right, "cut at {at}, it was believed");
    }
    std::fs::write(&path, &intact).unwrap();
    // One of another length is not even looked at: not that of a segment that was longer, nor of one that grew.
    let entry = u64::try_from(crate::storage::frame::HEADER + crate::storage::frame::ROW + 3 + 8 + 4_000).unwrap();
    let shorter = crate::storage::index::Index::of(&file, &segment, length - 20 * entry, false).unwrap();
    assert!(shorter.len() < right.len());
    // It stays over a start, and a reader finds everything with it.
    let (mut files, _) = PartitionFiles::open(dir.path(), GROUP, checkpoint, 400_000).unwrap();
    assert!(path.exists());
    for offset in [0, 1, 199, 200, 398] {
        let found = files.read(Offset(offset), 1).unwrap();
        assert_eq!(found.next, Some(Offset(offset / 2 * 2 + 2)));
    }
}
