//! Deletes large files without making anybody wait.
//!
//! A file system frees all blocks of a deleted file at once: its journal, and the device where it is told of every freed
//! block (mount option `discard`), are busy with them, and every flush on that disk waits meanwhile. So a file is renamed
//! here, which is quick, and a thread takes it down step by step.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Extension of a file that waits for its end.
const EXTENSION: &str = "removed";
/// Freed at once.
const STEP: u64 = 1 << 20;
/// From one step to the next: 50 MB a second.
const PAUSE: Duration = Duration::from_millis(20);
/// With more files than these waiting, room counts more than quiet: no pauses.
const PATIENCE: usize = 16;

/// A file under its last name.
struct Leftover {
    path: PathBuf,
    /// Nobody reads it any more. Nobody opens it again: its name is gone.
    unused: Box<dyn Fn() -> bool + Send>,
}

/// The files that wait for their end, and the thread.
#[derive(Debug)]
pub struct Remover {
    files: Sender<Leftover>,
    waiting: Arc<AtomicUsize>,
}

impl Remover {
    /// Starts the thread. What an earlier process left half removed in `dir` is taken down first. It ends some time after
    /// the remover is dropped; what is left by then, the next one finds.
    ///
    /// # Errors
    /// `dir` cannot be listed, or there is no thread.
    pub fn start(dir: &Path) -> io::Result<Self> {
        let (files, inbox) = channel();
        let waiting = Arc::<AtomicUsize>::default();
        let counted = Arc::clone(&waiting);
        thread::Builder::new().name("remover".into()).spawn(move || run(&inbox, &counted))?;
        let remover = Self { files, waiting };
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == EXTENSION) {
                remover.hand_over(path, || true);
            }
        }
        Ok(remover)
    }

    /// The file is gone under its name when this returns; its space comes back soon after `unused` says so of those who
    /// have it open: until then its content stays.
    ///
    /// # Errors
    /// It is not there, or can neither be renamed nor deleted.
    pub fn remove(&self, file: &Path, unused: impl Fn() -> bool + Send + 'static) -> io::Result<()> {
        let mut name = file.as_os_str().to_owned();
        name.push(".");
        name.push(EXTENSION);
        let renamed = PathBuf::from(name);
        match fs::rename(file, &renamed) {
            Ok(()) => self.hand_over(renamed, unused),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(error),
            // A full disk may have no room for a name: then room counts more than quiet.
            Err(_) => fs::remove_file(file)?,
        }
        Ok(())
    }

    fn hand_over(&self, path: PathBuf, unused: impl Fn() -> bool + Send + 'static) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        // The thread ends only after this sender.
        let _ = self.files.send(Leftover { path, unused: Box::new(unused) });
    }
}

fn run(inbox: &Receiver<Leftover>, waiting: &AtomicUsize) {
    while let Ok(file) = inbox.recv() {
        if let Err(error) = take_down(&file, waiting) {
            // Nobody reads it any more: what is lost is its room, which the next start gets back.
            if error.kind() != io::ErrorKind::NotFound {
                tracing::warn!(file = %file.path.display(), %error, "a file that is not needed any more cannot be removed");
            }
        }
        waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

fn take_down(file: &Leftover, waiting: &AtomicUsize) -> io::Result<()> {
    let path = &file.path;
    while !(file.unused)() {
        thread::sleep(PAUSE);
    }
    // Its old name must not come back, after a crash, with a part of its content.
    if let Some(dir) = path.parent() {
        File::open(dir)?.sync_all()?;
    }
    let file = OpenOptions::new().write(true).open(path)?;
    let mut length = file.metadata()?.len();
    while length > 0 {
        length = length.saturating_sub(STEP);
        file.set_len(length)?;
        if waiting.load(Ordering::Relaxed) <= PATIENCE {
            thread::sleep(PAUSE);
        }
    }
    fs::remove_file(path)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    /// Waits until the folder holds nothing but these.
    fn until_only(dir: &Path, names: &[&str]) {
        let began = Instant::now();
        loop {
            let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
            let mut left: Vec<_> = entries.collect();
            left.sort();
            if left == names {
                return;
            }
            assert!(began.elapsed() < Duration::from_secs(60), "{left:?}");
            thread::sleep(PAUSE);
        }
    }

    #[test]
    fn a_file_is_gone_under_its_name_at_once_and_entirely_soon() {
        let dir = tempfile::tempdir().unwrap();
        let remover = Remover::start(dir.path()).unwrap();
        for name in ["a.log", "b.log", "kept.log"] {
            fs::write(dir.path().join(name), vec![7; 3 << 20]).unwrap();
        }
        for name in ["a.log", "b.log"] {
            remover.remove(&dir.path().join(name), || true).unwrap();
            assert!(!dir.path().join(name).exists());
        }
        assert_eq!(remover.remove(&dir.path().join("a.log"), || true).unwrap_err().kind(), io::ErrorKind::NotFound);
        until_only(dir.path(), &["kept.log"]);
        assert_eq!(fs::metadata(dir.path().join("kept.log")).unwrap().len(), 3 << 20);
    }

    #[test]
    fn what_an_earlier_process_left_half_removed_is_taken_down_at_the_start() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a.log.removed"), b"half").unwrap();
        fs::write(dir.path().join("b.log"), b"whole").unwrap();
        let _remover = Remover::start(dir.path()).unwrap();
        until_only(dir.path(), &["b.log"]);
    }

    #[test]
    fn what_is_still_read_keeps_its_content() {
        let dir = tempfile::tempdir().unwrap();
        let remover = Remover::start(dir.path()).unwrap();
        let path = dir.path().join("a.log");
        fs::write(&path, vec![7; 3 << 20]).unwrap();
        let reader = Arc::new(File::open(&path).unwrap());
        let held = Arc::downgrade(&reader);
        let (asked, asks) = channel();
        let unused = move || {
            let _ = asked.send(());
            held.strong_count() == 0
        };
        remover.remove(&path, unused).unwrap();
        // Asked twice: the first answer was heeded.
        (0..2).for_each(|_| asks.recv().unwrap());
        let mut content = Vec::new();
        io::Read::read_to_end(&mut &*reader, &mut content).unwrap();
        assert!(content.len() == 3 << 20 && content.iter().all(|&byte| byte == 7));
        drop(reader);
        until_only(dir.path(), &[]);
    }

    #[test]
    fn many_at_once_are_all_removed() {
        let dir = tempfile::tempdir().unwrap();
        let remover = Remover::start(dir.path()).unwrap();
        for n in 0..3 * PATIENCE {
            let path = dir.path().join(format!("{n}"));
            fs::write(&path, vec![7; 2 << 20]).unwrap();
            remover.remove(&path, || true).unwrap();
        }
        until_only(dir.path(), &[]);
    }
}
