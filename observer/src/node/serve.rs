//! The listeners' services: clients, data nodes and supervisors on one, the other observers on the other.

use std::sync::Arc;
use std::time::Duration;

use quorate_host::transport::{peer_server, server, InMemorySnapshots, PeerSink, TransportConfig};
use quorate_host::turn::Post;
use quorate_proto::v1::admin_server::AdminServer;
use quorate_proto::v1::directory_server::DirectoryServer;
use quorate_proto::DESCRIPTORS;
use tokio::sync::watch;
use tonic::transport::server::TcpIncoming;

use super::inlets::ShellEvent;
use crate::config::ObserverConfig;
use crate::services::{DirectoryService, Loop, SessionService};

/// Calls at a time on one connection: bounds what one client can have waiting.
const STREAMS: u32 = 1_024;
/// A connection that is silent for this long is pinged …
const PING_AFTER: Duration = Duration::from_millis(500);
/// … and given up this much later: half-open sessions are noticed before a node is suspect for silence.
const PING_LOST: Duration = Duration::from_secs(1);

/// Everything that the services need.
pub(super) struct Services<'a> {
    pub clients: TcpIncoming,
    pub peers: TcpIncoming,
    pub post: &'a Post<ShellEvent>,
    pub closing: watch::Receiver<bool>,
    pub transport: TransportConfig,
    pub sink: Arc<dyn PeerSink>,
    pub config: &'a Arc<ObserverConfig>,
}

/// Starts both listeners on the runtime.
pub(super) fn start(services: Services<'_>) {
    let Services { clients, peers, post, mut closing, transport, sink, config } = services;
    let core = Loop::new(post.clone(), Arc::clone(config));
    let (directory, admin) = DirectoryService::servers(core.clone());
    let (health, health_service) = tonic_health::server::health_reporter();
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .with_service_name("quorate.v1.Directory")
            .with_service_name("quorate.v1.Admin")
            .with_service_name("grpc.health.v1.Health")
    };
    let router = server()
        .http2_keepalive_interval(Some(PING_AFTER))
        .http2_keepalive_timeout(Some(PING_LOST))
        .max_concurrent_streams(Some(STREAMS))
        .add_service(directory)
        .add_service(admin)
        .add_service(SessionService::server(core))
        .add_service(health_service)
        .add_service(reflection().build_v1().expect("the build made the descriptors"))
        .add_service(reflection().build_v1alpha().expect("the build made the descriptors"));
    let mut ended = closing.clone();
    tokio::spawn(async move {
        let ended = async move {
            let _ = ended.wait_for(|closing| *closing).await;
        };
        if let Err(error) = router.serve_with_incoming_shutdown(clients, ended).await {
            tracing::error!(%error, "the client listener ended");
        }
    });
    tokio::spawn(async move {
        health.set_serving::<DirectoryServer<DirectoryService>>().await;
        health.set_serving::<AdminServer<DirectoryService>>().await;
        let _ = closing.wait_for(|closing| *closing).await;
        health.set_not_serving::<DirectoryServer<DirectoryService>>().await;
        health.set_not_serving::<AdminServer<DirectoryService>>().await;
    });
    let router = server().add_service(peer_server(&transport, sink, Arc::new(InMemorySnapshots)));
    tokio::spawn(async move {
        if let Err(error) = router.serve_with_incoming(peers).await {
            tracing::error!(%error, "the peer listener ended");
        }
    });
}
