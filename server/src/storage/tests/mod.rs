//! The storage on a real directory: what a checkpoint named is there after any stop, what came later is not.

use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{mpsc, Arc};
use std::time::Duration;

use bytes::Bytes;
use quorate_consensus::node::effect::{AppliedEntry, StoredBatch};
use quorate_proto::ids::{GroupId, LogIndex, Offset, ReplicaId, Term};
use quorate_proto::time::LogTime;

use super::files::PartitionFiles;
use super::staging::Staging;
use super::*;

mod index;

const GROUP: GroupId = GroupId(9);

/// Entry `index` with one batch of `records` records from `base` on; its body tells the base offset.
fn entry(index: u64, base: u64, records: u64, body: usize) -> AppliedEntry {
    let mut bytes = base.to_le_bytes().to_vec();
    bytes.resize(8 + body, 0xab);
    AppliedEntry {
        index: LogIndex(index),
        term: Term(2),
        log_time: LogTime(77),
        batches: vec![StoredBatch {
            base_offset: Offset(base),
            end_offset: Offset(base + records),
            prefix: Bytes::from_static(b"<p>"),
            body: bytes.into(),
        }],
        keys: Bytes::from(index.to_le_bytes().to_vec()),
    }
}

fn empty(index: u64) -> AppliedEntry {
    AppliedEntry { batches: Vec::new(), keys: Bytes::new(), ..entry(index, 0, 0, 0) }
}

/// Ten entries of two records each, offsets 0..20.
fn ten() -> Vec<AppliedEntry> {
    (0..10).map(|i| entry(6 + i, 2 * i, 2, 100)).collect()
}

fn create(dir: &Path) -> PartitionFiles {
    PartitionFiles::create(dir, GROUP, 600).unwrap()
}

fn bases(found: &Found) -> Vec<u64> {
    found.bytes.chunks(3 + 8 + 100).map(|b| u64::from_le_bytes(b[3..11].try_into().unwrap())).collect()
}

fn read_all(files: &mut PartitionFiles, from: u64) -> Vec<u64> {
    let mut at = Offset(from);
    let mut all = Vec::new();
    loop {
        let found = files.read(at, 250).unwrap();
        let Some(next) = found.next else { return all };
        all.extend(bases(&found));
        at = next;
    }
}

#[test]
fn reads_go_on_over_segments_without_gap() {
    let dir = tempfile::tempdir().unwrap();
    let mut files = create(dir.path());
    for entry in ten() {
        files.append(&[entry]).unwrap();
    }
    let checkpoint = files.checkpoint(LogIndex(15), Term(2), Bytes::new()).unwrap();
    assert!(checkpoint.segments.len() > 2, "{checkpoint:?}");
    assert_eq!(read_all(&mut files, 0), [0, 2, 4, 6, 8, 10, 12, 14, 16, 18]);
    assert_eq!(read_all(&mut files, 5), [4, 6, 8, 10, 12, 14, 16, 18], "the batch that holds the offset comes whole");
    assert_eq!(read_all(&mut files, 20), []);
}

#[test]
fn a_large_batch_is_returned_alone_and_never_skipped() {
    let dir = tempfile::tempdir().unwrap();
    let mut files = PartitionFiles::create(dir.path(), GROUP, 1 << 20).unwrap();
    files.append(&[entry(6, 0, 1, 10), entry(7, 1, 1, 700_000), entry(8, 2, 1, 10)]).unwrap();
    let first = files.read(Offset(0), 1_000).unwrap();
    assert_eq!(first.next, Some(Offset(1)));
    let second = files.read(Offset(1), 1_000).unwrap();
    assert_eq!((second.next, second.bytes.len()), (Some(Offset(2)), 700_011));
}

#[test]
fn entries_without_records_are_kept_and_not_served() {
    let dir = tempfile::tempdir().unwrap();
    let mut files = create(dir.path());
    files.append(&[empty(6), entry(7, 0, 2, 100), empty(8), entry(9, 2, 2, 100)]).unwrap();
    assert_eq!(read_all(&mut files, 0), [0, 2]);
}

#[test]
fn what_a_checkpoint_named_is_there_and_what_came_later_is_cut_off() {
    let dir = tempfile::tempdir().unwrap();
    let mut files = create(dir.path());
    files.append(&ten()[..4]).unwrap();
    let checkpoint = files.checkpoint(LogIndex(9), Term(2), Bytes::from_static(b"state")).unwrap();
    // Written, never checkpointed: a kill leaves it in the files, also in a segment that the checkpoint does not know.
    for entry in &ten()[4..] {
        files.append(std::slice::from_ref(entry)).unwrap();
    }
    drop(files);
    let stored = Checkpoint::from_bytes(checkpoint.to_bytes(), dir.path()).unwrap();
    let (mut files, keys) = PartitionFiles::open(dir.path(), GROUP, stored, 600).unwrap();
    assert_eq!(read_all(&mut files, 0), [0, 2, 4, 6]);
    let known: Vec<u64> = keys.iter().map(|k| u64::from_le_bytes(k[..].try_into().unwrap())).collect();
    assert_eq!(known, [6, 7, 8, 9]);
    // The log replays from the checkpoint; entries up to it may come again.
    files.append(&ten()[2..]).unwrap();
    assert_eq!(read_all(&mut files, 0), [0, 2, 4, 6, 8, 10, 12, 14, 16, 18]);
}

#[test]
fn a_checkpoint_whose_bytes_are_missing_is_damage() {
    let dir = tempfile::tempdir().unwrap();
    let mut files = create(dir.path());
    files.append(&ten()).unwrap();
    let checkpoint = files.checkpoint(LogIndex(15), Term(2), Bytes::new()).unwrap();
    drop(files);
    let path = newest(dir.path(), "segment");
    let length = std::fs::metadata(&path).unwrap().len();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(length - 1).unwrap();
    let error = PartitionFiles::open(dir.path(), GROUP, checkpoint, 600).unwrap_err();
    assert!(matches!(error, StorageError::Corrupt { .. }), "{error}");
}

#[test]
fn a_flipped_bit_anywhere_in_a_segment_is_never_served() {
    let dir = tempfile::tempdir().unwrap();
    let mut files = PartitionFiles::create(dir.path(), GROUP, 1 << 20).unwrap();
    files.append(&[entry(6, 0, 2, 40), entry(7, 2, 2, 40)]).unwrap();
    let checkpoint = files.checkpoint(LogIndex(7), Term(2), Bytes::new()).unwrap();
    let path = newest(dir.path(), "segment");
    let intact = std::fs::read(&path).unwrap();
    let good = files.read(Offset(0), 1 << 20).unwrap().bytes;
    drop(files);
    for at in 0..intact.len() {
        let mut damaged = intact.clone();
        damaged[at] ^= 1 << (at % 8);
        std::fs::write(&path, &damaged).unwrap();
        let read = PartitionFiles::open(dir.path(), GROUP, checkpoint.clone(), 1 << 20)
            .and_then(|(mut files, _)| files.read(Offset(0), 1 << 20));
        match read {
            Err(StorageError::Corrupt { .. }) => {}
            Ok(found) => assert_eq!(found.bytes, good, "byte {at} was served damaged"),
            Err(other) => panic!("byte {at}: {other}"),
        }
    }
}

#[test]
fn a_damaged_key_run_is_noticed_at_start() {
    let dir = tempfile::tempdir().unwrap();
    let mut files = create(dir.path());
    files.append(&ten()).unwrap();
    let checkpoint = files.checkpoint(LogIndex(15), Term(2), Bytes::new()).unwrap();
    drop(files);
    let path = newest(dir.path(), "keys");
    let mut run = std::fs::File::options().write(true).open(&path).unwrap();
    run.seek(SeekFrom::Start(45)).unwrap();
    run.write_all(b"x").unwrap();
    assert!(matches!(
        PartitionFiles::open(dir.path(), GROUP, checkpoint, 600).unwrap_err(),
        StorageError::Corrupt { .. }
    ));
}

#[test]
fn a_newer_checkpoint_schema_is_refused_by_number() {
    let mut checkpoint = Checkpoint::at(LogIndex(1), Term(1), Bytes::new());
    checkpoint.schema = 7;
    let error = Checkpoint::from_bytes(checkpoint.to_bytes(), Path::new("5")).unwrap_err();
    assert!(matches!(error, StorageError::Newer { .. }) && error.to_string().contains("schema 7"), "{error}");
}

#[test]
fn without_a_checkpoint_a_group_begins_empty_whatever_lies_there() {
    let dir = tempfile::tempdir().unwrap();
    let mut files = create(dir.path());
    files.append(&ten()).unwrap();
    drop(files);
    let settings = StorageSettings { partitions: dir.path().to_owned(), segment_bytes: 600 };
    let mut storage = Storage::open(settings).unwrap();
    assert!(storage.recover(GROUP, None).unwrap().is_none());
    assert_eq!(read_all(&mut create(dir.path()), 0), []);
}

/// A snapshot as it would travel: parts cut in two.
fn travel(files: &PartitionFiles, into: &mut Staging) {
    let (checkpoint, parts) = files.snapshot().unwrap();
    for part in snapshot_parts(&checkpoint, &parts).unwrap() {
        let bytes = match part.source {
            quorate_host::transport::PartSource::Bytes(bytes) => bytes.to_vec(),
            quorate_host::transport::PartSource::File { mut file, len } => {
                let mut bytes = Vec::new();
                std::io::Read::read_to_end(&mut file, &mut bytes).unwrap();
                bytes.truncate(usize::try_from(len).unwrap());
                bytes
            }
        };
        let (first, second) = bytes.split_at(bytes.len() / 2);
        let there = into.there().into_iter().find(|(name, _)| *name == part.name).map_or(0, |(_, bytes)| bytes);
        for (offset, piece) in [(0, first), (first.len() as u64, second)] {
            if offset >= there {
                into.write(&part.name, offset, piece).unwrap();
            }
        }
    }
}

#[test]
fn a_snapshot_that_broke_off_goes_on_behind_the_last_chunk_that_reads_back() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut source = create(from.path());
    source.append(&ten()).unwrap();
    source.checkpoint(LogIndex(15), Term(2), Bytes::from_static(b"machine")).unwrap();
    let whole = |staging: &Staging| staging.there();
    let mut staging = Staging::begin(to.path(), GROUP, "node-1 1 2 15 2").unwrap();
    travel(&source, &mut staging);
    let all = whole(&staging);
    let held = |there: &[(String, u64)], part: &str| there.iter().find(|(name, _)| name == part).map_or(0, |p| p.1);
    assert!(held(&all, "segment/0") > 0 && held(&all, "keys/0") > 0, "{all:?}");
    drop(staging);
    // The receiver starts again: nothing is lost, and a replica without a checkpoint leaves it alone.
    drop(create(to.path()));
    let staging = Staging::begin(to.path(), GROUP, "node-1 1 2 15 2").unwrap();
    assert_eq!(whole(&staging), all);
    drop(staging);
    // A damaged chunk, and all that came after it, is received again.
    let damaged =
        to.path().join(GROUP.get().to_string()).join("incoming").join(super::segment::Segment::name(Offset(0)));
    let mut bytes = std::fs::read(&damaged).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&damaged, bytes).unwrap();
    let mut staging = Staging::begin(to.path(), GROUP, "node-1 1 2 15 2").unwrap();
    let left = whole(&staging);
    assert_eq!(held(&left, "segment/0"), held(&all, "segment/0") / 2, "{left:?}");
    assert_eq!(held(&left, "keys/0"), 0, "it came after the damaged chunk");
    travel(&source, &mut staging);
    assert_eq!(whole(&staging), all);
    let staged = staging.finish(15).unwrap();
    let (mut installed, _) = PartitionFiles::open(to.path(), GROUP, staged, 600).unwrap();
    assert_eq!(read_all(&mut installed, 0).len(), 10);
}

#[test]
fn another_snapshot_begins_anew() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut source = create(from.path());
    source.append(&ten()).unwrap();
    source.checkpoint(LogIndex(15), Term(2), Bytes::new()).unwrap();
    let mut staging = Staging::begin(to.path(), GROUP, "node-1 1 2 14 2").unwrap();
    travel(&source, &mut staging);
    drop(staging);
    let staging = Staging::begin(to.path(), GROUP, "node-1 1 2 15 2").unwrap();
    assert_eq!(staging.there(), []);
    assert_eq!(staging.bytes(), 0);
}

#[test]
fn a_snapshot_takes_the_place_of_the_files_and_the_old_ones_stay_until_then() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut source = create(from.path());
    source.append(&ten()[..6]).unwrap();
    source.checkpoint(LogIndex(11), Term(2), Bytes::from_static(b"machine")).unwrap();
    // Written after the checkpoint: not part of the snapshot.
    source.append(&ten()[6..]).unwrap();

    let mut target = create(to.path());
    target.append(&ten()[..1]).unwrap();
    let old = target.checkpoint(LogIndex(6), Term(2), Bytes::new()).unwrap();
    let mut staging = Staging::begin(to.path(), GROUP, "node-1 1 2 11 2").unwrap();
    travel(&source, &mut staging);
    let staged = staging.finish(11).unwrap();
    assert_eq!(staged.index, 11);
    assert!(staged.generation > old.generation);
    // A crash now: the log still names the old generation, which is whole.
    let (mut kept, _) = PartitionFiles::open(to.path(), GROUP, old, 600).unwrap();
    assert_eq!(read_all(&mut kept, 0), [0]);
    // A crash after the log named the new one.
    let (mut installed, keys) = PartitionFiles::open(to.path(), GROUP, staged, 600).unwrap();
    assert_eq!(read_all(&mut installed, 0), [0, 2, 4, 6, 8, 10]);
    assert_eq!(keys.len(), 6);
    installed.remove_older_generations().unwrap();
    installed.append(&ten()[6..]).unwrap();
    assert_eq!(read_all(&mut installed, 12), [12, 14, 16, 18]);
}

#[test]
fn a_snapshot_with_a_part_missing_is_not_taken() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut source = create(from.path());
    source.append(&ten()).unwrap();
    let checkpoint = source.checkpoint(LogIndex(15), Term(2), Bytes::new()).unwrap();
    let mut staging = Staging::begin(to.path(), GROUP, "node-1 1 2 11 2").unwrap();
    staging.write("manifest", 0, &checkpoint.to_bytes()).unwrap();
    staging.write("segment/0", 0, b"short").unwrap();
    assert!(staging.write("segment/0", 9, b"a gap").is_err());
    assert!(staging.write("../../etc/passwd", 0, b"x").is_err());
    assert!(staging.write("segment/../x", 0, b"x").is_err());
    assert!(staging.finish(15).unwrap_err().to_string().contains("segment/0 has 5 bytes"));
    let again = Staging::begin(to.path(), GROUP, "node-1 1 2 11 2").unwrap();
    assert_eq!(again.there(), [], "what is whole and wrong is thrown away");
}

fn thread(dir: &Path) -> (StorageHandle, mpsc::Receiver<StorageNotice>, std::thread::JoinHandle<()>) {
    let storage = Storage::open(StorageSettings { partitions: dir.to_owned(), segment_bytes: 600 }).unwrap();
    let (tell, told) = mpsc::channel();
    let (handle, thread) = storage.start(move |notice| drop(tell.send(notice))).unwrap();
    (handle, told, thread)
}

fn next(told: &mpsc::Receiver<StorageNotice>) -> StorageNotice {
    told.recv_timeout(Duration::from_secs(30)).expect("the storage thread answers")
}

#[tokio::test]
async fn the_thread_reads_what_was_appended_before_and_tells_checkpoints_and_snapshots() {
    let dir = tempfile::tempdir().unwrap();
    let (handle, told, thread) = thread(dir.path());
    let waiting = Arc::new(AtomicU64::new(0));
    handle.open(GROUP);
    handle.append(GROUP, ten(), &waiting);
    let found = handle.read(GROUP, Offset(18), 1_000).await.unwrap();
    assert_eq!(bases(&found), [18]);
    assert_eq!(handle.waiting(), 0);
    handle.checkpoint(GROUP, LogIndex(15), Term(2), Bytes::from_static(b"s"));
    let StorageNotice::Checkpointed { checkpoint, .. } = next(&told) else { panic!("a checkpoint") };
    assert_eq!((checkpoint.index, checkpoint.next_offset), (15, 20));
    handle.build_snapshot(GROUP, ReplicaId(3));
    let StorageNotice::SnapshotReady { to, files, .. } = next(&told) else { panic!("a snapshot") };
    assert_eq!(to, ReplicaId(3));
    assert!(files.iter().all(|f| f.path.exists()));
    assert!(matches!(handle.read(GroupId(1), Offset(0), 1).await, Err(StorageError::UnknownGroup(1))));
    handle.stop();
    thread.join().unwrap();
    assert!(matches!(handle.read(GROUP, Offset(0), 1).await, Err(StorageError::Stopped)));
}

#[test]
fn a_failed_write_is_told_and_nothing_is_written_after_it() {
    let dir = tempfile::tempdir().unwrap();
    let (handle, told, thread) = thread(dir.path());
    let waiting = Arc::new(AtomicU64::new(0));
    handle.open(GROUP);
    handle.build_snapshot(GROUP, ReplicaId(1));
    handle.checkpoint(GROUP, LogIndex(5), Term(1), Bytes::new());
    assert!(matches!(next(&told), StorageNotice::Checkpointed { .. }));
    // The folder disappears under the thread: the next segment cannot be made.
    std::fs::remove_dir_all(dir.path()).unwrap();
    handle.append(GROUP, ten(), &waiting);
    handle.checkpoint(GROUP, LogIndex(15), Term(2), Bytes::new());
    assert!(matches!(next(&told), StorageNotice::Failed(StorageError::Io { .. })));
    thread.join().unwrap();
    assert!(told.try_recv().is_err(), "no checkpoint after a failed write");
}

fn newest(dir: &Path, extension: &str) -> PathBuf {
    let generation = dir.join(GROUP.get().to_string()).join(format!("{:020}", 0));
    let mut files: Vec<PathBuf> = std::fs::read_dir(generation)
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| e == extension))
        .collect();
    files.sort();
    files.pop().unwrap()
}

#[test]
fn the_files_tell_how_far_they_reach_behind_their_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let mut files = create(dir.path());
    assert_eq!(groups(dir.path()).unwrap(), vec![GROUP]);
    assert!(!holds_entries(dir.path(), GROUP).unwrap(), "a new partition proves nothing");
    files.append(&ten()[..4]).unwrap();
    assert_eq!(reach(dir.path(), GROUP, None).unwrap(), LogIndex(9));
    let checkpoint = files.checkpoint(LogIndex(9), Term(2), Bytes::new()).unwrap();
    assert_eq!(reach(dir.path(), GROUP, Some(&checkpoint)).unwrap(), LogIndex::ZERO, "the log covers what it covers");
    files.append(&ten()[4..]).unwrap();
    assert_eq!(reach(dir.path(), GROUP, Some(&checkpoint)).unwrap(), LogIndex(15));
    let installed = Checkpoint { generation: 1, ..checkpoint };
    assert_eq!(reach(dir.path(), GROUP, Some(&installed)).unwrap(), LogIndex::ZERO, "another generation");
    assert!(holds_entries(dir.path(), GROUP).unwrap());
}

#[test]
fn a_bit_that_changed_anywhere_is_found_by_reading_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut files = create(dir.path());
    for entry in ten() {
        files.append(&[entry]).unwrap();
    }
    files.checkpoint(LogIndex(15), Term(2), Bytes::new()).unwrap();
    let (_, durable) = files.snapshot().unwrap();
    assert!(durable.len() > 3, "segments and key runs");
    for file in durable {
        let sound = std::fs::read(&file.path).unwrap();
        let mut read = 0;
        scrub::verify(&file.path, file.length, &mut |bytes| read += bytes).unwrap();
        assert!(read + super::file::HEADER_LEN as u64 >= file.length, "{read} of {}", file.length);
        for at in 0..usize::try_from(file.length).unwrap() {
            let mut damaged = sound.clone();
            damaged[at] ^= 1 << (at % 8);
            std::fs::write(&file.path, &damaged).unwrap();
            let found = scrub::verify(&file.path, file.length, &mut |_| {});
            assert!(matches!(found, Err(StorageError::Corrupt { .. })), "byte {at} of {}: {found:?}", file.part);
        }
        std::fs::write(&file.path, &sound[..sound.len() - 1]).unwrap();
        assert!(scrub::verify(&file.path, file.length, &mut |_| {}).is_err(), "cut off");
        std::fs::remove_file(&file.path).unwrap();
        scrub::verify(&file.path, file.length, &mut |_| {}).expect("replaced meanwhile");
    }
}

#[test]
fn damaged_files_are_told_of_once_never_read_never_sent_and_remembered() {
    let dir = tempfile::tempdir().unwrap();
    let settings = StorageSettings { partitions: dir.path().join("partitions"), segment_bytes: 600 };
    let (tell, told) = mpsc::channel();
    let (storage, thread) = Storage::open(settings.clone()).unwrap().start(move |n| tell.send(n).unwrap()).unwrap();
    storage.open(GROUP);
    storage.append(GROUP, ten(), &Arc::new(AtomicU64::new(0)));
    storage.checkpoint(GROUP, LogIndex(15), Term(2), Bytes::new());
    let StorageNotice::Checkpointed { checkpoint, .. } = told.recv().unwrap() else { panic!("a checkpoint") };
    let path = newest(&settings.partitions, "segment");
    let mut bytes = std::fs::read(&path).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&path, &bytes).unwrap();

    let wal = dir.path().join("wal");
    let settings_of_scrub = ScrubSettings { wal, bytes_per_second: 1 << 30, every: Duration::from_millis(1) };
    start_scrub(storage.clone(), settings_of_scrub, |damage| panic!("{damage}")).unwrap();
    let StorageNotice::Damaged { group, reason } = told.recv().unwrap() else { panic!("damage") };
    assert!(group == GROUP && reason.contains("fails its checksum"), "{reason}");
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let read = runtime.block_on(storage.read(GROUP, Offset(0), 1_000));
    assert!(matches!(read, Err(StorageError::Corrupt { .. })), "not even what is sound: {read:?}");
    storage.build_snapshot(GROUP, ReplicaId(3));
    storage.damaged(GROUP, "again".to_owned());
    storage.stop();
    thread.join().unwrap();
    assert!(told.try_recv().is_err(), "told once, and no snapshot is made of it");

    let again = Storage::open(settings).unwrap().recover(GROUP, Some(checkpoint.to_bytes()));
    assert!(again.is_err_and(|error| error.to_string().contains("fails its checksum")), "the next start knows");
}

#[test]
fn a_flush_that_finds_no_room_is_no_reason_to_try_the_write_again() {
    let no_room = std::io::Error::from(std::io::ErrorKind::StorageFull);
    let StorageError::Io { source, .. } = StorageError::flush(Path::new("a.segment"))(no_room) else { panic!("io") };
    assert_ne!(source.kind(), std::io::ErrorKind::StorageFull, "the thread would wait for room and append again");
    assert!(source.to_string().contains("space"), "the text still says why: {source}");
}
