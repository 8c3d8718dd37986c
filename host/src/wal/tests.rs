//! Conformance of the log on a real directory.

mod damage;
mod faults;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Mutex;

use quorate_consensus::replica::encode_meta;
use quorate_proto::ids::Term;
use raft::eraftpb::ConfState;
use raft_engine::env::FileSystem;
use tempfile::TempDir;

use super::files::Files;
use super::queue::Shared;
use super::*;
use crate::clock::SystemClock;
use crate::remover::Remover;

/// Long enough for any disk; only a broken log reaches it.
const PATIENCE: Duration = Duration::from_secs(120);

struct Channel(Mutex<Sender<Event>>);

#[derive(Debug)]
enum Event {
    Done(Vec<WalNotice>),
    Poisoned(String),
    Hung,
    Full,
}

impl WalNotices for Channel {
    fn completed(&self, notices: Vec<WalNotice>) {
        let _ = self.0.lock().unwrap().send(Event::Done(notices));
    }
    fn poisoned(&self, reason: &str) {
        let _ = self.0.lock().unwrap().send(Event::Poisoned(reason.into()));
    }
    fn full(&self) {
        let _ = self.0.lock().unwrap().send(Event::Full);
    }
    fn hung(&self, _since: Duration) {
        let _ = self.0.lock().unwrap().send(Event::Hung);
    }
}

struct Log {
    wal: Wal,
    events: Receiver<Event>,
    faults: Arc<ScriptedFaults>,
    recovered: Recovered,
    seen: Vec<WalNotice>,
    batches: usize,
}

impl Log {
    fn open(dir: &Path) -> Self {
        Self::open_as(WalConfig::new(dir, WalProfile::Dev))
    }

    fn open_as(config: WalConfig) -> Self {
        let (send, events) = channel();
        let faults = Arc::new(ScriptedFaults::default());
        let notices = Arc::new(Channel(Mutex::new(send)));
        let (wal, recovered) =
            Wal::open(config, Arc::clone(&faults) as Arc<dyn FaultPolicy>, Arc::new(SystemClock), notices).unwrap();
        Self { wal, events, faults, recovered, seen: Vec::new(), batches: 0 }
    }

    fn persist(&mut self, write: PersistWrite) {
        let (group, id) = (write.group, write.id);
        self.wal.submit([WalRequest::Persist(write)]);
        self.wait_for(
            |notice| matches!(notice, WalNotice::Persisted { group: g, id: i, .. } if (*g, *i) == (group, id)),
        );
    }

    fn next(&mut self) -> Event {
        self.events.recv_timeout(PATIENCE).expect("the log answers")
    }

    fn wait_for(&mut self, wanted: impl Fn(&WalNotice) -> bool) {
        while !self.seen.iter().any(&wanted) {
            match self.next() {
                Event::Done(notices) => {
                    self.batches += 1;
                    self.seen.extend(notices);
                }
                Event::Full => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn group(&self, group: u64) -> &RecoveredGroup {
        &self.recovered.groups[&GroupId(group)]
    }
}

fn entry(index: u64, term: u64, data: &str) -> Entry {
    Entry { index, term, data: data.to_owned().into(), ..Entry::default() }
}

fn entries(indexes: std::ops::Range<u64>, term: u64) -> Vec<Entry> {
    indexes.map(|index| entry(index, term, &format!("{term}/{index}"))).collect()
}

fn write(group: u64, id: u64) -> PersistWrite {
    PersistWrite { group: GroupId(group), id: PersistId(id), ..PersistWrite::default() }
}

fn hard_state(term: u64, commit: u64) -> HardState {
    HardState { term, commit, vote: 2, ..HardState::default() }
}

/// The pair that a replica keeps: log after `start`, machine at the same place, three voters.
fn meta(start: u64, term: u64) -> (&'static str, Bytes) {
    let conf_state = ConfState { voters: vec![1, 2, 3], ..ConfState::default() };
    (META_KEY, encode_meta((LogIndex(start), Term(term)), LogIndex(start), &conf_state))
}

/// A new group whose log starts after index 5.
fn first(group: u64) -> PersistWrite {
    PersistWrite { hard_state: Some(hard_state(5, 5)), puts: vec![meta(5, 5)], ..write(group, 1) }
}

fn dir() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn log_path(dir: &TempDir) -> std::path::PathBuf {
    dir.path().join("wal")
}

#[test]
fn what_was_acknowledged_is_recovered() {
    let dir = dir();
    let mut log = Log::open(&log_path(&dir));
    assert!(log.recovered.groups.is_empty());
    for group in [2, 3] {
        log.persist(first(group));
        log.persist(PersistWrite {
            entries: entries(6..9, 6),
            hard_state: Some(hard_state(6, 7)),
            puts: vec![("checkpoint", Bytes::from_static(b"\x00state"))],
            ..write(group, 2)
        });
    }
    log.wal.close();
    let log = Log::open(&log_path(&dir));
    assert_eq!(log.recovered.groups.len(), 2);
    assert_eq!(log.recovered.tail_cut, None);
    assert!(log.recovered.files_flushed > 0);
    let group = log.group(3).clone();
    assert_eq!(group.kv["checkpoint"], Bytes::from_static(b"\x00state"));
    let restored = group.restored().unwrap().unwrap();
    assert_eq!(restored.entries, entries(6..9, 6));
    assert_eq!(restored.hard_state, hard_state(6, 7));
    assert_eq!(restored.conf_state.voters, [1, 2, 3]);
    assert_eq!((restored.compacted, restored.applied), ((LogIndex(5), Term(5)), LogIndex(5)));
}

#[test]
fn an_overlapping_append_replaces_the_suffix() {
    let dir = dir();
    let mut log = Log::open(&log_path(&dir));
    log.persist(first(2));
    log.persist(PersistWrite { entries: entries(6..11, 6), ..write(2, 2) });
    log.persist(PersistWrite { entries: entries(8..10, 7), ..write(2, 3) });
    drop(log);
    let log = Log::open(&log_path(&dir));
    let expected: Vec<_> = entries(6..8, 6).into_iter().chain(entries(8..10, 7)).collect();
    assert_eq!(log.group(2).entries, expected);
}

#[test]
fn compacted_entries_are_gone_for_good() {
    let dir = dir();
    let mut log = Log::open(&log_path(&dir));
    log.persist(first(2));
    log.persist(PersistWrite { entries: entries(6..9, 6), ..write(2, 2) });
    log.persist(PersistWrite { entries: entries(9..12, 8), ..write(2, 3) });
    let compaction = PersistWrite { compact_through: Some(LogIndex(9)), puts: vec![meta(9, 8)], ..write(2, 4) };
    log.persist(compaction);
    // Everything, appended in the same write.
    log.persist(first(3));
    let all = PersistWrite {
        entries: entries(6..8, 7),
        compact_through: Some(LogIndex(7)),
        puts: vec![meta(7, 7)],
        ..write(3, 2)
    };
    log.persist(all);
    drop(log);
    let mut log = Log::open(&log_path(&dir));
    let restored = log.group(2).clone().restored().unwrap().unwrap();
    assert_eq!(restored.compacted, (LogIndex(9), Term(8)));
    assert_eq!(restored.entries, entries(10..12, 8));
    assert_eq!(log.group(2).entries, restored.entries, "nothing older is read");
    assert!(log.group(3).entries.is_empty());
    log.persist(PersistWrite { entries: entries(8..9, 9), ..write(3, 3) });
    drop(log);
    assert_eq!(Log::open(&log_path(&dir)).group(3).entries, entries(8..9, 9));
}

#[test]
fn a_file_is_in_use_while_its_handle_or_a_reader_of_it_is_there() {
    let dir = dir();
    let notices = Arc::new(Channel(Mutex::new(channel().0)));
    let shared = Arc::new(Shared::new(1 << 20, Arc::new(SystemClock), notices));
    let remover = Remover::start(dir.path()).unwrap();
    let files = Files::new(shared, Arc::new(ScriptedFaults::default()), false, remover);
    let path = dir.path().join("0000000000000001.raftlog");
    let handle = Arc::new(files.create(&path).unwrap());
    let reader = files.new_reader(Arc::clone(&handle)).unwrap();
    let unused = files.unused(&path);
    assert!(!unused());
    drop(handle);
    assert!(!unused(), "a reader has it open");
    drop(reader);
    assert!(unused());
}

fn names(dir: &Path) -> Vec<String> {
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.collect()
}

#[test]
fn old_files_go_away_entirely_while_the_log_is_written_and_what_is_kept_is_recovered() {
    let dir = dir();
    let path = log_path(&dir);
    let config = WalConfig { purge_every: Duration::ZERO, ..WalConfig::new(&path, WalProfile::Dev) };
    let mut log = Log::open_as(config);
    log.persist(first(2));
    // 128 MB, twice what the log may hold; everything but the last entry is compacted.
    let payload = "x".repeat(4 << 20);
    for index in 6..38 {
        let compact_through = (index > 6).then(|| LogIndex(index - 1));
        let puts = vec![meta(index - 1, 6)];
        let entries = vec![entry(index, 6, &payload)];
        log.persist(PersistWrite { entries, compact_through, puts, ..write(2, index) });
    }
    let began = std::time::Instant::now();
    loop {
        let left = names(&path);
        let old = left.iter().any(|name| name == "0000000000000001.raftlog" || name.ends_with(".removed"));
        if !old {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "{left:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(log);
    let log = Log::open(&path);
    let restored = log.group(2).clone().restored().unwrap().unwrap();
    assert_eq!((restored.compacted, restored.entries.len()), ((LogIndex(36), Term(6)), 1));
    assert_eq!(restored.entries[0].data.len(), payload.len());
}

#[test]
fn a_log_that_does_not_fit_together_is_quarantined_and_an_empty_one_bootstraps() {
    assert_eq!(RecoveredGroup::default().restored().unwrap().map(|r| r.applied), None);
    let mut assigned = RecoveredGroup::default();
    assigned.kv.insert("assignment".into(), Bytes::new());
    assert!(assigned.restored().unwrap().is_none());
    let no_meta = RecoveredGroup { entries: entries(6..9, 6), ..RecoveredGroup::default() };
    assert!(no_meta.restored().unwrap_err().reason.contains("without its `raft` record"));
    let (key, value) = meta(5, 5);
    let mut gap = RecoveredGroup { entries: entries(7..9, 6), ..RecoveredGroup::default() };
    gap.kv.insert(key.into(), value);
    assert!(gap.restored().unwrap_err().reason.contains("entry 7 where 6 was expected"));
}

#[test]
fn a_cleared_log_takes_entries_after_a_gap_and_keeps_its_pairs() {
    let dir = dir();
    let mut log = Log::open(&log_path(&dir));
    log.persist(first(2));
    let pairs = vec![("checkpoint", Bytes::from_static(b"old")), ("other", Bytes::from_static(b"kept"))];
    log.persist(PersistWrite { entries: entries(6..9, 6), puts: pairs, ..write(2, 2) });
    let snapshot = PersistWrite {
        clear: true,
        entries: entries(21..23, 9),
        hard_state: Some(hard_state(9, 20)),
        puts: vec![meta(20, 9), ("checkpoint", Bytes::from_static(b"new"))],
        ..write(2, 3)
    };
    // In one flush with an append that it clears.
    let before = PersistWrite { entries: entries(9..12, 6), ..write(2, 4) };
    log.wal.submit([WalRequest::Persist(before), WalRequest::Persist(snapshot)]);
    log.wait_for(|notice| matches!(notice, WalNotice::Persisted { id: PersistId(3), .. }));
    drop(log);
    let log = Log::open(&log_path(&dir));
    let group = log.group(2);
    assert_eq!(group.entries, entries(21..23, 9));
    assert_eq!(group.kv["checkpoint"], Bytes::from_static(b"new"));
    assert_eq!(group.kv["other"], Bytes::from_static(b"kept"));
    let restored = group.clone().restored().unwrap().unwrap();
    assert_eq!((restored.compacted, restored.hard_state), ((LogIndex(20), Term(9)), hard_state(9, 20)));
    assert_eq!(restored.conf_state.voters, [1, 2, 3]);
}

#[test]
fn writes_that_wait_share_one_flush_and_one_notice() {
    let dir = dir();
    let mut log = Log::open(&log_path(&dir));
    log.persist(first(2));
    let (flushes, batches) = (log.faults.flushes(), log.batches);
    log.faults.inject(Fault::Stall);
    log.wal.submit([WalRequest::Persist(PersistWrite { entries: entries(6..7, 6), ..write(2, 2) })]);
    while log.faults.flushes() == flushes {
        std::thread::yield_now();
    }
    assert!(log.wal.flush_age().is_some());
    for id in 0..50 {
        let one = PersistWrite { entries: entries(7 + id..8 + id, 6), ..write(2, 3 + id) };
        log.wal.submit([WalRequest::Persist(one)]);
    }
    log.wal.submit([WalRequest::Token { seq: 7 }]);
    assert!(log.wal.queued_bytes() > 0);
    log.faults.lift(Fault::Stall);
    log.wait_for(|notice| matches!(notice, WalNotice::Token { seq: 7, age } if !age.is_zero()));
    assert_eq!(log.faults.flushes() - flushes, 2, "one for the first, one for all that waited");
    assert_eq!(log.batches - batches, 2);
    assert_eq!(log.wal.queued_bytes(), 0);
    assert_eq!(log.wal.flush_age(), None);
    let persisted = log.seen.iter().filter(|notice| matches!(notice, WalNotice::Persisted { .. })).count();
    assert_eq!(persisted, 52);
}

#[test]
fn a_token_alone_needs_no_flush_and_a_canary_does_one() {
    let dir = dir();
    let mut log = Log::open(&log_path(&dir));
    let flushes = log.faults.flushes();
    log.wal.submit([WalRequest::Token { seq: 1 }]);
    log.wait_for(|notice| matches!(notice, WalNotice::Token { seq: 1, age: Duration::ZERO }));
    assert_eq!(log.faults.flushes(), flushes);
    log.wal.submit([WalRequest::Canary]);
    log.wait_for(|notice| matches!(notice, WalNotice::Canary { .. }));
    assert_eq!(log.faults.flushes(), flushes + 1);
    assert!(log.wal.last_flush() > BootTime::ZERO);
    drop(log);
    assert!(Log::open(&log_path(&dir)).recovered.groups.is_empty(), "the canary is no group");
}

#[test]
fn entries_are_fetched_within_bounds_and_none_below_the_first() {
    let dir = dir();
    let mut log = Log::open(&log_path(&dir));
    log.persist(first(2));
    log.persist(PersistWrite { entries: entries(6..30, 6), ..write(2, 2) });
    log.persist(PersistWrite { compact_through: Some(LogIndex(9)), ..write(2, 3) });
    let mut fetch = |from: u64, to: u64, max_bytes: u64| {
        log.seen.clear();
        log.wal.submit([WalRequest::Fetch { group: GroupId(2), from: LogIndex(from), to: LogIndex(to), max_bytes }]);
        log.wait_for(|notice| matches!(notice, WalNotice::Fetched { .. }));
        match log.seen.pop() {
            Some(WalNotice::Fetched { entries, .. }) => entries,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(fetch(10, 30, u64::MAX), Some(entries(10..30, 6)));
    assert_eq!(fetch(12, 30, 1), Some(entries(12..13, 6)));
    assert_eq!(fetch(9, 30, u64::MAX), None);
    assert_eq!(fetch(25, 40, u64::MAX), None);
}

#[test]
fn a_second_log_on_the_same_directory_is_refused() {
    let dir = dir();
    let _log = Log::open(&log_path(&dir));
    let notices = Arc::new(Channel(Mutex::new(channel().0)));
    let config = WalConfig::new(log_path(&dir), WalProfile::Dev);
    let error = Wal::open(config, Arc::new(NoFaults), Arc::new(SystemClock), notices).unwrap_err();
    assert!(error.to_string().contains("another instance"), "{error}");
}

fn last_index(group: &RecoveredGroup) -> u64 {
    group.entries.last().map_or(5, |entry| entry.index)
}

const CHILD_DIR: &str = "WAL_TEST_CHILD_DIR";

/// Not a test by itself: the process that the next test kills. Prints each index once it is acknowledged.
#[test]
fn child_that_is_killed_while_writing() {
    let Some(dir) = std::env::var_os(CHILD_DIR) else { return };
    let mut log = Log::open(Path::new(&dir));
    let next = log.recovered.groups.get(&GroupId(2)).map_or(6, |group| last_index(group) + 1);
    if next == 6 {
        log.persist(first(2));
    }
    for index in next.. {
        let data = "x".repeat(usize::try_from(index * 37 % 3_000).unwrap());
        log.persist(PersistWrite { entries: vec![entry(index, 6, &data)], ..write(2, index) });
        println!("acknowledged {index}");
    }
}

#[test]
fn what_was_acknowledged_survives_kill_9() {
    let dir = dir();
    let mut acknowledged = 5;
    for round in 1..=3 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["wal::tests::child_that_is_killed_while_writing", "--exact", "--nocapture"])
            .env(CHILD_DIR, log_path(&dir))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        for line in lines {
            let line = line.unwrap();
            if let Some(index) = line.strip_prefix("acknowledged ") {
                acknowledged = index.parse().unwrap();
                if acknowledged >= round * 40 {
                    break;
                }
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(acknowledged >= round * 40, "the child stopped at {acknowledged}");
        let log = Log::open(&log_path(&dir));
        let last = last_index(log.group(2));
        assert!(last >= acknowledged, "index {acknowledged} was acknowledged, the log ends at {last}");
        assert_eq!(log.recovered.tail_cut, None, "preallocated zeros are no cut");
    }
}
