//! The log: persist before send, apply at the commit index, overwrites, catch-up, snapshots, quarantine.

use quorate_proto::control::{Ended, Role};
use quorate_proto::ids::{Incarnation, LogIndex, ReplicaId};
use raft::eraftpb::MessageType;

use super::harness::{led, Cluster};
use crate::effect::ReplicaEffect;
use crate::policy::{Policy, Production};
use crate::replica::Mode;

fn dead(replica: u64) -> Ended {
    Ended::Dead { replica: ReplicaId(replica), incarnation: Incarnation(1) }
}

#[test]
fn a_leader_commits_and_applies_by_two_followers_while_its_own_flush_hangs() {
    let mut cluster = led::<Production>();
    cluster.nodes.get_mut(&1).unwrap().hold_flush = true;
    let (_, index) = cluster.propose(1, "a");
    assert_eq!(cluster.values(1), ["a"]);
    assert_eq!(cluster.replica(1).committed(), index);
    assert!(cluster.replica(1).persisted_index() < index);
    cluster.nodes.get_mut(&1).unwrap().hold_flush = false;
    cluster.flush(1);
    assert_eq!(cluster.replica(1).persisted_index(), index);
}

#[derive(Clone, Copy, Debug, Default)]
struct AckBeforeFlush;
impl Policy for AckBeforeFlush {
    fn keeps(rule: crate::policy::Rule) -> bool {
        rule != crate::policy::Rule::FlushBeforeAck
    }
}

#[test]
fn followers_that_have_not_flushed_do_not_count() {
    fn commits<P: Policy>() -> bool {
        let mut cluster = led::<P>();
        for id in [2, 3] {
            cluster.nodes.get_mut(&id).unwrap().hold_flush = true;
        }
        cluster.propose(1, "a");
        cluster.run(100);
        !cluster.values(1).is_empty()
    }
    assert!(!commits::<Production>());
    assert!(commits::<AckBeforeFlush>(), "the rule is what prevents this");
}

#[test]
fn an_unflushed_conflicting_suffix_is_overwritten() {
    let mut cluster = led::<Production>();
    cluster.propose(1, "kept");
    cluster.run(300);
    cluster.nodes.get_mut(&3).unwrap().hold_flush = true;
    cluster.cut_both(1, 2);
    cluster.cuts.insert((3, 1));
    for n in 0..5 {
        cluster.propose(1, &format!("lost {n}"));
    }
    assert_eq!(cluster.replica(3).last_index(), cluster.replica(1).last_index(), "appended, not flushed");
    cluster.crash(1);
    cluster.cuts.clear();
    cluster.crash(3);
    cluster.nodes.get_mut(&3).unwrap().hold_flush = false;
    cluster.start(3).unwrap();
    cluster.permit(2, 2, &[dead(1)], true);
    cluster.propose(2, "new 0");
    cluster.propose(2, "new 1");
    cluster.start(1).unwrap();
    cluster.run(1000);
    for id in 1..=3 {
        assert_eq!(cluster.values(id), ["kept", "new 0", "new 1"], "replica {id}");
    }
}

#[test]
fn a_live_followers_unflushed_tail_is_overwritten_by_the_next_leader() {
    let mut cluster = led::<Production>();
    cluster.propose(1, "kept");
    cluster.run(300);
    cluster.cut_both(1, 2);
    cluster.cuts.insert((3, 1));
    cluster.nodes.get_mut(&3).unwrap().hold_flush = true;
    for n in 0..5 {
        cluster.propose(1, &format!("lost {n}"));
    }
    cluster.cuts.clear();
    cluster.crash(1);
    // Replica 3 has the longer log, though unflushed: it must not vote for 2, but may win itself once flushed.
    cluster.permit(2, 2, &[dead(1)], true);
    cluster.run(300);
    assert_eq!(cluster.leader(), None);
    cluster.permit(3, 3, &[dead(1)], true);
    cluster.nodes.get_mut(&3).unwrap().hold_flush = false;
    cluster.flush(3);
    cluster.run(300);
    assert_eq!(cluster.leader(), Some(3));
    cluster.start(1).unwrap();
    cluster.run(1000);
    let expected = ["kept", "lost 0", "lost 1", "lost 2", "lost 3", "lost 4"];
    for id in 1..=3 {
        assert_eq!(cluster.values(id), expected, "replica {id}");
    }
}

#[test]
fn everything_committed_is_there_after_all_restart_though_no_commit_index_alone_is_ever_written() {
    let mut cluster = led::<Production>();
    for n in 0..20 {
        cluster.propose(1, &format!("{n}"));
    }
    cluster.take_effects(2);
    cluster.run(1000);
    let writes = cluster.take_effects(2).iter().filter(|e| matches!(e, ReplicaEffect::Persist(_))).count();
    assert_eq!(writes, 0, "an idle group writes nothing");
    for id in 1..=3 {
        cluster.crash(id);
    }
    for id in 1..=3 {
        cluster.start(id).unwrap();
    }
    cluster.permit(2, 3, &[dead(1)], true);
    cluster.run(300);
    for id in 1..=3 {
        assert_eq!(cluster.values(id).len(), 20, "replica {id}");
    }
}

#[test]
fn a_checkpoint_shortens_the_log_and_a_restart_goes_on_from_it() {
    let mut cluster = led::<Production>();
    for n in 0..10 {
        cluster.propose(1, &format!("{n}"));
    }
    cluster.run(300);
    cluster.checkpoint(2);
    let start = cluster.replica(2).applied_index();
    assert!(cluster.nodes[&2].disk.entries.is_empty());
    cluster.propose(1, "after");
    cluster.crash(2);
    cluster.start(2).unwrap();
    assert_eq!(cluster.replica(2).applied_index(), start);
    cluster.run(500);
    assert_eq!(cluster.values(2), cluster.values(1));
}

#[test]
fn an_older_checkpoint_does_not_replace_a_newer_one() {
    let mut cluster = led::<Production>();
    cluster.propose(1, "a");
    cluster.run(300);
    let old = cluster.replica(2).applied_index();
    cluster.propose(1, "b");
    cluster.run(300);
    cluster.checkpoint(2);
    let written = cluster.act(2, |r, now, out| r.compact(now, old, vec![], out));
    assert_eq!(written, None);
}

#[test]
fn a_follower_older_than_the_cache_is_served_from_the_wal() {
    let mut cluster = Cluster::<Production>::new(Mode::Governed, 3);
    cluster.cache_bytes = 0;
    for id in 1..=3 {
        cluster.crash(id);
        cluster.start(id).unwrap();
    }
    cluster.permit(1, 1, &[], true);
    cluster.run(100);
    cluster.isolate(3);
    for n in 0..50 {
        cluster.propose(1, &format!("{n}"));
    }
    cluster.take_effects(1);
    cluster.cuts.clear();
    cluster.run(1000);
    assert_eq!(cluster.values(3), cluster.values(1));
    let effects = cluster.take_effects(1);
    assert!(effects.iter().any(|e| matches!(e, ReplicaEffect::Fetch { .. })));
    assert!(!effects.iter().any(|e| matches!(e, ReplicaEffect::BuildSnapshot { .. })));
}

/// Replica 3 misses a part of the log that is compacted meanwhile.
fn behind() -> Cluster<Production> {
    let mut cluster = led::<Production>();
    cluster.isolate(3);
    for n in 0..10 {
        cluster.propose(1, &format!("{n}"));
    }
    cluster.run(300);
    cluster.checkpoint(1);
    cluster.checkpoint(2);
    cluster
}

#[test]
fn a_follower_older_than_the_log_is_given_a_snapshot_and_goes_on() {
    let mut cluster = behind();
    cluster.cuts.clear();
    cluster.run(1000);
    assert_eq!(cluster.values(3), cluster.values(1));
    cluster.propose(1, "after");
    cluster.run(300);
    assert_eq!(cluster.values(3), cluster.values(1));
    cluster.crash(3);
    cluster.start(3).unwrap();
    cluster.run(500);
    assert_eq!(cluster.values(3), cluster.values(1), "the snapshot is durable");
}

#[test]
fn nothing_is_written_or_campaigned_for_while_a_snapshot_is_installed() {
    let mut cluster = behind();
    cluster.nodes.get_mut(&3).unwrap().hold_restore = true;
    cluster.cuts.clear();
    let start = cluster.nodes[&3].disk.clone();
    cluster.run(1000);
    let asked = cluster.nodes[&3].effects.iter().find_map(|e| match e {
        ReplicaEffect::Restore { index, data, .. } => Some((*index, data.clone())),
        _ => None,
    });
    let (index, data) = asked.expect("a snapshot came");
    cluster.propose(1, "meanwhile");
    cluster.crash(1);
    cluster.permit(2, 3, &[dead(1)], true);
    cluster.run(30_000);
    assert_eq!(cluster.replica(3).role(), Role::Follower);
    assert_eq!(cluster.nodes[&3].disk.entries, start.entries);
    assert_eq!(cluster.nodes[&3].disk.meta, start.meta);
    cluster.act(3, |r, now, out| r.restored(now, index, vec![("machine", data)], out));
    assert_eq!(cluster.replica(3).applied_index(), index);
    cluster.permit(3, 2, &[dead(1)], true);
    cluster.run(500);
    assert_eq!(cluster.leader(), Some(2));
    assert_eq!(cluster.values(3), cluster.values(2));
}

#[test]
fn a_crash_between_receiving_and_installing_a_snapshot_leaves_the_old_log() {
    let mut cluster = behind();
    cluster.nodes.get_mut(&3).unwrap().hold_restore = true;
    cluster.cuts.clear();
    cluster.run(1000);
    cluster.crash(3);
    cluster.nodes.get_mut(&3).unwrap().hold_restore = false;
    cluster.start(3).unwrap();
    assert!(cluster.values(3).is_empty());
    cluster.run(2000);
    assert_eq!(cluster.values(3), cluster.values(1));
}

#[test]
fn a_heartbeat_beyond_the_log_quarantines_instead_of_crashing() {
    let mut cluster = led::<Production>();
    cluster.propose(1, "a");
    cluster.propose(1, "b");
    cluster.run(300);
    cluster.crash(2);
    // The log lost its flushed tail; nobody noticed.
    let disk = &mut cluster.nodes.get_mut(&2).unwrap().disk;
    disk.entries.pop_last();
    let last = *disk.entries.keys().next_back().unwrap();
    disk.hard_state.as_mut().unwrap().commit = last.min(disk.hard_state.as_ref().unwrap().commit);
    cluster.start(2).unwrap();
    cluster.run(500);
    assert_eq!(cluster.replica(2).role(), Role::Quarantined);
    let told = cluster.take_effects(2).iter().filter(|e| matches!(e, ReplicaEffect::Quarantine(_))).count();
    assert_eq!(told, 1);
    cluster.run(500);
    assert!(cluster.take_effects(2).is_empty(), "it takes no part any more");
    assert_eq!(cluster.serving(), [1]);
}

#[test]
fn a_log_that_contradicts_itself_is_quarantined_at_start() {
    let mut cluster = led::<Production>();
    for n in 0..5 {
        cluster.propose(1, &format!("{n}"));
    }
    cluster.run(300);
    cluster.checkpoint(2);
    cluster.propose(1, "x");
    cluster.propose(1, "y");
    cluster.crash(2);
    let sound = cluster.nodes[&2].disk.clone();
    let refused = |cluster: &mut Cluster<Production>, what: &str, f: &dyn Fn(&mut super::harness::Disk)| {
        let mut disk = sound.clone();
        f(&mut disk);
        cluster.nodes.get_mut(&2).unwrap().disk = disk;
        let result = cluster.start(2);
        assert!(result.is_err(), "{what}");
        cluster.crash(2);
    };
    refused(&mut cluster, "commit beyond the log", &|d| d.hard_state.as_mut().unwrap().commit = 99);
    refused(&mut cluster, "a gap", &|d| drop(d.entries.pop_first()));
    refused(&mut cluster, "a term older than the entries", &|d| d.hard_state.as_mut().unwrap().term = 1);
    refused(&mut cluster, "no hard state", &|d| d.hard_state = None);
    refused(&mut cluster, "an unreadable record", &|d| d.meta = Some(d.meta.as_ref().unwrap().slice(..20)));
    cluster.nodes.get_mut(&2).unwrap().disk = sound.clone();
    assert!(cluster.start(2).is_ok());
}

#[test]
fn a_crash_loses_only_what_was_not_flushed() {
    let mut cluster = led::<Production>();
    cluster.propose(1, "a");
    cluster.nodes.get_mut(&2).unwrap().hold_flush = true;
    cluster.propose(1, "b");
    cluster.run(300);
    cluster.crash(2);
    cluster.nodes.get_mut(&2).unwrap().hold_flush = false;
    cluster.start(2).unwrap();
    cluster.run(500);
    assert_eq!(cluster.values(2), ["a", "b"]);
    assert_eq!(cluster.replica(2).role(), Role::Follower);
}

#[test]
fn proposals_by_others_than_the_leader_are_refused_with_its_name() {
    let mut cluster = led::<Production>();
    cluster.run(300);
    let refused = cluster.act(2, |r, now, out| r.propose(now, "x".into(), out));
    assert_eq!(refused, Err(crate::replica::ProposeError::NotLeader { leader: Some(ReplicaId(1)) }));
    let kept = cluster.wire.iter().any(|e| e.message.get_msg_type() == MessageType::MsgPropose);
    assert!(!kept, "nothing is forwarded");
    assert_eq!(cluster.replica(2).membership_at(LogIndex(5)).voters, [1, 2, 3]);
}
