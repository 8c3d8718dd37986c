//! Heartbeats, replica reports and leases.

use std::time::Duration;

use super::{all, micros, required, ConvertError};
use crate::control::{Heartbeat, LeaseAnswer, LeaseItem, LeaseRequest, LeaseVerdict, ReplicaReport, Role, Room};
use crate::ids::{ConfigVersion, GroupId, LogIndex, Offset, PermitEpoch, ReplicaId, Term};
use crate::internal as wire;
use crate::time::{BootTime, LogTime};

impl From<ReplicaReport> for wire::ReplicaReport {
    fn from(report: ReplicaReport) -> Self {
        Self {
            group_id: report.group.get(),
            replica: report.replica.get(),
            term: report.term.get(),
            role: match report.role {
                Role::Follower => 0,
                Role::Candidate => 1,
                Role::Leader => 2,
                Role::Quarantined => 3,
            },
            leader: report.leader.map_or(0, ReplicaId::get),
            won_epoch: report.won_epoch.get(),
            last_term: report.last_term.get(),
            last_index: report.last_index.get(),
            committed: report.committed.get(),
            applied: report.applied.get(),
            hears_quorum: report.hears_quorum,
            fence_lost: report.fence_lost,
            leader_silent: report.leader_silent,
            suspect_log: report.suspect_log,
            resigned_for_fence: report.resigned_for_fence,
            seen_epoch: report.seen_epoch.get(),
            serving: report.serving,
            lease_remaining_us: micros(report.lease_remaining),
            high_watermark: report.high_watermark.get(),
            digest: report.digest,
            wants_permit: report.wants_permit,
            matched: report
                .matched
                .into_iter()
                .map(|(replica, index)| wire::Matched { replica: replica.get(), index: index.get() })
                .collect(),
            config_version: report.config_version.get(),
            learner: report.learner,
            change: report.change.map(Into::into),
        }
    }
}

impl TryFrom<wire::ReplicaReport> for ReplicaReport {
    type Error = ConvertError;

    fn try_from(raw: wire::ReplicaReport) -> Result<Self, ConvertError> {
        Ok(Self {
            group: required(GroupId(raw.group_id).non_zero(), "ReplicaReport", "group_id")?,
            replica: required(ReplicaId(raw.replica).non_zero(), "ReplicaReport", "replica")?,
            term: Term(raw.term),
            role: match raw.role {
                0 => Role::Follower,
                1 => Role::Candidate,
                2 => Role::Leader,
                3 => Role::Quarantined,
                other => return Err(ConvertError::new("ReplicaReport", "role", format!("unknown value {other}"))),
            },
            leader: ReplicaId(raw.leader).non_zero(),
            won_epoch: PermitEpoch(raw.won_epoch),
            last_term: Term(raw.last_term),
            last_index: LogIndex(raw.last_index),
            committed: LogIndex(raw.committed),
            applied: LogIndex(raw.applied),
            hears_quorum: raw.hears_quorum,
            fence_lost: raw.fence_lost,
            leader_silent: raw.leader_silent,
            suspect_log: raw.suspect_log,
            resigned_for_fence: raw.resigned_for_fence,
            seen_epoch: PermitEpoch(raw.seen_epoch),
            serving: raw.serving,
            lease_remaining: Duration::from_micros(raw.lease_remaining_us),
            high_watermark: Offset(raw.high_watermark),
            digest: raw.digest,
            wants_permit: raw.wants_permit,
            matched: raw.matched.into_iter().map(|m| (ReplicaId(m.replica), LogIndex(m.index))).collect(),
            config_version: ConfigVersion(raw.config_version),
            learner: raw.learner,
            change: raw.change.map(TryInto::try_into).transpose()?,
        })
    }
}

impl From<Heartbeat> for wire::Heartbeat {
    fn from(beat: Heartbeat) -> Self {
        Self {
            seq: beat.seq,
            sent: beat.sent.0,
            wal_age_us: micros(beat.wal_age),
            disk_ok: beat.disk_ok,
            draining: beat.draining,
            reports: beat.reports.into_iter().map(Into::into).collect(),
            partial: beat.partial,
            room: beat.room.number(),
        }
    }
}

impl TryFrom<wire::Heartbeat> for Heartbeat {
    type Error = ConvertError;

    fn try_from(raw: wire::Heartbeat) -> Result<Self, ConvertError> {
        Ok(Self {
            seq: raw.seq,
            sent: BootTime(raw.sent),
            wal_age: Duration::from_micros(raw.wal_age_us),
            disk_ok: raw.disk_ok,
            draining: raw.draining,
            reports: all(raw.reports)?,
            partial: raw.partial,
            room: Room::from_number(raw.room),
        })
    }
}

impl From<LeaseItem> for wire::LeaseItem {
    fn from(item: LeaseItem) -> Self {
        Self {
            group_id: item.group.get(),
            replica: item.replica.get(),
            term: item.term.get(),
            permit_epoch: item.permit_epoch.get(),
        }
    }
}

impl TryFrom<wire::LeaseItem> for LeaseItem {
    type Error = ConvertError;

    fn try_from(raw: wire::LeaseItem) -> Result<Self, ConvertError> {
        Ok(Self {
            group: required(GroupId(raw.group_id).non_zero(), "LeaseItem", "group_id")?,
            replica: required(ReplicaId(raw.replica).non_zero(), "LeaseItem", "replica")?,
            term: required(Term(raw.term).non_zero(), "LeaseItem", "term")?,
            permit_epoch: PermitEpoch(raw.permit_epoch),
        })
    }
}

impl From<LeaseRequest> for wire::LeaseRequest {
    fn from(request: LeaseRequest) -> Self {
        Self {
            sent: request.sent.0,
            write_proof: request.write_proof,
            items: request.items.into_iter().map(Into::into).collect(),
        }
    }
}

impl TryFrom<wire::LeaseRequest> for LeaseRequest {
    type Error = ConvertError;

    fn try_from(raw: wire::LeaseRequest) -> Result<Self, ConvertError> {
        Ok(Self { sent: BootTime(raw.sent), write_proof: raw.write_proof, items: all(raw.items)? })
    }
}

impl From<LeaseAnswer> for wire::LeaseAnswer {
    fn from(answer: LeaseAnswer) -> Self {
        let result = |(group, term, verdict): (GroupId, Term, LeaseVerdict)| wire::LeaseResult {
            group_id: group.get(),
            term: term.get(),
            verdict: match verdict {
                LeaseVerdict::Granted => 0,
                LeaseVerdict::Superseded => 1,
                LeaseVerdict::NotNow => 2,
            },
            reason: String::new(),
        };
        Self {
            sent: answer.sent.0,
            cluster_time_us: answer.cluster_time.0,
            results: answer.results.into_iter().map(result).collect(),
        }
    }
}

impl TryFrom<wire::LeaseAnswer> for LeaseAnswer {
    type Error = ConvertError;

    fn try_from(raw: wire::LeaseAnswer) -> Result<Self, ConvertError> {
        let result = |result: wire::LeaseResult| {
            let group = required(GroupId(result.group_id).non_zero(), "LeaseResult", "group_id")?;
            let verdict = match result.verdict {
                0 => LeaseVerdict::Granted,
                1 => LeaseVerdict::Superseded,
                2 => LeaseVerdict::NotNow,
                other => return Err(ConvertError::new("LeaseResult", "verdict", format!("unknown value {other}"))),
            };
            Ok((group, Term(result.term), verdict))
        };
        Ok(Self {
            sent: BootTime(raw.sent),
            cluster_time: LogTime(raw.cluster_time_us),
            results: raw.results.into_iter().map(result).collect::<Result<_, ConvertError>>()?,
        })
    }
}
