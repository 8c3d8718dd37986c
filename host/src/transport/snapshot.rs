//! Snapshots between peers: a connection of their own, chunks of at most 256 KiB with a checksum each, paced.
//!
//! Order on the wire: hello + envelope (its `MsgSnapshot` without data); chunks of [`RAFT_DATA`], the data taken
//! out of the message; chunks of the other parts in the order given; a last, empty chunk. There is no resuming: a
//! transfer that breaks starts anew when Raft asks for it.

use std::fs::File;
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use quorate_consensus::envelope::Envelope;
use quorate_proto::ids::{Incarnation, NodeId};
use quorate_proto::internal::SnapshotChunk;
use raft::eraftpb::MessageType;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::link::Link;
use super::{codec, PartSource, SnapshotPart, SNAPSHOT_CHUNK};

/// Name of the part that holds the Raft snapshot's own data.
pub const RAFT_DATA: &str = "raft";
/// Bound of that part, which is gathered in memory.
const RAFT_DATA_LIMIT: usize = 256 << 20;
/// Chunks read ahead of the connection.
const READ_AHEAD: usize = 4;

/// Where received snapshots go before they are whole. Its calls may block: they run off the event loop.
pub trait SnapshotStaging: Send + Sync + 'static {
    /// A transfer begins. `envelope` carries the `MsgSnapshot` (metadata, no data).
    ///
    /// # Errors
    /// Why it is not wanted; told to the sender.
    fn begin(&self, from: NodeId, envelope: &Envelope) -> Result<Box<dyn StagedSnapshot>, String>;
}

/// One snapshot being received. Dropped before [`Self::finish`]: it did not arrive, throw it away.
pub trait StagedSnapshot: Send {
    /// More bytes of a part, checked, in order; parts come one after the other.
    ///
    /// # Errors
    /// Why it can't be taken; ends the transfer.
    fn write(&mut self, part: &str, data: Bytes) -> Result<(), String>;

    /// All parts are here: make them durable where the installation finds them. The message, its data now in
    /// place, is delivered to the replica after this returned.
    ///
    /// # Errors
    /// Why it can't be taken; ends the transfer.
    fn finish(self: Box<Self>, envelope: &Envelope) -> Result<(), String>;
}

/// For groups whose snapshot is the Raft message alone (the observers' directory).
#[derive(Clone, Copy, Debug, Default)]
pub struct InMemorySnapshots;

impl SnapshotStaging for InMemorySnapshots {
    fn begin(&self, _: NodeId, _: &Envelope) -> Result<Box<dyn StagedSnapshot>, String> {
        Ok(Box::new(*self))
    }
}

impl StagedSnapshot for InMemorySnapshots {
    fn write(&mut self, part: &str, _: Bytes) -> Result<(), String> {
        Err(format!("a snapshot of this group has no part `{part}`"))
    }

    fn finish(self: Box<Self>, _: &Envelope) -> Result<(), String> {
        Ok(())
    }
}

/// Sends a snapshot and reports how it ended.
pub(super) async fn send(link: Arc<Link>, envelope: Envelope, parts: Vec<SnapshotPart>) {
    let (group, to) = (envelope.group, envelope.to);
    let result = transfer(&link, envelope, parts).await;
    if let Err(reason) = &result {
        tracing::warn!(peer = %link.peer, %group, %reason, "snapshot not sent");
    }
    link.sink.snapshot_sent(link.peer, group, to, result.is_ok());
}

async fn transfer(link: &Arc<Link>, mut envelope: Envelope, mut parts: Vec<SnapshotPart>) -> Result<(), String> {
    let _turn = link.snapshots.acquire().await.map_err(|_| "the peer is gone")?;
    let data = std::mem::take(&mut envelope.message.mut_snapshot().data);
    parts.insert(0, SnapshotPart { name: RAFT_DATA.into(), source: PartSource::Bytes(data) });
    let first = SnapshotChunk {
        hello: Some(link.hello()),
        envelope: Some(codec::encode(&envelope)),
        ..SnapshotChunk::default()
    };
    let mut client = link.connect().await?;
    let (chunks, stream) = mpsc::channel(READ_AHEAD);
    let pace = link.config.snapshot_bytes_per_second.max(1);
    let feeder = tokio::spawn(async move {
        let result = feed(&chunks, first, parts, pace).await;
        // Dropping the channel without the last chunk tells the receiver that the rest is missing.
        drop(chunks);
        result
    });
    let answer = client.snapshot(ReceiverStream::new(stream)).await;
    // A receiver that refused stopped reading, so the feeder has ended or ends now.
    feeder.abort();
    if let Ok(Err(reason)) = feeder.await {
        return Err(reason);
    }
    let done = answer.map_err(|status| status.to_string())?.into_inner();
    if done.error.is_empty() {
        Ok(())
    } else {
        Err(done.error)
    }
}

async fn feed(
    chunks: &mpsc::Sender<SnapshotChunk>,
    first: SnapshotChunk,
    parts: Vec<SnapshotPart>,
    bytes_per_second: u64,
) -> Result<(), String> {
    let mut pacer = Pacer { started: Instant::now(), bytes: 0, bytes_per_second };
    // The receiver is gone: its answer says why.
    if chunks.send(first).await.is_err() {
        return Ok(());
    }
    for part in parts {
        let mut source = part.source;
        loop {
            let (data, rest) = next_chunk(source).await?;
            let Some(data) = data else { break };
            source = rest;
            pacer.wait(data.len()).await;
            let crc32c = crc32c::crc32c(&data);
            let chunk = SnapshotChunk { part: part.name.clone(), data, crc32c, ..SnapshotChunk::default() };
            if chunks.send(chunk).await.is_err() {
                return Ok(());
            }
        }
    }
    let _ = chunks.send(SnapshotChunk { last: true, ..SnapshotChunk::default() }).await;
    Ok(())
}

/// Next bytes of a source and what is left of it; `None` at its end.
async fn next_chunk(source: PartSource) -> Result<(Option<Bytes>, PartSource), String> {
    match source {
        PartSource::Bytes(mut bytes) => {
            let chunk = bytes.split_to(bytes.len().min(SNAPSHOT_CHUNK));
            Ok(((!chunk.is_empty()).then_some(chunk), PartSource::Bytes(bytes)))
        }
        PartSource::File { file, len: 0 } => Ok((None, PartSource::File { file, len: 0 })),
        PartSource::File { file, len } => tokio::task::spawn_blocking(move || read_chunk(file, len))
            .await
            .map_err(|error| error.to_string())?
            .map(|(chunk, rest)| (Some(chunk), rest))
            .map_err(|error| format!("reading the snapshot: {error}")),
    }
}

fn read_chunk(mut file: File, len: u64) -> std::io::Result<(Bytes, PartSource)> {
    let size = usize::try_from(len).unwrap_or(usize::MAX).min(SNAPSHOT_CHUNK);
    let mut chunk = vec![0; size];
    file.read_exact(&mut chunk)?;
    Ok((chunk.into(), PartSource::File { file, len: len - size as u64 }))
}

/// Keeps a transfer below its pace.
struct Pacer {
    started: Instant,
    bytes: u64,
    bytes_per_second: u64,
}

impl Pacer {
    async fn wait(&mut self, bytes: usize) {
        let due = Duration::from_secs_f64(self.bytes as f64 / self.bytes_per_second as f64);
        self.bytes += bytes as u64;
        tokio::time::sleep_until(self.started + due).await;
    }
}

/// Receives one snapshot; gives the complete message back once it is staged.
pub(super) async fn receive(
    staging: &Arc<dyn SnapshotStaging>,
    peer: NodeId,
    incarnation: Incarnation,
    first: SnapshotChunk,
    mut chunks: Streaming<SnapshotChunk>,
) -> Result<Envelope, String> {
    let envelope = first.envelope.ok_or("the first chunk carries no envelope")?;
    let mut envelope = codec::decode(envelope).map_err(|error| error.to_string())?;
    if envelope.from_incarnation != incarnation || envelope.message.msg_type != MessageType::MsgSnapshot {
        return Err("the first chunk carries no snapshot message of this incarnation".into());
    }
    let (begun, stager) = (envelope.clone(), Arc::clone(staging));
    let mut staged = blocking(move || stager.begin(peer, &begun)).await?;
    let mut data = BytesMut::new();
    loop {
        let chunk = chunks.message().await.map_err(|status| status.to_string())?;
        let chunk = chunk.ok_or("the snapshot ended before its last chunk")?;
        if chunk.last {
            break;
        }
        if crc32c::crc32c(&chunk.data) != chunk.crc32c {
            return Err(format!("CORRUPT: checksum of a chunk of part `{}`", chunk.part));
        }
        if chunk.part == RAFT_DATA {
            if data.len() + chunk.data.len() > RAFT_DATA_LIMIT {
                return Err(format!("TOO_LARGE: snapshot data beyond {RAFT_DATA_LIMIT} bytes"));
            }
            data.extend_from_slice(&chunk.data);
        } else {
            staged = blocking(move || {
                staged.write(&chunk.part, chunk.data)?;
                Ok(staged)
            })
            .await?;
        }
    }
    envelope.message.mut_snapshot().data = data.freeze();
    blocking(move || staged.finish(&envelope).map(|()| envelope)).await
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, String> + Send + 'static) -> Result<T, String> {
    tokio::task::spawn_blocking(work).await.map_err(|error| error.to_string())?
}
