//! A file system of its own for one directory of a cluster, so that a disk can hang or be full without the others. Needs
//! root and the usual tools (`mkfs.ext4`, `mount`, `fsfreeze`).

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::Error;

/// A mounted file system; unmounted when dropped.
#[derive(Debug)]
pub struct Volume {
    at: PathBuf,
    image: Option<PathBuf>,
    frozen: AtomicBool,
}

/// Why this process cannot mount anything; `None` if it may.
#[must_use]
pub fn unavailable() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("mounting a file system needs root".to_owned());
    }
    let quiet = || Stdio::null();
    let missing =
        |tool: &&str| Command::new(tool).arg("-V").stdin(quiet()).stdout(quiet()).stderr(quiet()).status().is_err();
    let tools = ["mount", "umount", "mkfs.ext4", "fsfreeze"];
    tools.into_iter().find(missing).map(|tool| format!("the tool {tool} is missing"))
}

impl Volume {
    /// For a directory that no process uses: ext4 in a sparse image of `mib` MiB beside the directory, by a loop device. It can be frozen.
    ///
    /// # Errors
    /// A tool refuses; the text holds what it said.
    pub fn on_disk(at: &Path, mib: u64) -> Result<Self, Error> {
        let image = at.with_extension("image");
        let failed = |e: std::io::Error| Error::new(format!("{}: {e}", image.display()));
        std::fs::File::create(&image).and_then(|file| file.set_len(mib << 20)).map_err(failed)?;
        run(Command::new("mkfs.ext4").arg("-q").arg(&image))?;
        let mut mount = Command::new("mount");
        mount.args(["-o", "loop"]).arg(&image);
        Self::over(at, &mut mount, Some(image))
    }

    /// For a directory that no process uses: a tmpfs of `mib` MiB and so many inodes: it can be filled at memory's speed.
    ///
    /// # Errors
    /// `mount` refuses.
    pub fn in_memory(at: &Path, mib: u64, inodes: u64) -> Result<Self, Error> {
        let options = format!("size={mib}m,nr_inodes={inodes},mode=755");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &options, "tmpfs"]);
        Self::over(at, &mut mount, None)
    }

    /// Mounts at `at`; what is in the directory moves along.
    fn over(at: &Path, mount: &mut Command, image: Option<PathBuf>) -> Result<Self, Error> {
        let before = at.with_extension("before");
        let failed = |e: std::io::Error| Error::new(format!("{}: {e}", at.display()));
        std::fs::create_dir_all(at).and_then(|()| std::fs::rename(at, &before)).map_err(failed)?;
        std::fs::create_dir(at).map_err(failed)?;
        run(mount.arg(at))?;
        let volume = Self { at: at.to_owned(), image, frozen: AtomicBool::new(false) };
        run(Command::new("cp").arg("-a").arg(before.join(".")).arg(at))?;
        std::fs::remove_dir_all(before).map_err(failed)?;
        Ok(volume)
    }

    /// Where it is mounted.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.at
    }

    /// From now on every write to it hangs.
    ///
    /// # Errors
    /// `fsfreeze` refuses.
    pub fn freeze(&self) -> Result<(), Error> {
        run(Command::new("fsfreeze").arg("-f").arg(&self.at))?;
        self.frozen.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// What hangs goes on.
    ///
    /// # Errors
    /// `fsfreeze` refuses.
    pub fn thaw(&self) -> Result<(), Error> {
        if self.frozen.swap(false, Ordering::SeqCst) {
            run(Command::new("fsfreeze").arg("-u").arg(&self.at))?;
        }
        Ok(())
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        let _ = self.thaw();
        // Lazily if something still holds a file open: it is gone with its holder.
        if run(Command::new("umount").arg(&self.at)).is_err() {
            let _ = run(Command::new("umount").arg("-l").arg(&self.at));
        }
        if let Some(image) = &self.image {
            let _ = std::fs::remove_file(image);
        }
    }
}

fn run(command: &mut Command) -> Result<(), Error> {
    let shown = format!("{command:?}");
    let output = command.stdin(Stdio::null()).output().map_err(|e| Error::new(format!("{shown}: {e}")))?;
    if output.status.success() {
        return Ok(());
    }
    Err(Error::new(format!("{shown}: {}", String::from_utf8_lossy(&output.stderr).trim())))
}
