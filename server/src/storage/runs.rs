//! Key runs: the keys that entries added to the key window, in apply order, so that the window survives a restart
//! without being part of every checkpoint.
//!
//! A run is a file header and frames `u32 length · u32 CRC32C · bytes`. Runs are append-only and closed at 8 MiB.

use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use quorate_proto::file_header::FileKind;

use super::checkpoint::FileLength;
use super::error::StorageError;
use super::file;

const ROLL: u64 = 8 << 20;
const FRAME: usize = 8;

/// The runs of one partition.
#[derive(Debug)]
pub(super) struct Runs {
    dir: PathBuf,
    files: Vec<FileLength>,
    open: Option<File>,
    dirty: bool,
}

impl Runs {
    pub fn name(number: u64) -> String {
        format!("{number:010}.keys")
    }

    pub fn empty(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), files: Vec::new(), open: None, dirty: false }
    }

    /// Opens the runs of a checkpoint and reads them; later bytes are cut off.
    pub fn open(dir: &Path, files: &[FileLength]) -> Result<(Self, Vec<Bytes>), StorageError> {
        let mut runs = Self { files: files.to_vec(), ..Self::empty(dir) };
        let mut all = Vec::new();
        for run in files {
            let path = dir.join(Self::name(run.id));
            let bytes = std::fs::read(&path).map_err(StorageError::io("cannot read", &path))?;
            let length = usize::try_from(run.length).unwrap_or(usize::MAX);
            if bytes.len() < length {
                let what = format!("{length} bytes were flushed, {} are there", bytes.len());
                return Err(StorageError::corrupt(&path, bytes.len() as u64, what));
            }
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .open(&path)
                .map_err(StorageError::io("cannot open", &path))?;
            file::check_header(&file, &path, FileKind::KeyRun)?;
            if bytes.len() > length {
                file.set_len(run.length).map_err(StorageError::io("cannot truncate", &path))?;
            }
            frames(&path, Bytes::from(bytes).slice(file::HEADER_LEN..length), &mut all)?;
            runs.open = Some(file);
        }
        Ok((runs, all))
    }

    /// Appends the keys of entries, one frame each.
    pub fn append<'a>(&mut self, keys: impl Iterator<Item = &'a Bytes>) -> Result<(), StorageError> {
        let mut bytes = Vec::new();
        for key in keys.filter(|k| !k.is_empty()) {
            let length = u32::try_from(key.len()).expect("keys of one entry are far below 4 GiB");
            bytes.extend_from_slice(&length.to_le_bytes());
            bytes.extend_from_slice(&crc32c::crc32c(key).to_le_bytes());
            bytes.extend_from_slice(key);
        }
        if bytes.is_empty() {
            return Ok(());
        }
        if self.open.is_none() || self.files.last().is_none_or(|f| f.length >= ROLL) {
            self.roll()?;
        }
        let run = self.files.last_mut().expect("roll made one");
        let path = self.dir.join(Self::name(run.id));
        let file = self.open.as_mut().expect("roll opened it");
        file.seek(SeekFrom::Start(run.length))
            .and_then(|_| file.write_all(&bytes))
            .map_err(StorageError::io("cannot append to", &path))?;
        run.length += bytes.len() as u64;
        self.dirty = true;
        Ok(())
    }

    /// Where the runs end: number of files, length of the newest.
    pub fn mark(&self) -> (usize, u64) {
        (self.files.len(), self.files.last().map_or(0, |file| file.length))
    }

    /// What was appended after `mark` does not count. A file that was begun since stays, empty.
    pub fn reset(&mut self, mark: (usize, u64)) {
        let length = if self.files.len() == mark.0 { mark.1 } else { file::HEADER_LEN as u64 };
        if let Some(newest) = self.files.last_mut() {
            newest.length = length;
        }
    }

    fn roll(&mut self) -> Result<(), StorageError> {
        self.sync()?;
        let number = self.files.last().map_or(0, |f| f.id + 1);
        let path = self.dir.join(Self::name(number));
        let mut file = File::create(&path).map_err(StorageError::io("cannot create", &path))?;
        file.write_all(&file::header(FileKind::KeyRun)).map_err(StorageError::io("cannot write", &path))?;
        self.files.push(FileLength { id: number, length: file::HEADER_LEN as u64 });
        self.open = Some(file);
        self.dirty = true;
        Ok(())
    }

    /// Flushes what was written.
    pub fn sync(&mut self) -> Result<(), StorageError> {
        if let (true, Some(file), Some(run)) = (self.dirty, &self.open, self.files.last()) {
            file.sync_data().map_err(StorageError::flush(&self.dir.join(Self::name(run.id))))?;
        }
        self.dirty = false;
        Ok(())
    }

    /// Names and lengths as written.
    pub fn files(&self) -> &[FileLength] {
        &self.files
    }
}

/// The frames in the bytes after a file's header.
pub(super) fn frames(path: &Path, mut bytes: Bytes, out: &mut Vec<Bytes>) -> Result<(), StorageError> {
    let mut position = file::HEADER_LEN as u64;
    while !bytes.is_empty() {
        let cut = || StorageError::corrupt(path, position, "a frame is cut off");
        let head = bytes.get(..FRAME).ok_or_else(cut)?;
        let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let crc = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
        if bytes.len() < FRAME + length {
            return Err(cut());
        }
        let frame = bytes.slice(FRAME..FRAME + length);
        if crc32c::crc32c(&frame) != crc {
            return Err(StorageError::corrupt(path, position, "a frame fails its checksum"));
        }
        out.push(frame);
        position += (FRAME + length) as u64;
        bytes = bytes.slice(FRAME + length..);
    }
    Ok(())
}
