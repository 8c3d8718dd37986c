//! The protocol's durations with their defaults and the rules between them (`1-mission`, `2-protocol`).

use std::time::Duration;

/// All durations of the protocol. Every field is validated by [`Timing::validate`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timing {
    /// One Raft tick.
    pub tick: Duration,
    /// Raft heartbeat of a leader.
    pub raft_heartbeat: Duration,
    /// Autonomous time-out: earliest. A replica then *asks* for a permit (V4).
    pub election_min: Duration,
    /// Autonomous time-out: latest.
    pub election_max: Duration,
    /// F: a leader without majority contact for this long stops serving.
    pub fence: Duration,
    /// D: margin for scheduling between fence and vote.
    pub margin: Duration,
    /// R: a fenced leader resigns after this much more.
    pub resign: Duration,
    /// A leader without a valid lease resigns after this.
    pub lease_resign: Duration,
    /// Lease as the observers grant it.
    pub lease: Duration,
    /// The holder counts this much less.
    pub lease_margin: Duration,
    /// First renewal.
    pub lease_renew: Duration,
    /// Further renewals.
    pub lease_retry: Duration,
    /// Data node → observers.
    pub node_heartbeat: Duration,
    /// Missed heartbeats that make a node suspect.
    pub missed_heartbeats: u32,
    /// A permit is valid this long from its first receipt, on the candidate's clock.
    pub permit_valid: Duration,
    /// A permit holder tries again this often.
    pub campaign_retry: Duration,
    /// Oldest report that makes a candidate.
    pub report_age: Duration,
    /// Arbiter's net, and the observers' exchange of last-heard tables.
    pub arbiter_tick: Duration,
    /// M2: a member that is lost for so long is repaired without being asked.
    pub repair_after: Duration,
    /// WAL flush in flight for longer: fence and hand away (B4).
    pub wal_stall: Duration,
    /// A flush this recent is proof of life (L4).
    pub write_proof: Duration,
    /// Observers' own election time-out: earliest.
    pub observer_election_min: Duration,
    /// Observers' own election time-out: latest.
    pub observer_election_max: Duration,
    /// Observers' tick.
    pub observer_tick: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        let ms = Duration::from_millis;
        Self {
            tick: ms(100),
            raft_heartbeat: ms(200),
            election_min: ms(12_000),
            election_max: ms(15_000),
            fence: ms(1_200),
            margin: ms(150),
            resign: ms(300),
            lease_resign: ms(1_000),
            lease: ms(8_000),
            lease_margin: ms(250),
            lease_renew: ms(5_000),
            lease_retry: ms(500),
            node_heartbeat: ms(500),
            missed_heartbeats: 3,
            permit_valid: ms(5_000),
            campaign_retry: ms(50),
            report_age: ms(700),
            arbiter_tick: ms(100),
            repair_after: ms(30_000),
            wal_stall: ms(1_000),
            write_proof: ms(1_000),
            observer_election_min: ms(400),
            observer_election_max: ms(800),
            observer_tick: ms(20),
        }
    }
}

impl Timing {
    /// Checks the rules between the values.
    ///
    /// # Errors
    /// One text per clash, naming both values.
    pub fn validate(&self) -> Result<(), Vec<String>> {
        let mut clashes = Vec::new();
        let mut less = |a: (&str, Duration), b: (&str, Duration)| {
            if a.1 >= b.1 {
                clashes.push(format!("{} ({:?}) must be less than {} ({:?})", a.0, a.1, b.0, b.1));
            }
        };
        let suspicion = self.node_heartbeat * self.missed_heartbeats;
        less(("fence", self.fence), ("node_heartbeat × missed_heartbeats", suspicion));
        less(("lease_renew", self.lease_renew), ("lease − lease_margin", self.lease.saturating_sub(self.lease_margin)));
        less(("lease", self.lease), ("election_min", self.election_min));
        less(("election_min", self.election_min), ("election_max", self.election_max));
        less(("tick", self.tick), ("raft_heartbeat", self.raft_heartbeat));
        less(("raft_heartbeat × 4", self.raft_heartbeat * 4), ("fence", self.fence));
        less(("lease_retry", self.lease_retry), ("lease − lease_renew", self.lease.saturating_sub(self.lease_renew)));
        less(("permit_valid", self.permit_valid), ("election_min", self.election_min));
        less(("margin", self.margin), ("fence", self.fence));
        less(("observer_tick × 4", self.observer_tick * 4), ("observer_election_min", self.observer_election_min));
        less(
            ("observer_election_min", self.observer_election_min),
            ("observer_election_max", self.observer_election_max),
        );
        if clashes.is_empty() {
            Ok(())
        } else {
            Err(clashes)
        }
    }
}
