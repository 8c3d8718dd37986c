//! What data nodes, observers and voters tell each other: permits and the facts they rest on,
//! leases, reports, assignments. Plain data; the rules live in `consensus`.

mod members;
mod observers;

use std::fmt;

use bytes::Bytes;

use crate::ids::{
    ClusterId, ConfigVersion, DirectoryVersion, DiskId, GroupId, Incarnation, LogIndex, NodeId, Offset, PermitEpoch,
    ReplicaId, Term,
};
use crate::time::{BootTime, LogTime};

pub use members::{Assignment, Assignments, Change, ChangePhase, ChangeReport, PeerInfo};
pub use observers::{Attendance, LastHeard, Life, Memory, ObserverInfo};

/// A fact that ended the leadership of a replica (P1). Voters take it only from a committed permit, or from
/// the leader's own release, received from it or relayed with the vote request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ended {
    /// The replica released this term and every older one: it never serves in them again (H1, F3).
    Released {
        /// Who led.
        replica: ReplicaId,
        /// The newest term released.
        term: Term,
    },
    /// This incarnation of the node that hosts the replica, and every older one, is dead (S2).
    Dead {
        /// Who led.
        replica: ReplicaId,
        /// Newest incarnation known to be dead.
        incarnation: Incarnation,
    },
}

/// What an election under a permit may overlook.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum PermitKind {
    /// Nothing.
    #[default]
    Normal,
    /// All replicas' logs were reported; a suspect log may vote (B2).
    FullAttendance,
    /// Issued by an operator, audited.
    BreakGlass,
}

/// A permit for a planned handoff (H1): it counts only once this very term is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Planned {
    /// The leader that is to hand over …
    pub from: ReplicaId,
    /// … and its term.
    pub term: Term,
    /// The winner's first lease counts from here: when the candidate sent the report that the permit rests on, on the
    /// candidate's own clock.
    pub lease_from: BootTime,
}

/// Consent of the observers to one election, committed in their log (P1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permit {
    /// The partition.
    pub group: GroupId,
    /// Grows per partition. Elects at most one leader.
    pub epoch: PermitEpoch,
    /// The only replica that may campaign under it …
    pub candidate: ReplicaId,
    /// … in this incarnation of its node.
    pub candidate_incarnation: Incarnation,
    /// Membership that the observers knew.
    pub config_version: ConfigVersion,
    /// What ended each earlier leader, as far as known.
    pub basis: Vec<Ended>,
    /// Every earlier permit holder of this partition is released or dead (V1c).
    pub clear: bool,
    /// What may be overlooked.
    pub kind: PermitKind,
    /// Set for a planned handoff.
    pub planned: Option<Planned>,
}

/// What a replica is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Follows, or waits for a leader.
    #[default]
    Follower,
    /// Campaigns under a permit.
    Candidate,
    /// Raft leader; serves only under F1.
    Leader,
    /// Set aside because its data cannot be trusted (M3); takes no part.
    Quarantined,
}

/// One replica's state as its node reports it (P2).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicaReport {
    /// The partition.
    pub group: GroupId,
    /// The replica.
    pub replica: ReplicaId,
    /// Its Raft term.
    pub term: Term,
    /// What it is doing.
    pub role: Role,
    /// Leader it follows, itself included.
    pub leader: Option<ReplicaId>,
    /// Epoch with which that leader won.
    pub won_epoch: PermitEpoch,
    /// Last flushed position: term …
    pub last_term: Term,
    /// … and index.
    pub last_index: LogIndex,
    /// Commit index.
    pub committed: LogIndex,
    /// Applied index.
    pub applied: LogIndex,
    /// Frames came from a majority of the replicas' nodes within F, itself included.
    pub hears_quorum: bool,
    /// A leader whose fence is closed for lack of contact.
    pub fence_lost: bool,
    /// A follower that has not heard its leader for more than F.
    pub leader_silent: bool,
    /// Its log may have lost flushed entries (B2): it only vetoes.
    pub suspect_log: bool,
    /// It resigned for a lost fence within the last 10 s.
    pub resigned_for_fence: bool,
    /// Newest permit epoch seen.
    pub seen_epoch: PermitEpoch,
    /// F1 holds now.
    pub serving: bool,
    /// Rest of its lease.
    pub lease_remaining: std::time::Duration,
    /// Offset after the last committed and applied record.
    pub high_watermark: Offset,
    /// Digest chain at `high_watermark`; empty if unknown.
    pub digest: Bytes,
    /// It would campaign if it were permitted: its autonomous time-out ran out (V4).
    pub wants_permit: bool,
    /// Leader only: matched index by replica.
    pub matched: Vec<(ReplicaId, LogIndex)>,
    /// Membership it has applied.
    pub config_version: ConfigVersion,
    /// It is no voter of the membership that it applied: a learner, or removed.
    pub learner: bool,
    /// Leader only, while a change is known to it.
    pub change: Option<ChangeReport>,
}

/// How much room a node's disks have left (B5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Room {
    /// Enough.
    #[default]
    Ample,
    /// Below the soft mark: no publishes are taken, leaders go elsewhere.
    Scarce,
    /// Below the hard mark: nothing that carries records is appended.
    Full,
}

impl Room {
    /// All of them, by number.
    pub const ALL: [Self; 3] = [Self::Ample, Self::Scarce, Self::Full];

    /// Its number on the wire and in metrics.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            Self::Ample => 0,
            Self::Scarce => 1,
            Self::Full => 2,
        }
    }

    /// The room of this number; what is not known is the worst.
    #[must_use]
    pub fn from_number(number: u32) -> Self {
        Self::ALL.into_iter().find(|room| room.number() == number).unwrap_or(Self::Full)
    }
}

impl fmt::Display for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ample => "ample",
            Self::Scarce => "nearly full",
            Self::Full => "full",
        })
    }
}

/// A data node's beat to every observer. Travels through shard and WAL queue as a token first (B4).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heartbeat {
    /// Counts beats of this session.
    pub seq: u64,
    /// Node's clock at sending.
    pub sent: BootTime,
    /// Age of the oldest flush in flight when the token came through; zero = none in flight.
    pub wal_age: std::time::Duration,
    /// No append or flush error, no stall.
    pub disk_ok: bool,
    /// The node is being drained.
    pub draining: bool,
    /// Replicas of the node.
    pub reports: Vec<ReplicaReport>,
    /// `reports` holds only those that changed.
    pub partial: bool,
    /// Room on the node's disks (B5).
    pub room: Room,
}

/// One lease wanted or renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeaseItem {
    /// The partition.
    pub group: GroupId,
    /// The leader that asks.
    pub replica: ReplicaId,
    /// Its term.
    pub term: Term,
    /// The epoch it won with.
    pub permit_epoch: PermitEpoch,
}

/// All renewals of a node in one message (L3).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseRequest {
    /// Holder's clock when it sent this: the lease counts from here (L2).
    pub sent: BootTime,
    /// A flush was completed within the last second (L4).
    pub write_proof: bool,
    /// What is asked for.
    pub items: Vec<LeaseItem>,
}

/// The observers' answer to one lease item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseVerdict {
    /// Valid for 8 s from `sent`.
    Granted,
    /// Another leader superseded this one, or the term was released: final, resign (F3).
    Superseded,
    /// Not now (no proof of life, no majority of observers …): ask again.
    NotNow,
}

/// Answer to a [`LeaseRequest`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseAnswer {
    /// `sent` of the request.
    pub sent: BootTime,
    /// The observers' median wall clock (W5).
    pub cluster_time: LogTime,
    /// One verdict per item.
    pub results: Vec<(GroupId, Term, LeaseVerdict)>,
}

/// Who a data node is; the first message of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Must equal the observers' own.
    pub cluster: ClusterId,
    /// The node.
    pub node: NodeId,
    /// Its name.
    pub name: String,
    /// Raised at every start.
    pub incarnation: Incarnation,
    /// Identity of its data directory.
    pub disk: DiskId,
    /// host:port for clients.
    pub address: String,
    /// host:port for other nodes.
    pub peer_address: String,
    /// Rack, host or zone.
    pub fault_domain: String,
    /// Proof that this incarnation holds the lock that the last one held (S2).
    pub lock: LockProof,
    /// BLAKE3 of the supervisor's secret, hexadecimal; empty = no supervisor.
    pub supervisor_hash: String,
    /// Software version.
    pub version: String,
    /// Process id, for operators on the same host.
    pub pid: u32,
    /// Its data directory holds no replica: it may take the place of a lost one (M1).
    pub fresh: bool,
    /// Version of the newest directory that it keeps (M5); zero = none. Left out in the directory.
    pub knows: DirectoryVersion,
    /// When that directory was begun, which tells it from another one. Left out in the directory.
    pub knows_born: LogTime,
}

/// Names an exclusively locked data directory on one boot of one host. Equal proofs of two incarnations
/// show that the older process is gone: the kernel gave its lock to the newer one (S2).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockProof {
    /// Kernel's boot id.
    pub boot_id: String,
    /// Device of the lock file.
    pub dev: u64,
    /// Inode of the lock file.
    pub ino: u64,
}

/// The supervisor's word that a node process is gone (S2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExitNotice {
    /// The node.
    pub node: NodeId,
    /// The incarnation that exited.
    pub incarnation: Incarnation,
    /// Shows that it comes from that very node's supervisor.
    pub secret: String,
    /// Exit code (≥ 0) or minus the signal.
    pub status: i32,
}

/// What a data node sends on its session, after [`Hello`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionUp {
    /// Who I am. First.
    Hello(Hello),
    /// Beat with reports.
    Heartbeat(Heartbeat),
    /// Leases wanted.
    Lease(LeaseRequest),
    /// A leader released its term (H1), for a lost fence or not (F3).
    Release {
        /// The partition.
        group: GroupId,
        /// Who led.
        replica: ReplicaId,
        /// The term that is over.
        term: Term,
        /// For lack of contact.
        for_fence: bool,
        /// How long a flush of its log has hung, if one does; since then it acknowledged nothing (B4).
        stood: std::time::Duration,
    },
    /// The autonomous time-out ran out: please permit somebody (V4).
    AskPermit {
        /// The partition.
        group: GroupId,
        /// Who asks.
        replica: ReplicaId,
    },
    /// Marks of a failover, once the first acknowledgement is out.
    Phases(ElectionMarks),
    /// The newest directory that this node keeps, encoded: for observers that have an older one, or none (M5).
    Directory(Bytes),
}

/// What an observer sends on a data node's session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionDown {
    /// The session is open.
    Welcome {
        /// Who answers.
        observer: NodeId,
        /// The observer that leads, if known.
        observer_leader: Option<NodeId>,
        /// Cluster time, for the log.
        cluster_time: LogTime,
    },
    /// The session is refused; `fatal` = do not come back with this identity.
    Refused {
        /// Readable.
        reason: String,
        /// Stop, do not restart.
        fatal: bool,
        /// The node's incarnation must be greater than this: raise it and start anew (a replaced disk, M1).
        raise_above: Option<Incarnation>,
    },
    /// Committed permits. Only the observer leader sends them, to every replica's node.
    Permits(Vec<Permit>),
    /// Answer to a lease request.
    Lease(LeaseAnswer),
    /// What to host.
    Assignments(Assignments),
    /// The directory, encoded, for the node to keep; without content: tell what you keep (M5).
    Directory(Bytes),
    /// Beat received.
    HeartbeatAck {
        /// Which.
        seq: u64,
        /// Its `sent`.
        sent: BootTime,
        /// Cluster time when it was received.
        cluster_time: LogTime,
        /// The observer that leads, if known.
        observer_leader: Option<NodeId>,
        /// By the observer leader to a draining node: no other node can take its leaders now.
        nobody_else: bool,
    },
}

/// When, on the new leader's clock after the permit's receipt, each step of its election was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ElectionMarks {
    /// The partition.
    pub group: GroupId,
    /// The new term.
    pub term: Term,
    /// The permit used.
    pub permit_epoch: PermitEpoch,
    /// Votes of a majority.
    pub elected: std::time::Duration,
    /// Its own no-op applied.
    pub noop_committed: std::time::Duration,
    /// First lease in hand.
    pub lease: std::time::Duration,
    /// First publish acknowledged.
    pub first_ack: std::time::Duration,
    /// When the former leader last served, as far as it is known here.
    pub served: Option<LastServed>,
}

/// When a former leader last served, as its successor saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastServed {
    /// Its last record was applied, or the first one began to wait, so many microseconds after the permit's receipt;
    /// negative: before it.
    pub last_us: i64,
    /// There were entries that it had not committed: publishes waited. Otherwise it may have had nothing to do.
    pub waited: bool,
}
