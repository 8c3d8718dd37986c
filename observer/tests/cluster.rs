//! Three observers in one process, on loopback, with real logs, spoken to over gRPC: sessions, routes, administration.

use std::future::Future;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::time::Duration;

use quorate_observer::config::Member;
use quorate_observer::{run_observer, ObserverConfig};
use quorate_proto::control::{ExitNotice, Heartbeat, Hello, LockProof, ReplicaReport, SessionDown, SessionUp};
use quorate_proto::convert::exit_notice_to_wire;
use quorate_proto::ids::{ClusterId, DiskId, Incarnation, LogIndex, NodeId, Term};
use quorate_proto::internal;
use quorate_proto::internal::session_client::SessionClient;
use quorate_proto::refusal::{Reason, Refusal};
use quorate_proto::status::refusal;
use quorate_proto::time::BootTime;
use quorate_proto::v1::admin_client::AdminClient;
use quorate_proto::v1::directory_client::DirectoryClient;
use quorate_proto::v1::{self, CreateTopicRequest, ListNodesRequest, WatchRoutesRequest};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::Streaming;

const CLUSTER: ClusterId = ClusterId(0xc1);
const SECRET: &str = "held by the supervisor";

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("bound").port()
}

fn configs(dir: &Path) -> Vec<ObserverConfig> {
    let members: Vec<Member> = (1..=3)
        .map(|id| Member {
            id,
            name: format!("observer-{id}"),
            address: format!("127.0.0.1:{}", free_port()),
            peer_address: format!("127.0.0.1:{}", free_port()),
        })
        .collect();
    let config = |member: &Member| ObserverConfig {
        cluster_id: CLUSTER.to_string(),
        node_id: member.id,
        name: member.name.clone(),
        data_dir: dir.join(&member.name),
        listen: member.address.parse().expect("an address"),
        peer_listen: member.peer_address.parse().expect("an address"),
        observers: members.clone(),
        log_filter: "warn".to_owned(),
        ..ObserverConfig::default()
    };
    members.iter().map(config).collect()
}

fn channel(address: SocketAddr) -> Channel {
    Channel::from_shared(format!("http://{address}")).expect("an address").connect_lazy()
}

/// Repeats `ask` until it gives something.
async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut ask: impl FnMut() -> F) -> T {
    for _ in 0..1_500 {
        if let Some(found) = ask().await {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("never saw {what}");
}

fn hello(node: u64) -> Hello {
    Hello {
        cluster: CLUSTER,
        node: NodeId(node),
        name: format!("node-{node}"),
        incarnation: Incarnation(1),
        disk: DiskId(u128::from(node)),
        address: format!("127.0.0.1:{node}"),
        peer_address: format!("127.0.0.1:{node}"),
        fault_domain: format!("rack-{node}"),
        lock: LockProof { boot_id: "b".to_owned(), dev: 1, ino: node },
        supervisor_hash: blake3::hash(SECRET.as_bytes()).to_hex().to_string(),
        version: "0.1.0".to_owned(),
        pid: 4,
        fresh: false,
        knows: quorate_proto::ids::DirectoryVersion::ZERO,
        knows_born: quorate_proto::time::LogTime::ZERO,
    }
}

struct Session {
    up: mpsc::Sender<internal::SessionUp>,
    down: Streaming<internal::SessionDown>,
}

impl Session {
    async fn open(address: SocketAddr, hello: Hello) -> Self {
        let (up, out) = mpsc::channel(16);
        up.send(SessionUp::Hello(hello).into()).await.expect("room");
        let down = SessionClient::new(channel(address)).open(ReceiverStream::new(out)).await.expect("opens");
        Self { up, down: down.into_inner() }
    }

    async fn next(&mut self) -> Option<SessionDown> {
        let message = self.down.message().await.ok()??;
        Some(SessionDown::try_from(message).expect("means something"))
    }
}

async fn leader(configs: &[ObserverConfig]) -> SocketAddr {
    until("a leader", || async {
        for config in configs {
            let answer = DirectoryClient::new(channel(config.listen)).list_nodes(ListNodesRequest {}).await;
            if answer.is_ok_and(|nodes| nodes.get_ref().authoritative) {
                return Some(config.listen);
            }
        }
        None
    })
    .await
}

async fn create(address: SocketAddr, partitions: u32) -> Result<v1::TopicDescription, Refusal> {
    let request = CreateTopicRequest { topic: "orders".to_owned(), partitions, operation_id: vec![7; 16].into() };
    let answer = AdminClient::new(channel(address)).create_topic(request).await;
    answer.map(tonic::Response::into_inner).map_err(|status| refusal(&status).expect("four parts"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn observers_register_nodes_make_topics_push_routes_and_take_exit_notices() {
    let dir = tempfile::tempdir().expect("a directory");
    let configs = configs(dir.path());
    for config in configs.clone() {
        // They run to the end of the process.
        std::thread::spawn(move || run_observer(config));
    }
    let leader = leader(&configs).await;
    let follower = configs.iter().map(|c| c.listen).find(|l| *l != leader).expect("three");

    let none = create(leader, 1).await.expect_err("no data nodes yet");
    assert_eq!(none.reason, Reason::Degraded);
    let mut sessions = Vec::new();
    for node in 1..=3 {
        for config in &configs {
            sessions.push((node, config.listen, Session::open(config.listen, hello(node)).await));
        }
    }
    let made = until("the topic", || async { create(leader, 2).await.ok() }).await;
    assert_eq!((made.name.as_str(), made.partitions), ("default/orders", 2));
    assert_eq!(create(leader, 2).await.expect("repeated").topic_id, made.topic_id);
    let elsewhere = create(follower, 2).await.expect_err("not the leader");
    assert_eq!(elsewhere.reason, Reason::NotLeader);
    assert!(elsewhere.action.contains(&leader.to_string()), "{elsewhere}");

    watches(follower).await;
    assigned_and_permitted(&mut sessions, leader).await;
    exits(leader, follower).await;
}

async fn watches(address: SocketAddr) {
    let request = |cluster: ClusterId| WatchRoutesRequest {
        protocol_version: 1,
        cluster_id: cluster.to_string(),
        ..WatchRoutesRequest::default()
    };
    let mut client = DirectoryClient::new(channel(address));
    let refused = client.watch_routes(request(ClusterId(9))).await.expect_err("another cluster");
    assert_eq!(refusal(&refused).expect("four parts").reason, Reason::ClusterMismatch);
    let mut routes = client.watch_routes(request(CLUSTER)).await.expect("watches").into_inner();
    let first = routes.message().await.expect("open").expect("the full picture");
    assert!(first.full && !first.observer_leader_address.is_empty());
    let slots: u32 = first.topics[0].slots.iter().map(|run| run.count).sum();
    assert_eq!((first.nodes.len(), first.topics.len(), slots), (3, 1, 4_096));
}

/// Nodes are told what to host; once a majority reports, the preferred leader is permitted, by the leader alone.
async fn assigned_and_permitted(sessions: &mut [(u64, SocketAddr, Session)], leader: SocketAddr) {
    for (_, address, session) in sessions.iter_mut() {
        let replicas = loop {
            match session.next().await.expect("open") {
                SessionDown::Assignments(all) if !all.replicas.is_empty() => break all.replicas,
                _ => {}
            }
        };
        assert_eq!(replicas.len(), 2);
        let report = |one: &quorate_proto::control::Assignment| ReplicaReport {
            group: one.group,
            replica: one.replica,
            term: Term(1),
            last_term: Term(1),
            last_index: LogIndex(5),
            ..ReplicaReport::default()
        };
        let beat = Heartbeat {
            seq: 1,
            sent: BootTime(7),
            disk_ok: true,
            reports: replicas.iter().map(report).collect(),
            ..Heartbeat::default()
        };
        session.up.send(SessionUp::Heartbeat(beat).into()).await.expect("room");
        let _ = address;
    }
    let (_, _, session) = sessions.iter_mut().find(|(_, address, _)| *address == leader).expect("a session");
    let permits = loop {
        match session.next().await.expect("open") {
            SessionDown::Permits(permits) => break permits,
            SessionDown::HeartbeatAck { seq, sent, cluster_time, .. } => {
                assert_eq!((seq, sent), (1, BootTime(7)));
                assert!(cluster_time.0 > 1_000_000_000_000_000, "microseconds since 1970: {cluster_time}");
            }
            _ => {}
        }
    };
    assert!(permits.iter().all(|p| p.clear && p.basis.is_empty()));
}

async fn exits(leader: SocketAddr, follower: SocketAddr) {
    let notice = |secret: &str| {
        let secret = secret.to_owned();
        exit_notice_to_wire(CLUSTER, ExitNotice { node: NodeId(3), incarnation: Incarnation(1), secret, status: -9 })
    };
    let mut client = SessionClient::new(channel(leader));
    let forged = client.exit_notice(notice("guessed")).await.expect("answers").into_inner();
    assert!(!forged.logged && forged.error.starts_with("FORBIDDEN"), "{forged:?}");
    let logged = client.exit_notice(notice(SECRET)).await.expect("answers").into_inner();
    assert!(logged.logged && logged.incarnation == 1, "{logged:?}");
    // Every observer knows it soon, and any of them acknowledges a repetition.
    until("the death everywhere", || async {
        let mut client = SessionClient::new(channel(follower));
        client.exit_notice(notice(SECRET)).await.ok().filter(|answer| answer.get_ref().logged)
    })
    .await;
    let nodes = DirectoryClient::new(channel(leader)).list_nodes(ListNodesRequest {}).await.expect("answers");
    let health: Vec<_> = nodes.get_ref().nodes.iter().map(|n| (n.role.as_str(), n.id, n.health.as_str())).collect();
    assert!(health.contains(&("server", 3, "dead")), "{health:?}");
    assert_eq!(health.iter().filter(|(role, ..)| *role == "observer").count(), 3);
}

#[test]
fn a_start_that_fails_says_why_in_one_line() {
    let dir = tempfile::tempdir().expect("a directory");
    let config = configs(dir.path()).remove(0);
    let held = TcpListener::bind(config.listen).expect("a port");
    let text = run_observer(config.clone()).expect_err("port in use").to_string();
    assert!(text.contains(&format!("port {} is in use", config.listen.port())) && !text.contains('\n'), "{text}");
    drop(held);
    std::fs::create_dir_all(&config.data_dir).expect("makes it");
    std::fs::write(config.data_dir.join("letter.txt"), "mine").expect("writes");
    let text = run_observer(config.clone()).expect_err("foreign").to_string();
    assert!(text.contains("no Quorate data directory") && !text.contains('\n'), "{text}");
    let mut unknown = config;
    unknown.node_id = 8;
    assert!(run_observer(unknown).expect_err("no member").to_string().contains("node_id 8"));
}
