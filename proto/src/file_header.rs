//! The first 32 bytes of every file and snapshot: what it is, which format version, which features.

use crate::le::{array, u32_at, u64_at};

/// Length of an encoded [`FileHeader`].
pub const FILE_HEADER_LEN: usize = 32;

/// What a file is. Its magic is the first eight bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FileKind {
    /// Segment of a partition.
    Segment,
    /// Run of keys of a partition's key window.
    KeyRun,
    /// Snapshot of a partition, as it travels to a replica.
    PartitionSnapshot,
    /// Snapshot of the observers' directory.
    DirectorySnapshot,
    /// Identity of a data directory.
    Identity,
    /// Sparse index of a segment.
    SegmentIndex,
}

impl FileKind {
    /// All kinds.
    pub const ALL: [Self; 6] = [
        Self::Segment,
        Self::KeyRun,
        Self::PartitionSnapshot,
        Self::DirectorySnapshot,
        Self::Identity,
        Self::SegmentIndex,
    ];

    /// The first eight bytes of such a file.
    #[must_use]
    pub const fn magic(self) -> [u8; 8] {
        match self {
            Self::Segment => *b"QRTSEGM\n",
            Self::KeyRun => *b"QRTKEYS\n",
            Self::PartitionSnapshot => *b"QRTSNAP\n",
            Self::DirectorySnapshot => *b"QRTDIRS\n",
            Self::Identity => *b"QRTIDEN\n",
            Self::SegmentIndex => *b"QRTINDX\n",
        }
    }

    /// Newest format version of this kind that this software reads and writes.
    #[must_use]
    pub const fn version(self) -> u32 {
        1
    }

    /// Feature bits that this software knows in such a file.
    #[must_use]
    pub const fn features(self) -> u64 {
        0
    }
}

impl std::fmt::Display for FileKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Segment => "segment",
            Self::KeyRun => "key run",
            Self::PartitionSnapshot => "partition snapshot",
            Self::DirectorySnapshot => "directory snapshot",
            Self::Identity => "identity file",
            Self::SegmentIndex => "index of a segment",
        })
    }
}

/// Header of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileHeader {
    /// What it is.
    pub kind: FileKind,
    /// Format version.
    pub version: u32,
    /// Features without which the file cannot be understood.
    pub features: u64,
}

/// Why a file's header is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadFileHeader {
    /// Fewer bytes than a header has.
    #[error("{kind}: {found} bytes are too few for a header of {FILE_HEADER_LEN}")]
    Truncated {
        /// What was expected.
        kind: FileKind,
        /// Bytes there are.
        found: usize,
    },
    /// Another kind of file, or none of ours.
    #[error("not a {expected} of Quorate: the file begins with {found:02x?}")]
    Magic {
        /// What was expected.
        expected: FileKind,
        /// What stands there.
        found: [u8; 8],
    },
    /// The header is damaged.
    #[error("{kind}: the header's checksum does not match")]
    Checksum {
        /// What was expected.
        kind: FileKind,
    },
    /// Written by a newer version.
    #[error("{kind} has format version {found}; this software reads versions up to {supported}: use a newer version")]
    Newer {
        /// What it is.
        kind: FileKind,
        /// Its version.
        found: u32,
        /// Newest version known here.
        supported: u32,
    },
    /// Uses features that this version does not know.
    #[error("{kind} needs features {unknown:#x} that this software does not know: use a newer version")]
    Features {
        /// What it is.
        kind: FileKind,
        /// The unknown bits.
        unknown: u64,
    },
    /// Version 0 or bytes that must be zero are not.
    #[error("{kind}: the header is malformed")]
    Malformed {
        /// What was expected.
        kind: FileKind,
    },
}

impl FileHeader {
    /// Header for a new file of this kind.
    #[must_use]
    pub const fn current(kind: FileKind) -> Self {
        Self { kind, version: kind.version(), features: 0 }
    }

    /// magic 8 · version u32 · crc32c u32 over bytes 16..32 and 0..12 · features u64 · reserved 8.
    #[must_use]
    pub fn encode(&self) -> [u8; FILE_HEADER_LEN] {
        let mut out = [0; FILE_HEADER_LEN];
        out[..8].copy_from_slice(&self.kind.magic());
        out[8..12].copy_from_slice(&self.version.to_le_bytes());
        out[16..24].copy_from_slice(&self.features.to_le_bytes());
        let crc = checksum(&out);
        out[12..16].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads the header at the start of `bytes` and checks that a file of `kind` can be read.
    ///
    /// # Errors
    /// Everything that is not a readable file of that kind, by name; a newer version names the version.
    pub fn parse(kind: FileKind, bytes: &[u8]) -> Result<Self, BadFileHeader> {
        if bytes.len() < FILE_HEADER_LEN {
            return Err(BadFileHeader::Truncated { kind, found: bytes.len() });
        }
        let magic: [u8; 8] = array(bytes, 0);
        if magic != kind.magic() {
            return Err(BadFileHeader::Magic { expected: kind, found: magic });
        }
        if checksum(bytes) != u32_at(bytes, 12) {
            return Err(BadFileHeader::Checksum { kind });
        }
        let header = Self { kind, version: u32_at(bytes, 8), features: u64_at(bytes, 16) };
        if header.version > kind.version() {
            return Err(BadFileHeader::Newer { kind, found: header.version, supported: kind.version() });
        }
        let unknown = header.features & !kind.features();
        if unknown != 0 {
            return Err(BadFileHeader::Features { kind, unknown });
        }
        if header.version == 0 || u64_at(bytes, 24) != 0 {
            return Err(BadFileHeader::Malformed { kind });
        }
        Ok(header)
    }
}

fn checksum(header: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&header[16..FILE_HEADER_LEN]), &header[..12])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_come_back() {
        for kind in FileKind::ALL {
            let header = FileHeader::current(kind);
            assert_eq!(FileHeader::parse(kind, &header.encode()), Ok(header));
        }
    }

    #[test]
    fn a_newer_version_is_refused_by_number() {
        let bytes = FileHeader { kind: FileKind::Segment, version: 7, features: 0 }.encode();
        let error = FileHeader::parse(FileKind::Segment, &bytes).unwrap_err();
        assert_eq!(error, BadFileHeader::Newer { kind: FileKind::Segment, found: 7, supported: 1 });
        assert!(error.to_string().contains("version 7"));
    }

    #[test]
    fn unknown_features_and_other_kinds_are_refused() {
        let bytes = FileHeader { kind: FileKind::Segment, version: 1, features: 4 }.encode();
        assert!(matches!(
            FileHeader::parse(FileKind::Segment, &bytes),
            Err(BadFileHeader::Features { unknown: 4, .. })
        ));
        assert!(matches!(FileHeader::parse(FileKind::Identity, &bytes), Err(BadFileHeader::Magic { .. })));
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let bytes = FileHeader::current(FileKind::KeyRun).encode();
        for bit in 0..FILE_HEADER_LEN * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(FileHeader::parse(FileKind::KeyRun, &damaged).is_err(), "bit {bit}");
        }
        for length in 0..FILE_HEADER_LEN {
            assert!(FileHeader::parse(FileKind::KeyRun, &bytes[..length]).is_err());
        }
    }
}
