//! Logs that are torn, damaged, cut back or gone.

use super::*;

#[test]
fn a_torn_last_record_is_cut_and_reported() {
    let dir = dir();
    let path = log_path(&dir);
    let mut log = Log::open(&path);
    log.persist(first(2));
    log.persist(PersistWrite { entries: entries(6..9, 6), ..write(2, 2) });
    drop(log);
    let mut files: Vec<_> = std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|ext| ext == "raftlog"));
    let mut last = std::fs::OpenOptions::new().append(true).open(&files[0]).unwrap();
    last.write_all(&[0xab; 100]).unwrap();
    last.write_all(&[0; 5_000]).unwrap();
    let log = Log::open(&path);
    let cut = log.recovered.tail_cut.clone().unwrap();
    assert_eq!((cut.dropped, &cut.file), (100, &files[0]));
    assert!(cut.lost, "no beginning of a record: somebody else wrote it");
    assert_eq!(log.group(2).entries, entries(6..9, 6));
}

fn raftlogs(path: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut files: Vec<_> = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|ext| ext == "raftlog"));
    files.sort();
    files
}

#[test]
fn a_half_written_last_write_is_no_loss_and_a_flipped_bit_before_flushed_records_is_one() {
    for (flip, lost) in [(false, false), (true, true)] {
        let dir = dir();
        let path = log_path(&dir);
        let mut log = Log::open(&path);
        log.persist(first(2));
        drop(log);
        let whole = std::fs::metadata(&raftlogs(&path)[0]).unwrap().len();
        let mut log = Log::open(&path);
        log.persist(PersistWrite { entries: entries(6..9, 6), ..write(2, 2) });
        log.persist(PersistWrite { entries: entries(9..12, 6), ..write(2, 3) });
        drop(log);
        let file = raftlogs(&path).pop().unwrap();
        let mut bytes = std::fs::read(&file).unwrap();
        let end = bytes.iter().rposition(|&b| b != 0).unwrap() + 1;
        if flip {
            let at = (0..end).find(|&at| bytes[at..].starts_with(b"e6")).unwrap_or(usize::try_from(whole).unwrap());
            bytes[at..at + 4].copy_from_slice(&[0xff; 4]);
        } else {
            bytes.truncate(end - 7);
        }
        std::fs::write(&file, &bytes).unwrap();
        let log = Log::open(&path);
        let cut = log.recovered.tail_cut.clone().expect("something was cut off");
        assert_eq!(cut.lost, lost, "{cut:?}");
    }
}

#[test]
fn damage_in_a_running_logs_files_is_found_by_reading_them_back() {
    let dir = dir();
    let mut log = Log::open(&log_path(&dir));
    log.persist(first(2));
    let large = "x".repeat(1 << 20);
    for index in 6..30 {
        log.persist(PersistWrite { entries: vec![entry(index, 6, &large)], ..write(2, index) });
    }
    log.persist(PersistWrite { hard_state: Some(hard_state(6, 29)), ..write(2, 30) });
    let files = log_files(&log_path(&dir)).unwrap();
    assert!(files.len() > 1, "a closed one and the newest: {files:?}");
    for (at, file) in files.iter().enumerate() {
        let closed = at + 1 < files.len();
        let mut read = 0;
        assert_eq!(read_back(file, closed, &mut |bytes| read += bytes).unwrap(), None, "{}", file.display());
        assert!(read > 1 << 20, "{read} bytes of {}", file.display());
        let sound = std::fs::read(file).unwrap();
        for place in [3, 100, 5_000, 1 << 20] {
            let mut damaged = sound.clone();
            damaged[place] ^= 16;
            std::fs::write(file, &damaged).unwrap();
            let found = read_back(file, closed, &mut |_| {}).unwrap();
            assert!(found.is_some(), "byte {place} of {}", file.display());
        }
        std::fs::write(file, &sound).unwrap();
        assert_eq!(read_back(file, closed, &mut |_| {}).unwrap(), None);
    }
    let newest = files.last().unwrap();
    let whole = std::fs::read(newest).unwrap();
    let end = whole.iter().rposition(|&byte| byte != 0).unwrap();
    let mut half = whole.clone();
    half[end - 3..=end].fill(0);
    std::fs::write(newest, half).unwrap();
    assert_eq!(read_back(newest, false, &mut |_| {}).unwrap(), None, "a write under way is no damage");
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for file in std::fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}

#[test]
fn an_older_log_or_none_is_recognised_by_the_number_of_its_flushes() {
    let dir = TempDir::new().unwrap();
    let (log, saved) = (dir.path().join("wal"), dir.path().join("saved"));
    let config = || WalConfig { mark: Some(dir.path().join("FLUSHES")), ..WalConfig::new(&log, WalProfile::Dev) };
    let mut first = Log::open_as(config());
    assert_eq!(first.recovered.flushes_missing, 0, "a new log");
    first.persist(PersistWrite { entries: entries(6..8, 1), ..write(5, 1) });
    first.wal.close();
    copy(&log, &saved);
    let mut second = Log::open_as(config());
    assert_eq!(second.recovered.flushes_missing, 0, "its own log");
    for (id, index) in [(2, 8), (3, 9), (4, 10)] {
        second.persist(PersistWrite { entries: entries(index..index + 1, 1), ..write(5, id) });
    }
    second.wal.close();
    // A snapshot of before is put in its place.
    std::fs::remove_dir_all(&log).unwrap();
    copy(&saved, &log);
    let third = Log::open_as(config());
    assert_eq!(third.recovered.flushes_missing, 3);
    third.wal.close();
    // All of it is gone.
    std::fs::remove_dir_all(&log).unwrap();
    let fourth = Log::open_as(config());
    assert_eq!(fourth.recovered.flushes_missing, 4);
    fourth.wal.close();
}
