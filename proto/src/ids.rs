//! Identifiers and counters. `u64` ids of groups and replicas are counters of the directory and are
//! never reused; 0 is unused and stands for "none" on the wire only.

use std::fmt;

macro_rules! counter {
    ($(#[$doc:meta])* $name:ident($inner:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl $name {
            /// The smallest value; on the wire "none" where the field says so.
            pub const ZERO: Self = Self(0);

            /// The value after this one.
            ///
            /// # Panics
            /// On overflow: a counter that wraps would break uniqueness.
            #[must_use]
            pub const fn next(self) -> Self {
                match self.0.checked_add(1) {
                    Some(value) => Self(value),
                    None => panic!("counter exhausted"),
                }
            }

            /// The number itself.
            #[must_use]
            pub const fn get(self) -> $inner {
                self.0
            }

            /// `None` for 0, which means "none" on the wire.
            #[must_use]
            pub const fn non_zero(self) -> Option<Self> {
                if self.0 == 0 { None } else { Some(self) }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

macro_rules! random_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u128);

        impl $name {
            /// All zero: "none".
            pub const NONE: Self = Self(0);

            /// Big-endian bytes, as on the wire.
            #[must_use]
            pub const fn to_bytes(self) -> [u8; 16] {
                self.0.to_be_bytes()
            }

            /// From the 16 bytes of the wire; `None` if the length is not 16.
            #[must_use]
            pub fn from_slice(bytes: &[u8]) -> Option<Self> {
                Some(Self(u128::from_be_bytes(bytes.try_into().ok()?)))
            }

            /// From 32 hexadecimal digits.
            #[must_use]
            pub fn from_hex(text: &str) -> Option<Self> {
                if text.len() != 32 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
                    return None;
                }
                u128::from_str_radix(text, 16).ok().map(Self)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:032x}", self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:032x})"), self.0)
            }
        }
    };
}

random_id! {
    /// Identity of a cluster: 128 random bits, drawn when it is first set up.
    ClusterId
}
random_id! {
    /// Identity of a topic: 128 random bits; a re-created namesake has another one.
    TopicId
}
random_id! {
    /// Identity of a producer: 128 random bits made by the SDK (protocol I1).
    ProducerId
}
random_id! {
    /// Identity of a data directory (disk): 128 random bits, drawn when it is formatted.
    DiskId
}
random_id! {
    /// Makes a mutating call harmless when it arrives twice.
    OperationId
}

counter! {
    /// A Raft group: the incarnation of a partition. Never reused.
    GroupId(u64), "group "
}
counter! {
    /// A replica of a group: what raft-rs calls a node id. Never reused, also not after a lost disk (M1).
    ReplicaId(u64), "replica "
}
counter! {
    /// A data node or observer, numbered by its operator from 1.
    NodeId(u64), "node "
}
counter! {
    /// How often a node's process has started; raised before the first message (B1).
    Incarnation(u64), "incarnation "
}
counter! {
    /// Raft term; for clients the *leader epoch*.
    Term(u64), "term "
}
counter! {
    /// Index in a Raft log.
    LogIndex(u64), "index "
}
counter! {
    /// Permit epoch: grows per partition (P1).
    PermitEpoch(u64), "permit epoch "
}
counter! {
    /// Version of a group's membership.
    ConfigVersion(u64), "configuration "
}
counter! {
    /// A long task of the observers: the change of a partition's members. Counted by the directory, never reused.
    TaskId(u64), "task "
}
counter! {
    /// Version of the directory; messages with an older one are ignored.
    DirectoryVersion(u64), "directory version "
}
counter! {
    /// Offset of a record in its partition, from 0, without gaps.
    Offset(u64), "offset "
}
counter! {
    /// Sequence number of a record within (partition, producer, epoch), from 0 (I3).
    Sequence(u64), "sequence "
}
counter! {
    /// Epoch of a producer; raised to give up everything older (I4).
    ProducerEpoch(u32), "producer epoch "
}
counter! {
    /// Number of a partition within its topic, from 0.
    PartitionNo(u32), "partition "
}
counter! {
    /// Names one durable write of one group; acknowledged by the WAL in order.
    PersistId(u64), "persist "
}
counter! {
    /// Names one request that waits for an answer, unique within a process.
    Ticket(u64), "ticket "
}
counter! {
    /// Finalized feature level of the cluster.
    FeatureLevel(u32), "feature level "
}

impl GroupId {
    /// The observers' own group; partitions are numbered after it.
    pub const DIRECTORY: Self = Self(1);
}
