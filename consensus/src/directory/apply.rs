//! Commands change the machine here, deterministically: nothing but the command and the state decides.

use quorate_proto::control::{Hello, LockProof, Permit};
use quorate_proto::ids::{
    ClusterId, GroupId, Incarnation, LogIndex, NodeId, OperationId, PartitionNo, PermitEpoch, ReplicaId, TaskId, Term,
    TopicId,
};
use quorate_proto::refusal::Refusal;
use quorate_proto::time::LogTime;
use quorate_proto::v1::{AuditRecord, Failover, Reason};

use super::command::{CommandKind, Death, DirectoryCommand, Lease, Placement};
use super::{Directory, Node, Partition, Topic, AUDIT_KEPT, FAILOVERS_KEPT, OPERATIONS_KEPT, PARTITIONS_MAX};
use crate::policy::{Policy, Production, Rule};

/// What a command did.
#[derive(Clone, Debug, PartialEq)]
pub enum Applied {
    /// The cluster has its identity.
    Bootstrapped,
    /// A node is registered.
    Registered {
        /// Which.
        node: NodeId,
        /// Its older incarnation that is dead by this (S2).
        died: Option<Incarnation>,
    },
    /// The topic is there, from this call or from an earlier copy of it.
    Topic(TopicId),
    /// Permits issued; those of the command that came too late are missing.
    Permits {
        /// The death recorded with them, if it was news.
        died: Option<(NodeId, Incarnation)>,
        /// With basis and `clear` as the log has them.
        issued: Vec<Permit>,
    },
    /// The lease is granted (also: was granted before).
    LeaseGranted(Lease),
    /// The lease is not granted: the term is not newer, was released, or its process is dead. Final.
    LeaseRefused,
    /// A term is over.
    Released,
    /// A process is dead.
    Died,
    /// A failover is recorded under this number.
    Failover(u64),
    /// A change of members began.
    ChangeBegun(TaskId),
    /// It is in its next phase.
    ChangeAdvanced,
    /// It is over.
    ChangeFinished(TaskId),
    /// An operator's wish about the place of leaders is recorded.
    Placed,
    /// The directory is that of the data nodes.
    Rebuilt,
    /// Known before; nothing changed.
    Unchanged,
}

/// Result of one command.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// What it did, or why not.
    pub result: Result<Applied, Refusal>,
    /// The directory has a new version.
    pub changed: bool,
}

type Result_ = Result<Applied, Refusal>;

impl Directory {
    /// Applies the command at `index`. Indices only grow.
    pub fn apply(&mut self, index: LogIndex, term: Term, command: DirectoryCommand) -> Outcome {
        self.apply_as::<Production>(index, term, command)
    }

    /// The same under a policy.
    pub fn apply_as<P: Policy>(&mut self, index: LogIndex, term: Term, command: DirectoryCommand) -> Outcome {
        self.skip_to(index, term);
        let version = self.version;
        let DirectoryCommand { at, operation, kind } = command;
        let result = match kind {
            CommandKind::Bootstrap(cluster) => self.bootstrap(cluster, at),
            CommandKind::Register(hello) => self.register::<P>(*hello),
            CommandKind::CreateTopic { name, topic, partitions } => {
                self.create_topic(at, operation, name, topic, &partitions)
            }
            CommandKind::IssuePermits { death, permits } => Ok(self.issue_permits(death, permits)),
            CommandKind::GrantLease { group, lease } => Ok(self.grant(group, lease)),
            CommandKind::Release { group, replica, term, .. } => Ok(self.release(group, replica, term)),
            CommandKind::Death(death) => {
                Ok(if self.die(death.node, death.incarnation) { Applied::Died } else { Applied::Unchanged })
            }
            CommandKind::Failover(failover) => Ok(self.record_failover(*failover)),
            CommandKind::SetDraining { node, draining } => Ok(self.set_draining(node, draining)),
            CommandKind::SetPin { group, node } => self.set_pin(group, node),
            CommandKind::BreakGlass { permit, principal, effect } => self.break_glass(at, permit, principal, effect),
            CommandKind::Rebuild { state, principal, effect } => self.rebuild(at, &state, principal, effect),
            CommandKind::BeginChange { group, remove, node, reason } => {
                self.begin_change(at, group, remove, node, reason)
            }
            CommandKind::AdvanceChange { group, task, phase, why } => Ok(self.advance_change(group, task, phase, why)),
            CommandKind::FinishChange { group, task } => Ok(self.finish_change(at, group, task)),
        };
        Outcome { result, changed: self.version != version }
    }

    /// An entry without a command (a leader's no-op, a membership change) was applied.
    ///
    /// # Panics
    /// If an entry is applied twice: the machine would differ between observers.
    pub fn skip_to(&mut self, index: LogIndex, term: Term) {
        assert!(index > self.applied.0, "directory entry {index} applied after {}", self.applied.0);
        self.applied = (index, term);
    }

    /// Whether `hello` may register, by what is known here. Facts only accumulate, so a refusal is final even on an
    /// observer that lags.
    ///
    /// # Errors
    /// Why not.
    pub fn check_registration(&self, hello: &Hello) -> Result<(), Refusal> {
        let refuse = |reason, what: String, action: &str| {
            let subject = format!("{} incarnation {}", hello.node, hello.incarnation.get());
            Err(Refusal::new(reason, what, subject, action))
        };
        if let Some(other) =
            self.nodes.values().find(|n| n.registered.disk == hello.disk && n.registered.node != hello.node)
        {
            let what = format!("this data directory belongs to {}", other.registered.node);
            return refuse(Reason::RefusedUnsafe, what, "start the node with its own data directory");
        }
        let Some(node) = self.nodes.get(&hello.node) else { return Ok(()) };
        let known = &node.registered;
        // M1: an empty disk may take the place of a lost one. That the old process is gone is for the observer leader
        // to see before it proposes the registration.
        if known.disk != hello.disk && !hello.fresh {
            let what = format!("{} is registered with disk {}, this one is {}", hello.node, known.disk, hello.disk);
            return refuse(Reason::RefusedUnsafe, what, "start the node with its own data directory");
        }
        if hello.incarnation <= node.dead {
            let what = format!("incarnations up to {} are dead", node.dead.get());
            return refuse(Reason::StaleIncarnation, what, "start the process again: it then has a new incarnation");
        }
        let cloned = hello.incarnation == known.incarnation && hello.lock != known.lock;
        if hello.incarnation < known.incarnation || cloned {
            let what = format!("incarnation {} runs elsewhere: a copied data directory?", known.incarnation.get());
            return refuse(Reason::StaleIncarnation, what, "keep one process per node, stop the other one");
        }
        Ok(())
    }

    fn bump(&mut self) {
        self.version = self.version.next();
    }

    pub(super) fn bump_topology(&mut self) {
        self.bump();
        self.topology = self.version;
    }

    fn bootstrap(&mut self, cluster: ClusterId, at: LogTime) -> Result_ {
        if self.cluster == cluster {
            return Ok(Applied::Unchanged);
        }
        if self.cluster != ClusterId::NONE {
            return Err(Refusal::new(
                Reason::ClusterMismatch,
                "the directory belongs to another cluster",
                format!("cluster {}, not {cluster}", self.cluster),
                "check the observer's configuration and data directory",
            ));
        }
        self.cluster = cluster;
        self.born = at;
        self.bump();
        Ok(Applied::Bootstrapped)
    }

    fn register<P: Policy>(&mut self, mut hello: Hello) -> Result_ {
        hello.cluster = ClusterId::NONE;
        self.check_registration(&hello)?;
        let id = hello.node;
        let Some(node) = self.nodes.get_mut(&id) else {
            self.nodes.insert(id, Node { registered: hello, dead: Incarnation::ZERO, draining: false });
            self.bump_topology();
            return Ok(Applied::Registered { node: id, died: None });
        };
        if node.registered == hello {
            return Ok(Applied::Unchanged);
        }
        // S2: the kernel gave the newer incarnation the lock that the older one held, on the same boot.
        let older = node.registered.incarnation;
        let same_lock = holds_same_lock(&node.registered.lock, &hello.lock) || !P::keeps(Rule::DeathProof);
        let proven = older < hello.incarnation && same_lock && older > node.dead;
        let replaced = node.registered.disk != hello.disk;
        node.registered = hello;
        self.bump_topology();
        if replaced && P::keeps(Rule::NewIdAfterLoss) {
            self.lose_replicas_on(id);
        }
        if proven {
            self.die(id, older);
        }
        Ok(Applied::Registered { node: id, died: proven.then_some(older) })
    }

    fn create_topic(
        &mut self,
        at: LogTime,
        operation: OperationId,
        name: String,
        id: TopicId,
        partitions: &[Placement],
    ) -> Result_ {
        if let Some(known) = self.topic_named(&name) {
            if operation != OperationId::NONE && self.knows_operation(operation) {
                return Ok(Applied::Topic(known.id));
            }
            return Err(Refusal::new(
                Reason::AlreadyExists,
                "a topic of this name exists",
                format!("topic {name}, {} partitions", known.groups.len()),
                "use it, or choose another name",
            ));
        }
        self.check_placements(&name, id, partitions)?;
        let mut groups = Vec::with_capacity(partitions.len());
        for (number, nodes) in (0u32..).zip(partitions) {
            let group = self.next_group;
            self.next_group = group.next();
            let replicas = nodes.map(|node| {
                let replica = self.next_replica;
                self.next_replica = replica.next();
                (replica, node)
            });
            groups.push(group);
            self.partitions.insert(group, new_partition(group, id, PartitionNo(number), replicas.to_vec()));
        }
        self.names.insert(name.clone(), id);
        self.topics.insert(id, Topic { id, name, groups, created: at });
        self.remember_operation(operation);
        self.bump_topology();
        Ok(Applied::Topic(id))
    }

    fn check_placements(&self, name: &str, id: TopicId, partitions: &[Placement]) -> Result<(), Refusal> {
        let refuse =
            |reason, what: String, action: &str| Err(Refusal::new(reason, what, format!("topic {name}"), action));
        let count = u32::try_from(partitions.len()).unwrap_or(u32::MAX);
        if count == 0 || count > PARTITIONS_MAX {
            let what = format!("{count} partitions, allowed are 1 to {PARTITIONS_MAX}");
            return refuse(Reason::InvalidArgument, what, "choose another number");
        }
        if id == TopicId::NONE || self.topics.contains_key(&id) {
            return refuse(Reason::InvalidArgument, "the topic id is not new".to_owned(), "repeat the call");
        }
        for nodes in partitions {
            let mut domains = Vec::new();
            for node in nodes {
                let Some(known) = self.nodes.get(node) else {
                    return refuse(Reason::RefusedUnsafe, format!("{node} is not registered"), "repeat the call");
                };
                domains.push(&known.registered.fault_domain);
            }
            domains.sort_unstable();
            domains.dedup();
            if domains.len() != nodes.len() {
                let what = "replicas of one partition share a fault domain".to_owned();
                return refuse(Reason::RefusedUnsafe, what, "repeat the call");
            }
        }
        Ok(())
    }

    fn remember_operation(&mut self, operation: OperationId) {
        if operation == OperationId::NONE || !self.known_operations.insert(operation) {
            return;
        }
        self.operations.push_back(operation);
        while self.operations.len() > OPERATIONS_KEPT {
            if let Some(oldest) = self.operations.pop_front() {
                self.known_operations.remove(&oldest);
            }
        }
    }

    fn issue_permits(&mut self, death: Option<Death>, permits: Vec<Permit>) -> Applied {
        let died = death.and_then(|d| self.die(d.node, d.incarnation).then_some((d.node, d.incarnation)));
        let issued: Vec<Permit> = permits.into_iter().filter_map(|permit| self.issue(permit)).collect();
        if !issued.is_empty() {
            self.bump();
        }
        Applied::Permits { died, issued }
    }

    /// B2: as any permit, and it leaves a record of who did what.
    fn break_glass(&mut self, at: LogTime, permit: Permit, principal: String, effect: String) -> Result_ {
        let (subject, candidate) = (self.label(permit.group), permit.candidate);
        let Some(issued) = self.issue(permit) else {
            let what = "another permit was issued meanwhile, or the process is gone";
            let action = "call again without a plan, and look at the effect that it shows";
            return Err(Refusal::new(Reason::PlanStale, what, subject, action));
        };
        self.record_audit(AuditRecord {
            at_us: at.0,
            principal,
            verb: "partition break-glass".to_owned(),
            subject,
            arguments: candidate.to_string(),
            effect,
            ..AuditRecord::default()
        });
        self.bump();
        Ok(Applied::Permits { died: None, issued: vec![issued] })
    }

    /// Numbers a record and keeps it.
    pub(super) fn record_audit(&mut self, record: AuditRecord) {
        let id = self.audit.back().map_or(1, |last| last.id + 1);
        self.audit.push_back(AuditRecord { id, ..record });
        while self.audit.len() > AUDIT_KEPT {
            self.audit.pop_front();
        }
    }

    /// P1: epochs grow by one; the candidate is a live incarnation of a member. What ended earlier leaders, and
    /// whether everything earlier is over, is read from the log here, not taken from the proposer.
    fn issue(&mut self, mut permit: Permit) -> Option<Permit> {
        let partition = self.partitions.get_mut(&permit.group)?;
        let node = self.nodes.get(&partition.node_of(permit.candidate)?)?;
        let live = node.is_live() && node.incarnation() == permit.candidate_incarnation;
        if permit.epoch != partition.permit_epoch.next() || !live {
            return None;
        }
        // H1: the handoff that was planned is no longer from this leader.
        let leads = |lease: &Lease, from, term| {
            (lease.replica, lease.term) == (from, term) && !partition.is_released(from, term)
        };
        if permit.planned.is_some_and(|p| !partition.lease.is_some_and(|lease| leads(&lease, p.from, p.term))) {
            return None;
        }
        partition.clear_permits(&self.nodes);
        permit.basis = partition.basis(&self.nodes);
        permit.clear = partition.uncleared.is_empty();
        permit.config_version = partition.config_version;
        partition.remember(permit.clone());
        Some(permit)
    }

    /// L1: at once iff the term is greater than that of every lease granted and (replica, term) is not released; a
    /// newer, unused permit does not matter.
    fn grant(&mut self, group: GroupId, lease: Lease) -> Applied {
        let Some(partition) = self.partitions.get_mut(&group) else { return Applied::LeaseRefused };
        if partition.lease == Some(lease) && !partition.is_released(lease.replica, lease.term) {
            return Applied::LeaseGranted(lease);
        }
        let newer = partition.lease.is_none_or(|last| lease.term > last.term);
        let node = partition.node_of(lease.replica).and_then(|n| self.nodes.get(&n));
        let live = node.is_some_and(|n| lease.incarnation > n.dead && lease.incarnation == n.incarnation());
        if !newer || !live || partition.is_released(lease.replica, lease.term) || lease.epoch > partition.permit_epoch {
            return Applied::LeaseRefused;
        }
        partition.lease = Some(lease);
        if partition.change.is_some() {
            // Who leads decides what a node hosts while its replica is being replaced.
            self.bump_topology();
        } else {
            self.bump();
        }
        Applied::LeaseGranted(lease)
    }

    fn release(&mut self, group: GroupId, replica: ReplicaId, term: Term) -> Applied {
        let Some(partition) = self.partitions.get_mut(&group) else { return Applied::Unchanged };
        if partition.node_of(replica).is_none() || partition.is_released(replica, term) {
            return Applied::Unchanged;
        }
        partition.released.insert(replica, term);
        partition.clear_permits(&self.nodes);
        self.bump();
        Applied::Released
    }

    /// True if it was news.
    fn die(&mut self, node: NodeId, incarnation: Incarnation) -> bool {
        let Some(record) = self.nodes.get_mut(&node) else { return false };
        if incarnation <= record.dead {
            return false;
        }
        record.dead = incarnation;
        for partition in self.partitions.values_mut().filter(|p| p.replica_on(node).is_some()) {
            partition.clear_permits(&self.nodes);
        }
        self.bump();
        true
    }

    fn set_draining(&mut self, id: NodeId, draining: bool) -> Applied {
        let Some(node) = self.nodes.get_mut(&id).filter(|node| node.draining != draining) else {
            return Applied::Unchanged;
        };
        node.draining = draining;
        self.bump();
        Applied::Placed
    }

    fn set_pin(&mut self, group: GroupId, node: Option<NodeId>) -> Result_ {
        let Some(partition) = self.partitions.get_mut(&group) else { return Ok(Applied::Unchanged) };
        if let Some(node) = node.filter(|node| partition.replica_on(*node).is_none()) {
            let (what, action) = (format!("{node} holds no replica"), "name a node that `partition describe` lists");
            return Err(Refusal::new(Reason::InvalidArgument, what, group.to_string(), action));
        }
        if partition.pin == node {
            return Ok(Applied::Unchanged);
        }
        partition.pin = node;
        self.bump();
        Ok(Applied::Placed)
    }

    fn record_failover(&mut self, mut failover: Failover) -> Applied {
        // A leader is elected once; it may be suspected in vain more than once.
        let key = |f: &Failover| (f.group_id, f.new_term, f.withdrawn, if f.withdrawn { f.at_us } else { 0 });
        let known = |f: &&Failover| key(f) == key(&failover);
        if self.failovers.iter().rev().any(|f| known(&f)) {
            return Applied::Unchanged;
        }
        failover.id = self.failovers.back().map_or(1, |last| last.id + 1);
        let id = failover.id;
        self.failovers.push_back(failover);
        while self.failovers.len() > FAILOVERS_KEPT {
            self.failovers.pop_front();
        }
        Applied::Failover(id)
    }
}

/// Two incarnations held the same lock on the same boot of the same host. An empty proof proves nothing.
fn holds_same_lock(older: &LockProof, newer: &LockProof) -> bool {
    !older.boot_id.is_empty() && older == newer
}

fn new_partition(group: GroupId, topic: TopicId, number: PartitionNo, replicas: Vec<(ReplicaId, NodeId)>) -> Partition {
    Partition {
        group,
        topic,
        number,
        replicas,
        config_version: quorate_proto::ids::ConfigVersion(1),
        permit_epoch: PermitEpoch::ZERO,
        uncleared: Vec::new(),
        newest: None,
        lease: None,
        released: std::collections::BTreeMap::new(),
        pin: None,
        change: None,
        lost: std::collections::BTreeSet::new(),
        retired: Vec::new(),
    }
}
