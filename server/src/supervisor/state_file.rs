//! `data_dir/supervisor.pid`: the lock that makes a supervisor the only one, and what its successor must know.
//!
//! Text, `key = value` lines: `supervisor`, `node` (process ids), `secret` (shown to the observers with an exit
//! notice; the file is readable by its owner only), `last_exit`. It is not flushed: it matters only on this boot.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use quorate_proto::ids::Incarnation;
use rustix::fs::{flock, FlockOperation};

use crate::error::{ServerError, EXIT_DISK, EXIT_HUNG};

const NAME: &str = "supervisor.pid";

/// The locked file.
#[derive(Debug)]
pub(super) struct StateFile {
    path: PathBuf,
    file: File,
    secret: String,
    node: Option<i32>,
    last_exit: Option<i32>,
}

impl StateFile {
    /// Locks it; another supervisor of the same directory is an error.
    pub fn open(data_dir: &Path) -> Result<Self, ServerError> {
        let path = data_dir.join(NAME);
        let fault = |what: String| ServerError::DataDir { path: data_dir.to_owned(), what };
        std::fs::create_dir_all(data_dir).map_err(|e| fault(format!("cannot be made: {e}")))?;
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(|e| fault(format!("cannot open {NAME}: {e}")))?;
        let mut text = String::new();
        let locked = flock(&file, FlockOperation::NonBlockingLockExclusive);
        file.read_to_string(&mut text).map_err(|e| fault(format!("cannot read {NAME}: {e}")))?;
        let field = |name: &str| field(&text, name);
        if locked.is_err() {
            let holder = field("supervisor").unwrap_or_else(|| "?".to_owned());
            return Err(fault(format!("in use by supervisor process {holder}; stop it, or choose another directory")));
        }
        let number = |name: &str| field(name).and_then(|v| v.parse().ok());
        Ok(Self {
            path,
            secret: field("secret").unwrap_or_default(),
            node: number("node"),
            last_exit: number("last_exit"),
            file,
        })
    }

    /// The node of an earlier supervisor, if it still runs: it must hold the data directory's lock under that very
    /// process id, so that a re-used id is not taken for it.
    pub fn orphan(&self, data_dir: &Path) -> Option<(i32, Incarnation)> {
        let pid = self.node.filter(|_| !self.secret.is_empty())?;
        let mut lock = File::open(data_dir.join("LOCK")).ok()?;
        if flock(&lock, FlockOperation::NonBlockingLockShared).is_ok() {
            return None;
        }
        let mut holder = String::new();
        lock.read_to_string(&mut holder).ok()?;
        if holder.trim() != pid.to_string() {
            return None;
        }
        let identity = std::fs::read_to_string(data_dir.join("IDENTITY")).ok()?;
        let incarnation = field(&identity, "incarnation")?.parse().ok()?;
        Some((pid, Incarnation(incarnation)))
    }

    /// Draws the secret of this supervisor.
    pub fn renew_secret(&mut self) -> Result<(), ServerError> {
        let (high, low): (u128, u128) = (rand::random(), rand::random());
        self.secret = format!("{high:032x}{low:032x}");
        self.write()
    }

    /// Shown to the observers; its hash goes to the node.
    pub fn secret(&self) -> &str {
        &self.secret
    }

    /// Status of the last node, if it was the disk's: the log is suspect whatever it looks like (B2).
    pub fn last_exit(&self) -> Option<i32> {
        self.last_exit.filter(|status| matches!(*status, EXIT_DISK | EXIT_HUNG))
    }

    /// A node runs.
    pub fn set_node(&mut self, pid: i32) -> Result<(), ServerError> {
        self.node = Some(pid);
        self.write()
    }

    /// It exited.
    pub fn set_exit(&mut self, status: Option<i32>) -> Result<(), ServerError> {
        self.node = None;
        // Only a disk error is remembered, and until the node says otherwise by another exit.
        self.last_exit = status;
        self.write()
    }

    fn write(&mut self) -> Result<(), ServerError> {
        let mut text = format!("supervisor = {}\nsecret = {}\n", std::process::id(), self.secret);
        if let Some(pid) = self.node {
            text += &format!("node = {pid}\n");
        }
        if let Some(status) = self.last_exit {
            text += &format!("last_exit = {status}\n");
        }
        // Over what is there, then cut: on a full disk the old text is not given up for one that does not fit.
        let written = self
            .file
            .seek(SeekFrom::Start(0))
            .and_then(|_| self.file.write_all(text.as_bytes()))
            .and_then(|()| self.file.set_len(text.len() as u64));
        written.map_err(|e| ServerError::io(format!("cannot write {}", self.path.display()), e))
    }
}

fn field(text: &str, name: &str) -> Option<String> {
    text.lines()
        .filter_map(|line| line.split_once(" = "))
        .find(|(key, _)| *key == name)
        .map(|(_, value)| value.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_supervisor_is_told_of_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = StateFile::open(dir.path()).unwrap();
        first.renew_secret().unwrap();
        let error = StateFile::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains(&format!("supervisor process {}", std::process::id())), "{error}");
    }

    #[test]
    fn a_successor_finds_the_node_by_its_lock_and_keeps_the_secret() {
        let dir = tempfile::tempdir().unwrap();
        let me = i32::try_from(std::process::id()).unwrap();
        let mut first = StateFile::open(dir.path()).unwrap();
        first.renew_secret().unwrap();
        first.set_node(me).unwrap();
        let secret = first.secret().to_owned();
        drop(first);
        std::fs::write(dir.path().join("LOCK"), format!("{me}\n")).unwrap();
        std::fs::write(dir.path().join("IDENTITY"), "quorate-identity 1\nincarnation = 5\n").unwrap();
        let second = StateFile::open(dir.path()).unwrap();
        assert_eq!(second.orphan(dir.path()), None, "nobody holds the lock");
        let lock = File::open(dir.path().join("LOCK")).unwrap();
        flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
        assert_eq!(second.orphan(dir.path()), Some((me, Incarnation(5))));
        assert_eq!(second.secret(), secret);
    }

    #[test]
    fn a_disk_error_is_remembered_for_the_next_start() {
        let dir = tempfile::tempdir().unwrap();
        StateFile::open(dir.path()).unwrap().set_exit(Some(EXIT_DISK)).unwrap();
        assert_eq!(StateFile::open(dir.path()).unwrap().last_exit(), Some(EXIT_DISK));
        StateFile::open(dir.path()).unwrap().set_exit(Some(-9)).unwrap();
        assert_eq!(StateFile::open(dir.path()).unwrap().last_exit(), None);
    }
}
