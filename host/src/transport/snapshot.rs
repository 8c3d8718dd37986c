//! Snapshots between peers: a connection of their own, chunks of at most 256 KiB with a checksum each, paced.
//!
//! Order on the wire: hello + envelope (its `MsgSnapshot` without data); chunks of [`RAFT_DATA`], the data taken
//! out of the message; chunks of the other parts in the order given; a last, empty chunk.
//!
//! A transfer whose connection breaks is taken up again by its sender, with the same snapshot: it asks first how much of each
//! part is there, and sends the rest. (The Raft data, which is gathered in memory, is sent again.) Only when it gives up, or the
//! receiver refuses, Raft hears of it, and builds another snapshot.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use quorate_consensus::envelope::Envelope;
use quorate_proto::ids::{Incarnation, NodeId};
use quorate_proto::internal::{SnapshotChunk, StagedPart};
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
/// A broken transfer is taken up again after this time …
const RESUME_AFTER: Duration = Duration::from_secs(1);
/// … so often, counted anew whenever more of it arrived: a receiver that restarts needs some seconds.
const RESUMES: u32 = 30;
/// Beginning of a refusal after which the sender tries again.
pub const BUSY: &str = "BUSY";

/// Where received snapshots go before they are whole. Its calls may block: they run off the event loop.
pub trait SnapshotStaging: Send + Sync + 'static {
    /// A transfer begins. `envelope` carries the `MsgSnapshot` (metadata, no data).
    ///
    /// # Errors
    /// Why it is not wanted; told to the sender. One that begins with [`BUSY`] lets it try again.
    fn begin(&self, from: NodeId, envelope: &Envelope) -> Result<Box<dyn StagedSnapshot>, String>;

    /// Parts of this very snapshot that an earlier transfer left, with the length of their checked beginning: `begin` then
    /// goes on behind them.
    ///
    /// # Errors
    /// As [`Self::begin`].
    fn staged(&self, from: NodeId, envelope: &Envelope) -> Result<Vec<(String, u64)>, String> {
        let _ = (from, envelope);
        Ok(Vec::new())
    }
}

/// One snapshot being received. Dropped before [`Self::finish`]: it did not arrive whole; what is there may be kept for
/// [`SnapshotStaging::staged`].
pub trait StagedSnapshot: Send {
    /// More bytes of a part from this offset on, checked, in order; parts come one after the other.
    ///
    /// # Errors
    /// Why it can't be taken; ends the transfer.
    fn write(&mut self, part: &str, offset: u64, data: Bytes) -> Result<(), String>;

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
    fn write(&mut self, part: &str, _: u64, _: Bytes) -> Result<(), String> {
        Err(format!("a snapshot of this group has no part `{part}`"))
    }

    fn finish(self: Box<Self>, _: &Envelope) -> Result<(), String> {
        Ok(())
    }
}

/// Why a transfer ended.
enum Ended {
    /// The connection broke, or the receiver is busy: it may go on where it stopped.
    Broken(String),
    /// For good.
    Refused(String),
}

/// Sends a snapshot and reports how it ended.
pub(super) async fn send(link: Arc<Link>, mut envelope: Envelope, parts: Vec<SnapshotPart>) {
    let (group, to) = (envelope.group, envelope.to);
    let data = std::mem::take(&mut envelope.message.mut_snapshot().data);
    let mut all = vec![SnapshotPart { name: RAFT_DATA.into(), source: PartSource::Bytes(data) }];
    all.extend(parts);
    let result = persist(&link, &envelope, &Arc::new(all)).await;
    if let Err(reason) = &result {
        tracing::warn!(peer = %link.peer, %group, %reason, "snapshot not sent");
    }
    link.sink.snapshot_sent(link.peer, group, to, result.is_ok());
}

/// Tries until it arrived, is refused, or nothing more arrives.
async fn persist(link: &Arc<Link>, envelope: &Envelope, parts: &Arc<Vec<SnapshotPart>>) -> Result<(), String> {
    let _turn = link.snapshots.acquire().await.map_err(|_| "the peer is gone")?;
    let (mut tries, mut most) = (0, 0);
    loop {
        let (there, ended) = transfer(link, envelope, parts).await;
        let reason = match ended {
            Ok(()) => return Ok(()),
            Err(Ended::Refused(reason)) => return Err(reason),
            Err(Ended::Broken(reason)) => reason,
        };
        if there > most {
            (tries, most) = (0, there);
        }
        tries += 1;
        if tries > RESUMES {
            return Err(reason);
        }
        tracing::info!(peer = %link.peer, group = %envelope.group, reason, "snapshot broke off: taking it up again");
        tokio::time::sleep(RESUME_AFTER).await;
    }
}

/// One attempt. Says how many bytes were there before it.
async fn transfer(link: &Arc<Link>, envelope: &Envelope, parts: &Arc<Vec<SnapshotPart>>) -> (u64, Result<(), Ended>) {
    let first = SnapshotChunk {
        hello: Some(link.hello()),
        envelope: Some(codec::encode(envelope)),
        ..SnapshotChunk::default()
    };
    let mut client = match link.connect().await {
        Ok(client) => client,
        Err(reason) => return (0, Err(Ended::Broken(reason))),
    };
    let staged = match client.snapshot_staged(first.clone()).await {
        Ok(answer) => answer.into_inner(),
        Err(status) => return (0, Err(Ended::Broken(status.to_string()))),
    };
    if !staged.error.is_empty() {
        return (0, Err(refusal(staged.error)));
    }
    let there: BTreeMap<String, u64> = staged.parts.into_iter().map(|part| (part.part, part.bytes)).collect();
    let bytes: u64 = there.values().sum();
    if bytes > 0 {
        let (peer, group) = (link.peer, envelope.group);
        tracing::info!(%peer, %group, parts = there.len(), bytes, "snapshot goes on behind what is there");
        link.sink.snapshot_resumed(peer, bytes);
    }
    let (chunks, stream) = mpsc::channel(READ_AHEAD);
    let (pace, parts) = (link.config.snapshot_bytes_per_second.max(1), Arc::clone(parts));
    let feeder = tokio::spawn(async move {
        let result = feed(&chunks, first, &parts, &there, pace).await;
        // Dropping the channel without the last chunk tells the receiver that the rest is missing.
        drop(chunks);
        result
    });
    let answer = client.snapshot(ReceiverStream::new(stream)).await;
    // A receiver that refused stopped reading, so the feeder has ended or ends now.
    feeder.abort();
    if let Ok(Err(reason)) = feeder.await {
        return (bytes, Err(Ended::Refused(reason)));
    }
    let result = match answer {
        Err(status) => Err(Ended::Broken(status.to_string())),
        Ok(done) => match done.into_inner().error {
            error if error.is_empty() => Ok(()),
            error => Err(refusal(error)),
        },
    };
    (bytes, result)
}

fn refusal(error: String) -> Ended {
    if error.starts_with(BUSY) {
        Ended::Broken(error)
    } else {
        Ended::Refused(error)
    }
}

async fn feed(
    chunks: &mpsc::Sender<SnapshotChunk>,
    first: SnapshotChunk,
    parts: &Arc<Vec<SnapshotPart>>,
    there: &BTreeMap<String, u64>,
    bytes_per_second: u64,
) -> Result<(), String> {
    let mut pacer = Pacer { started: Instant::now(), bytes: 0, bytes_per_second };
    // The receiver is gone: its answer says why.
    if chunks.send(first).await.is_err() {
        return Ok(());
    }
    for (at, part) in parts.iter().enumerate() {
        let mut offset = there.get(&part.name).copied().unwrap_or(0);
        while let Some(data) = next_chunk(parts, at, offset).await? {
            pacer.wait(data.len()).await;
            let (crc32c, length) = (crc32c::crc32c(&data), data.len() as u64);
            let chunk = SnapshotChunk { part: part.name.clone(), data, crc32c, offset, ..SnapshotChunk::default() };
            offset += length;
            if chunks.send(chunk).await.is_err() {
                return Ok(());
            }
        }
    }
    let _ = chunks.send(SnapshotChunk { last: true, ..SnapshotChunk::default() }).await;
    Ok(())
}

/// Bytes of a part from `offset` on; `None` at its end.
async fn next_chunk(parts: &Arc<Vec<SnapshotPart>>, at: usize, offset: u64) -> Result<Option<Bytes>, String> {
    match &parts[at].source {
        PartSource::Bytes(bytes) => {
            let from = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
            let chunk = bytes.slice(from..bytes.len().min(from + SNAPSHOT_CHUNK));
            Ok((!chunk.is_empty()).then_some(chunk))
        }
        PartSource::File { len, .. } if offset >= *len => Ok(None),
        PartSource::File { .. } => {
            let parts = Arc::clone(parts);
            tokio::task::spawn_blocking(move || read_chunk(&parts[at].source, offset))
                .await
                .map_err(|error| error.to_string())?
                .map(Some)
                .map_err(|error| format!("reading the snapshot: {error}"))
        }
    }
}

fn read_chunk(source: &PartSource, offset: u64) -> std::io::Result<Bytes> {
    let PartSource::File { file, len } = source else { return Ok(Bytes::new()) };
    let size = usize::try_from(len - offset).unwrap_or(usize::MAX).min(SNAPSHOT_CHUNK);
    let mut chunk = vec![0; size];
    file.read_exact_at(&mut chunk, offset)?;
    Ok(chunk.into())
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

/// What of a snapshot is there already.
pub(super) async fn staged(
    staging: &Arc<dyn SnapshotStaging>,
    peer: NodeId,
    first: SnapshotChunk,
) -> Result<Vec<StagedPart>, String> {
    let envelope = first.envelope.ok_or("the question carries no envelope")?;
    let envelope = codec::decode(envelope).map_err(|error| error.to_string())?;
    let stager = Arc::clone(staging);
    let parts = blocking(move || stager.staged(peer, &envelope)).await?;
    Ok(parts.into_iter().map(|(part, bytes)| StagedPart { part, bytes }).collect())
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
                staged.write(&chunk.part, chunk.offset, chunk.data)?;
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
