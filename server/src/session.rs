//! The node's sessions with the observers: one stream each, opened again for as long as the node lives.

use std::time::Duration;

use quorate_proto::control::SessionDown;
use quorate_proto::ids::NodeId;
use quorate_proto::internal;
use quorate_proto::internal::session_client::SessionClient;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Endpoint;

/// Messages that wait for an observer's connection: some minutes of beats. A fuller queue is a broken session.
const QUEUE: usize = 1_024;
/// As the observers' side has it.
const MESSAGE_MAX: usize = 64 << 20;
const RECONNECT_FIRST: Duration = Duration::from_millis(100);
const RECONNECT_LAST: Duration = Duration::from_secs(1);

/// What a session tells the shell.
#[derive(Debug)]
pub enum SessionEvent {
    /// It is open; what is put into `queue` is sent.
    Opened {
        /// With whom.
        observer: NodeId,
        /// Its queue.
        queue: mpsc::Sender<internal::SessionUp>,
    },
    /// A message came.
    Message {
        /// From whom.
        observer: NodeId,
        /// What.
        message: Box<SessionDown>,
    },
    /// It broke.
    Closed {
        /// With whom.
        observer: NodeId,
    },
}

/// An endpoint with the time-outs that all connections to observers have: a half-open one is noticed after
/// 500 ms + 1 s. `None` if the address is none.
#[must_use]
pub fn endpoint(address: &str) -> Option<Endpoint> {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).ok()?;
    Some(
        endpoint
            .connect_timeout(Duration::from_secs(1))
            .tcp_nodelay(true)
            .http2_keep_alive_interval(Duration::from_millis(500))
            .keep_alive_timeout(Duration::from_secs(1))
            .keep_alive_while_idle(true),
    )
}

/// Keeps a session with one observer for ever.
pub async fn keep(observer: NodeId, address: String, tell: impl Fn(SessionEvent)) {
    let mut delay = RECONNECT_FIRST;
    loop {
        match hold(observer, &address, &tell).await {
            Ok(()) => {
                delay = RECONNECT_FIRST;
                tracing::warn!(%observer, %address, "the session ended");
            }
            Err(error) => tracing::debug!(%observer, %address, %error, "no session"),
        }
        tokio::time::sleep(delay).await;
        delay = (delay * 2).min(RECONNECT_LAST);
    }
}

/// One session from its opening to its end. An error: it never opened.
async fn hold(observer: NodeId, address: &str, tell: &impl Fn(SessionEvent)) -> Result<(), String> {
    let endpoint = endpoint(address).ok_or("not an address")?;
    let channel = endpoint.connect().await.map_err(|e| e.to_string())?;
    let (queue, outgoing) = mpsc::channel(QUEUE);
    // The core says hello as soon as it hears of the session; the observer may wait for that before it answers.
    tell(SessionEvent::Opened { observer, queue });
    // The whole directory may come (M5), in one message.
    let mut client = SessionClient::new(channel).max_decoding_message_size(MESSAGE_MAX);
    let opened = client.open(ReceiverStream::new(outgoing)).await;
    let result = match opened {
        Ok(answer) => {
            let mut messages = answer.into_inner();
            loop {
                match messages.message().await {
                    Ok(Some(message)) => match SessionDown::try_from(message) {
                        Ok(message) => tell(SessionEvent::Message { observer, message: Box::new(message) }),
                        Err(error) => tracing::warn!(%observer, %error, "a message that means nothing"),
                    },
                    Ok(None) | Err(_) => break Ok(()),
                }
            }
        }
        Err(status) => Err(status.to_string()),
    };
    tell(SessionEvent::Closed { observer });
    result
}
