//! What every file of the storage begins with, and durable directory changes.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use quorate_proto::file_header::{BadFileHeader, FileHeader, FileKind, FILE_HEADER_LEN};

use super::error::StorageError;

/// Length of the header.
pub(super) const HEADER_LEN: usize = FILE_HEADER_LEN;

/// The header of a new file.
pub(super) fn header(kind: FileKind) -> [u8; HEADER_LEN] {
    FileHeader::current(kind).encode()
}

/// Refuses a file of another kind, a newer version, or with features that this software does not know.
pub(super) fn check_header(file: &File, path: &Path, kind: FileKind) -> Result<(), StorageError> {
    let mut bytes = [0; HEADER_LEN];
    file.read_exact_at(&mut bytes, 0).map_err(StorageError::io("cannot read", path))?;
    match FileHeader::parse(kind, &bytes) {
        Ok(_) => Ok(()),
        Err(newer @ (BadFileHeader::Newer { .. } | BadFileHeader::Features { .. })) => {
            Err(StorageError::Newer { path: path.to_owned(), what: newer.to_string() })
        }
        Err(wrong) => Err(StorageError::corrupt(path, 0, wrong.to_string())),
    }
}

/// Makes the names in `dir` durable.
pub(super) fn sync_dir(dir: &Path) -> Result<(), StorageError> {
    File::open(dir).and_then(|d| d.sync_all()).map_err(StorageError::io("cannot flush directory", dir))
}

/// Makes a directory and its name in the parent durable.
pub(super) fn create_dir(dir: &Path) -> Result<(), StorageError> {
    std::fs::create_dir_all(dir).map_err(StorageError::io("cannot create", dir))?;
    if let Some(parent) = dir.parent() {
        sync_dir(parent)?;
    }
    Ok(())
}
