//! Replaced disks and changes of members (M1).

use quorate_proto::control::ChangePhase;

use super::*;

const GROUP: GroupId = GroupId(2);

fn fresh(node: u64, incarnation: u64, disk: u128) -> Hello {
    let mut hello = hello(node, incarnation);
    hello.disk = DiskId(disk);
    hello.fresh = true;
    hello
}

impl Machine {
    fn with_topic() -> Self {
        let mut machine = Self::new();
        machine.cluster();
        machine.register(hello(4, 1)).result.expect("registers");
        // The topic lies on the first three: they have the fewest replicas and the smallest numbers.
        machine.topic("default/t", 1).result.expect("made");
        machine
    }

    fn begin(&mut self, remove: ReplicaId, node: u64) -> Result<Applied, quorate_proto::refusal::Refusal> {
        let reason = "test".to_owned();
        self.apply(CommandKind::BeginChange { group: GROUP, remove, node: NodeId(node), reason }).result
    }

    fn advance(&mut self, task: TaskId, phase: ChangePhase) -> Applied {
        let why = String::new();
        self.apply(CommandKind::AdvanceChange { group: GROUP, task, phase, why }).result.expect("never refused")
    }

    fn finish(&mut self, task: TaskId) -> Applied {
        self.apply(CommandKind::FinishChange { group: GROUP, task }).result.expect("never refused")
    }
}

#[test]
fn an_empty_disk_takes_the_place_of_a_lost_one_and_its_replicas_are_lost() {
    let mut machine = Machine::with_topic();
    let old = machine.replica(2);
    let foreign = Hello { fresh: false, ..fresh(2, 5, 99) };
    assert_eq!(machine.register(foreign).result.expect_err("a disk with data").reason, Reason::RefusedUnsafe);
    let low = machine.0.check_registration(&fresh(2, 0, 99)).expect_err("an older incarnation");
    assert_eq!(low.reason, Reason::StaleIncarnation);
    machine.register(fresh(2, 5, 99)).result.expect("an empty disk");
    assert!(machine.0.partition(GROUP).expect("there").lost.contains(&old));
    // It hosts nothing until its successor is made: never again under its old id.
    assert!(machine.0.assignments_for(NodeId(2)).replicas.is_empty());
    let task = match machine.begin(old, 2) {
        Ok(Applied::ChangeBegun(task)) => task,
        other => panic!("{other:?}"),
    };
    let hosted = machine.0.assignments_for(NodeId(2)).replicas;
    assert_eq!(hosted.len(), 1);
    assert!(hosted[0].replica > old && hosted[0].change.is_some_and(|c| c.task == task && c.remove == old));
    assert_eq!(hosted[0].members.len(), 4, "all members hear of the learner");
}

#[test]
fn a_change_ends_with_the_new_replica_in_the_old_one_s_place() {
    let mut machine = Machine::with_topic();
    let old = machine.replica(3);
    machine.permit(1, 3);
    machine.begin(old, 4).expect("node 4 is free");
    let task = TaskId(1);
    assert_eq!(machine.finish(task), Applied::Unchanged, "it only learns");
    assert_eq!(machine.advance(task, ChangePhase::Promote), Applied::ChangeAdvanced);
    assert_eq!(machine.advance(task, ChangePhase::Cancel), Applied::Unchanged, "what is promoted is finished");
    let version = machine.0.partition(GROUP).expect("there").config_version;
    assert_eq!(machine.finish(task), Applied::ChangeFinished(task));
    let partition = machine.0.partition(GROUP).expect("there");
    assert_eq!(partition.replicas[2].1, NodeId(4));
    assert!(partition.config_version > version && partition.change.is_none());
    assert!(partition.uncleared.is_empty(), "a permit of a removed replica elects nobody");
    assert_eq!(machine.0.assignments_for(NodeId(3)).retired, [(GROUP, old)]);
    assert!(machine.0.assignments_for(NodeId(3)).replicas.is_empty());
    let ended = machine.0.task(task).expect("kept");
    assert!(ended.ended.is_some() && ended.cancelled.is_empty());
}

#[test]
fn a_cancelled_change_leaves_the_members_and_retires_the_learner() {
    let mut machine = Machine::with_topic();
    let old = machine.replica(3);
    machine.begin(old, 4).expect("node 4 is free");
    let learner = machine.replica(4);
    machine.advance(TaskId(1), ChangePhase::Cancel);
    machine.finish(TaskId(1));
    assert_eq!(machine.replica(3), old);
    assert_eq!(machine.0.assignments_for(NodeId(4)).retired, [(GROUP, learner)]);
}

#[test]
fn changes_that_make_no_sense_are_refused() {
    let mut machine = Machine::with_topic();
    let (second, third) = (machine.replica(2), machine.replica(3));
    assert!(machine.begin(ReplicaId(99), 4).is_err(), "no member");
    assert!(machine.begin(third, 2).is_err(), "the node hosts another replica");
    assert!(machine.begin(third, 9).is_err(), "no such node");
    machine.register(Hello { fault_domain: "d1".to_owned(), ..hello(5, 1) }).result.expect("registers");
    assert!(machine.begin(third, 5).is_err(), "a shared fault domain");
    machine.begin(third, 4).expect("fits");
    assert!(machine.begin(second, 2).is_err(), "one change at a time");
}

#[test]
fn changes_survive_a_snapshot() {
    let mut machine = Machine::with_topic();
    let (second, third) = (machine.replica(2), machine.replica(3));
    machine.begin(third, 4).expect("fits");
    machine.advance(TaskId(1), ChangePhase::Promote);
    machine.finish(TaskId(1));
    machine.register(fresh(2, 5, 99)).result.expect("an empty disk");
    machine.begin(second, 2).expect("fits");
    assert_eq!(Directory::decode(&machine.0.encode()), Ok(machine.0));
}

#[test]
fn a_leader_hands_over_before_another_replica_takes_its_place_on_its_node() {
    let mut machine = Machine::with_topic();
    let old = machine.replica(2);
    machine.permit(1, 2);
    assert!(matches!(machine.lease(2, 3, 1), Applied::LeaseGranted(_)));
    machine.begin(old, 2).expect("the same node");
    let hosted = |machine: &Machine| machine.0.assignments_for(NodeId(2)).replicas[0].replica;
    assert_eq!(hosted(&machine), old, "it leads");
    let topology = machine.0.topology();
    machine.permit(2, 3);
    assert!(matches!(machine.lease(3, 4, 2), Applied::LeaseGranted(_)));
    assert!(hosted(&machine) > old);
    assert!(machine.0.topology() > topology, "the node is told");
}
