//! B2, V1d: a log that may have lost flushed entries.

use super::election::{dead, released};
use super::harness::led;
use crate::policy::Production;

#[test]
fn a_suspect_log_only_vetoes() {
    let mut cluster = led::<Production>();
    cluster.run(500);
    cluster.crash(2);
    cluster.nodes.get_mut(&2).unwrap().suspect = true;
    cluster.start(2).unwrap();
    cluster.run(2000);
    cluster.crash(1);
    cluster.permit(2, 3, &[dead(1)], true);
    cluster.run(1000);
    assert_eq!(cluster.leader(), None);
    assert!(cluster.vetoes(2).contains(&"suspect"));
    assert!(cluster.replica(2).report(cluster.now).suspect_log);
}

#[test]
fn the_first_leader_after_a_suspect_start_clears_the_suspicion_if_it_was_permitted_since() {
    let mut cluster = led::<Production>();
    cluster.propose(1, "a");
    cluster.run(500);
    cluster.crash(1);
    cluster.crash(2);
    cluster.nodes.get_mut(&2).unwrap().suspect = true;
    cluster.start(2).unwrap();
    cluster.start(1).unwrap();
    assert!(cluster.replica(2).report(cluster.now).suspect_log);
    cluster.permit(2, 3, &[dead(1)], true);
    cluster.run_until("replica 3 leads", 3_000, |c| c.serving() == [3]);
    cluster.propose(3, "b");
    cluster.run(300);
    assert!(!cluster.replica(2).report(cluster.now).suspect_log, "no second change of the leader is needed");
}

#[test]
fn a_suspect_log_is_sound_again_once_it_caught_up_with_a_leader_elected_since() {
    let mut cluster = led::<Production>();
    cluster.propose(1, "a");
    cluster.run(500);
    cluster.crash(2);
    cluster.nodes.get_mut(&2).unwrap().suspect = true;
    cluster.start(2).unwrap();
    for n in 0..3 {
        cluster.propose(1, &format!("under the same leader {n}"));
        cluster.run(500);
    }
    assert!(cluster.replica(2).report(cluster.now).suspect_log, "the same leader never probes the end of its log");
    let term = cluster.replica(1).term();
    cluster.permit(2, 3, &[released(1, term)], false);
    assert_eq!(cluster.leader(), Some(1), "it is not released, and 2 may not vote");
    cluster.act(1, |r, now, out| r.release(now, "test", out));
    cluster.deliver();
    cluster.run(100);
    assert_eq!(cluster.leader(), Some(3));
    assert!(!cluster.replica(2).report(cluster.now).suspect_log);
}
