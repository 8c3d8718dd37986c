//! What a load record carries, so that an independent reader can judge it: run, record number, key and
//! the number of the record within its key, and when it was due. The rest is filler that does not compress.

use bytes::{BufMut, Bytes, BytesMut};

/// Smallest record that holds a stamp.
pub const MIN_SIZE: usize = 48;

const MAGIC: u32 = 0x514C_4431; // "QLD1"

/// The readable part of a load record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Tells runs on one topic apart.
    pub run: u64,
    /// Number of the record in the run, from 0.
    pub index: u64,
    /// Key number.
    pub key: u32,
    /// Producer number.
    pub producer: u32,
    /// Number of the record within its key, from 0.
    pub key_sequence: u64,
    /// When it was due, nanoseconds after the start of the run.
    pub due_ns: u64,
}

impl Stamp {
    /// A record of `size` bytes (at least [`MIN_SIZE`]).
    #[must_use]
    pub fn encode(&self, size: usize) -> Bytes {
        let mut out = BytesMut::with_capacity(size.max(MIN_SIZE));
        out.put_u32(MAGIC);
        out.put_u32(self.producer);
        out.put_u64(self.run);
        out.put_u64(self.index);
        out.put_u64(self.key_sequence);
        out.put_u64(self.due_ns);
        out.put_u32(self.key);
        out.put_u32(u32::try_from(size).unwrap_or(u32::MAX));
        let mut filler = self.run ^ self.index.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        while out.len() + 8 <= size {
            filler = mix(filler);
            out.put_u64_le(filler);
        }
        while out.len() < size {
            out.put_u8(0x5A);
        }
        out.freeze()
    }

    /// Reads a stamp and checks the filler too; `None` for anything that [`Self::encode`] did not write.
    #[must_use]
    pub fn decode(value: &[u8]) -> Option<Self> {
        if value.len() < MIN_SIZE || be32(value, 0) != MAGIC {
            return None;
        }
        let stamp = Self {
            producer: be32(value, 4),
            run: be64(value, 8),
            index: be64(value, 16),
            key_sequence: be64(value, 24),
            due_ns: be64(value, 32),
            key: be32(value, 40),
        };
        (stamp.encode(value.len()) == value).then_some(stamp)
    }
}

/// One step of splitmix64.
fn mix(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp() -> Stamp {
        Stamp { run: 9, index: 77, key: 3, producer: 2, key_sequence: 12, due_ns: 5_000 }
    }

    #[test]
    fn a_stamp_reads_back_at_every_size() {
        for size in [MIN_SIZE, 49, 200, 1024] {
            let value = stamp().encode(size);
            assert_eq!(value.len(), size);
            assert_eq!(Stamp::decode(&value), Some(stamp()));
        }
    }

    #[test]
    fn a_changed_byte_anywhere_is_noticed() {
        let value = stamp().encode(200);
        for at in 0..value.len() {
            let mut changed = value.to_vec();
            changed[at] ^= 1;
            assert_ne!(Stamp::decode(&changed), Some(stamp()), "byte {at}");
        }
    }
}
