//! A random walk with cuts, crashes, slow disks, pauses of one process and permits by a careless referee: at no instant
//! two replicas may serve, and no two machines may disagree. Not the simulator: a quick look for panics.

use std::collections::BTreeMap;

use bytes::Bytes;
use quorate_proto::control::Ended;
use quorate_proto::ids::{Incarnation, ReplicaId, Term};

use super::harness::Cluster;
use crate::effect::ReplicaEffect;
use crate::policy::{Policy, Production};
use crate::replica::Mode;

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

struct Walk<P: Policy> {
    cluster: Cluster<P>,
    random: Random,
    epoch: u64,
    facts: BTreeMap<u64, (Term, Incarnation)>,
    agreed: BTreeMap<u64, Bytes>,
    proposed: u64,
    seen: BTreeMap<u64, usize>,
    violations: usize,
}

impl<P: Policy> Walk<P> {
    fn new(seed: u64) -> Self {
        let mut cluster = Cluster::new(Mode::Governed, 3);
        cluster.cache_bytes = 200;
        Self {
            cluster,
            random: Random(seed),
            epoch: 0,
            facts: BTreeMap::new(),
            agreed: BTreeMap::new(),
            proposed: 0,
            seen: BTreeMap::new(),
            violations: 0,
        }
    }

    fn learn(&mut self) {
        for id in 1..=3 {
            for effect in self.cluster.take_effects(id) {
                if let ReplicaEffect::Released { term, .. } = effect {
                    let known = self.facts.entry(id).or_default();
                    known.0 = known.0.max(term);
                }
            }
        }
    }

    fn direct(&mut self) {
        self.epoch += 1;
        let mut basis = Vec::new();
        for (&id, &(term, incarnation)) in &self.facts {
            basis.push(Ended::Released { replica: ReplicaId(id), term });
            basis.push(Ended::Dead { replica: ReplicaId(id), incarnation });
        }
        let candidate = 1 + self.random.below(3);
        if self.random.below(4) > 0 {
            self.cluster.permit(self.epoch, candidate, &basis, false);
        } else {
            // Only one of them hears of it at first.
            let permit = self.cluster.make_permit(self.epoch, candidate, &basis, false);
            if self.cluster.nodes[&candidate].replica.is_some() {
                self.cluster.act(candidate, |r, now, out| r.permit(now, permit, out));
            }
        }
    }

    fn disturb(&mut self) {
        let (a, b) = (1 + self.random.below(3), 1 + self.random.below(3));
        match self.random.below(10) {
            0..=1 if a != b => drop(self.cluster.cuts.insert((a, b))),
            2..=3 => self.cluster.cuts.clear(),
            4 => {
                if self.cluster.nodes[&a].replica.is_some() {
                    self.cluster.crash(a);
                    let known = self.facts.entry(a).or_default();
                    if self.random.below(2) == 0 {
                        known.1 = Incarnation(self.cluster.nodes[&a].incarnation);
                    }
                }
            }
            5..=6 => {
                if self.cluster.nodes[&a].replica.is_none() {
                    self.cluster.start(a).expect("an honest disk is never quarantined");
                }
            }
            7 => self.cluster.nodes.get_mut(&a).unwrap().hold_flush = true,
            8 => {
                self.cluster.nodes.get_mut(&a).unwrap().hold_flush = false;
                self.cluster.flush(a);
            }
            _ => self.checkpoint(a),
        }
    }

    fn checkpoint(&mut self, id: u64) {
        let Some(replica) = &self.cluster.nodes[&id].replica else { return };
        if replica.applied_index() <= replica.persisted_index() {
            self.cluster.checkpoint(id);
        }
    }

    fn check(&mut self) {
        if self.cluster.serving().len() > 1 {
            self.violations += 1;
        }
        for id in self.cluster.alive() {
            let machine = &self.cluster.nodes[&id].machine;
            let from = self.seen.get(&id).copied().filter(|&n| n <= machine.len()).unwrap_or(0);
            for (index, data) in &machine[from..] {
                let agreed = self.agreed.entry(*index).or_insert_with(|| data.clone());
                assert_eq!(agreed, data, "replica {id} differs at {index}");
            }
            self.seen.insert(id, machine.len());
        }
    }

    fn run(&mut self, turns: u64) {
        for turn in 0..turns {
            if self.random.below(8) == 0 {
                self.disturb();
            }
            // A careless referee: it permits somebody also while a leader serves. The voters must know better.
            if turn % 25 == 0 && (self.cluster.serving().is_empty() || self.random.below(2) == 0) {
                self.direct();
            }
            if let Some(leader) = self.cluster.leader() {
                self.proposed += 1;
                let data = Bytes::from(format!("{}", self.proposed));
                let _ = self.cluster.act(leader, |r, now, out| r.propose(now, data, out));
            }
            self.cluster.run(10 + 10 * self.random.below(4));
            self.learn();
            self.check();
        }
    }

    /// Everything heals: the cluster must serve again and agree.
    fn heal(&mut self, seed: u64) {
        self.cluster.cuts.clear();
        for id in 1..=3 {
            self.cluster.nodes.get_mut(&id).unwrap().hold_flush = false;
            self.cluster.flush(id);
            if self.cluster.nodes[&id].replica.is_none() {
                self.cluster.start(id).unwrap();
            }
        }
        for _ in 0..30 {
            self.cluster.run(500);
            self.learn();
            self.check();
            if self.cluster.serving().len() == 1 {
                break;
            }
            self.direct();
        }
        assert_eq!(self.cluster.serving().len(), 1, "seed {seed} serves again");
        let leader = self.cluster.leader().unwrap();
        self.cluster.propose(leader, "last");
        self.cluster.run(3000);
        for id in 1..=3 {
            let replica = self.cluster.replica(id);
            assert_eq!(
                self.cluster.values(id).last().map(String::as_str),
                Some("last"),
                "seed {seed}: {replica:?} caught up"
            );
        }
        self.check();
    }
}

/// More for a longer look.
fn seeds(usual: u64) -> u64 {
    std::env::var("QUORATE_WALKS").ok().and_then(|n| n.parse().ok()).unwrap_or(usual)
}

#[test]
fn no_two_serve_no_two_machines_differ_and_it_heals() {
    for seed in 0..seeds(40) {
        let mut walk = Walk::<Production>::new(seed);
        walk.run(300);
        assert_eq!(walk.violations, 0, "seed {seed}");
        walk.heal(seed);
    }
}

/// The lease hides faults of the vote gate: the rules must hold without it.
#[derive(Clone, Copy, Debug, Default)]
struct NoLease;
impl Policy for NoLease {
    fn keeps(rule: crate::policy::Rule) -> bool {
        rule != crate::policy::Rule::Lease
    }
}

#[test]
fn no_two_serve_also_when_the_lease_is_ignored() {
    for seed in 0..seeds(30) {
        let mut walk = Walk::<NoLease>::new(seed + 5000);
        walk.run(300);
        assert_eq!(walk.violations, 0, "seed {seed}");
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let trace = |seed| {
        let mut walk = Walk::<Production>::new(seed);
        walk.run(200);
        (walk.agreed, walk.epoch, walk.cluster.now)
    };
    assert_eq!(trace(3), trace(3));
}

#[derive(Clone, Copy, Debug, Default)]
struct NoSilenceRule;
impl Policy for NoSilenceRule {
    fn keeps(rule: crate::policy::Rule) -> bool {
        rule != crate::policy::Rule::Silence
    }
}

#[test]
fn without_the_silence_rule_two_serve() {
    let found = (0..60).any(|seed| {
        let mut walk = Walk::<NoSilenceRule>::new(seed);
        walk.run(200);
        walk.violations > 0
    });
    assert!(found, "this walk could not see the fault that it is for");
}
