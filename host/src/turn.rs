//! The event loop of a node: a bounded mailbox, drained in turns by the one thread that owns the cores.
//!
//! On ≤ 2 cores the same current-thread runtime does the sockets and runs the turns, so a message is handled
//! without a thread switch. Other threads (WAL, storage) post into the mailbox; the loop is woken once however
//! much was posted.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// Events handled before the sockets get the thread again: about 2 ms of work.
pub const EVENTS_PER_TURN: usize = 512;

#[derive(Debug)]
struct Inner<T> {
    queue: Mutex<VecDeque<T>>,
    limit: usize,
    posted: Notify,
}

impl<T> Inner<T> {
    fn queue(&self) -> MutexGuard<'_, VecDeque<T>> {
        // A poster that panicked left the queue whole: every critical section is one push or drain.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The end that posts. Cheap to clone, usable from every thread.
#[derive(Debug)]
pub struct Post<T>(Arc<Inner<T>>);

impl<T> Clone for Post<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// The end that the loop drains.
#[derive(Debug)]
pub struct Mailbox<T>(Arc<Inner<T>>);

/// Makes a mailbox that [`Post::offer`] fills up to `limit` events.
#[must_use]
pub fn mailbox<T>(limit: usize) -> (Post<T>, Mailbox<T>) {
    let inner = Arc::new(Inner { queue: Mutex::new(VecDeque::new()), limit, posted: Notify::new() });
    (Post(Arc::clone(&inner)), Mailbox(inner))
}

impl<T> Post<T> {
    /// For what comes from outside: refused (and given back) when the mailbox is full.
    ///
    /// # Errors
    /// The event, if there is no room.
    pub fn offer(&self, event: T) -> Result<(), T> {
        {
            let mut queue = self.0.queue();
            if queue.len() >= self.0.limit {
                return Err(event);
            }
            queue.push_back(event);
        }
        self.0.posted.notify_one();
        Ok(())
    }

    /// For answers to what the loop itself asked for: never refused, bounded by the requests.
    pub fn push(&self, event: T) {
        self.0.queue().push_back(event);
        self.0.posted.notify_one();
    }

    /// The same for many: one wake-up.
    pub fn push_all(&self, events: impl IntoIterator<Item = T>) {
        self.0.queue().extend(events);
        self.0.posted.notify_one();
    }

    /// Whether [`Self::offer`] would take an event now.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.0.queue().len() < self.0.limit
    }

    /// Events waiting.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.queue().len()
    }

    /// Nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T> Mailbox<T> {
    /// Moves up to `max` events into `into`, in order; tells whether more wait.
    pub fn drain(&self, into: &mut Vec<T>, max: usize) -> bool {
        let mut queue = self.0.queue();
        let count = queue.len().min(max);
        into.extend(queue.drain(..count));
        !queue.is_empty()
    }

    /// Waits until something was posted since the last wait. May return without events.
    pub async fn posted(&self) {
        self.0.posted.notified().await;
    }

    /// A poster for this mailbox.
    #[must_use]
    pub fn post(&self) -> Post<T> {
        Post(Arc::clone(&self.0))
    }
}

/// What a node does in a turn.
pub trait Turn {
    /// What its mailbox holds.
    type Event;

    /// One event. Reads the clock itself: every event has its own `now` (V2).
    fn handle(&mut self, event: Self::Event);

    /// Called at least once per tick of [`run`], between events.
    fn tick(&mut self);

    /// The turn ends: flush the cores, execute effects, hand frames and log requests over. `Break` ends the loop.
    fn end(&mut self) -> ControlFlow<()>;
}

/// Runs turns until one breaks. A turn is at most [`EVENTS_PER_TURN`] events, then a tick if it is due, then `end`;
/// between turns the runtime serves the sockets.
pub async fn run<H: Turn>(mailbox: &Mailbox<H::Event>, tick: Duration, node: &mut H) {
    let mut events = Vec::with_capacity(EVENTS_PER_TURN);
    let mut next_tick = Instant::now() + tick;
    loop {
        let more = mailbox.drain(&mut events, EVENTS_PER_TURN);
        for event in events.drain(..) {
            node.handle(event);
        }
        let now = Instant::now();
        if now >= next_tick {
            node.tick();
            // After a pause there is no point in catching up tick by tick.
            next_tick = now + tick;
        }
        if node.end().is_break() {
            return;
        }
        if more {
            tokio::task::yield_now().await;
        } else {
            tokio::select! {
                biased;
                () = mailbox.posted() => {}
                () = tokio::time::sleep_until(next_tick) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Recorder {
        seen: Vec<u32>,
        turns: usize,
        ticks: usize,
        stop_at: u32,
    }

    impl Turn for Recorder {
        type Event = u32;
        fn handle(&mut self, event: u32) {
            self.seen.push(event);
        }
        fn tick(&mut self) {
            self.ticks += 1;
        }
        fn end(&mut self) -> ControlFlow<()> {
            self.turns += 1;
            if self.seen.last() == Some(&self.stop_at) {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        }
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
    }

    #[test]
    fn events_of_other_threads_are_handled_in_order_and_in_few_turns() {
        let (post, mailbox) = mailbox(10);
        let count = 2_000;
        let poster = std::thread::spawn(move || post.push_all(0..count));
        poster.join().unwrap();
        let mut node = Recorder { seen: Vec::new(), turns: 0, ticks: 0, stop_at: count - 1 };
        runtime().block_on(run(&mailbox, Duration::from_secs(3_600), &mut node));
        assert_eq!(node.seen, (0..count).collect::<Vec<_>>());
        assert_eq!(node.turns, 4, "512 events per turn");
    }

    #[test]
    fn a_full_mailbox_refuses_the_outside_but_takes_answers() {
        let (post, mailbox) = mailbox(2);
        assert_eq!(post.offer(1), Ok(()));
        assert_eq!(post.offer(2), Ok(()));
        assert_eq!(post.offer(3), Err(3));
        assert!(!post.has_room());
        post.push(4);
        let mut events = Vec::new();
        assert!(!mailbox.drain(&mut events, 10));
        assert_eq!(events, [1, 2, 4]);
    }

    #[test]
    fn ticks_come_without_events() {
        let (post, mailbox) = mailbox(2);
        struct UntilTicks(usize, Post<u32>);
        impl Turn for UntilTicks {
            type Event = u32;
            fn handle(&mut self, _: u32) {}
            fn tick(&mut self) {
                self.0 += 1;
            }
            fn end(&mut self) -> ControlFlow<()> {
                if self.0 == 3 {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            }
        }
        let mut node = UntilTicks(0, post);
        runtime().block_on(run(&mailbox, Duration::from_millis(1), &mut node));
        assert_eq!(node.0, 3);
        assert!(node.1.is_empty());
    }
}
