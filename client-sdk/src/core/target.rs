//! Which node to ask for a partition, and when: routes, what refusals taught, and waiting.

use std::collections::BTreeSet;
use std::time::Duration;

use quorate_proto::ids::NodeId;
use quorate_proto::refusal::{Reason, Refusal};
use quorate_proto::time::BootTime;

use super::backoff::Jitter;
use super::routes::PartitionRoute;

/// A node that said it does not lead is not asked again until the observers push a newer route, or for this long: a
/// client that waited for a push only could wait for ever if that push were lost to a fault nobody thought of.
const FORGET: Duration = Duration::from_secs(2);

/// What a refusal means for the way to the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// This node does not lead: wait for the push, or follow its hint. Uses no retry.
    Elsewhere,
    /// The leader cannot serve now: ask again after the delay. Uses no retry.
    Later,
    /// The request broke off with unknown fate. Uses a retry.
    Broken,
    /// Asking again cannot help.
    Final,
}

impl Class {
    /// Class of a refusal that is not about sequences.
    #[must_use]
    pub fn of(refusal: &Refusal) -> Self {
        match refusal.reason {
            Reason::NotLeader | Reason::NoLeader | Reason::Handoff | Reason::StaleIncarnation => Self::Elsewhere,
            // A topic can be known to the observers before it is known to its leader.
            Reason::UnknownTopic => Self::Later,
            Reason::Fenced
            | Reason::Busy
            | Reason::Degraded
            | Reason::Quota
            | Reason::StorageFull
            | Reason::Lagging
            | Reason::NeedsOperator => Self::Later,
            Reason::Unreachable | Reason::Deadline => Self::Broken,
            _ if refusal.maybe_applied => Self::Broken,
            _ => Self::Final,
        }
    }
}

/// The way to a partition's leader.
#[derive(Clone, Debug)]
pub struct Target {
    route: PartitionRoute,
    /// Where a refusal pointed; better than a route that led to that refusal.
    hint: Option<NodeId>,
    /// Nodes known not to lead in this epoch.
    elsewhere: BTreeSet<NodeId>,
    forget_at: BootTime,
    not_before: BootTime,
    /// Refusals in a row that asked for a delay.
    waits: u32,
}

impl Target {
    /// The way that `route` shows.
    #[must_use]
    pub fn new(route: PartitionRoute) -> Self {
        Self {
            route,
            hint: None,
            elsewhere: BTreeSet::new(),
            forget_at: BootTime::MAX,
            not_before: BootTime::ZERO,
            waits: 0,
        }
    }

    /// The route as pushed.
    #[must_use]
    pub fn route(&self) -> &PartitionRoute {
        &self.route
    }

    /// The node to ask, if one is known, whether or not it is time yet.
    #[must_use]
    pub fn node(&self) -> Option<NodeId> {
        self.hint.or(self.route.leader).filter(|node| !self.elsewhere.contains(node))
    }

    /// The node to ask now; `None`: wait until [`Self::deadline`] or the next push.
    pub fn choose(&mut self, now: BootTime) -> Option<NodeId> {
        if self.forget_at <= now {
            self.elsewhere.clear();
            self.hint = None;
            self.forget_at = BootTime::MAX;
        }
        if now < self.not_before {
            return None;
        }
        self.node()
    }

    /// When [`Self::choose`] may answer differently without a push.
    #[must_use]
    pub fn deadline(&self, now: BootTime) -> Option<BootTime> {
        let wait = (self.not_before > now).then_some(self.not_before);
        let forget = (self.forget_at > now && self.forget_at != BootTime::MAX).then_some(self.forget_at);
        wait.into_iter().chain(forget).min()
    }

    /// True if the observers name this node and it did not deny.
    #[must_use]
    pub fn names(&self, node: NodeId) -> bool {
        self.route.leader == Some(node) && !self.elsewhere.contains(&node)
    }

    /// Takes a pushed route in. True: it is news, and waiting is over.
    pub fn on_route(&mut self, route: PartitionRoute) -> bool {
        let stale = route.group == self.route.group && route.epoch < self.route.epoch;
        if stale || route == self.route {
            return false;
        }
        self.route = route;
        self.hint = None;
        self.elsewhere.clear();
        self.forget_at = BootTime::MAX;
        self.not_before = BootTime::ZERO;
        self.waits = 0;
        true
    }

    /// The node announced that it closes.
    pub fn on_going_away(&mut self, now: BootTime, node: NodeId) {
        self.deny(now, node);
    }

    /// `node` refused.
    pub fn on_refusal(&mut self, now: BootTime, node: NodeId, refusal: &Refusal, jitter: &mut Jitter) {
        match Class::of(refusal) {
            Class::Elsewhere => {
                self.deny(now, node);
                self.hint = refusal.leader.filter(|leader| !self.elsewhere.contains(leader));
            }
            Class::Later => {
                let delay = match refusal.retry_after {
                    Some(given) => jitter.spread(given),
                    None => jitter.delay(self.waits),
                };
                self.waits = self.waits.saturating_add(1);
                self.wait_until(now + delay);
            }
            Class::Broken | Class::Final => {}
        }
    }

    /// Asks nobody before `at`.
    pub fn wait_until(&mut self, at: BootTime) {
        self.not_before = self.not_before.max(at);
    }

    /// The leader answered.
    pub fn on_success(&mut self) {
        self.waits = 0;
    }

    fn deny(&mut self, now: BootTime, node: NodeId) {
        self.elsewhere.insert(node);
        self.forget_at = now + FORGET;
        if self.hint == Some(node) {
            self.hint = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use quorate_proto::ids::{GroupId, Term};

    use super::*;

    const T0: BootTime = BootTime(1_000_000_000);

    fn route(leader: u64, epoch: u64) -> PartitionRoute {
        PartitionRoute { group: GroupId(2), leader: NodeId(leader).non_zero(), epoch: Term(epoch), handed_over: false }
    }

    fn refusal(reason: Reason) -> Refusal {
        Refusal::new(reason, "", "", "")
    }

    #[test]
    fn a_node_known_not_to_lead_is_not_asked_again_before_a_push() {
        let mut target = Target::new(route(1, 3));
        let mut jitter = Jitter::new(1);
        assert_eq!(target.choose(T0), Some(NodeId(1)));
        target.on_refusal(T0, NodeId(1), &refusal(Reason::NotLeader), &mut jitter);
        assert_eq!(target.choose(T0 + Duration::from_millis(1_900)), None);
        assert!(!target.on_route(route(1, 3)), "the same route again is no news");
        assert_eq!(target.choose(T0 + Duration::from_millis(1_900)), None);
        assert!(target.on_route(route(1, 4)));
        assert_eq!(target.choose(T0), Some(NodeId(1)));
    }

    #[test]
    fn a_lost_push_does_not_wedge_the_client() {
        let mut target = Target::new(route(1, 3));
        target.on_refusal(T0, NodeId(1), &refusal(Reason::NoLeader), &mut Jitter::new(1));
        let at = target.deadline(T0).expect("it looks again");
        assert_eq!(target.choose(at), Some(NodeId(1)));
    }

    #[test]
    fn a_hint_is_followed_unless_that_node_denied_too() {
        let mut target = Target::new(route(1, 3));
        let mut jitter = Jitter::new(1);
        target.on_refusal(T0, NodeId(1), &refusal(Reason::NotLeader).led_by(Some(NodeId(2))), &mut jitter);
        assert_eq!(target.choose(T0), Some(NodeId(2)));
        target.on_refusal(T0, NodeId(2), &refusal(Reason::NotLeader).led_by(Some(NodeId(1))), &mut jitter);
        assert_eq!(target.choose(T0), None);
    }

    #[test]
    fn a_fenced_leader_is_asked_again_after_its_delay_or_a_push() {
        let mut target = Target::new(route(1, 3));
        let fenced = refusal(Reason::Fenced).retry_after(Duration::from_millis(300));
        target.on_refusal(T0, NodeId(1), &fenced, &mut Jitter::new(1));
        assert_eq!(target.choose(T0 + Duration::from_millis(200)), None);
        assert_eq!(target.choose(T0 + Duration::from_millis(361)), Some(NodeId(1)));
        assert!(target.on_route(route(2, 4)));
        assert_eq!(target.choose(T0), Some(NodeId(2)), "a push ends the waiting");
    }

    #[test]
    fn an_older_route_is_ignored() {
        let mut target = Target::new(route(1, 3));
        assert!(!target.on_route(route(2, 2)));
        assert_eq!(target.node(), Some(NodeId(1)));
    }
}
