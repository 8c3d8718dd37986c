//! Where the replicas of a new topic go: live nodes in distinct fault domains, fewest replicas first; the preferred
//! first leader of each partition is the one preferred least so far, so that leaders spread.

use std::collections::{BTreeMap, BTreeSet};

use quorate_proto::ids::NodeId;
use quorate_proto::refusal::Refusal;
use quorate_proto::v1::Reason;

use super::{Directory, Placement, REPLICAS};

/// Chooses replicas for `partitions` new partitions among the nodes `live`.
///
/// # Errors
/// `DEGRADED` if fewer than three fault domains have a live node.
pub fn place(directory: &Directory, live: &BTreeSet<NodeId>, partitions: u32) -> Result<Vec<Placement>, Refusal> {
    let mut replicas: BTreeMap<NodeId, u32> = live.iter().map(|n| (*n, 0)).collect();
    let mut preferred = replicas.clone();
    for partition in directory.partitions().values() {
        for (i, (_, node)) in partition.replicas.iter().enumerate() {
            replicas.entry(*node).and_modify(|n| *n += 1);
            if i == 0 {
                preferred.entry(*node).and_modify(|n| *n += 1);
            }
        }
    }
    let mut placed = Vec::with_capacity(partitions as usize);
    for _ in 0..partitions {
        let mut order: Vec<NodeId> = live.iter().copied().collect();
        order.sort_by_key(|node| (replicas[node], *node));
        let mut domains = BTreeSet::new();
        order.retain(|node| directory.node(*node).is_some_and(|n| domains.insert(n.registered.fault_domain.clone())));
        order.truncate(REPLICAS);
        order.sort_by_key(|node| (preferred[node], *node));
        let Ok(chosen) = Placement::try_from(order.as_slice()) else {
            return Err(Refusal::new(
                Reason::Degraded,
                format!("a new topic needs live data nodes in {REPLICAS} fault domains, there are {}", order.len()),
                format!("{} live data nodes", live.len()),
                "start the missing data nodes (`quorate node list` shows them), then repeat the call",
            )
            .retry_after(std::time::Duration::from_millis(500)));
        };
        for node in chosen {
            replicas.entry(node).and_modify(|n| *n += 1);
        }
        preferred.entry(chosen[0]).and_modify(|n| *n += 1);
        placed.push(chosen);
    }
    Ok(placed)
}
