//! Lease requests on their way (protocol L1, L3).
//!
//! A winner's first lease is proposed at once and answered when applied: its commit in this leader's own term is the
//! proof that it leads. Everything else waits for a read-index begun after the request arrived.

use std::collections::BTreeMap;
use std::time::Duration;

use quorate_proto::control::{LeaseAnswer, LeaseItem, LeaseRequest, LeaseVerdict, SessionDown};
use quorate_proto::ids::{GroupId, Incarnation, LogIndex, NodeId, Term, Ticket};
use quorate_proto::time::BootTime;

use super::core::{ObserverCore, Out};
use super::pending::Pending;
use crate::directory::{CommandKind, Lease};
use crate::effect::ReadId;
use crate::lease::{Asker, Judgement, LeaseTable};
use crate::policy::Policy;

/// A request that came while no observer was ready to lead is taken up if leadership arrives within this time: the
/// holder would repeat it only after `lease_retry`.
const STASH: Duration = Duration::from_millis(500);

/// A lease request that waits for its read-index.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    session: Ticket,
    node: NodeId,
    incarnation: Incarnation,
    sent: BootTime,
    write_proof: bool,
    items: Vec<LeaseItem>,
    /// Set when the read-index is confirmed: answer once this is applied.
    confirmed: Option<LogIndex>,
}

/// The observer leader's lease book.
#[derive(Clone, Debug, Default)]
pub(super) struct Leases {
    pub(super) table: LeaseTable,
    waiting: BTreeMap<ReadId, Waiting>,
    next_read: u64,
    /// Grants proposed, with the requests that wait for them.
    grants: BTreeMap<(GroupId, Term), Vec<(Ticket, BootTime)>>,
    /// Newest request of each session while this observer does not lead.
    stash: BTreeMap<Ticket, (BootTime, LeaseRequest)>,
}

impl Leases {
    pub(super) fn confirmed(&mut self, read: ReadId, index: LogIndex) {
        if let Some(waiting) = self.waiting.get_mut(&read) {
            waiting.confirmed = Some(index);
        }
    }

    /// The holder asks again.
    pub(super) fn lost(&mut self, read: ReadId) {
        self.waiting.remove(&read);
    }

    pub(super) fn forget_session(&mut self, session: Ticket) {
        self.stash.remove(&session);
        self.waiting.retain(|_, w| w.session != session);
    }

    /// Leadership ended: nothing that waits here can be answered by this observer.
    pub(super) fn step_down(&mut self) {
        self.waiting.clear();
        self.grants.clear();
    }

    pub(super) fn take_waiters(&mut self, group: GroupId, term: Term) -> Vec<(Ticket, BootTime)> {
        self.grants.remove(&(group, term)).unwrap_or_default()
    }
}

impl<P: Policy> ObserverCore<P> {
    pub(super) fn lease_request(&mut self, now: BootTime, session: Ticket, request: LeaseRequest, out: &mut Out) {
        let Some((node, incarnation)) = self.identity(session) else { return };
        if !self.leading {
            self.leases.stash.insert(session, (now, request));
            return;
        }
        let mut rest = Vec::new();
        for item in request.items {
            let asker = self.asker(node, incarnation, request.write_proof, item.group);
            match self.leases.table.judge(&self.directory, asker, &item, now) {
                Judgement::Grant(lease) => self.grant(now, (session, request.sent), item.group, lease, out),
                _ => rest.push(item),
            }
        }
        if rest.is_empty() {
            return;
        }
        // Unique per attempt and never reused (R1): counted by this process, told apart by incarnation in the replica.
        self.leases.next_read += 1;
        let read = Ticket(self.leases.next_read);
        let waiting = Waiting {
            session,
            node,
            incarnation,
            sent: request.sent,
            write_proof: request.write_proof,
            items: rest,
            confirmed: None,
        };
        self.leases.waiting.insert(read, waiting);
        self.with_replica(|replica, fx| replica.read_index(now, read, fx));
    }

    fn asker(&self, node: NodeId, incarnation: Incarnation, write_proof: bool, group: GroupId) -> Asker {
        Asker { node, incarnation, write_proof, permit_pending: self.arbiter.is_pending(group) }
    }

    fn grant(&mut self, now: BootTime, who: (Ticket, BootTime), group: GroupId, lease: Lease, out: &mut Out) {
        let key = (group, lease.term);
        if let Some(waiters) = self.leases.grants.get_mut(&key) {
            waiters.push(who);
            return;
        }
        self.leases.grants.insert(key, vec![who]);
        let command = CommandKind::GrantLease { group, lease };
        if !self.propose(now, command, Pending::Grant(group, lease.term), out) {
            self.leases.grants.remove(&key);
        }
    }

    /// Answers requests whose read-index is confirmed and applied.
    pub(super) fn answer_renewals(&mut self, now: BootTime, out: &mut Out) {
        if self.leases.waiting.is_empty() || !self.leading {
            return;
        }
        let applied = self.directory.applied().0;
        let ready: Vec<ReadId> = self
            .leases
            .waiting
            .iter()
            .filter(|(_, w)| w.confirmed.is_some_and(|index| index <= applied))
            .map(|(read, _)| *read)
            .collect();
        for read in ready {
            let Some(waiting) = self.leases.waiting.remove(&read) else { continue };
            let mut results = Vec::with_capacity(waiting.items.len());
            for item in &waiting.items {
                let asker = self.asker(waiting.node, waiting.incarnation, waiting.write_proof, item.group);
                let verdict = match self.leases.table.judge(&self.directory, asker, item, now) {
                    Judgement::Renew => {
                        self.leases.table.extend(item.group, now, self.cfg.timing.lease);
                        LeaseVerdict::Granted
                    }
                    Judgement::Superseded => LeaseVerdict::Superseded,
                    Judgement::Grant(_) | Judgement::NotNow => LeaseVerdict::NotNow,
                };
                results.push((item.group, item.term, verdict));
            }
            self.answer_lease(now, waiting.session, waiting.sent, results, out);
        }
    }

    pub(super) fn answer_lease(
        &self,
        now: BootTime,
        session: Ticket,
        sent: BootTime,
        results: Vec<(GroupId, Term, LeaseVerdict)>,
        out: &mut Out,
    ) {
        if self.sessions.contains_key(&session) {
            let answer = LeaseAnswer { sent, cluster_time: self.clock.read(now), results };
            Self::say(session, SessionDown::Lease(answer), out);
        }
    }

    /// Requests that came shortly before this observer began to lead.
    pub(super) fn take_up_stash(&mut self, now: BootTime, out: &mut Out) {
        for (session, (at, request)) in std::mem::take(&mut self.leases.stash) {
            if now.since(at) <= STASH {
                self.lease_request(now, session, request, out);
            }
        }
    }
}
