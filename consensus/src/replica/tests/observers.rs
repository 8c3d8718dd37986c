//! The self-electing mode: the observers' own group.

use quorate_proto::control::Role;
use quorate_proto::ids::ReplicaId;

use super::harness::Cluster;
use crate::effect::ReplicaEffect;
use crate::policy::Production;
use crate::replica::Mode;

fn elected(size: u64) -> Cluster<Production> {
    let mut cluster = Cluster::new(Mode::SelfElecting, size);
    cluster.run_until("a leader", 5000, |c| c.leader().is_some());
    cluster
}

#[test]
fn it_elects_itself_also_when_every_first_time_out_is_the_same() {
    let mut cluster = elected(3);
    let leader = cluster.leader().unwrap();
    cluster.propose(leader, "a");
    cluster.run(200);
    for id in 1..=3 {
        assert_eq!(cluster.values(id), ["a"]);
        assert_eq!(cluster.replica(id).leader(), Some(ReplicaId(leader)));
    }
    let effects = cluster.take_effects(leader);
    assert!(!effects.iter().any(|e| matches!(e, ReplicaEffect::AskPermit | ReplicaEffect::Released { .. })));
}

#[test]
fn a_lost_leader_is_replaced_within_its_election_time_out() {
    for seed in 0..20_u64 {
        let mut cluster = elected(3);
        cluster.run(seed * 30 + 500);
        let leader = cluster.leader().unwrap();
        cluster.crash(leader);
        let took = cluster.run_until("another leader", 4000, |c| c.leader().is_some_and(|l| l != leader));
        assert!(took <= std::time::Duration::from_millis(1700), "{took:?}");
    }
}

#[test]
fn contact_with_the_majority_is_known_and_lost() {
    let mut cluster = elected(3);
    cluster.run(500);
    let leader = cluster.leader().unwrap();
    assert!(cluster.replica(leader).has_quorum_contact(cluster.now));
    cluster.read(leader, 1);
    assert_eq!(cluster.reads(leader).len(), 1);
    cluster.isolate(leader);
    cluster.run(900);
    assert!(!cluster.replica(leader).has_quorum_contact(cluster.now));
    cluster.read(leader, 2);
    cluster.run_until("check-quorum ends it", 3000, |c| c.replica(leader).role() != Role::Leader);
    assert_eq!(cluster.reads(leader).last(), Some(&(2, None)));
}

#[test]
fn a_single_member_leads_alone() {
    let mut cluster = elected(1);
    assert_eq!(cluster.leader(), Some(1));
    cluster.propose(1, "a");
    cluster.read(1, 1);
    assert_eq!((cluster.values(1).len(), cluster.reads(1).len()), (1, 1));
}
