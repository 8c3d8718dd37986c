//! Disks that fail, fill up, hang, or change what was written.

use super::*;

fn poisoned_after(fault: Fault, expected: &str) {
    let dir = dir();
    let mut log = Log::open(&log_path(&dir));
    log.persist(first(2));
    log.faults.inject(fault);
    let begun = log.faults.flushes();
    for id in 2..5 {
        log.wal.submit([WalRequest::Persist(PersistWrite { entries: entries(4 + id..5 + id, 6), ..write(2, id) })]);
    }
    log.wal.submit([WalRequest::Token { seq: 1 }]);
    match log.next() {
        Event::Poisoned(reason) => assert!(reason.contains(expected), "{reason}"),
        other => panic!("acknowledged after an error: {other:?}"),
    }
    assert!(log.wal.is_poisoned());
    let tried = log.faults.flushes() - begun;
    assert!(tried <= 1, "a failed flush is never retried, tried {tried}");
    // Closing neither hangs nor acknowledges.
    log.wal.close();
    assert!(log.events.try_recv().is_err());
}

#[test]
fn a_flush_error_never_acknowledges_and_is_never_retried() {
    poisoned_after(Fault::FlushError, "injected flush error");
}

#[test]
fn an_append_error_never_acknowledges() {
    poisoned_after(Fault::WriteError, "injected write error");
}

#[test]
fn a_full_disk_acknowledges_nothing_until_there_is_room_and_closes_all_the_same() {
    let dir = dir();
    let mut log = Log::open(&log_path(&dir));
    log.persist(first(2));
    log.faults.inject(Fault::DiskFull);
    log.wal.submit([WalRequest::Persist(PersistWrite { entries: entries(6..9, 6), ..write(2, 2) })]);
    for _ in 0..3 {
        assert!(matches!(log.next(), Event::Full), "its owner is told, and nothing is acknowledged");
    }
    assert!(log.wal.flush_age().is_some() && !log.wal.is_poisoned(), "it is a stall, and no error");
    log.faults.lift(Fault::DiskFull);
    log.wait_for(|notice| matches!(notice, WalNotice::Persisted { id: PersistId(2), .. }));
    log.faults.inject(Fault::DiskFull);
    log.wal.submit([WalRequest::Persist(PersistWrite { entries: entries(9..12, 6), ..write(2, 3) })]);
    while !matches!(log.next(), Event::Full) {}
    // The thread that waits for room keeps the files: the process ends with it.
    log.wal.close();
    assert!(log.events.try_iter().all(|event| matches!(event, Event::Full)), "nothing was acknowledged");
}

#[test]
fn short_writes_are_gone_on_with_and_lose_nothing() {
    let dir = dir();
    let mut log = Log::open(&log_path(&dir));
    log.faults.inject(Fault::ShortWrites);
    log.persist(first(2));
    log.persist(PersistWrite { entries: entries(6..40, 6), ..write(2, 2) });
    log.wal.close();
    let log = Log::open(&log_path(&dir));
    assert_eq!((&log.recovered.tail_cut, &log.group(2).entries), (&None, &entries(6..40, 6)));
}

#[test]
fn without_room_to_set_aside_what_there_is_takes_writes() {
    let dir = dir();
    let mut log = Log::open(&log_path(&dir));
    log.faults.inject(Fault::NoRoom);
    log.persist(first(2));
    // More than raft-engine sets aside at a time.
    let large = "x".repeat(1 << 20);
    for index in 6..12 {
        log.persist(PersistWrite { entries: vec![entry(index, 6, &large)], ..write(2, index) });
    }
    drop(log);
    assert_eq!(last_index(Log::open(&log_path(&dir)).group(2)), 11);
}

#[test]
fn a_bit_that_changed_on_its_way_to_the_disk_is_never_read_back_as_good() {
    let dir = dir();
    let mut log = Log::open(&log_path(&dir));
    log.persist(first(2));
    log.persist(first(3));
    log.persist(PersistWrite { entries: entries(6..9, 7), ..write(3, 2) });
    log.faults.inject(Fault::FlipWritten);
    // The middle of the write lies in the entries: the footer, which recovery goes by, is whole.
    let large = "x".repeat(1_000);
    log.persist(PersistWrite { entries: vec![entry(6, 6, &large)], ..write(2, 2) });
    log.faults.lift(Fault::FlipWritten);
    log.persist(PersistWrite { entries: entries(7..12, 6), ..write(2, 3) });
    drop(log);
    let log = Log::open(&log_path(&dir));
    let damaged = log.group(2).clone();
    assert!(damaged.damage.is_some() && damaged.entries.is_empty(), "none of them is handed out: {damaged:?}");
    assert!(damaged.restored().unwrap_err().reason.contains("Checksum expected"));
    assert_eq!(log.group(3).entries, entries(6..9, 7), "other groups go on");
}

#[test]
fn a_bit_that_changed_in_what_recovery_goes_by_cuts_the_log_there() {
    let dir = dir();
    let mut log = Log::open(&log_path(&dir));
    log.persist(first(2));
    log.faults.inject(Fault::FlipWritten);
    // No entries: the middle lies in the footer.
    log.persist(PersistWrite { hard_state: Some(hard_state(7, 5)), ..write(2, 2) });
    log.faults.lift(Fault::FlipWritten);
    log.persist(PersistWrite { hard_state: Some(hard_state(8, 5)), ..write(2, 3) });
    drop(log);
    let log = Log::open(&log_path(&dir));
    let cut = log.recovered.tail_cut.clone().expect("the damage was found");
    assert!(cut.lost, "flushed records stand behind it: {cut:?}");
    assert_eq!(log.group(2).hard_state, Some(hard_state(5, 5)), "nothing behind the damage is taken");
}

#[test]
fn a_bit_that_changed_on_the_disk_is_not_handed_out() {
    let dir = dir();
    let mut log = Log::open(&log_path(&dir));
    log.persist(first(2));
    log.persist(PersistWrite { entries: entries(6..30, 6), ..write(2, 2) });
    let fetch = WalRequest::Fetch { group: GroupId(2), from: LogIndex(6), to: LogIndex(30), max_bytes: u64::MAX };
    log.faults.inject(Fault::FlipRead);
    log.wal.submit([fetch]);
    log.wait_for(|notice| matches!(notice, WalNotice::Fetched { .. }));
    assert!(matches!(log.seen.last(), Some(WalNotice::Fetched { entries: None, .. })), "{:?}", log.seen.last());
    let again = WalRequest::Fetch { group: GroupId(2), from: LogIndex(6), to: LogIndex(30), max_bytes: u64::MAX };
    log.faults.lift(Fault::FlipRead);
    log.seen.clear();
    log.wal.submit([again]);
    log.wait_for(|notice| matches!(notice, WalNotice::Fetched { entries: Some(found), .. } if found.len() == 24));
}

#[test]
fn a_flush_that_hangs_is_told_once_acknowledges_nothing_and_may_still_end() {
    let dir = dir();
    let config = WalConfig { hang_after: Duration::from_millis(60), ..WalConfig::new(log_path(&dir), WalProfile::Dev) };
    let mut log = Log::open_as(config);
    log.persist(first(2));
    log.faults.inject(Fault::Stall);
    log.wal.submit([WalRequest::Persist(PersistWrite { entries: entries(6..9, 6), ..write(2, 2) })]);
    assert!(matches!(log.next(), Event::Hung));
    assert!(log.wal.flush_age().is_some());
    log.faults.lift(Fault::Stall);
    log.wait_for(|notice| matches!(notice, WalNotice::Persisted { id: PersistId(2), .. }));
    drop(log);
    // What a process finds that was ended in such a flush.
    let config = WalConfig { distrust_cache: true, ..WalConfig::new(log_path(&dir), WalProfile::Dev) };
    let log = Log::open_as(config);
    assert_eq!((&log.recovered.tail_cut, &log.group(2).entries), (&None, &entries(6..9, 6)));
}
