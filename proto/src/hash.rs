//! Truncated BLAKE3 hashes that stand in a batch's table, outside the compressed part.

use std::fmt;

macro_rules! hash {
    ($(#[$doc:meta])* $name:ident($inner:ty), $width:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl $name {
            /// "None".
            pub const NONE: Self = Self(0);

            /// True for [`Self::NONE`].
            #[must_use]
            pub const fn is_none(self) -> bool {
                self.0 == 0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!("{:0", $width, "x}"), self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:0", $width, "x})"), self.0)
            }
        }
    };
}

hash! {
    /// Idempotency key: the first 16 bytes of its BLAKE3 hash, little-endian. Identity in the key window (I7).
    KeyHash(u128), "32"
}
hash! {
    /// Record key: the first 8 bytes of its BLAKE3 hash, little-endian.
    RecordKeyHash(u64), "16"
}
hash! {
    /// Record key and payload: tells a repetition from a conflict (I7).
    PayloadHash(u64), "16"
}

/// Hash of an idempotency key. Never [`KeyHash::NONE`].
#[must_use]
pub fn key_hash(idempotency_key: &[u8]) -> KeyHash {
    let value = u128::from_le_bytes(first(&blake3::hash(idempotency_key)));
    KeyHash(value.max(1))
}

/// Hash of a record key. Never [`RecordKeyHash::NONE`].
#[must_use]
pub fn record_key_hash(record_key: &[u8]) -> RecordKeyHash {
    let value = u64::from_le_bytes(first(&blake3::hash(record_key)));
    RecordKeyHash(value.max(1))
}

/// Hash over record key and payload, never headers, times or codec (I7). Never [`PayloadHash::NONE`].
/// Input: the key's length as u64 little-endian (all ones = no key), the key, the payload.
#[must_use]
pub fn payload_hash(record_key: Option<&[u8]>, payload: &[u8]) -> PayloadHash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&record_key.map_or(u64::MAX, |key| key.len() as u64).to_le_bytes());
    hasher.update(record_key.unwrap_or_default());
    hasher.update(payload);
    let value = u64::from_le_bytes(first(&hasher.finalize()));
    PayloadHash(value.max(1))
}

fn first<const N: usize>(hash: &blake3::Hash) -> [u8; N] {
    crate::le::array(hash.as_bytes(), 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_the_key_ends_is_part_of_the_payload_hash() {
        assert_ne!(payload_hash(Some(b"ab"), b"c"), payload_hash(Some(b"a"), b"bc"));
        assert_ne!(payload_hash(None, b"x"), payload_hash(Some(b""), b"x"));
    }

    #[test]
    fn hashes_are_what_the_documentation_says() {
        // BLAKE3 of the empty input begins af1349b9f5f9a1a6a0404dea36dcc949.
        assert_eq!(
            key_hash(b"").0,
            u128::from_le_bytes(*b"\xaf\x13\x49\xb9\xf5\xf9\xa1\xa6\xa0\x40\x4d\xea\x36\xdc\xc9\x49")
        );
        assert_eq!(record_key_hash(b"").0, u64::from_le_bytes(*b"\xaf\x13\x49\xb9\xf5\xf9\xa1\xa6"));
    }
}
