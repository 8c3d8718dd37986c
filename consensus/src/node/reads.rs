//! Linearizable reads of the end offset (R1): read-index, then wait until applied, then the serving test (F2).

use std::collections::BTreeMap;

use quorate_proto::ids::{LogIndex, Term, Ticket};

/// Reads of one partition that wait.
#[derive(Debug, Default)]
pub(super) struct Reads {
    /// Asked of the replica, with the term at arrival: the answer must come in the same one (F2).
    asked: BTreeMap<Ticket, Term>,
    /// Confirmed by the majority; wait until the machine has applied the index.
    waiting: Vec<(Ticket, LogIndex)>,
}

impl Reads {
    pub(super) fn len(&self) -> usize {
        self.asked.len()
    }

    pub(super) fn ask(&mut self, ticket: Ticket, term: Term) {
        self.asked.insert(ticket, term);
    }

    /// The majority confirmed leadership; the read may be answered once `index` is applied.
    pub(super) fn confirmed(&mut self, ticket: Ticket, index: LogIndex) {
        if self.asked.contains_key(&ticket) {
            self.waiting.push((ticket, index));
        }
    }

    /// Reads that may be answered now, each with the term it arrived in.
    pub(super) fn ready(&mut self, applied: LogIndex) -> Vec<(Ticket, Term)> {
        let Self { asked, waiting } = self;
        let mut ready = Vec::new();
        waiting.retain(|(ticket, index)| {
            let wait = *index > applied;
            if !wait {
                ready.extend(asked.remove(ticket).map(|term| (*ticket, term)));
            }
            wait
        });
        ready
    }

    /// This read can't be answered. False if it was answered already.
    pub(super) fn lost(&mut self, ticket: Ticket) -> bool {
        self.waiting.retain(|(waiting, _)| *waiting != ticket);
        self.asked.remove(&ticket).is_some()
    }

    /// None of them can be answered any more.
    pub(super) fn end(&mut self) -> Vec<Ticket> {
        self.waiting.clear();
        std::mem::take(&mut self.asked).into_keys().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_waits_for_its_index() {
        let mut reads = Reads::default();
        reads.ask(Ticket(1), Term(3));
        reads.confirmed(Ticket(1), LogIndex(9));
        assert!(reads.ready(LogIndex(8)).is_empty());
        assert_eq!(reads.ready(LogIndex(9)), [(Ticket(1), Term(3))]);
        assert_eq!(reads.len(), 0);
    }

    #[test]
    fn a_lost_read_is_answered_once() {
        let mut reads = Reads::default();
        reads.ask(Ticket(1), Term(3));
        reads.confirmed(Ticket(1), LogIndex(9));
        assert!(reads.lost(Ticket(1)));
        assert!(!reads.lost(Ticket(1)));
        assert!(reads.ready(LogIndex(9)).is_empty());
    }
}
