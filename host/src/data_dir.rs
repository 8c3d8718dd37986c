//! The data directory of a node: exclusive lock, identity, incarnation (B1, S2).
//!
//! ```text
//! <dir>/LOCK      flock, exclusive, for the life of the process; holds the owner's pid for error texts
//! <dir>/IDENTITY  text: magic line, key = value lines, crc32c over all before; replaced beside, flushed, renamed
//! ```

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use quorate_proto::control::LockProof;
use quorate_proto::ids::{ClusterId, DiskId, Incarnation, NodeId};
use rustix::fs::{flock, FlockOperation};

use crate::clock;

/// Newest identity format that this software reads and writes.
pub const IDENTITY_FORMAT: u32 = 1;
const MAGIC: &str = "quorate-identity";
const IDENTITY: &str = "IDENTITY";
const LOCK: &str = "LOCK";

/// What kind of node a directory belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeKind {
    /// Data node.
    Server,
    /// Observer.
    Observer,
}

impl NodeKind {
    const fn name(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Observer => "observer",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        [Self::Server, Self::Observer].into_iter().find(|kind| kind.name() == text)
    }
}

/// What the identity file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Kind of node.
    pub kind: NodeKind,
    /// The cluster it was formatted for.
    pub cluster: ClusterId,
    /// The node it was formatted for.
    pub node: NodeId,
    /// Drawn when it was formatted.
    pub disk: DiskId,
    /// Newest incarnation that started on it.
    pub incarnation: Incarnation,
    /// Host boot of that incarnation; empty before the first.
    pub boot_id: String,
}

/// Why a data directory can't be used. One clear line each.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    /// Another process has it.
    #[error("data directory {} is in use by process {holder}; stop it, or choose another directory", dir.display())]
    Locked {
        /// The directory.
        dir: PathBuf,
        /// Process id of the holder, or `?`.
        holder: String,
    },
    /// There is something else in it.
    #[error("{} is not empty and no Quorate data directory (no file IDENTITY); choose another directory", dir.display())]
    Foreign {
        /// The directory.
        dir: PathBuf,
    },
    /// It belongs to another cluster, node, or kind of node.
    #[error("data directory {} belongs to {found}, not to {expected}; choose another directory", dir.display())]
    Mismatch {
        /// The directory.
        dir: PathBuf,
        /// Whose it is.
        found: String,
        /// Who asked.
        expected: String,
    },
    /// It was written by newer software.
    #[error("data directory {} has format {found}, this software reads up to {supported}; use the newer software", dir.display())]
    TooNew {
        /// The directory.
        dir: PathBuf,
        /// Its format.
        found: u32,
        /// Newest known.
        supported: u32,
    },
    /// The identity file is damaged.
    #[error("{}: {reason}; restore this file or set the directory aside", file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The operating system refused.
    #[error("data directory: {what} {}: {source}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// A locked data directory of this very node. The lock is held until it is dropped.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    lock: File,
    identity: Identity,
    previous_boot: String,
}

impl DataDir {
    /// Makes the directory if needed, locks it, checks or draws its identity, and raises the incarnation durably.
    /// Returns before any message may be sent (B1).
    ///
    /// # Errors
    /// [`DataDirError`], with a text for operators.
    pub fn open(dir: &Path, kind: NodeKind, cluster: ClusterId, node: NodeId) -> Result<Self, DataDirError> {
        let boot = clock::boot_id().map_err(|source| DataDirError::Io {
            what: "read",
            path: clock::BOOT_ID_FILE.into(),
            source,
        })?;
        Self::open_on_boot(dir, kind, cluster, node, boot)
    }

    /// The same with a given boot id, for drills that pretend a power cut (B2).
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_on_boot(
        dir: &Path,
        kind: NodeKind,
        cluster: ClusterId,
        node: NodeId,
        boot_id: String,
    ) -> Result<Self, DataDirError> {
        fs::create_dir_all(dir).map_err(at("create", dir))?;
        // Looked at before the lock file makes it non-empty.
        let foreign = !dir.join(IDENTITY).exists() && is_foreign(dir).map_err(at("list", dir))?;
        if foreign {
            return Err(DataDirError::Foreign { dir: dir.into() });
        }
        let lock = lock(dir)?;
        let stored = read_identity(dir)?;
        let mut identity = match stored {
            Some(identity) => check(dir, identity, kind, cluster, node)?,
            None => Identity {
                kind,
                cluster,
                node,
                disk: DiskId(rand::random()),
                incarnation: Incarnation::ZERO,
                boot_id: String::new(),
            },
        };
        let previous_boot = std::mem::replace(&mut identity.boot_id, boot_id);
        identity.incarnation = identity.incarnation.next();
        write_identity(dir, &identity)?;
        Ok(Self { path: dir.into(), lock, identity, previous_boot })
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Who it belongs to, with the incarnation raised for this start.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// This start's incarnation.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.identity.incarnation
    }

    /// Makes the next start's incarnation greater than `above`, durably (M1: the directory knows greater ones of this
    /// node, of a disk that is gone).
    ///
    /// # Errors
    /// If the identity file can't be replaced.
    pub fn raise_above(&mut self, above: Incarnation) -> Result<(), DataDirError> {
        self.identity.incarnation = self.identity.incarnation.max(above);
        write_identity(&self.path, &self.identity)
    }

    /// The last incarnation ran on this same boot of the host: the page cache lost nothing (B2). False on a first
    /// start.
    #[must_use]
    pub fn same_boot(&self) -> bool {
        self.previous_boot == self.identity.boot_id
    }

    /// Proof that this process holds the lock that the last incarnation held (S2).
    ///
    /// # Errors
    /// If the lock file can't be looked at.
    pub fn lock_proof(&self) -> io::Result<LockProof> {
        let meta = self.lock.metadata()?;
        Ok(LockProof { boot_id: self.identity.boot_id.clone(), dev: meta.dev(), ino: meta.ino() })
    }
}

fn at(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> DataDirError {
    let path = path.to_owned();
    move |source| DataDirError::Io { what, path, source }
}

/// Something that is not ours lies in a directory without identity. A lock file and supervisor files may precede it.
fn is_foreign(dir: &Path) -> io::Result<bool> {
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        let name = name.to_string_lossy();
        let ours = name == LOCK
            || name == "lost+found"
            || name == "ballast"
            || name.starts_with(IDENTITY)
            || name.starts_with("supervisor")
            || name.ends_with(".log");
        if !ours {
            return Ok(true);
        }
    }
    Ok(false)
}

fn lock(dir: &Path) -> Result<File, DataDirError> {
    let path = dir.join(LOCK);
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(at("open", &path))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let mut holder = String::new();
            let _ = file.read_to_string(&mut holder);
            let holder = holder.trim();
            let holder = if holder.is_empty() { "?" } else { holder }.to_owned();
            return Err(DataDirError::Locked { dir: dir.into(), holder });
        }
        Err(errno) => return Err(at("lock", &path)(errno.into())),
    }
    // Only for error texts; the lock itself is the kernel's.
    file.set_len(0).map_err(at("write", &path))?;
    file.rewind().map_err(at("write", &path))?;
    writeln!(file, "{}", std::process::id()).map_err(at("write", &path))?;
    Ok(file)
}

fn check(
    dir: &Path,
    identity: Identity,
    kind: NodeKind,
    cluster: ClusterId,
    node: NodeId,
) -> Result<Identity, DataDirError> {
    let describe =
        |kind: NodeKind, cluster: ClusterId, node: NodeId| format!("{} {node} of cluster {cluster}", kind.name());
    if (identity.kind, identity.cluster, identity.node) != (kind, cluster, node) {
        return Err(DataDirError::Mismatch {
            dir: dir.into(),
            found: describe(identity.kind, identity.cluster, identity.node),
            expected: describe(kind, cluster, node),
        });
    }
    Ok(identity)
}

fn write_identity(dir: &Path, identity: &Identity) -> Result<(), DataDirError> {
    let mut text = format!("{MAGIC} {IDENTITY_FORMAT} 0\n");
    // Writing to a String never fails.
    let _ = writeln!(text, "kind = {}", identity.kind.name());
    let _ = writeln!(text, "cluster = {}", identity.cluster);
    let _ = writeln!(text, "node = {}", identity.node.get());
    let _ = writeln!(text, "disk = {}", identity.disk);
    let _ = writeln!(text, "incarnation = {}", identity.incarnation.get());
    let _ = writeln!(text, "boot = {}", identity.boot_id);
    let _ = writeln!(text, "crc32c = {:08x}", crc32c::crc32c(text.as_bytes()));
    replace_file(dir, IDENTITY, text.as_bytes())
}

/// Writes beside, flushes, renames, flushes the directory: after a power cut the old or the new file is there.
fn replace_file(dir: &Path, name: &str, content: &[u8]) -> Result<(), DataDirError> {
    let beside = dir.join(format!("{name}.new"));
    let target = dir.join(name);
    let mut file = File::create(&beside).map_err(at("create", &beside))?;
    file.write_all(content).map_err(at("write", &beside))?;
    file.sync_all().map_err(at("flush", &beside))?;
    fs::rename(&beside, &target).map_err(at("rename", &target))?;
    File::open(dir).and_then(|d| d.sync_all()).map_err(at("flush", dir))
}

fn read_identity(dir: &Path) -> Result<Option<Identity>, DataDirError> {
    let file = dir.join(IDENTITY);
    let text = match fs::read_to_string(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(at("read", &file)(error)),
    };
    let damaged = |reason: &str| DataDirError::Damaged { file: file.clone(), reason: reason.into() };
    let mut first = text.lines().next().unwrap_or_default().split(' ');
    if first.next() != Some(MAGIC) {
        return Err(damaged("no identity file of Quorate"));
    }
    let format: u32 = first.next().and_then(|v| v.parse().ok()).ok_or_else(|| damaged("no format version"))?;
    if format > IDENTITY_FORMAT {
        return Err(DataDirError::TooNew { dir: dir.into(), found: format, supported: IDENTITY_FORMAT });
    }
    let end = text.rfind("crc32c = ").ok_or_else(|| damaged("no checksum"))?;
    let (body, sum) = text.split_at(end);
    if sum.trim() != format!("crc32c = {:08x}", crc32c::crc32c(body.as_bytes())) {
        return Err(damaged("wrong checksum"));
    }
    let field = |name: &str| {
        body.lines()
            .find_map(|line| line.split_once(" = ").filter(|(key, _)| *key == name))
            .map(|(_, value)| value)
            .ok_or_else(|| damaged(&format!("no field `{name}`")))
    };
    let number = |name: &str| field(name)?.parse().map_err(|_| damaged(&format!("field `{name}` is no number")));
    let id = |name: &str| field(name).map(u128_of)?.ok_or_else(|| damaged(&format!("field `{name}` is no id")));
    Ok(Some(Identity {
        kind: NodeKind::parse(field("kind")?).ok_or_else(|| damaged("unknown kind of node"))?,
        cluster: ClusterId(id("cluster")?),
        node: NodeId(number("node")?),
        disk: DiskId(id("disk")?),
        incarnation: Incarnation(number("incarnation")?),
        boot_id: field("boot")?.to_owned(),
    }))
}

fn u128_of(hex: &str) -> Option<u128> {
    ClusterId::from_hex(hex).map(|id| id.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLUSTER: ClusterId = ClusterId(7);

    fn open(dir: &Path) -> Result<DataDir, DataDirError> {
        DataDir::open(dir, NodeKind::Server, CLUSTER, NodeId(1))
    }

    #[test]
    fn each_start_raises_the_incarnation_and_keeps_the_disk_id() {
        let dir = tempfile::tempdir().unwrap();
        let first = open(dir.path()).unwrap();
        assert_eq!(first.incarnation(), Incarnation(1));
        assert!(!first.same_boot());
        let (disk, proof) = (first.identity().disk, first.lock_proof().unwrap());
        drop(first);
        let second = open(dir.path()).unwrap();
        assert_eq!(second.incarnation(), Incarnation(2));
        assert_eq!(second.identity().disk, disk);
        assert_eq!(second.lock_proof().unwrap(), proof);
        assert!(second.same_boot());
    }

    #[test]
    fn a_second_instance_is_refused_and_told_the_pid_of_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let _first = open(dir.path()).unwrap();
        let error = open(dir.path()).unwrap_err().to_string();
        assert!(error.contains(&format!("in use by process {}", std::process::id())), "{error}");
    }

    #[test]
    fn a_directory_of_another_cluster_or_node_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        drop(open(dir.path()).unwrap());
        let other = DataDir::open(dir.path(), NodeKind::Server, ClusterId(8), NodeId(1)).unwrap_err();
        assert!(matches!(other, DataDirError::Mismatch { .. }), "{other}");
        let other = DataDir::open(dir.path(), NodeKind::Server, CLUSTER, NodeId(2)).unwrap_err();
        assert!(other.to_string().contains("belongs to server node 1 of cluster"), "{other}");
        let other = DataDir::open(dir.path(), NodeKind::Observer, CLUSTER, NodeId(1)).unwrap_err();
        assert!(matches!(other, DataDirError::Mismatch { .. }), "{other}");
        // A refused start is no start.
        assert_eq!(open(dir.path()).unwrap().incarnation(), Incarnation(2));
    }

    #[test]
    fn a_directory_with_other_files_is_refused_untouched() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("letter.txt"), "dear").unwrap();
        assert!(matches!(open(dir.path()).unwrap_err(), DataDirError::Foreign { .. }));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_damaged_or_newer_identity_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        drop(open(dir.path()).unwrap());
        let file = dir.path().join(IDENTITY);
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, text.replace("node = 1", "node = 3")).unwrap();
        assert!(open(dir.path()).unwrap_err().to_string().contains("wrong checksum"));
        fs::write(&file, text.replace("quorate-identity 1", "quorate-identity 9")).unwrap();
        assert!(matches!(open(dir.path()).unwrap_err(), DataDirError::TooNew { found: 9, .. }));
    }

    #[test]
    fn another_boot_id_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        drop(open(dir.path()).unwrap());
        let after = DataDir::open_on_boot(dir.path(), NodeKind::Server, CLUSTER, NodeId(1), "other".into()).unwrap();
        assert!(!after.same_boot());
    }
}
