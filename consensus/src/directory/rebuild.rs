//! The directory made anew from what the data nodes know (M5), after the observers' disks are lost.
//!
//! A node keeps the newest directory that it was shown; it is shown one whenever nodes, topics or members change. What
//! changed since – permits, leases, releases – is in no such picture, so everything that fences is raised beyond whatever may
//! have been given out: nothing issued by the rebuilt directory is ever taken for something older.

use bytes::Bytes;
use quorate_proto::control::{Permit, PermitKind};
use quorate_proto::ids::{DirectoryVersion, GroupId, Incarnation, NodeId, PermitEpoch, ReplicaId, TaskId};
use quorate_proto::refusal::{Reason, Refusal};
use quorate_proto::time::LogTime;
use quorate_proto::v1::AuditRecord;

use super::command::Lease;
use super::{Applied, Directory};

/// Versions grow with every lease and permit; so many of them cannot have passed since a node was shown the directory.
const VERSION_JUMP: u64 = 1 << 40;
/// Permits are at least half a second apart: six days of them.
const EPOCH_JUMP: u64 = 1 << 20;
/// Groups, replicas and tasks that no node has heard of.
const ID_JUMP: u64 = 1 << 10;

/// What the nodes report of one partition.
#[derive(Clone, Debug, Default)]
pub struct Traces {
    /// The newest permit epoch that any replica has seen or won with.
    pub epoch: PermitEpoch,
    /// The leader of the greatest term, if one leads.
    pub leads: Option<Lease>,
}

impl Directory {
    /// No topic was ever made in it.
    #[must_use]
    pub fn is_blank(&self) -> bool {
        self.topics.is_empty() && self.partitions.is_empty()
    }

    /// For data nodes to keep: without the history of failovers.
    #[must_use]
    pub fn for_nodes(&self) -> Bytes {
        let mut kept = self.clone();
        kept.failovers.clear();
        kept.encode()
    }

    /// This directory, as a node kept it, raised beyond everything that anybody may have seen. `traces`: what the replicas of a
    /// partition report; `incarnations`: of the nodes that run now; `groups`: greatest group and replica id found on them.
    #[must_use]
    pub fn raised(
        &self,
        own: DirectoryVersion,
        traces: impl Fn(GroupId) -> Traces,
        incarnation: impl Fn(NodeId) -> Incarnation,
        newest: (GroupId, ReplicaId),
    ) -> Self {
        let mut raised = self.clone();
        raised.version = DirectoryVersion(self.version.max(own).get().saturating_add(VERSION_JUMP));
        raised.topology = raised.version;
        raised.next_group = GroupId(self.next_group.max(newest.0.next()).get().saturating_add(ID_JUMP));
        raised.next_replica = ReplicaId(self.next_replica.max(newest.1.next()).get().saturating_add(ID_JUMP));
        raised.next_task = TaskId(self.next_task.get().saturating_add(ID_JUMP));
        for partition in raised.partitions.values_mut() {
            let Traces { epoch, leads } = traces(partition.group);
            partition.permit_epoch = PermitEpoch(partition.permit_epoch.max(epoch).get().saturating_add(EPOCH_JUMP));
            // L1: whoever leads now has the right to the lease of its term; an older one has not.
            if let Some(leads) = leads.filter(|leads| partition.lease.is_none_or(|last| leads.term > last.term)) {
                partition.lease = Some(leads);
            }
            // V1c: any replica may have been permitted since. None is known to be over until it dies, or releases.
            let holders: Vec<(ReplicaId, NodeId)> = partition.all().collect();
            for (candidate, node) in holders {
                partition.uncleared.retain(|permit| permit.candidate != candidate);
                partition.uncleared.push(Permit {
                    group: partition.group,
                    epoch: partition.permit_epoch,
                    candidate,
                    candidate_incarnation: incarnation(node),
                    config_version: partition.config_version,
                    basis: Vec::new(),
                    clear: false,
                    kind: PermitKind::Normal,
                    planned: None,
                });
            }
        }
        raised
    }

    pub(super) fn rebuild(
        &mut self,
        at: LogTime,
        state: &Bytes,
        principal: String,
        effect: String,
    ) -> Result<Applied, Refusal> {
        let refuse = |what: String| {
            Refusal::new(Reason::PlanStale, what, "the directory", "call again without a plan, and look at the effect")
        };
        if !self.is_blank() {
            return Err(refuse("the observers have a directory".to_owned()));
        }
        let rebuilt = Self::decode(state).map_err(|error| refuse(error.to_string()))?;
        if rebuilt.cluster != self.cluster || rebuilt.version <= self.version {
            return Err(refuse("it is of another cluster, or not newer than this one".to_owned()));
        }
        *self = Self { applied: self.applied, ..rebuilt };
        self.record_audit(AuditRecord {
            at_us: at.0,
            principal,
            verb: "observer rebuild".to_owned(),
            subject: "the directory".to_owned(),
            arguments: "--from-nodes".to_owned(),
            effect,
            ..AuditRecord::default()
        });
        Ok(Applied::Rebuilt)
    }
}
