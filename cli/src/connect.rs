//! The client of a command.

use std::time::Duration;

use quorate_chaos::layout::Ports;
use quorate_client::Client;

use crate::args::Global;
use crate::fail::Fail;

/// Observers by flag or environment, else those of `quorate dev` on its default ports.
pub fn observers(global: &Global) -> Vec<String> {
    if global.observers.is_empty() {
        Ports::default().observers()
    } else {
        global.observers.clone()
    }
}

/// Connects, within `--timeout` if that is shorter than 10 s.
pub async fn client(global: &Global) -> Result<Client, Fail> {
    const LIMIT: Duration = Duration::from_secs(10);
    let limit = global.timeout.unwrap_or(LIMIT).min(LIMIT);
    let client = Client::builder().observers(observers(global)).client_id("quorate-cli").connect_timeout(limit);
    Ok(client.build().await?)
}

/// Runs an administration call within `--timeout` (15 s).
pub async fn within<T>(
    global: &Global,
    what: &str,
    call: impl std::future::Future<Output = Result<T, Fail>>,
) -> Result<T, Fail> {
    let limit = global.timeout.unwrap_or(Duration::from_secs(15));
    match tokio::time::timeout(limit, call).await {
        Ok(result) => result,
        Err(_) => Err(Fail::deadline(format!("{what}: no answer within {limit:?}"))),
    }
}
