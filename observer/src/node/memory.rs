//! What an observer's log is worth at the start (B2, M1), and the marker that keeps the verdict until it is sound again.
//!
//! ```text
//! <data_dir>/SUSPECT             "suspect: …", "lost: …" or "empty: …"; gone when the observer may vote
//! <data_dir>/FLUSHES             number of the newest flush (host/src/wal/mark.rs)
//! <data_dir>/set-aside-<n>/      log and snapshots that could not be read, kept until a person deletes them
//! ```

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use quorate_host::wal::Recovered;
use quorate_proto::control::Memory;
use quorate_proto::ids::{GroupId, Incarnation};

/// The marker.
const SUSPECT: &str = "SUSPECT";
/// The mark of flushes, beside the log.
pub(super) const FLUSHES: &str = "FLUSHES";
/// What is set aside when the log cannot be read: the log, and the snapshots that belong to it.
const LOG: [&str; 2] = ["wal", "directory"];

/// A verdict with its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Judgement {
    pub memory: Memory,
    pub why: String,
}

impl Judgement {
    pub(super) fn new(memory: Memory, why: impl Into<String>) -> Self {
        Self { memory, why: why.into() }
    }
}

/// Judges what the log held. `before` is what an earlier start found.
pub(super) fn judge(before: Option<Judgement>, recovered: &Recovered, same_boot: bool) -> Judgement {
    let there = recovered.groups.get(&GroupId::DIRECTORY).is_some_and(|group| group.hard_state.is_some());
    let missing = recovered.flushes_missing;
    let cut = recovered.tail_cut.as_ref().filter(|cut| cut.lost || !same_boot);
    let found = if !there && missing > 0 {
        Some(Judgement::new(Memory::Lost, format!("its log is gone, with {missing} flushes")))
    } else if let Some(cut) = cut.filter(|_| there) {
        let how = if cut.lost { "flushed records are damaged" } else { "it was cut off by a power loss" };
        let why = format!("{how}: {} bytes of {} after byte {}", cut.dropped, cut.file.display(), cut.kept);
        Some(Judgement::new(Memory::Suspect, why))
    } else if missing > 0 {
        Some(Judgement::new(Memory::Suspect, format!("its last {missing} flushes are missing")))
    } else {
        None
    };
    match (before, found) {
        // The worse of the two: a log that was lost does not become a whole one by what was written to it since.
        (Some(before), found) if before.memory == Memory::Lost || found.is_none() => before,
        (Some(before), Some(_)) if before.memory == Memory::Empty => {
            Judgement::new(Memory::Lost, format!("it had only begun to learn: {}", before.why))
        }
        (_, Some(found)) => found,
        (None, None) if there => Judgement::new(Memory::Sound, String::new()),
        (_, None) => Judgement::new(Memory::Empty, "there is no log on this disk"),
    }
}

/// What an earlier start found.
pub(super) fn read(dir: &Path) -> io::Result<Option<Judgement>> {
    let text = match fs::read_to_string(dir.join(SUSPECT)) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let (word, why) = text.split_once(": ").unwrap_or(("suspect", &text));
    let memory = Memory::ALL.into_iter().find(|memory| memory.word() == word && *memory != Memory::Sound);
    // What cannot be read may have been the worst.
    Ok(Some(Judgement::new(memory.unwrap_or(Memory::Lost), why.trim())))
}

/// Makes the verdict durable.
pub(super) fn write(dir: &Path, judgement: &Judgement) -> io::Result<()> {
    let beside = dir.join(format!("{SUSPECT}.new"));
    fs::write(&beside, format!("{}: {}\n", judgement.memory.word(), judgement.why))?;
    File::open(&beside)?.sync_all()?;
    fs::rename(&beside, dir.join(SUSPECT))?;
    File::open(dir)?.sync_all()
}

/// The running process came to distrust its log. A marker that says worse, because this log was never whole, stays.
pub(super) fn write_suspicion(dir: &Path, why: &str) -> io::Result<()> {
    match read(dir)? {
        Some(before) if before.memory != Memory::Suspect => Ok(()),
        _ => write(dir, &Judgement::new(Memory::Suspect, why)),
    }
}

/// It is sound again.
pub(super) fn clear(dir: &Path) -> io::Result<()> {
    match fs::remove_file(dir.join(SUSPECT)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => File::open(dir)?.sync_all(),
    }
}

/// Moves log and snapshots out of the way; damaged data are kept (B2). Returns where.
pub(super) fn set_aside(dir: &Path, incarnation: Incarnation) -> io::Result<PathBuf> {
    let aside = dir.join(format!("set-aside-{}", incarnation.get()));
    fs::create_dir_all(&aside)?;
    for name in LOG {
        match fs::rename(dir.join(name), aside.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    File::open(dir)?.sync_all()?;
    Ok(aside)
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_host::wal::{RecoveredGroup, TailCut};

    fn log(there: bool, missing: u64, cut: Option<bool>) -> Recovered {
        let group = RecoveredGroup { hard_state: there.then(Default::default), ..RecoveredGroup::default() };
        let tail_cut = cut.map(|lost| TailCut { file: "f".into(), kept: 1, dropped: 2, lost });
        let groups = [(GroupId::DIRECTORY, group)].into();
        Recovered { groups, flushes_missing: missing, tail_cut, ..Recovered::default() }
    }

    fn verdict(before: Option<Memory>, recovered: &Recovered, same_boot: bool) -> Memory {
        judge(before.map(|memory| Judgement::new(memory, "before")), recovered, same_boot).memory
    }

    #[test]
    fn a_log_is_judged_by_its_cut_its_flushes_and_what_was_found_before() {
        assert_eq!(verdict(None, &log(true, 0, None), true), Memory::Sound);
        assert_eq!(verdict(None, &log(true, 0, Some(false)), true), Memory::Sound, "a torn last write");
        assert_eq!(verdict(None, &log(true, 0, Some(false)), false), Memory::Suspect, "after a power loss");
        assert_eq!(verdict(None, &log(true, 0, Some(true)), true), Memory::Suspect, "records are damaged");
        assert_eq!(verdict(None, &log(true, 3, None), true), Memory::Suspect, "cut back");
        assert_eq!(verdict(None, &log(false, 3, None), true), Memory::Lost, "deleted");
        assert_eq!(verdict(None, &log(false, 0, None), true), Memory::Empty, "a new disk");
    }

    #[test]
    fn a_verdict_stays_until_it_is_cleared_and_never_becomes_better() {
        assert_eq!(verdict(Some(Memory::Suspect), &log(true, 0, None), true), Memory::Suspect);
        assert_eq!(verdict(Some(Memory::Lost), &log(true, 3, None), true), Memory::Lost);
        assert_eq!(verdict(Some(Memory::Empty), &log(true, 0, None), true), Memory::Empty);
        assert_eq!(verdict(Some(Memory::Empty), &log(true, 2, None), true), Memory::Lost);
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(read(dir.path()).expect("readable"), None);
        let judgement = Judgement::new(Memory::Lost, "it is gone: with 3 flushes");
        write(dir.path(), &judgement).expect("writes");
        assert_eq!(read(dir.path()).expect("readable"), Some(judgement));
        clear(dir.path()).expect("clears");
        clear(dir.path()).expect("clears twice");
        assert_eq!(read(dir.path()).expect("readable"), None);
    }

    #[test]
    fn what_cannot_be_read_is_set_aside_whole() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir_all(dir.path().join("wal")).expect("makes");
        fs::write(dir.path().join("wal/log"), "bytes").expect("writes");
        let aside = set_aside(dir.path(), Incarnation(4)).expect("moves");
        assert_eq!(fs::read_to_string(aside.join("wal/log")).expect("kept"), "bytes");
        assert!(!dir.path().join("wal").exists());
    }
}
