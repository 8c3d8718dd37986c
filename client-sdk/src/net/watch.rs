//! Routes: pushed by every observer at once, so that losing one costs nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quorate_proto::v1;
use quorate_proto::v1::directory_client::DirectoryClient;
use tokio::sync::watch;

use super::channels::{Channels, Purpose, MESSAGE_MAX};
use super::status;
use crate::core::backoff::Jitter;
use crate::core::routes::RouteTable;

/// A `WatchRoutes` call that brings no first picture for so long has failed.
const FIRST_PICTURE: Duration = Duration::from_secs(2);

/// The routes as known now.
#[derive(Clone, Debug, Default)]
pub(crate) struct RouteState {
    pub(crate) table: Arc<RouteTable>,
    /// Observers whose stream is connected.
    pub(crate) live: usize,
    /// A full picture came.
    pub(crate) known: bool,
}

/// What all watchers share.
#[derive(Debug)]
pub(crate) struct Watchers {
    pub(crate) state: watch::Sender<RouteState>,
    /// Last failure of each observer.
    pub(crate) failures: Mutex<BTreeMap<String, String>>,
}

impl Watchers {
    pub(crate) fn note(&self, address: &str, failure: String) {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).insert(address.to_owned(), failure);
    }
}

/// Follows one observer for as long as the client lives.
pub(crate) async fn follow(
    watchers: Arc<Watchers>,
    channels: Arc<Channels>,
    address: String,
    request: v1::WatchRoutesRequest,
    seed: u64,
) {
    let mut jitter = Jitter::new(seed);
    let mut failures = 0;
    loop {
        let mut connected = Connected { watchers: &watchers, counted: false };
        let ended = stream(&mut connected, &channels, &address, request.clone()).await;
        if connected.counted {
            failures = 0;
            tracing::info!(observer = %address, reason = %ended, "the route stream ended; connecting again");
        }
        drop(connected);
        watchers.note(&address, ended);
        tokio::time::sleep(jitter.delay(failures)).await;
        failures += 1;
    }
}

/// Counts a stream as live while it is.
struct Connected<'a> {
    watchers: &'a Watchers,
    counted: bool,
}

impl Drop for Connected<'_> {
    fn drop(&mut self) {
        if self.counted {
            self.watchers.state.send_modify(|state| state.live -= 1);
        }
    }
}

/// One stream from its first picture to its end; returns why it ended.
async fn stream(
    connected: &mut Connected<'_>,
    channels: &Channels,
    address: &str,
    request: v1::WatchRoutesRequest,
) -> String {
    let channel = match channels.get(Purpose::Observe, address) {
        Ok(channel) => channel,
        Err(why) => return why,
    };
    let mut client = DirectoryClient::new(channel).max_decoding_message_size(MESSAGE_MAX);
    let open = async {
        let mut routes = client.watch_routes(request).await?.into_inner();
        let first = routes.message().await?;
        Ok::<_, tonic::Status>((routes, first))
    };
    let (mut routes, mut message) = match tokio::time::timeout(FIRST_PICTURE, open).await {
        Ok(Ok(opened)) => opened,
        Ok(Err(status)) => return status::describe(&status),
        Err(_) => return format!("no routes within {FIRST_PICTURE:?}"),
    };
    while let Some(pushed) = message {
        if let Err(why) = take(connected, &pushed) {
            return format!("its routes were refused: {why}");
        }
        message = match routes.message().await {
            Ok(message) => message,
            Err(status) => return status::describe(&status),
        };
    }
    "the observer closed the stream".to_owned()
}

fn take(connected: &mut Connected<'_>, pushed: &v1::Routes) -> Result<(), String> {
    let mut refused = None;
    let counted = &mut connected.counted;
    connected.watchers.state.send_if_modified(|state| {
        let mut table = RouteTable::clone(&state.table);
        let news = match table.apply(pushed) {
            Ok(news) => news,
            Err(why) => {
                refused = Some(why);
                return false;
            }
        };
        let first = !*counted;
        if first {
            *counted = true;
            state.live += 1;
        }
        if news {
            state.known = true;
            state.table = Arc::new(table);
        }
        news || first
    });
    refused.map_or(Ok(()), Err)
}
