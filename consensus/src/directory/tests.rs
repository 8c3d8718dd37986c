//! The machine, command by command.

mod change;

use std::collections::BTreeSet;

use proptest::prelude::*;
use quorate_proto::control::{Ended, Hello, LockProof, Permit, PermitKind};
use quorate_proto::ids::*;
use quorate_proto::time::LogTime;
use quorate_proto::v1::{Failover, Reason};

use super::*;

impl Directory {
    /// A topic whose only partition is `group`, for tests of other modules.
    pub(crate) fn apply_test_topic(&mut self, group: GroupId, _number: PartitionNo) {
        let mut machine = Machine(std::mem::take(self));
        machine.cluster();
        machine.topic("default/t", 1);
        *self = machine.0;
        assert!(self.partition(group).is_some());
    }
}

struct Machine(Directory);

pub(crate) fn hello(node: u64, incarnation: u64) -> Hello {
    Hello {
        cluster: ClusterId(7),
        node: NodeId(node),
        name: format!("n{node}"),
        incarnation: Incarnation(incarnation),
        disk: DiskId(u128::from(node)),
        address: String::new(),
        peer_address: String::new(),
        fault_domain: format!("d{node}"),
        lock: LockProof { boot_id: "boot".to_owned(), dev: 1, ino: node },
        supervisor_hash: String::new(),
        version: String::new(),
        pid: 0,
        fresh: false,
        knows: quorate_proto::ids::DirectoryVersion::ZERO,
        knows_born: quorate_proto::time::LogTime::ZERO,
    }
}

impl Machine {
    fn new() -> Self {
        Self(Directory::default())
    }

    fn apply(&mut self, kind: CommandKind) -> Outcome {
        self.apply_as(OperationId::NONE, kind)
    }

    fn apply_as(&mut self, operation: OperationId, kind: CommandKind) -> Outcome {
        let command = DirectoryCommand { at: LogTime(5), operation, kind };
        let decoded = DirectoryCommand::decode(command.encode()).expect("own encoding");
        assert_eq!(decoded_without_cluster(&decoded), decoded_without_cluster(&command));
        let index = self.0.applied().0.next();
        self.0.apply(index, Term(1), decoded)
    }

    fn cluster(&mut self) {
        self.apply(CommandKind::Bootstrap(ClusterId(7)));
        for node in 1..=3 {
            self.register(hello(node, 1)).result.expect("registers");
        }
    }

    fn register(&mut self, hello: Hello) -> Outcome {
        self.apply(CommandKind::Register(Box::new(hello)))
    }

    fn topic(&mut self, name: &str, partitions: u32) -> Outcome {
        let live: BTreeSet<NodeId> = self.0.nodes().keys().copied().collect();
        let partitions = place(&self.0, &live, partitions).expect("three domains");
        let topic = TopicId(u128::from(self.0.next_group.get()));
        self.apply(CommandKind::CreateTopic { name: name.to_owned(), topic, partitions })
    }

    fn permit(&mut self, epoch: u64, candidate: u64) -> Vec<Permit> {
        let incarnation = self.0.nodes()[&NodeId(candidate)].incarnation();
        let replica = self.0.partition(GroupId(2)).and_then(|p| p.replica_on(NodeId(candidate))).expect("member");
        let permit = Permit {
            group: GroupId(2),
            epoch: PermitEpoch(epoch),
            candidate: replica,
            candidate_incarnation: incarnation,
            config_version: ConfigVersion(1),
            basis: vec![Ended::Released { replica, term: Term(99) }],
            clear: true,
            kind: PermitKind::Normal,
            planned: None,
        };
        match self.apply(CommandKind::IssuePermits { death: None, permits: vec![permit] }).result {
            Ok(Applied::Permits { issued, .. }) => issued,
            other => panic!("{other:?}"),
        }
    }

    fn replica(&self, node: u64) -> ReplicaId {
        self.0.partition(GroupId(2)).and_then(|p| p.replica_on(NodeId(node))).expect("member")
    }

    fn lease(&mut self, node: u64, term: u64, epoch: u64) -> Applied {
        let lease = Lease {
            replica: self.replica(node),
            term: Term(term),
            epoch: PermitEpoch(epoch),
            incarnation: self.0.nodes()[&NodeId(node)].incarnation(),
        };
        self.apply(CommandKind::GrantLease { group: GroupId(2), lease }).result.expect("never refused")
    }

    fn release(&mut self, node: u64, term: u64) {
        let replica = self.replica(node);
        let kind = CommandKind::Release { group: GroupId(2), replica, term: Term(term), for_fence: false };
        self.apply(kind).result.expect("taken");
    }

    fn die(&mut self, node: u64, incarnation: u64) {
        let death = Death { node: NodeId(node), incarnation: Incarnation(incarnation), how: "test".to_owned() };
        self.apply(CommandKind::Death(death)).result.expect("taken");
    }
}

fn decoded_without_cluster(command: &DirectoryCommand) -> DirectoryCommand {
    let mut command = command.clone();
    if let CommandKind::Register(hello) = &mut command.kind {
        hello.cluster = ClusterId::NONE;
    }
    command
}

#[test]
fn replicas_of_a_topic_lie_in_distinct_domains_and_preferred_leaders_rotate() {
    let mut machine = Machine::new();
    machine.cluster();
    machine.topic("default/a", 3).result.expect("made");
    machine.topic("default/b", 3).result.expect("made");
    let mut preferred = std::collections::BTreeMap::new();
    for partition in machine.0.partitions().values() {
        let nodes: BTreeSet<NodeId> = partition.replicas.iter().map(|(_, n)| *n).collect();
        assert_eq!(nodes.len(), 3);
        *preferred.entry(partition.replicas[0].1).or_insert(0) += 1;
    }
    assert!(preferred.values().all(|n| *n == 2), "{preferred:?}");
    let replicas: BTreeSet<ReplicaId> =
        machine.0.partitions().values().flat_map(|p| p.replicas.iter().map(|(r, _)| *r)).collect();
    assert_eq!(replicas.len(), 18, "never reused");
}

#[test]
fn a_topic_needs_three_fault_domains() {
    let mut machine = Machine::new();
    machine.cluster();
    let two: BTreeSet<NodeId> = [NodeId(1), NodeId(2)].into();
    assert_eq!(place(&machine.0, &two, 1).expect_err("refused").reason, Reason::Degraded);
    let shared = vec![[NodeId(1), NodeId(1), NodeId(2)]];
    let kind = CommandKind::CreateTopic { name: "default/x".to_owned(), topic: TopicId(1), partitions: shared };
    assert_eq!(machine.apply(kind).result.expect_err("checked at apply").reason, Reason::RefusedUnsafe);
}

#[test]
fn permit_epochs_grow_by_one_and_basis_and_clear_come_from_the_log() {
    let mut machine = Machine::new();
    machine.cluster();
    machine.topic("default/t", 1).result.expect("made");
    assert!(machine.permit(2, 1).is_empty(), "not the next epoch");
    let first = machine.permit(1, 1);
    assert!(first[0].clear && first[0].basis.is_empty(), "nobody led before: {first:?}");
    assert!(machine.permit(1, 2).is_empty(), "spent epoch");
    let second = machine.permit(2, 2);
    assert!(!second[0].clear, "the first holder may still win");
    machine.die(1, 1);
    assert!(!machine.permit(3, 3)[0].clear, "the second may too");
    machine.die(2, 1);
    let fourth = machine.permit(4, 3);
    assert!(!fourth[0].clear, "the third holder holds an unspent permit itself");
    assert!(machine.permit(5, 1).is_empty(), "a dead process is no candidate");
}

#[test]
fn a_release_clears_the_permit_that_its_term_was_won_with() {
    let mut machine = Machine::new();
    machine.cluster();
    machine.topic("default/t", 1).result.expect("made");
    machine.permit(1, 1);
    assert!(matches!(machine.lease(1, 4, 1), Applied::LeaseGranted(_)));
    machine.release(1, 4);
    assert_eq!(machine.0.leader_of(GroupId(2)), None);
    let next = machine.permit(2, 2);
    assert!(next[0].clear);
    assert_eq!(next[0].basis, vec![Ended::Released { replica: machine.replica(1), term: Term(4) }]);
}

#[test]
fn an_unspent_permit_is_not_cleared_by_the_release_of_an_older_term() {
    let mut machine = Machine::new();
    machine.cluster();
    machine.topic("default/t", 1).result.expect("made");
    machine.permit(1, 1);
    machine.lease(1, 4, 1);
    machine.permit(2, 1);
    machine.release(1, 4);
    assert!(!machine.permit(3, 2)[0].clear, "its holder may still win a later term with epoch 2");
}

#[test]
fn a_lease_goes_to_a_greater_term_only_and_never_to_a_released_or_dead_one() {
    let mut machine = Machine::new();
    machine.cluster();
    machine.topic("default/t", 1).result.expect("made");
    machine.permit(1, 1);
    machine.permit(2, 2);
    assert!(matches!(machine.lease(1, 4, 1), Applied::LeaseGranted(_)), "a newer unused permit does not matter");
    assert!(matches!(machine.lease(1, 4, 1), Applied::LeaseGranted(_)), "repeated");
    assert_eq!(machine.lease(2, 4, 2), Applied::LeaseRefused);
    assert_eq!(machine.lease(2, 3, 2), Applied::LeaseRefused);
    assert_eq!(machine.lease(2, 5, 3), Applied::LeaseRefused, "an epoch that was never issued");
    machine.release(2, 5);
    assert_eq!(machine.lease(2, 5, 2), Applied::LeaseRefused, "released");
    machine.die(2, 1);
    assert_eq!(machine.lease(2, 6, 2), Applied::LeaseRefused, "dead");
}

#[test]
fn an_older_incarnation_is_dead_only_by_the_same_lock_on_the_same_boot() {
    let mut machine = Machine::new();
    machine.cluster();
    let proven = machine.register(hello(1, 2)).result;
    assert_eq!(proven, Ok(Applied::Registered { node: NodeId(1), died: Some(Incarnation(1)) }));
    let mut rebooted = hello(1, 3);
    rebooted.lock.boot_id = "another".to_owned();
    let unproven = machine.register(rebooted).result;
    assert_eq!(unproven, Ok(Applied::Registered { node: NodeId(1), died: None }));
    assert_eq!(machine.0.nodes()[&NodeId(1)].dead, Incarnation(1));
    let mut nameless = hello(2, 2);
    nameless.lock = LockProof::default();
    machine.register(nameless.clone()).result.expect("registers");
    nameless.incarnation = Incarnation(3);
    let empty = machine.register(nameless).result;
    assert_eq!(empty, Ok(Applied::Registered { node: NodeId(2), died: None }), "an empty proof proves nothing");
}

#[test]
fn copies_and_old_incarnations_are_refused() {
    let mut machine = Machine::new();
    machine.cluster();
    machine.register(hello(1, 4)).result.expect("registers");
    let reason = |m: &mut Machine, h: Hello| m.register(h).result.expect_err("refused").reason;
    assert_eq!(reason(&mut machine, hello(1, 3)), Reason::StaleIncarnation);
    let mut clone = hello(1, 4);
    clone.lock.ino = 99;
    assert_eq!(reason(&mut machine, clone), Reason::StaleIncarnation);
    let mut other_disk = hello(1, 5);
    other_disk.disk = DiskId(99);
    assert_eq!(reason(&mut machine, other_disk), Reason::RefusedUnsafe);
    let mut copied = hello(3, 9);
    copied.disk = DiskId(1);
    assert_eq!(reason(&mut machine, copied), Reason::RefusedUnsafe);
    machine.die(1, 4);
    assert_eq!(reason(&mut machine, hello(1, 4)), Reason::StaleIncarnation);
}

#[test]
fn another_cluster_is_refused() {
    let mut machine = Machine::new();
    machine.cluster();
    let other = machine.apply(CommandKind::Bootstrap(ClusterId(8)));
    assert_eq!(other.result.expect_err("refused").reason, Reason::ClusterMismatch);
    assert!(!other.changed);
}

#[test]
fn commands_of_newer_software_stop_the_observer() {
    use prost::Message as _;
    use quorate_proto::internal as wire;
    let newer = wire::DirectoryCommand { schema: SCHEMA + 1, ..Default::default() };
    assert_eq!(DirectoryCommand::decode(newer.encode_to_vec().into()), Err(CommandError::Schema(SCHEMA + 1)));
    let unknown = wire::DirectoryCommand { schema: SCHEMA, ..Default::default() };
    assert_eq!(DirectoryCommand::decode(unknown.encode_to_vec().into()), Err(CommandError::UnknownKind));
}

#[test]
fn the_last_thousand_failovers_are_kept_and_none_twice() {
    let mut machine = Machine::new();
    machine.cluster();
    for term in 0..(FAILOVERS_KEPT as u64 + 10) {
        let failover = Failover { group_id: 2, new_term: term, ..Failover::default() };
        machine.apply(CommandKind::Failover(Box::new(failover.clone())));
        let again = machine.apply(CommandKind::Failover(Box::new(failover)));
        assert_eq!(again.result, Ok(Applied::Unchanged));
    }
    assert_eq!(machine.0.failovers().len(), FAILOVERS_KEPT);
    assert_eq!(machine.0.failovers().back().map(|f| f.id), Some(FAILOVERS_KEPT as u64 + 10));
}

#[test]
fn a_repeated_operation_changes_nothing() {
    let mut machine = Machine::new();
    machine.cluster();
    let make = |topic| CommandKind::CreateTopic {
        name: "default/t".to_owned(),
        topic: TopicId(topic),
        partitions: vec![[NodeId(1), NodeId(2), NodeId(3)]],
    };
    let first = machine.apply_as(OperationId(5), make(1));
    assert_eq!(first.result, Ok(Applied::Topic(TopicId(1))));
    let again = machine.apply_as(OperationId(5), make(2));
    assert_eq!((again.result, again.changed), (Ok(Applied::Topic(TopicId(1))), false));
    let other = machine.apply_as(OperationId(6), make(3));
    assert_eq!(other.result.expect_err("taken").reason, Reason::AlreadyExists);
}

/// One random command of those that a running cluster sees.
#[derive(Clone, Debug)]
enum Step {
    Register(u64, u64),
    Topic(u32),
    Permit(u64, u64),
    Lease(u64, u64, u64),
    Release(u64, u64),
    Die(u64, u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (1u64..4, 1u64..6).prop_map(|(n, i)| Step::Register(n, i)),
        (1u32..4).prop_map(Step::Topic),
        (1u64..6, 1u64..4).prop_map(|(e, n)| Step::Permit(e, n)),
        (1u64..4, 1u64..8, 1u64..6).prop_map(|(n, t, e)| Step::Lease(n, t, e)),
        (1u64..4, 1u64..8).prop_map(|(n, t)| Step::Release(n, t)),
        (1u64..4, 1u64..6).prop_map(|(n, i)| Step::Die(n, i)),
    ]
}

proptest! {
    #[test]
    fn a_snapshot_is_the_machine_and_facts_only_accumulate(steps in prop::collection::vec(step(), 0..40)) {
        let mut machine = Machine::new();
        machine.cluster();
        machine.topic("default/t", 1).result.expect("made");
        let mut names = 0;
        for step in steps {
            let before = machine.0.clone();
            match step {
                Step::Register(node, incarnation) => drop(machine.register(hello(node, incarnation))),
                Step::Topic(partitions) => {
                    names += 1;
                    machine.topic(&format!("default/{names}"), partitions).result.expect("made");
                }
                Step::Permit(epoch, node) => drop(machine.permit(epoch, node)),
                Step::Lease(node, term, epoch) => drop(machine.lease(node, term, epoch)),
                Step::Release(node, term) => machine.release(node, term),
                Step::Die(node, incarnation) => machine.die(node, incarnation),
            }
            prop_assert!(machine.0.version() >= before.version());
            for (group, old) in before.partitions() {
                let new = machine.0.partition(*group).expect("never removed");
                prop_assert!(new.permit_epoch >= old.permit_epoch);
                prop_assert!(new.lease.map(|l| l.term) >= old.lease.map(|l| l.term));
                prop_assert!(old.released.iter().all(|(r, t)| new.is_released(*r, *t)));
                prop_assert!(new.uncleared.len() <= new.replicas.len());
            }
            for (node, old) in before.nodes() {
                prop_assert!(machine.0.nodes()[node].dead >= old.dead);
            }
        }
        prop_assert_eq!(Directory::decode(&machine.0.encode()), Ok(machine.0));
    }
}
