//! Answers on their way to one publish stream: bounded by the bytes of the requests that they answer.
//!
//! A request's cost is taken before it goes to the core and given back when its answer is handed to the
//! connection. So a client that never reads stops its own intake, and nothing else.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use quorate_proto::v1::PublishResponse;
use tokio::sync::Notify;
use tokio_stream::Stream;
use tonic::Status;

/// The answers of one stream.
#[derive(Debug)]
pub struct Outbox {
    state: Mutex<State>,
    /// Room was made.
    room: Notify,
    limit: u64,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<(PublishResponse, u64)>,
    /// Costs of requests without an answer handed over.
    used: u64,
    /// Requests at the core.
    pending: usize,
    /// Answers handed over since the start.
    taken: u64,
    finished: bool,
    gone: bool,
    failure: Option<Status>,
    waker: Option<Waker>,
}

impl State {
    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl Outbox {
    /// Requests of `limit` bytes may wait.
    #[must_use]
    pub fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(State::default()), room: Notify::new(), limit })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a request of this cost has room, and takes it. `false`: the client is gone.
    pub async fn reserve(&self, cost: u64) -> bool {
        loop {
            let room = self.room.notified();
            tokio::pin!(room);
            room.as_mut().enable();
            {
                let mut state = self.state();
                if state.gone {
                    return false;
                }
                // A single request always fits: its size is bounded by the message limit.
                if state.used == 0 || state.used + cost <= self.limit {
                    state.used += cost;
                    state.pending += 1;
                    return true;
                }
            }
            room.await;
        }
    }

    /// The answer to a request that was reserved with `cost`.
    pub fn answer(&self, response: PublishResponse, cost: u64) {
        let mut state = self.state();
        state.pending -= 1;
        if state.gone {
            state.used -= cost;
            return;
        }
        state.queue.push_back((response, cost));
        state.wake();
    }

    /// Something that answers no request.
    pub fn tell(&self, response: PublishResponse) {
        let mut state = self.state();
        if !state.gone {
            state.queue.push_back((response, 0));
            state.wake();
        }
    }

    /// No request follows: the stream ends after the last answer.
    pub fn finish(&self) {
        let mut state = self.state();
        state.finished = true;
        state.wake();
    }

    /// Cuts the client off: what waits is dropped, the stream ends with `status`.
    pub fn cut(&self, status: Status) {
        let mut state = self.state();
        let dropped: u64 = state.queue.drain(..).map(|(_, cost)| cost).sum();
        state.used -= dropped;
        state.gone = true;
        state.failure = Some(status);
        state.wake();
        drop(state);
        self.room.notify_waiters();
    }

    /// Answers that were handed to the connection; and whether any wait for it.
    #[must_use]
    pub fn progress(&self) -> (u64, bool) {
        let state = self.state();
        (state.taken, !state.queue.is_empty())
    }

    /// Bytes of requests whose answers were not handed over.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.state().used
    }
}

/// The stream of answers that tonic drains.
#[derive(Debug)]
pub struct Answers(pub Arc<Outbox>);

impl Stream for Answers {
    type Item = Result<PublishResponse, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut state = self.0.state();
        if let Some((response, cost)) = state.queue.pop_front() {
            state.used -= cost;
            state.taken += 1;
            drop(state);
            self.0.room.notify_waiters();
            return Poll::Ready(Some(Ok(response)));
        }
        if let Some(failure) = state.failure.take() {
            return Poll::Ready(Some(Err(failure)));
        }
        if state.gone || (state.finished && state.pending == 0) {
            return Poll::Ready(None);
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.gone = true;
        let dropped: u64 = state.queue.drain(..).map(|(_, cost)| cost).sum();
        state.used -= dropped;
        drop(state);
        self.0.room.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use tokio_stream::StreamExt;

    fn response(tag: u64) -> PublishResponse {
        PublishResponse { tag, result: None }
    }

    #[tokio::test]
    async fn a_client_that_does_not_read_stops_its_own_intake() {
        let outbox = Outbox::new(100);
        let mut answers = Answers(Arc::clone(&outbox));
        assert!(outbox.reserve(60).await);
        outbox.answer(response(1), 60);
        let more = outbox.reserve(60);
        tokio::pin!(more);
        let waker = futures::task::noop_waker();
        assert!(more.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        assert_eq!(answers.next().await.unwrap().unwrap().tag, 1);
        assert!(more.await, "reading makes room");
    }

    #[tokio::test]
    async fn the_stream_ends_after_the_last_answer() {
        let outbox = Outbox::new(100);
        let mut answers = Answers(Arc::clone(&outbox));
        assert!(outbox.reserve(1).await);
        outbox.finish();
        outbox.answer(response(9), 1);
        assert_eq!(answers.next().await.unwrap().unwrap().tag, 9);
        assert!(answers.next().await.is_none());
    }

    #[tokio::test]
    async fn a_client_that_left_frees_what_waited_for_it() {
        let outbox = Outbox::new(100);
        let answers = Answers(Arc::clone(&outbox));
        assert!(outbox.reserve(40).await);
        assert!(outbox.reserve(40).await);
        outbox.answer(response(1), 40);
        drop(answers);
        outbox.answer(response(2), 40);
        assert_eq!(outbox.used(), 0);
        assert!(!outbox.reserve(1).await);
    }
}
