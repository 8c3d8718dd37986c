//! Round trip of a small envelope between two nodes over loopback, both on one thread: prints the percentiles.
//!
//! ```text
//! cargo run --release -p quorate-host --example ping_pong
//! ```

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quorate_consensus::envelope::{Envelope, Lane};
use quorate_host::listen;
use quorate_host::transport::{peer_server, server, InMemorySnapshots, PeerSink, Transport, TransportConfig};
use quorate_host::turn::{mailbox, Mailbox, Post};
use quorate_proto::ids::{ClusterId, GroupId, Incarnation, NodeId};
use raft::eraftpb::{Entry, Message};

const ROUNDS: usize = 5_000;

struct Inbox(Post<Envelope>);

impl PeerSink for Inbox {
    fn deliver(&self, _: NodeId, _: Lane, envelopes: Vec<Envelope>) {
        self.0.push_all(envelopes);
    }
    fn lost(&self, peer: NodeId) {
        eprintln!("{peer} lost");
    }
}

struct Node {
    transport: Transport,
    mailbox: Mailbox<Envelope>,
    address: String,
}

fn node(id: u64) -> Result<Node, Box<dyn Error>> {
    let config = TransportConfig::new(ClusterId(1), NodeId(id), Incarnation(1));
    let (post, mailbox) = mailbox(1_000);
    let sink: Arc<dyn PeerSink> = Arc::new(Inbox(post));
    let (address, incoming) = listen::incoming("ping-pong", "127.0.0.1:0".parse()?)?;
    let service = peer_server(&config, Arc::clone(&sink), Arc::new(InMemorySnapshots));
    tokio::spawn(server().serve_with_incoming(service, incoming));
    Ok(Node { transport: Transport::new(config, sink), mailbox, address: address.to_string() })
}

fn envelope(from: u64, to: u64, bytes: usize) -> Box<Envelope> {
    let mut message = Message { from, to, ..Message::default() };
    message.entries.push(Entry { data: vec![1; bytes].into(), ..Entry::default() });
    Box::new(Envelope::bare(GroupId(2), Incarnation(1), message))
}

async fn received(mailbox: &Mailbox<Envelope>) -> usize {
    let mut events = Vec::new();
    loop {
        mailbox.drain(&mut events, 100);
        if !events.is_empty() {
            return events.len();
        }
        mailbox.posted().await;
    }
}

async fn measure() -> Result<(), Box<dyn Error>> {
    let (mut a, mut b) = (node(1)?, node(2)?);
    a.transport.set_peers([(NodeId(2), b.address.clone())]);
    b.transport.set_peers([(NodeId(1), a.address.clone())]);
    while !a.transport.status().iter().chain(&b.transport.status()).all(|lane| lane.connected) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    tokio::spawn(async move {
        loop {
            for _ in 0..received(&b.mailbox).await {
                b.transport.send(NodeId(1), Lane::Control, envelope(2, 1, 10));
            }
            b.transport.flush();
        }
    });
    for bytes in [10, 1_024, 65_536] {
        let mut times = Vec::with_capacity(ROUNDS);
        for _ in 0..ROUNDS {
            let started = Instant::now();
            a.transport.send(NodeId(2), Lane::Bulk, envelope(1, 2, bytes));
            a.transport.flush();
            received(&a.mailbox).await;
            times.push(started.elapsed());
        }
        times.sort_unstable();
        let at = |part: usize| times[(ROUNDS - 1) * part / 1_000];
        println!("{bytes:>6} B there, 10 B back: p50 {:?}, p99 {:?}, p99.9 {:?}", at(500), at(990), at(999));
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(measure())
}
