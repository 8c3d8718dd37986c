//! The listeners' services: clients (Log, health, reflection) and peers.

use std::sync::atomic::AtomicU64;
use std::sync::Arc;
use std::time::Duration;

use quorate_host::transport::{peer_server, PeerSink, TransportConfig};
use quorate_host::turn::Post;
use quorate_proto::v1::log_server::LogServer;
use quorate_proto::DESCRIPTORS;
use tokio::sync::watch;
use tonic::transport::server::TcpIncoming;
use tonic::transport::Server;

use super::inlets::ShellEvent;
use super::shell::Shell;
use crate::config::ServerConfig;
use crate::services::{LogService, ServiceLimits, Shared};
use crate::storage::Stagings;

/// A client's connection that is silent for this long is pinged …
const PING_AFTER: Duration = Duration::from_secs(5);
/// … and given up this much later: half-open ones and those that read nothing do not pile up.
const PING_LOST: Duration = Duration::from_secs(5);
/// HTTP/2 windows, for bulk.
const WINDOW: u32 = 8 << 20;
/// HTTP/2 frames, for bulk.
const FRAME: u32 = 1 << 20;
/// Calls at a time on one connection: bounds what one client can have waiting.
const CLIENT_STREAMS: u32 = 1_024;

/// Everything that the services need.
pub(super) struct Services<'a> {
    pub clients: TcpIncoming,
    pub peers: TcpIncoming,
    pub shell: &'a Shell,
    pub post: &'a Post<ShellEvent>,
    pub closing: watch::Receiver<bool>,
    pub transport: TransportConfig,
    pub sink: Arc<dyn PeerSink>,
    pub stagings: Stagings,
    pub config: &'a ServerConfig,
}

impl Services<'_> {
    /// Starts both listeners on the runtime.
    pub fn start(self) {
        let shared = Arc::new(Shared {
            cluster: self.config.cluster(),
            node: self.config.node(),
            views: Arc::clone(&self.shell.views),
            storage: self.shell.storage.clone(),
            core: self.post.clone(),
            clock: Arc::clone(&self.shell.clock),
            limits: ServiceLimits {
                connection_bytes: self.config.connection_max_bytes,
                client_stall: Duration::from_millis(self.config.client_stall_ms),
            },
            connections: AtomicU64::new(0),
            closing: self.closing.clone(),
        });
        let log = LogService::server(shared);
        let (health, health_service) = tonic_health::server::health_reporter();
        let reflection = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(DESCRIPTORS)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
                .with_service_name("quorate.v1.Log")
                .with_service_name("grpc.health.v1.Health")
        };
        let v1 = reflection().build_v1().expect("the build made the descriptors");
        let v1alpha = reflection().build_v1alpha().expect("the build made the descriptors");
        let router = builder()
            .http2_keepalive_interval(Some(PING_AFTER))
            .http2_keepalive_timeout(Some(PING_LOST))
            .max_concurrent_streams(Some(CLIENT_STREAMS))
            .add_service(log)
            .add_service(health_service)
            .add_service(v1)
            .add_service(v1alpha);
        let ended = ended(self.closing.clone());
        let clients = self.clients;
        tokio::spawn(async move {
            if let Err(error) = router.serve_with_incoming_shutdown(clients, ended).await {
                tracing::error!(%error, "the client listener ended");
            }
        });
        let mut closing = self.closing;
        tokio::spawn(async move {
            health.set_serving::<LogServer<LogService<ShellEvent>>>().await;
            let _ = closing.wait_for(|closing| *closing).await;
            health.set_not_serving::<LogServer<LogService<ShellEvent>>>().await;
        });
        let router = builder().add_service(peer_server(&self.transport, self.sink, Arc::new(self.stagings)));
        let peers = self.peers;
        tokio::spawn(async move {
            if let Err(error) = router.serve_with_incoming(peers).await {
                tracing::error!(%error, "the peer listener ended");
            }
        });
    }
}

fn builder() -> Server {
    Server::builder()
        .initial_stream_window_size(Some(WINDOW))
        .initial_connection_window_size(Some(WINDOW))
        .max_frame_size(Some(FRAME))
}

async fn ended(mut closing: watch::Receiver<bool>) {
    let _ = closing.wait_for(|closing| *closing).await;
}
