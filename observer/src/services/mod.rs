//! The observer's gRPC services. They hold no state: everything is asked of the loop that owns the core.

pub mod describe;
mod directory;
mod explain;
mod session;
mod tasks;

use std::sync::Arc;
use std::time::Duration;

use quorate_consensus::observer::event::AdminRequest;
use quorate_consensus::observer::{ObserverCore, ObserverEvent};
use quorate_host::turn::Post;
use quorate_proto::control::ExitNotice;
use quorate_proto::ids::Ticket;
use quorate_proto::internal;
use quorate_proto::refusal::{Reason, Refusal};
use quorate_proto::time::BootTime;
use quorate_proto::v1;
use tokio::sync::{mpsc, oneshot};

pub use directory::DirectoryService;
pub use session::SessionService;

use crate::config::ObserverConfig;

/// Public messages are at most this long.
pub const MESSAGE_MAX: usize = 5 << 20;
/// A call that the loop did not answer by then is told so: an observer that lost its majority answers nothing.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// A session that the loop opened.
#[derive(Debug)]
pub struct OpenedSession {
    /// Its name within this process.
    pub session: Ticket,
    /// What goes to the node.
    pub down: mpsc::Receiver<internal::SessionDown>,
    /// Fires when the loop closes the session.
    pub ended: oneshot::Receiver<()>,
}

/// Looks at the core from within the loop.
pub type Look = Box<dyn FnOnce(&ObserverCore, &ObserverConfig, BootTime) + Send>;

/// What the services ask of the loop.
pub enum Request {
    /// A node opened a stream.
    OpenSession(oneshot::Sender<OpenedSession>),
    /// Something happened on it.
    Session(ObserverEvent),
    /// It sent what means nothing.
    BadSession(Ticket, String),
    /// A supervisor's word.
    Exit(ExitNotice, oneshot::Sender<Result<(), Refusal>>),
    /// An administrator's change; answered once its outcome is known.
    Admin(AdminRequest, oneshot::Sender<Result<(), Refusal>>),
    /// A client wants routes of these topics (none = all).
    Watch(Vec<String>, oneshot::Sender<Result<mpsc::Receiver<v1::Routes>, Refusal>>),
    /// Reads.
    Look(Look),
}

/// The loop as the services see it.
#[derive(Clone)]
pub struct Loop {
    post: Post<crate::node::ShellEvent>,
    config: Arc<ObserverConfig>,
}

impl Loop {
    pub(crate) fn new(post: Post<crate::node::ShellEvent>, config: Arc<ObserverConfig>) -> Self {
        Self { post, config }
    }

    fn tell(&self, request: Request) {
        self.post.push(crate::node::ShellEvent::Request(request));
    }

    /// Posts what a client wants; `BUSY` when the mailbox is full.
    fn ask(&self, request: Request) -> Result<(), Refusal> {
        self.post.offer(crate::node::ShellEvent::Request(request)).map_err(|_| {
            Refusal::new(Reason::Busy, "the observer's mailbox is full", self.subject(), "repeat the call")
                .retry_after(Duration::from_millis(100))
        })
    }

    fn has_room(&self) -> bool {
        self.post.has_room()
    }

    fn subject(&self) -> String {
        format!("observer {}", self.config.node_id)
    }

    /// Waits for the loop's answer.
    async fn answer<T>(&self, reply: oneshot::Receiver<T>) -> Result<T, Refusal> {
        let late = |what| Refusal::new(Reason::NoLeader, what, self.subject(), "repeat the call").of_unknown_fate();
        match tokio::time::timeout(ANSWER_WITHIN, reply).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) => Err(late("the observer is closing")),
            Err(_) => Err(late("the observers did not decide in time").retry_after(Duration::from_millis(200))),
        }
    }

    /// Reads from the core.
    async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&ObserverCore, &ObserverConfig, BootTime) -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        let (reply, answer) = oneshot::channel();
        self.ask(Request::Look(Box::new(move |core, config, now| {
            // A caller that left needs no answer.
            let _ = reply.send(look(core, config, now));
        })))?;
        self.answer(answer).await
    }
}
