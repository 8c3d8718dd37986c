//! Linearizable reads by read-index (R1, L3), batched without a timer.
//!
//! At most [`MAX_ROUNDS`] rounds are under way; what arrives meanwhile waits for the next round, which begins after it
//! arrived, and takes all of it. A round's context is unique per attempt (term, incarnation, counter) and never used
//! again: raft-rs matches acknowledgements by its bytes alone. Any change of role or term fails everything that waits,
//! because raft-rs drops its own queue silently then. Until the leader has committed in its own term raft-rs would drop
//! a request silently too: so it waits here.

use std::collections::VecDeque;

use quorate_proto::ids::{Incarnation, LogIndex, Term};

use crate::effect::{ReadId, ReplicaEffect};

/// Rounds under way at most.
const MAX_ROUNDS: usize = 2;
/// Reads that wait for a round at most; more are refused at once.
const MAX_WAITING: usize = 16_384;

#[derive(Debug)]
struct Round {
    context: Vec<u8>,
    reads: Vec<ReadId>,
}

/// Reads waiting and under way.
#[derive(Debug, Default)]
pub(super) struct Reads {
    waiting: Vec<ReadId>,
    rounds: VecDeque<Round>,
    counter: u64,
}

impl Reads {
    /// Queues a read; false if there are too many.
    pub(super) fn queue(&mut self, read: ReadId) -> bool {
        if self.waiting.len() >= MAX_WAITING {
            return false;
        }
        self.waiting.push(read);
        true
    }

    /// Context of a round to start now, with everything that waits.
    pub(super) fn start(&mut self, term: Term, incarnation: Incarnation) -> Option<Vec<u8>> {
        if self.waiting.is_empty() || self.rounds.len() >= MAX_ROUNDS {
            return None;
        }
        self.counter += 1;
        let mut context = Vec::with_capacity(24);
        for word in [term.0, incarnation.0, self.counter] {
            context.extend_from_slice(&word.to_be_bytes());
        }
        self.rounds.push_back(Round { context: context.clone(), reads: std::mem::take(&mut self.waiting) });
        Some(context)
    }

    /// A majority confirmed the round `context`: it and every earlier one are answered.
    pub(super) fn confirmed(&mut self, context: &[u8], index: LogIndex, out: &mut Vec<ReplicaEffect>) {
        let Some(position) = self.rounds.iter().position(|r| r.context == context) else { return };
        for round in self.rounds.drain(..=position) {
            out.extend(round.reads.into_iter().map(|read| ReplicaEffect::ReadReady { read, index }));
        }
    }

    /// Nothing that waits can be answered by this replica.
    pub(super) fn fail_all(&mut self, out: &mut Vec<ReplicaEffect>) {
        let under_way = self.rounds.drain(..).flat_map(|round| round.reads);
        out.extend(under_way.chain(self.waiting.drain(..)).map(|read| ReplicaEffect::ReadLost { read }));
    }
}
