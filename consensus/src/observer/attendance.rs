//! An observer that lost its memory (B2, M1): it waits until all others answered to its present life, and says so.
//!
//! Every observer tells the others on each arbiter tick whom it heard and what it remembers; those tables are the answers. A
//! life is (observer, incarnation, disk): a table that names this life was made after its sender heard of it. What follows
//! from the answers is `replica/rejoin.rs`.
//!
//! The other side: an observer that hears of a new life without memory counts nothing that this peer acknowledged before,
//! and only then names that life in its tables.

use std::collections::BTreeMap;
use std::time::Duration;

use quorate_proto::control::{Attendance, LastHeard, Life, Memory};
use quorate_proto::ids::{LogIndex, NodeId, Term};
use quorate_proto::time::{spoken, BootTime};

use super::config::replica_of;
use super::core::{ObserverCore, Out};
use super::ObserverEffect;
use crate::policy::Policy;
use crate::replica::BOOTSTRAP_INDEX;

/// A table older than so many arbiter ticks is no answer.
const ANSWER_TICKS: u32 = 10;
/// What it waits for is told this often.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// What another observer said last.
#[derive(Clone, Debug)]
struct Answer {
    life: Life,
    memory: Memory,
    term: Term,
    last: (Term, LogIndex),
    heard: Vec<Life>,
    received: BootTime,
}

/// What the others said, and what this one is worth.
#[derive(Debug, Default)]
pub(super) struct Memories {
    own: Memory,
    answers: BTreeMap<NodeId, Answer>,
    told: Option<BootTime>,
}

/// What the answers allow.
enum Verdict {
    /// Follow the others' leader.
    Rejoin,
    /// There was never a log anywhere.
    Begin,
    /// All logs are known.
    Attend,
    /// Nothing: what is missing.
    Wait(String),
}

impl Memories {
    pub(super) fn new(own: Memory) -> Self {
        Self { own, ..Self::default() }
    }
}

impl<P: Policy> ObserverCore<P> {
    /// What this observer's log is worth (B2).
    #[must_use]
    pub fn memory(&self) -> Memory {
        self.memories.own
    }

    fn life(&self) -> Life {
        Life { node: self.cfg.node(), incarnation: self.cfg.incarnation(), disk: self.cfg.disk }
    }

    /// What this observer tells the others about itself.
    pub(super) fn attendance(&self) -> Attendance {
        let (term, last) = self.replica.attendance();
        let heard = self.memories.answers.values().map(|answer| answer.life).collect();
        Attendance { disk: self.cfg.disk, term, last, heard }
    }

    /// Another observer's table came.
    pub(super) fn attended(&mut self, now: BootTime, table: &LastHeard, out: &mut Out) {
        let (info, said) = (&table.observer, &table.attendance);
        let life = Life { node: info.node, incarnation: info.incarnation, disk: said.disk };
        let known = self.memories.answers.get(&life.node).map(|answer| answer.life);
        // A new disk whose incarnation is no greater: the table that names the older life makes it raise its own.
        let older = |known: Life| known.incarnation == life.incarnation && known.disk != life.disk;
        if known.is_some_and(|known| known.incarnation > life.incarnation || older(known)) {
            return;
        }
        if info.memory != Memory::Sound && known != Some(life) {
            let (peer, incarnation) = (replica_of(life.node), life.incarnation);
            self.with_replica(|replica, fx| replica.peer_forgot(now, peer, incarnation, fx));
        }
        let (memory, heard) = (info.memory, said.heard.clone());
        let answer = Answer { life, memory, term: said.term, last: said.last, heard, received: now };
        self.memories.answers.insert(life.node, answer);
        let me = self.life();
        // The incarnations of a disk that is gone were greater: nobody would listen to this one.
        let older = said.heard.iter().find(|known| known.node == me.node && known.disk != me.disk);
        if let Some(older) = older.filter(|older| older.incarnation >= me.incarnation) {
            // A disk that was put back: since it was taken out, another one spoke for this observer.
            let sound = !self.replica.is_suspect();
            let forgot = sound.then(|| "the other observers know a newer disk of this observer".to_owned());
            out.push(ObserverEffect::StartAgain { above: older.incarnation, forgot });
            self.failed = true;
            return;
        }
        self.remember(now, out);
    }

    /// At every arbiter tick and table, until this observer is sound.
    pub(super) fn remember(&mut self, now: BootTime, out: &mut Out) {
        if self.memories.own == Memory::Sound {
            return;
        }
        if !self.replica.is_suspect() {
            self.is_sound(now, out);
            return;
        }
        let newest = self.memories.answers.values().map(|answer| answer.term).max().unwrap_or_default();
        match self.judge_answers(now) {
            Verdict::Rejoin => self.replica.rejoin(newest.max(Term(1))),
            Verdict::Begin => self.with_replica(|replica, fx| replica.begin(now, newest, fx)),
            Verdict::Attend => {
                let longest = replica_of(self.longest());
                self.with_replica(|replica, fx| replica.attend(now, newest, longest, fx));
            }
            Verdict::Wait(_) => self.replica.disperse(),
        }
        self.run(now, out);
        if self.replica.is_suspect() {
            self.tell(now, out);
        } else {
            self.is_sound(now, out);
        }
    }

    fn is_sound(&mut self, now: BootTime, out: &mut Out) {
        let was = std::mem::replace(&mut self.memories.own, Memory::Sound);
        if was == Memory::Empty {
            // What others granted before they forgot it may last from now on (M5).
            self.started = now;
        }
        let text = format!("its memory, {} at the start, is sound again: it votes", was.word());
        out.push(ObserverEffect::Memory { memory: Memory::Sound, text });
    }

    fn tell(&mut self, now: BootTime, out: &mut Out) {
        if self.memories.told.is_some_and(|told| now.since(told) < TELL_EVERY) {
            return;
        }
        self.memories.told = Some(now);
        let text = format!("it does not vote: {}", self.waits_for(now));
        out.push(ObserverEffect::Memory { memory: self.memories.own, text });
    }

    /// What an observer without memory waits for, in words.
    #[must_use]
    pub fn waits_for(&self, now: BootTime) -> String {
        match self.judge_answers(now) {
            Verdict::Rejoin => "it catches up with the observers' leader".to_owned(),
            Verdict::Begin => "no observer has a log: they begin a new directory".to_owned(),
            Verdict::Attend => "all logs are known: the longest leads".to_owned(),
            Verdict::Wait(what) => what,
        }
    }

    fn judge_answers(&self, now: BootTime) -> Verdict {
        let (me, own) = (self.life(), self.memories.own);
        let limit = self.cfg.timing.arbiter_tick * ANSWER_TICKS;
        let others: Vec<NodeId> = self.cfg.members.iter().copied().filter(|node| *node != me.node).collect();
        let mut answers: Vec<&Answer> = Vec::new();
        for node in &others {
            let answer = self.memories.answers.get(node);
            match answer.filter(|a| now.since(a.received) <= limit && a.heard.contains(&me)) {
                Some(answer) => answers.push(answer),
                None => return Verdict::Wait(format!("observer {} has not answered", node.get())),
            }
        }
        // Everybody heard everybody's present life.
        let mutual = answers.iter().all(|a| answers.iter().all(|b| a.life == b.life || a.heard.contains(&b.life)));
        let blank =
            |a: &&Answer| a.memory == Memory::Empty || (a.memory == Memory::Sound && a.last.1 == BOOTSTRAP_INDEX);
        let known = |a: &&Answer| matches!(a.memory, Memory::Sound | Memory::Suspect);
        if own == Memory::Empty && self.replica.is_blank() && mutual && answers.iter().all(blank) {
            return Verdict::Begin;
        }
        if !others.is_empty() && answers.iter().all(|a| a.memory == Memory::Sound) {
            return Verdict::Rejoin;
        }
        if own == Memory::Suspect && mutual && answers.iter().all(known) {
            return Verdict::Attend;
        }
        let bad = answers.iter().filter(|a| a.memory != Memory::Sound);
        let bad: Vec<String> = bad.map(|a| format!("{} ({})", a.life.node.get(), a.memory.word())).collect();
        if bad.is_empty() || !mutual {
            return Verdict::Wait("the other observers have not all heard of each other".to_owned());
        }
        let limit = spoken(limit);
        Verdict::Wait(format!(
            "neither do observers {} remember; nobody can tell what was committed (all answered within {limit}): \
             see docs/runbooks/observers-rebuild.md",
            bad.join(", ")
        ))
    }

    /// Whose log is the newest; among equal ones the greatest number, the same for everybody.
    fn longest(&self) -> NodeId {
        let own = (self.replica.attendance().1, self.cfg.node());
        let others = self.memories.answers.values().map(|answer| (answer.last, answer.life.node));
        others.chain([own]).max().map_or(own.1, |(_, node)| node)
    }

    /// The other observers' memories, as far as they were heard lately.
    pub(super) fn forgetful(&self, now: BootTime) -> Vec<(NodeId, Memory)> {
        let limit = self.cfg.timing.arbiter_tick * ANSWER_TICKS;
        let own = [(self.cfg.node(), self.memories.own)];
        let others = self.memories.answers.values().filter(|a| now.since(a.received) <= limit);
        let all = own.into_iter().chain(others.map(|a| (a.life.node, a.memory)));
        all.filter(|(_, memory)| *memory != Memory::Sound).collect()
    }
}
