//! Exits of data nodes and what observers are told of them: right, late, twice, forged (S2).

use std::time::Duration;

use quorate_consensus::observer::ObserverEvent;
use quorate_consensus::policy::Policy;
use quorate_proto::control::{ExitNotice, LockProof, SessionUp};
use quorate_proto::ids::{NodeId, Ticket};

use super::observer::host as observer_host;
use super::{What, World, OBSERVERS};
use crate::net::Host;

/// A supervisor repeats an unanswered notice so often.
const REPEATS: u32 = 100;
/// A copy that comes late is not repeated.
const LATE_COPY: u32 = 1_000;

impl<P: Policy> World<P> {
    /// A data node's process dies; its supervisor tells (if it lives) and starts it again.
    pub(crate) fn exit(&mut self, id: NodeId, notice: bool, down: Duration) {
        let incarnation = self.nodes[&id].incarnation;
        if self.nodes[&id].process.is_none() {
            return;
        }
        self.node_crash(id);
        if notice {
            let secret = crate::data_node::secret(id);
            let notice = ExitNotice { node: id, incarnation, secret, status: -9 };
            let delay = self.chance.span(Duration::from_millis(1), Duration::from_millis(20));
            self.after(delay, What::Notice(notice, 0));
            self.coverage.count("exit notices");
        }
        self.after(down, What::Start(Host::Node(id.0)));
    }

    /// A supervisor repeats its notice until it is acknowledged; now and then a copy comes much later.
    pub(crate) fn notice(&mut self, notice: ExitNotice, again: u32) {
        self.tell_observers(&notice);
        let known = self.noticed.get(&notice.node).is_some_and(|seen| *seen >= notice.incarnation);
        if !known && again < REPEATS {
            self.after(Duration::from_millis(100), What::Notice(notice, again + 1));
        } else if again < LATE_COPY && self.chance.one_in(300) {
            self.coverage.count("late exit notices");
            let late = self.chance.span(Duration::from_millis(100), Duration::from_secs(8));
            self.after(late, What::Notice(notice, LATE_COPY));
        }
    }

    fn tell_observers(&mut self, notice: &ExitNotice) {
        let host = Host::Node(notice.node.0);
        for observer in OBSERVERS {
            let reached = !self.net.is_cut(host, observer_host(observer));
            if reached && self.observers[&observer].process.is_some() {
                let ticket = Ticket(self.fresh_id());
                self.notices.insert(ticket, (notice.node, notice.incarnation));
                let event = ObserverEvent::ExitNotice { ticket, notice: notice.clone() };
                self.tell_soon(observer, event);
            }
        }
    }

    fn tell_soon(&mut self, observer: NodeId, event: ObserverEvent) {
        let incarnation = self.observers[&observer].incarnation;
        let delay = self.chance.span(Duration::from_micros(100), Duration::from_micros(600));
        self.after(delay, What::ToObserver(observer, incarnation, Box::new(event)));
    }

    /// Case 36: somebody says that a living process is dead.
    pub(crate) fn forged_notice(&mut self, id: NodeId) {
        if self.nodes[&id].process.is_none() {
            return;
        }
        self.coverage.count("forged notices");
        self.coverage.count("faults that bit");
        let incarnation = self.nodes[&id].incarnation;
        let notice = ExitNotice { node: id, incarnation, secret: "guessed".into(), status: -9 };
        self.tell_observers(&notice);
    }

    /// A copy of the disk starts on another host, registers with the next incarnation, and hangs.
    pub(crate) fn copied_disk(&mut self, id: NodeId) {
        if self.nodes[&id].process.is_none() {
            return;
        }
        self.coverage.count("disks copied");
        self.coverage.count("faults that bit");
        let mut hello = self.nodes[&id].hello();
        hello.incarnation = hello.incarnation.next();
        hello.lock = LockProof { boot_id: "another host".into(), dev: 2, ino: 2 };
        for observer in OBSERVERS.into_iter().filter(|id| self.observers[id].process.is_some()).collect::<Vec<_>>() {
            let session = Ticket(self.fresh_id());
            self.tell_soon(observer, ObserverEvent::SessionOpened { session });
            let message = Box::new(SessionUp::Hello(hello.clone()));
            let incarnation = self.observers[&observer].incarnation;
            let event = Box::new(ObserverEvent::Session { session, message });
            self.after(Duration::from_millis(1), What::ToObserver(observer, incarnation, event));
        }
    }
}
