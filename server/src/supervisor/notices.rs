//! Exit notices: warm streams to all observers, the newest notice sent at once and again until one has logged it.

use std::time::Duration;

use quorate_proto::ids::Incarnation;
use quorate_proto::internal::session_client::SessionClient;
use quorate_proto::internal::ExitNoticeRequest;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::StreamExt;

use crate::config::ServerConfig;
use crate::session::endpoint;

/// A notice is repeated this often until it is acknowledged.
const REPEAT: Duration = Duration::from_millis(100);
/// A warm stream says this often that it lives.
const WARM: Duration = Duration::from_secs(5);
/// Status that is told when the kernel did not tell us: the node was another supervisor's child.
const STATUS_UNKNOWN: i32 = 256;

/// A node's exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exit {
    pub incarnation: Incarnation,
    /// Exit code (≥ 0) or minus the signal.
    pub status: Option<i32>,
}

/// The streams.
#[derive(Debug)]
pub(super) struct Notices {
    exit: watch::Sender<Option<Exit>>,
    logged: watch::Receiver<Option<Incarnation>>,
}

/// Tells when a notice is logged.
#[derive(Debug)]
pub(super) struct Logged {
    incarnation: Incarnation,
    logged: watch::Receiver<Option<Incarnation>>,
}

impl Logged {
    /// Returns once an observer has logged the notice.
    pub async fn done(mut self) {
        let incarnation = self.incarnation;
        let _ = self.logged.wait_for(|logged| *logged >= Some(incarnation)).await;
    }
}

impl Notices {
    /// Opens a stream to each observer; they are kept open for as long as the supervisor lives.
    pub fn start(config: &ServerConfig, secret: &str) -> Self {
        let (exit, exits) = watch::channel(None);
        let (acknowledge, logged) = watch::channel(None);
        let hello = ExitNoticeRequest {
            cluster_id: config.cluster().to_string(),
            node: config.node_id,
            incarnation: 0,
            supervisor_secret: secret.to_owned(),
            exit_status: 0,
            hello_only: true,
        };
        for observer in &config.observers {
            let stream = Warm {
                address: observer.address.clone(),
                hello: hello.clone(),
                exits: exits.clone(),
                acknowledge: acknowledge.clone(),
            };
            tokio::spawn(stream.run());
        }
        Self { exit, logged }
    }

    /// Tells all observers, until one has logged it.
    pub fn tell(&self, exit: Exit) -> Logged {
        self.exit.send_replace(Some(exit));
        Logged { incarnation: exit.incarnation, logged: self.logged.clone() }
    }
}

struct Warm {
    address: String,
    hello: ExitNoticeRequest,
    exits: watch::Receiver<Option<Exit>>,
    acknowledge: watch::Sender<Option<Incarnation>>,
}

impl Warm {
    async fn run(mut self) {
        let mut delay = Duration::from_millis(100);
        loop {
            if self.connect().await.is_some() {
                delay = Duration::from_millis(100);
            }
            tokio::time::sleep(delay).await;
            delay = (delay * 2).min(Duration::from_secs(1));
        }
    }

    /// Holds one stream until it breaks; `None` if it never opened.
    async fn connect(&mut self) -> Option<()> {
        let channel = endpoint(&self.address)?.connect().await.ok()?;
        let (requests, outgoing) = mpsc::channel(16);
        requests.try_send(self.hello.clone()).ok()?;
        let mut client = SessionClient::new(channel);
        let mut answers = client.supervise(ReceiverStream::new(outgoing)).await.ok()?.into_inner();
        // A notice from before this stream is sent on it at once.
        self.exits.mark_changed();
        loop {
            let open = self.open();
            let pause = if open.is_some() { REPEAT } else { WARM };
            tokio::select! {
                answer = answers.next() => match answer {
                    Some(Ok(answer)) => {
                        if answer.logged {
                            let incarnation = Incarnation(answer.incarnation);
                            self.acknowledge.send_if_modified(|known| {
                                let newer = *known < Some(incarnation);
                                if newer {
                                    *known = Some(incarnation);
                                }
                                newer
                            });
                        } else if !answer.accepted && !answer.error.is_empty() {
                            tracing::debug!(observer = %self.address, error = %answer.error, "exit notice not taken");
                        }
                    }
                    _ => return Some(()),
                },
                changed = self.exits.changed() => {
                    changed.ok()?;
                    self.send(&requests)?;
                }
                () = tokio::time::sleep(pause) => self.send(&requests)?,
            }
        }
    }

    /// The newest exit that no observer has logged.
    fn open(&self) -> Option<Exit> {
        let logged = *self.acknowledge.borrow();
        (*self.exits.borrow()).filter(|exit| logged < Some(exit.incarnation))
    }

    /// The notice if one is open, else a sign of life. `None`: the stream takes no more.
    fn send(&self, requests: &mpsc::Sender<ExitNoticeRequest>) -> Option<()> {
        let message = match self.open() {
            Some(exit) => ExitNoticeRequest {
                incarnation: exit.incarnation.get(),
                exit_status: exit.status.unwrap_or(STATUS_UNKNOWN),
                hello_only: false,
                ..self.hello.clone()
            },
            None => self.hello.clone(),
        };
        match requests.try_send(message) {
            // A full queue holds this very notice already.
            Ok(()) | Err(mpsc::error::TrySendError::Full(_)) => Some(()),
            Err(mpsc::error::TrySendError::Closed(_)) => None,
        }
    }
}
