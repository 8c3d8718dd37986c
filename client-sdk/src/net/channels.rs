//! One HTTP/2 connection per purpose and address: an unread subscription must not stall receipts.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use quorate_proto::v1::log_client::LogClient;
use tonic::transport::{Channel, Endpoint};

/// A connection that is silent for this long is probed …
const KEEP_ALIVE: Duration = Duration::from_millis(500);
/// … and given up when the probe is not answered within this.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(1);
/// A TCP connection comes up within this or not at all.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Flow-control windows: a batch is at most 3 MiB, so none ever waits for a window update of its own.
const STREAM_WINDOW: u32 = 8 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;
/// Largest public message.
pub(crate) const MESSAGE_MAX: usize = 5 << 20;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Purpose {
    Publish,
    Consume,
    Observe,
}

/// Connections by purpose and address; each reconnects by itself when it is used again.
#[derive(Debug, Default)]
pub(crate) struct Channels {
    open: Mutex<BTreeMap<(Purpose, String), Channel>>,
}

impl Channels {
    /// The connection to `address` (`host:port`); an error if that is no address.
    pub(crate) fn get(&self, purpose: Purpose, address: &str) -> Result<Channel, String> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(channel) = open.get(&(purpose, address.to_owned())) {
            return Ok(channel.clone());
        }
        let endpoint = Endpoint::from_shared(format!("http://{address}"))
            .map_err(|error| format!("`{address}` is not an address of the form host:port: {error}"))?;
        let channel = endpoint
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .connect_lazy();
        open.insert((purpose, address.to_owned()), channel.clone());
        Ok(channel)
    }

    /// A data node's log service.
    pub(crate) fn log(&self, purpose: Purpose, address: &str) -> Result<LogClient<Channel>, String> {
        let client = LogClient::new(self.get(purpose, address)?);
        Ok(client.max_decoding_message_size(MESSAGE_MAX).max_encoding_message_size(MESSAGE_MAX))
    }
}
