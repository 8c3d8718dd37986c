//! All observers' disks lost (M5): the directory is made anew from what the data nodes know, by a plan as in
//! `break_glass.rs`.
//!
//! Observers without any log begin an empty directory (`attendance.rs`). A node that keeps a newer one is not registered in it,
//! and tells what it keeps. Refused while the observers have a directory, while a lease of the lost observers may run, and
//! while of no partition a majority of the replicas reports. A partition of which fewer report does not keep the others
//! waiting: nobody knows which permits it was given, so its next ones are numbered far above any that can have been.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use bytes::Bytes;
use quorate_proto::control::{ReplicaReport, Role};
use quorate_proto::ids::{DirectoryVersion, GroupId, Incarnation, NodeId, OperationId, PermitEpoch, ReplicaId, Ticket};
use quorate_proto::refusal::{Reason, Refusal};
use quorate_proto::time::{spoken, BootTime};

use super::break_glass::{minute, names, token_at};
use super::core::{ObserverCore, Out};
use crate::directory::{CommandKind, Directory, Lease, Partition, Traces};
use crate::policy::Policy;

/// Added to the permit epoch of a partition of which too few replicas report: so many permits cannot have been given.
const UNKNOWN_PERMITS: u64 = 1 << 40;
/// Partitions that a plan lists one by one.
const LISTED: usize = 40;
const SUBJECT: &str = "the directory";

/// What a rebuild would do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RebuildPlan {
    /// Stands for it: give it back to execute.
    pub token: String,
    /// The effect, line by line.
    pub effect: Vec<String>,
    state: Bytes,
    rests_on: String,
}

/// What the nodes told.
struct Told<'a> {
    newest: &'a Directory,
    /// Who answered, in which incarnation.
    nodes: BTreeMap<NodeId, Incarnation>,
}

impl<P: Policy> ObserverCore<P> {
    /// The node of this session keeps a newer directory than the observers have, or another one.
    pub(super) fn knows_more(&self, session: Ticket) -> bool {
        self.sessions.get(&session).is_some_and(|state| {
            let another = state.knows > DirectoryVersion::ZERO && state.born != self.directory.born();
            another || state.ahead || state.knows > self.directory.version()
        })
    }

    /// Who keeps a newer directory than this observer has, now that it leads or that its directory was made anew.
    pub(super) fn compare_directories(&mut self) {
        let version = self.directory.version();
        for state in self.sessions.values_mut() {
            state.ahead = state.knows > version;
        }
    }

    /// Names of the nodes that keep a newer directory than the observers have.
    pub(super) fn know_more(&self) -> Vec<String> {
        if !self.leading && !self.directory.is_blank() {
            // It only lags.
            return Vec::new();
        }
        let sessions = self.sessions.iter().filter(|(ticket, _)| self.knows_more(**ticket));
        let mut names: Vec<String> =
            sessions.filter_map(|(_, state)| state.hello.as_ref().map(|hello| hello.name.clone())).collect();
        names.sort_unstable();
        names
    }

    pub(super) fn told(&mut self, session: Ticket, snapshot: &[u8]) {
        let directory = Directory::decode(snapshot).ok().filter(|directory| directory.cluster() == self.cfg.cluster);
        if let Some(state) = self.sessions.get_mut(&session) {
            state.told = directory.map(Box::new);
        }
    }

    /// Nothing is added to an empty directory while nodes know another one.
    pub(super) fn not_before_rebuild(&self, subject: &str) -> Result<(), Refusal> {
        let names = self.know_more();
        if names.is_empty() {
            return Ok(());
        }
        let state = if self.directory.is_blank() { "lost" } else { "have an old copy of" };
        let what = format!("the observers {state} their directory, {} know a newer one", names.join(", "));
        let action = "rebuild it first: docs/runbooks/observers-rebuild.md";
        Err(Refusal::new(Reason::NeedsOperator, what, subject.to_owned(), action))
    }

    fn is_older_than(&self, told: &Directory) -> bool {
        told.version() > self.directory.version() || told.born() != self.directory.born()
    }

    fn unsafe_now(what: String, action: &str) -> Refusal {
        Refusal::new(Reason::RefusedUnsafe, what, SUBJECT, action)
    }

    fn told_by_nodes(&self) -> Result<Told<'_>, Refusal> {
        let mut all = Vec::new();
        for state in self.sessions.values() {
            if let Some(hello) = &state.hello {
                all.push((state.told.as_deref(), hello.node, hello.incarnation));
            }
        }
        let newest = all.iter().filter_map(|(directory, ..)| *directory).max_by_key(|directory| directory.version());
        let newest = newest.filter(|directory| self.is_older_than(directory)).ok_or_else(|| {
            let action = "start the data nodes; each tells what it keeps as soon as it reaches the observers";
            Self::unsafe_now("no data node has told of a directory".to_owned(), action)
        })?;
        let nodes = all.iter().map(|(_, node, incarnation)| (*node, *incarnation)).collect();
        Ok(Told { newest, nodes })
    }

    fn reports_of<'a>(
        &'a self,
        partition: &'a Partition,
        told: &'a Told<'_>,
    ) -> impl Iterator<Item = (NodeId, &'a ReplicaReport)> {
        let here = partition.all().filter(|(_, node)| told.nodes.contains_key(node));
        here.filter_map(|(replica, node)| {
            let seen = self.view.node(node)?.reports.get(&partition.group)?;
            (seen.report.replica == replica).then_some((node, &seen.report))
        })
    }

    fn traces(&self, partition: &Partition, told: &Told<'_>) -> Traces {
        let mut traces = Traces::default();
        if self.reports_of(partition, told).count() < partition.majority() {
            traces.epoch = PermitEpoch(partition.permit_epoch.get().saturating_add(UNKNOWN_PERMITS));
            return traces;
        }
        for (node, report) in self.reports_of(partition, told) {
            traces.epoch = traces.epoch.max(report.seen_epoch).max(report.won_epoch);
            let incarnation = told.nodes.get(&node).copied().unwrap_or_default();
            let leads = Lease { replica: report.replica, term: report.term, epoch: report.won_epoch, incarnation };
            let newer = traces.leads.is_none_or(|known: Lease| leads.term > known.term);
            if report.role == Role::Leader && newer {
                traces.leads = Some(leads);
            }
        }
        traces
    }

    /// Leases and permits of the lost observers have ended: so long this observer has heard of none (L2, P1).
    fn old_rights_left(&self, now: BootTime) -> Duration {
        let timing = &self.cfg.timing;
        let waited = now.since(self.started);
        let left = (timing.lease + timing.permit_valid).saturating_sub(waited);
        let reports = self.view.reports();
        reports.map(|report| report.lease_remaining).max().unwrap_or_default().max(left)
    }

    /// What a rebuild would do now.
    ///
    /// # Errors
    /// `NOT_LEADER`; `REFUSED_UNSAFE` while the observers have a directory, or a majority reports of no partition.
    pub fn rebuild_plan(&self, now: BootTime) -> Result<RebuildPlan, Refusal> {
        if !self.leading {
            return Err(self.not_leading(SUBJECT.to_owned()));
        }
        if !self.directory.is_blank() {
            let what = format!("the observers have a directory, with {} topics", self.directory.topics().count());
            let newer = self.know_more();
            if newer.is_empty() {
                return Err(Self::unsafe_now(what, "nothing is to be rebuilt"));
            }
            let what = format!("{what}; {} know a newer one", newer.join(", "));
            let action = "set the old copies aside first: docs/runbooks/observers-rebuild.md, step 2";
            return Err(Self::unsafe_now(what, action));
        }
        let told = self.told_by_nodes()?;
        let left = self.old_rights_left(now);
        if !left.is_zero() {
            let what = format!("a lease or permit of the lost observers may last {} more", spoken(left));
            return Err(Self::unsafe_now(what, "repeat the call then").retry_after(left));
        }
        let mut effect = Vec::new();
        let mut rests_on = format!("{} {} {}", self.cfg.cluster, told.newest.version(), self.directory.version());
        self.describe_sources(&told, &mut effect);
        self.enough_report(&told)?;
        // What does not serve afterwards stands first.
        let heard = |partition: &&Partition| self.reports_of(partition, &told).count() >= partition.majority();
        let (whole, few): (Vec<&Partition>, Vec<&Partition>) = told.newest.partitions().values().partition(heard);
        for (listed, partition) in few.into_iter().chain(whole).enumerate() {
            let heard = self.reports_of(partition, &told).count();
            let traces = self.traces(partition, &told);
            // Writing to a String does not fail.
            let _ = write!(
                rests_on,
                " {} {} {:?}",
                partition.group,
                traces.epoch,
                traces.leads.map(|l| (l.replica, l.term))
            );
            if listed < LISTED {
                effect.push(describe(told.newest, partition, &traces, heard));
            }
        }
        let more = told.newest.partitions().len().saturating_sub(LISTED);
        if more > 0 {
            effect.push(format!("and {more} further partitions"));
        }
        effect.extend(self.unknown_groups(&told));
        effect.push(
            "What the observers logged after a node was last shown the directory is lost: pins, drains, the \
                     history of failovers, a topic or a change of members that no node has heard of."
                .to_owned(),
        );
        let state = self.rebuilt(&told).encode();
        Ok(RebuildPlan { token: token_at(&rests_on, minute(self.cluster_time(now))), effect, state, rests_on })
    }

    fn enough_report(&self, told: &Told<'_>) -> Result<(), Refusal> {
        let mut all = told.newest.partitions().values().map(|p| (p, self.reports_of(p, told).count())).peekable();
        let Some((first, heard)) = all.peek().copied() else { return Ok(()) };
        if all.any(|(partition, heard)| heard >= partition.majority()) {
            return Ok(());
        }
        let (label, of) = (told.newest.label(first.group), first.replicas.len());
        let what = format!("{label}: only {heard} of its {of} replicas report, and of no other partition more");
        Err(Self::unsafe_now(what, "start the other data nodes, then repeat the call"))
    }

    fn describe_sources(&self, told: &Told<'_>, effect: &mut Vec<String>) {
        let newest = told.newest;
        let by: Vec<String> = self.know_more();
        effect.push(format!(
            "directory version {}, kept by {}: {} nodes, {} topics, {} partitions",
            newest.version().get(),
            by.join(", "),
            newest.nodes().len(),
            newest.topics().count(),
            newest.partitions().len()
        ));
        let missing = newest.nodes().values().filter(|node| !told.nodes.contains_key(&node.registered.node));
        let missing: Vec<&str> = missing.map(|node| node.registered.name.as_str()).collect();
        if !missing.is_empty() {
            effect.push(format!("not heard: {}; if one of them knows more, start it first", missing.join(", ")));
        }
    }

    fn unknown_groups(&self, told: &Told<'_>) -> Vec<String> {
        let reports = self.view.reports().map(|report| report.group);
        let unknown: BTreeSet<GroupId> = reports.filter(|group| told.newest.partition(*group).is_none()).collect();
        let line =
            |group: GroupId| format!("{group}: its data are on a node, and no topic is known for it; they are kept");
        unknown.into_iter().map(line).collect()
    }

    fn rebuilt(&self, told: &Told<'_>) -> Directory {
        let newest_group = self.view.reports().map(|report| report.group).max().unwrap_or(GroupId::ZERO);
        let newest_replica = self.view.reports().map(|report| report.replica).max().unwrap_or(ReplicaId::ZERO);
        let own: DirectoryVersion = self.directory.version();
        let incarnation = |node: NodeId| {
            let known = told.newest.node(node).map(|n| n.incarnation()).unwrap_or_default();
            told.nodes.get(&node).copied().unwrap_or(known).max(known)
        };
        let traces = |group| {
            let partition = told.newest.partition(group);
            partition.map_or_else(Traces::default, |partition| self.traces(partition, told))
        };
        told.newest.raised(own, traces, incarnation, (newest_group, newest_replica))
    }

    /// Executes a plan: the directory is logged with its audit record.
    pub(super) fn rebuild(
        &mut self,
        now: BootTime,
        ticket: Ticket,
        (token, principal): (&str, String),
        out: &mut Out,
    ) -> Result<(), Refusal> {
        let plan = self.rebuild_plan(now)?;
        if !names(&plan.rests_on, token, minute(self.cluster_time(now))) {
            let what = format!("plan {token} does not stand for what would happen now (it moved, or is too old)");
            let action = "call again without a plan, and look at the effect that it shows";
            return Err(Refusal::new(Reason::PlanStale, what, SUBJECT, action));
        }
        let command = CommandKind::Rebuild { state: plan.state, principal, effect: plan.effect.join("; ") };
        self.propose_admin(now, OperationId::NONE, command, ticket, SUBJECT.to_owned(), out)
    }
}

fn describe(directory: &Directory, partition: &Partition, traces: &Traces, heard: usize) -> String {
    let label = directory.label(partition.group);
    let name = |lease: Lease| {
        let node = partition.node_of(lease.replica).and_then(|node| directory.node(node));
        node.map_or_else(|| lease.replica.to_string(), |node| node.registered.name.clone())
    };
    let (epoch, of) = (traces.epoch.max(partition.permit_epoch), partition.replicas.len());
    if heard < partition.majority() {
        return format!("{label}: only {heard} of {of} replicas report; it serves when a majority of them is back");
    }
    match traces.leads {
        Some(lease) => {
            format!("{label}: {heard} of {of} replicas, {epoch}; {} of {} goes on", name(lease), lease.term)
        }
        None => format!("{label}: {heard} of {of} replicas, {epoch}; elects a leader"),
    }
}
