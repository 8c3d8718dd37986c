//! What readers need of a partition, outside the core: its view, the word that says how long it may serve (F1),
//! and on leaders the tail cache.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use bytes::{Bytes, BytesMut};
use quorate_consensus::node::effect::{AppliedEntry, StoredBatch, View};
use quorate_proto::control::{Assignment, Role};
use quorate_proto::ids::{GroupId, Offset, Term};
use quorate_proto::time::BootTime;
use tokio::sync::Notify;

/// A led partition's tail cache holds at most this much; all caches together hold `tail_cache_bytes`.
const PARTITION_TAIL_BYTES: u64 = 16 << 20;

/// One hosted partition as readers see it.
#[derive(Debug)]
pub struct PartitionView {
    /// Its identity.
    pub assignment: Assignment,
    /// Under which its files lie.
    pub key: GroupId,
    /// Changed: new records, another role, or serving ended. Long polls wait here.
    pub changed: Notify,
    /// Bytes of this partition that wait for the storage thread.
    pub storage_waiting: Arc<AtomicU64>,
    serve_until: AtomicU64,
    state: Mutex<State>,
    budget: Arc<TailBudget>,
}

#[derive(Debug, Default)]
struct State {
    view: View,
    tail: VecDeque<StoredBatch>,
    tail_bytes: u64,
}

/// Bytes that all tail caches of the node hold, and may hold.
#[derive(Debug)]
pub struct TailBudget {
    used: AtomicU64,
    limit: u64,
}

impl TailBudget {
    /// An empty budget.
    #[must_use]
    pub fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self { used: AtomicU64::new(0), limit })
    }

    /// Bytes held now.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }
}

/// What the tail cache has at an offset.
#[derive(Debug)]
pub enum Tail {
    /// Stored batches, one after the other, and the offset after them.
    Found(Bytes, Offset),
    /// Nothing is there yet: the offset is the high watermark.
    Empty,
    /// Older than what is cached: read the segments.
    Miss,
}

impl PartitionView {
    /// A partition that does not serve yet.
    #[must_use]
    pub fn new(assignment: Assignment, key: GroupId, budget: Arc<TailBudget>) -> Self {
        Self {
            assignment,
            key,
            changed: Notify::new(),
            storage_waiting: Arc::new(AtomicU64::new(0)),
            serve_until: AtomicU64::new(0),
            state: Mutex::new(State::default()),
            budget,
        }
    }

    /// `topic/partition (group)`, for error texts.
    #[must_use]
    pub fn subject(&self) -> String {
        format!("{}/{} ({})", self.assignment.topic, self.assignment.partition.get(), self.assignment.group)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every critical section leaves the state whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// F1's word: serve before this instant.
    #[must_use]
    pub fn serve_until(&self) -> BootTime {
        BootTime(self.serve_until.load(Ordering::Acquire))
    }

    /// New value of F1's word. Zero wakes the readers: they must answer a refusal.
    pub fn set_serve_until(&self, until: BootTime) {
        self.serve_until.store(until.0, Ordering::Release);
        if until == BootTime::ZERO {
            self.changed.notify_waiters();
        }
    }

    /// The newest view.
    #[must_use]
    pub fn view(&self) -> View {
        self.state().view
    }

    /// A new view, after the `append` that it covers.
    pub fn set_view(&self, view: View) {
        let mut state = self.state();
        if view.role != Role::Leader {
            self.clear(&mut state);
        }
        state.view = view;
        drop(state);
        self.changed.notify_waiters();
    }

    /// Applied entries. Only leaders cache: nobody reads from the others.
    pub fn append(&self, entries: &[AppliedEntry]) {
        let mut state = self.state();
        if state.view.role != Role::Leader {
            return;
        }
        for batch in entries.iter().flat_map(|e| &e.batches) {
            let bytes = size(batch);
            state.tail_bytes += bytes;
            self.budget.used.fetch_add(bytes, Ordering::Relaxed);
            state.tail.push_back(batch.clone());
        }
        while state.tail_bytes > PARTITION_TAIL_BYTES || self.budget.used() > self.budget.limit {
            let Some(oldest) = state.tail.pop_front() else { break };
            state.tail_bytes -= size(&oldest);
            self.budget.used.fetch_sub(size(&oldest), Ordering::Relaxed);
        }
    }

    /// The files were replaced: what is cached belongs to the past.
    pub fn forget(&self) {
        let mut state = self.state();
        self.clear(&mut state);
    }

    fn clear(&self, state: &mut State) {
        self.budget.used.fetch_sub(state.tail_bytes, Ordering::Relaxed);
        state.tail_bytes = 0;
        state.tail = VecDeque::new();
    }

    /// Reads from `offset`, about `max` bytes but at least one batch, and tells the view that goes with it.
    #[must_use]
    pub fn read(&self, offset: Offset, max: usize) -> (View, Tail) {
        let state = self.state();
        let view = state.view;
        if offset >= view.high_watermark {
            return (view, Tail::Empty);
        }
        let first = state.tail.partition_point(|b| b.end_offset <= offset);
        let Some(begin) = state.tail.get(first) else { return (view, Tail::Miss) };
        if begin.base_offset > offset {
            return (view, Tail::Miss);
        }
        let mut count = 0;
        let mut bytes = 0;
        for batch in state.tail.range(first..) {
            // A batch that the view does not cover yet is not served.
            let more = batch.prefix.len() + batch.body.len();
            if batch.end_offset > view.high_watermark || (count > 0 && bytes + more > max) {
                break;
            }
            count += 1;
            bytes += more;
        }
        let mut found = BytesMut::with_capacity(bytes);
        let mut next = offset;
        for batch in state.tail.range(first..first + count) {
            found.extend_from_slice(&batch.prefix);
            found.extend_from_slice(&batch.body);
            next = batch.end_offset;
        }
        if count == 0 {
            (view, Tail::Empty)
        } else {
            (view, Tail::Found(found.freeze(), next))
        }
    }

    /// Test of F1 for a read that was made in `term` (F2).
    #[must_use]
    pub fn serves(&self, now: BootTime, term: Term) -> bool {
        let view = self.view();
        view.role == Role::Leader && view.term == term && now < self.serve_until()
    }
}

fn size(batch: &StoredBatch) -> u64 {
    (batch.prefix.len() + batch.body.len()) as u64
}

/// All hosted partitions, by name and by group.
#[derive(Debug, Default)]
pub struct Views {
    by_name: RwLock<BTreeMap<String, BTreeMap<u32, Arc<PartitionView>>>>,
}

impl Views {
    /// Adds a partition; a re-created namesake takes the place of the older one.
    pub fn insert(&self, view: &Arc<PartitionView>) {
        let mut names = self.by_name.write().unwrap_or_else(PoisonError::into_inner);
        let topic = names.entry(view.assignment.topic.clone()).or_default();
        topic.insert(view.assignment.partition.get(), Arc::clone(view));
    }

    /// Takes a partition out, unless another replica of it took its place.
    pub fn remove(&self, view: &Arc<PartitionView>) {
        let mut names = self.by_name.write().unwrap_or_else(PoisonError::into_inner);
        let Some(topic) = names.get_mut(&view.assignment.topic) else { return };
        let number = view.assignment.partition.get();
        if topic.get(&number).is_some_and(|known| Arc::ptr_eq(known, view)) {
            topic.remove(&number);
        }
    }

    /// Looks a partition up by its full topic name. `Err(true)`: the topic is known, the partition is not.
    ///
    /// # Errors
    /// Whether at least the topic is known here.
    pub fn find(&self, topic: &str, partition: u32) -> Result<Arc<PartitionView>, bool> {
        let names = self.by_name.read().unwrap_or_else(PoisonError::into_inner);
        let topic = names.get(topic).ok_or(false)?;
        topic.get(&partition).cloned().ok_or(true)
    }

    /// All of them.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<PartitionView>> {
        let names = self.by_name.read().unwrap_or_else(PoisonError::into_inner);
        names.values().flat_map(BTreeMap::values).cloned().collect()
    }

    /// Groups hosted.
    #[must_use]
    pub fn groups(&self) -> Vec<GroupId> {
        self.all().iter().map(|v| v.assignment.group).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_proto::ids::{LogIndex, PartitionNo, ReplicaId, TopicId};
    use quorate_proto::time::LogTime;

    fn view_of(limit: u64) -> PartitionView {
        let assignment = Assignment {
            group: GroupId(7),
            replica: ReplicaId(1),
            topic: "default/t".into(),
            topic_id: TopicId(1),
            partition: PartitionNo(0),
            members: Vec::new(),
            config_version: Default::default(),
            change: None,
        };
        PartitionView::new(assignment, GroupId(7), TailBudget::new(limit))
    }

    fn entry(base: u64, end: u64, bytes: usize) -> AppliedEntry {
        AppliedEntry {
            index: LogIndex(base),
            term: Term(1),
            log_time: LogTime(1),
            batches: vec![StoredBatch {
                base_offset: Offset(base),
                end_offset: Offset(end),
                prefix: Bytes::from_static(b"p"),
                body: Bytes::from(vec![7; bytes]),
            }],
            keys: Bytes::new(),
        }
    }

    fn leading(high: u64) -> View {
        View { high_watermark: Offset(high), term: Term(1), role: Role::Leader, ..View::default() }
    }

    #[test]
    fn a_read_yields_whole_batches_up_to_the_view() {
        let view = view_of(1 << 20);
        view.set_view(leading(0));
        view.append(&[entry(0, 3, 10), entry(3, 5, 10), entry(5, 6, 10)]);
        view.set_view(leading(5));
        let (_, Tail::Found(bytes, next)) = view.read(Offset(1), 1000) else { panic!("cached") };
        assert_eq!((bytes.len(), next), (22, Offset(5)), "the third batch is beyond the view");
        let (_, Tail::Found(bytes, next)) = view.read(Offset(4), 1) else { panic!("cached") };
        assert_eq!((bytes.len(), next), (11, Offset(5)), "at least one batch");
        assert!(matches!(view.read(Offset(5), 1000).1, Tail::Empty));
    }

    #[test]
    fn the_cache_stays_within_its_budget_and_what_left_it_is_a_miss() {
        let view = view_of(25);
        view.set_view(leading(0));
        view.append(&[entry(0, 1, 10), entry(1, 2, 10), entry(2, 3, 10)]);
        view.set_view(leading(3));
        assert!(view.budget.used() <= 25);
        assert!(matches!(view.read(Offset(0), 1000).1, Tail::Miss));
        assert!(matches!(view.read(Offset(1), 1000).1, Tail::Found(..)));
    }

    #[test]
    fn a_follower_caches_nothing_and_a_deposed_leader_forgets() {
        let view = view_of(1 << 20);
        view.append(&[entry(0, 1, 10)]);
        assert_eq!(view.budget.used(), 0);
        view.set_view(leading(1));
        assert!(matches!(view.read(Offset(0), 10).1, Tail::Miss));
        view.append(&[entry(1, 2, 10)]);
        view.set_view(View { role: Role::Follower, ..leading(2) });
        assert_eq!(view.budget.used(), 0);
    }

    #[test]
    fn a_read_of_another_term_or_after_the_fence_is_not_served() {
        let view = view_of(1 << 20);
        view.set_view(leading(1));
        view.set_serve_until(BootTime(100));
        assert!(view.serves(BootTime(99), Term(1)));
        assert!(!view.serves(BootTime(100), Term(1)));
        assert!(!view.serves(BootTime(99), Term(2)));
        view.set_serve_until(BootTime::ZERO);
        assert!(!view.serves(BootTime(1), Term(1)));
    }
}
