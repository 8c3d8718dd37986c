//! Digest chain over what a partition stored.

use std::fmt;

use bytes::Bytes;

/// BLAKE3 chain: hash of the previous digest, the stored prefix and the batch as it came, for each batch that got
/// an offset. So it is a function of the log up to the high watermark; all zero at offset 0.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// The digest after one more stored batch.
    #[must_use]
    pub fn chain(self, prefix: &[u8], body: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.0).update(prefix).update(body);
        Self(*hasher.finalize().as_bytes())
    }

    /// The bytes, for reports and state.
    #[must_use]
    pub fn to_bytes(self) -> Bytes {
        Bytes::copy_from_slice(&self.0)
    }

    /// From 32 bytes.
    #[must_use]
    pub fn from_slice(bytes: &[u8]) -> Option<Self> {
        Some(Self(bytes.try_into().ok()?))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}
