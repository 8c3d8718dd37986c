//! The writer thread: one append and one flush for all that waits, then one notice batch.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::Path;
use std::sync::mpsc;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use protobuf::Message;
use quorate_consensus::effect::PersistWrite;
use quorate_proto::ids::GroupId;
use quorate_proto::time::BootTime;
use raft_engine::{Command, Config, Engine, Error, LogBatch, ReadableSize, RecoveryMode};

use super::files::{distrust_cache, flush_all, Files};
use super::mark::Mark;
use super::queue::{weight, Shared};
use super::recover::{self, RaftEntry, CANARY_GROUP, FLUSHES, HARD_STATE};
use super::watch::watch;
use super::{FaultPolicy, Recovered, Wal, WalConfig, WalError, WalNotice, WalNotices, WalProfile, WalRequest};
use crate::clock::Clock;
use crate::mount::discards;
use crate::remover::Remover;

/// With work waiting all the time, purge nevertheless after this many times `purge_every`.
const PURGE_PATIENCE: u32 = 2;

impl WalProfile {
    fn config(self, dir: &Path) -> Config {
        let (file, limit) = match self {
            Self::Production => (ReadableSize::mb(128), ReadableSize::gb(2)),
            Self::Dev | Self::Observer => (ReadableSize::mb(16), ReadableSize::mb(64)),
        };
        Config {
            dir: dir.to_string_lossy().into_owned(),
            recovery_mode: RecoveryMode::TolerateTailCorruption,
            recovery_threads: 2,
            // Payloads come compressed by their producers; LZ4 would run in the writer thread.
            batch_compression_threshold: ReadableSize(0),
            target_file_size: file,
            purge_threshold: limit,
            enable_log_recycle: self == Self::Production,
            prefill_for_recycle: self == Self::Production,
            ..Config::default()
        }
    }
}

/// See [`Wal::open`]. All of raft-engine runs on threads of this log: it caches read blocks per thread by file
/// position alone, which two logs in one process would confuse.
pub(super) fn open(
    config: WalConfig,
    faults: Arc<dyn FaultPolicy>,
    clock: Arc<dyn Clock>,
    notices: Arc<dyn WalNotices>,
) -> Result<(Wal, Recovered), WalError> {
    let io = |what: &'static str| {
        let dir = config.dir.clone();
        move |source| WalError::Io { dir, what, source }
    };
    std::fs::create_dir_all(&config.dir).map_err(io("create directory"))?;
    let shared = Arc::new(Shared::new(config.queue_bytes, clock, notices));
    let (opened, result) = mpsc::sync_channel(1);
    let thread_shared = Arc::clone(&shared);
    let thread_config = config.clone();
    let writer = thread::Builder::new()
        .name("wal".into())
        .spawn(move || {
            let recovered = catch_unwind(AssertUnwindSafe(|| recover_log(&thread_config, &thread_shared, faults)));
            match recovered {
                Ok(Ok(Opened { engine, mark, flushes, recovered })) => {
                    let _ = opened.send(Ok(recovered));
                    start_watch(&thread_shared, thread_config.hang_after);
                    let (engine, config, shared) = (Arc::new(engine), thread_config, thread_shared);
                    let writer = Writer { engine, mark, flushes, config, shared };
                    writer.run();
                }
                Ok(Err(error)) => drop(opened.send(Err(error))),
                // The channel closes without a word: see below.
                Err(_panic) => {}
            }
        })
        .map_err(io("start the writer thread"))?;
    match result.recv() {
        Ok(Ok(recovered)) => Ok((Wal { shared, writer: Some(writer) }, recovered)),
        Ok(Err(error)) => Err(error),
        Err(mpsc::RecvError) => {
            Err(WalError::Engine { dir: config.dir, reason: "recovery panicked (see the log above)".into() })
        }
    }
}

fn start_watch(shared: &Arc<Shared>, hang_after: Duration) {
    let watched = Arc::clone(shared);
    let run = move || watch(&watched, hang_after);
    if let Err(error) = thread::Builder::new().name("wal-watch".into()).spawn(run) {
        // Stalls are still noticed by the tokens; only the exit after a long one is missing.
        tracing::error!(%error, "write-ahead log: nobody watches for a flush that hangs");
    }
}

fn recover_log(config: &WalConfig, shared: &Arc<Shared>, faults: Arc<dyn FaultPolicy>) -> Result<Opened, WalError> {
    let engine_error = |reason: String| WalError::Engine { dir: config.dir.clone(), reason };
    if config.distrust_cache {
        distrust_cache(&config.dir).map_err(|source| WalError::Io {
            dir: config.dir.clone(),
            what: "flush files of a process that ended while a flush hung",
            source,
        })?;
    }
    let remover = Remover::start(&config.dir).map_err(|source| WalError::Io {
        dir: config.dir.clone(),
        what: "start the remover of old files",
        source,
    })?;
    let recycled = config.profile == WalProfile::Production;
    if let Some(mount) = discards(&config.dir).filter(|_| recycled) {
        let (dir, mount) = (config.dir.display(), mount.display());
        tracing::warn!(%dir, %mount, "the log's file system is mounted with `discard`: flushes wait while files are deleted; mount it without, and run fstrim at a quiet hour");
    }
    let files = Arc::new(Files::new(Arc::clone(shared), faults, recycled, remover));
    let engine = Engine::open_with_file_system(config.profile.config(&config.dir), Arc::clone(&files))
        .map_err(|error| engine_error(error.to_string()))?;
    let files_flushed = flush_all(&config.dir).map_err(|source| WalError::Io {
        dir: config.dir.clone(),
        what: "flush recovered files",
        source,
    })?;
    let groups = recover::groups(&engine).map_err(engine_error)?;
    let (mark, counted) = Mark::open(config.mark.as_deref()).map_err(|source| WalError::Io {
        dir: config.dir.clone(),
        what: "open the mark of flushes",
        source,
    })?;
    let (found, counted) = (recover::flushes(&engine), counted.unwrap_or(0));
    let recovered =
        Recovered { groups, tail_cut: files.opened(), files_flushed, flushes_missing: counted.saturating_sub(found) };
    Ok(Opened { engine, mark, flushes: found.max(counted), recovered })
}

/// What opening yields.
struct Opened {
    engine: Engine<Files>,
    mark: Mark,
    flushes: u64,
    recovered: Recovered,
}

struct Writer {
    engine: Arc<Engine<Files>>,
    mark: Mark,
    /// Number of the newest flush at the start.
    flushes: u64,
    config: WalConfig,
    shared: Arc<Shared>,
}

impl Writer {
    fn run(self) {
        let fetcher = {
            let (engine, shared) = (Arc::clone(&self.engine), Arc::clone(&self.shared));
            thread::Builder::new().name("wal-fetch".into()).spawn(move || fetch_loop(&engine, &shared))
        };
        let outcome = catch_unwind(AssertUnwindSafe(|| self.write_loop()));
        if outcome.is_err() {
            // raft-engine's own assertions: nothing that it holds can be trusted. (`main` aborts before this.)
            self.shared.poison("the writer thread panicked");
        }
        if let Ok(fetcher) = fetcher {
            let _ = fetcher.join();
        }
        let shared = Arc::clone(&self.shared);
        // Closes the files, which flushes them.
        drop(self);
        shared.ended_clean();
    }

    fn write_loop(&self) {
        let mut flushes = self.flushes;
        let mut last_purge = Instant::now();
        while let Some(requests) = self.shared.take(self.config.batch_bytes, self.config.purge_every) {
            let idle = requests.is_empty();
            if !idle {
                self.write(requests, &mut flushes);
            }
            let due = self.config.purge_every * if idle { 1 } else { PURGE_PATIENCE };
            if last_purge.elapsed() >= due {
                self.purge();
                last_purge = Instant::now();
            }
        }
    }

    /// One group commit.
    fn write(&self, requests: Vec<WalRequest>, flushes: &mut u64) {
        let bytes: usize = requests.iter().map(weight).sum();
        let mut batch = LogBatch::with_capacity(requests.len() * 4);
        for request in &requests {
            match request {
                WalRequest::Persist(write) => self.add(&mut batch, write),
                WalRequest::Forget { group } => batch.add_command(group.get(), Command::Clean),
                WalRequest::Canary | WalRequest::Token { .. } | WalRequest::Fetch { .. } => {}
            }
        }
        // Every flush has a number (B2); a canary is a flush of nothing else.
        if !batch.is_empty() || requests.iter().any(|request| matches!(request, WalRequest::Canary)) {
            *flushes += 1;
            self.put(&mut batch, GroupId(CANARY_GROUP), FLUSHES, flushes.to_be_bytes().to_vec());
        }
        let started = self.shared.flush_begins();
        let (at, took) = if batch.is_empty() {
            // Only tokens: they met no flush. (A write of nothing has nothing to wait for either.)
            self.shared.flush_skipped();
            (started, Duration::ZERO)
        } else {
            if let Err(error) = self.engine.write(&mut batch, true) {
                self.shared.poison(&format!("append failed: {error}"));
            }
            let at = self.shared.flush_ended();
            // Before anybody hears of the flush: what was ever acknowledged is counted.
            if let Err(error) = self.mark.set(*flushes) {
                self.shared.poison(&format!("the mark of flushes cannot be written: {error}"));
            }
            (at, at.since(started))
        };
        self.shared.done(bytes);
        metrics::histogram!("quorate_wal_flush_seconds").record(took.as_secs_f64());
        metrics::histogram!("quorate_wal_flush_bytes").record(bytes as f64);
        self.shared.notify(notices(requests, at, took));
    }

    /// Adds one group's write, in the order of its contract: clear, entries, compaction, hard state, pairs.
    fn add(&self, batch: &mut LogBatch, write: &PersistWrite) {
        let group = write.group.get();
        if write.clear {
            // Not `Command::Clean`: that would take the key–value pairs along. Also covers what this very batch
            // appended before.
            batch.add_command(group, Command::Compact { index: u64::MAX });
        }
        if !write.entries.is_empty() {
            if let Err(error) = batch.add_entries::<RaftEntry>(group, &write.entries) {
                self.shared.poison(&format!("{} can't be appended: {error}", write.group));
            }
        }
        if let Some(through) = write.compact_through {
            batch.add_command(group, Command::Compact { index: through.get() + 1 });
        }
        if let Some(hard_state) = &write.hard_state {
            let value = hard_state.write_to_bytes().expect("a message without required fields is always complete");
            self.put(batch, write.group, HARD_STATE, value);
        }
        for (key, value) in &write.puts {
            self.put(batch, write.group, key, value.to_vec());
        }
    }

    fn put(&self, batch: &mut LogBatch, group: GroupId, key: &str, value: Vec<u8>) {
        if let Err(error) = batch.put(group.get(), key.as_bytes().to_vec(), value) {
            self.shared.poison(&format!("{group}: key `{key}` can't be stored: {error}"));
        }
    }

    /// Between writes, so that it never makes a flush wait that is already asked for.
    fn purge(&self) {
        self.shared.flush_begins();
        let started = Instant::now();
        let laggards = self.engine.purge_expired_files();
        metrics::histogram!("quorate_wal_purge_seconds").record(started.elapsed().as_secs_f64());
        self.shared.flush_skipped();
        match laggards {
            Ok(groups) if groups.is_empty() => {}
            Ok(groups) => {
                let groups = groups.into_iter().filter(|&id| id != CANARY_GROUP).map(GroupId).collect();
                self.shared.notify(vec![WalNotice::CompactWanted(groups)]);
            }
            // Nothing was promised on it: the log stays as it is, and the next purge tries again.
            Err(error) => tracing::warn!(%error, "write-ahead log: purge failed"),
        }
    }
}

fn notices(requests: Vec<WalRequest>, at: BootTime, took: Duration) -> Vec<WalNotice> {
    requests
        .into_iter()
        .filter_map(|request| match request {
            WalRequest::Persist(write) => Some(WalNotice::Persisted { group: write.group, id: write.id, at }),
            WalRequest::Token { seq } => Some(WalNotice::Token { seq, age: took }),
            WalRequest::Canary => Some(WalNotice::Canary { at }),
            WalRequest::Forget { .. } | WalRequest::Fetch { .. } => None,
        })
        .collect()
}

/// Reads for followers that are far behind, so that they never delay a flush.
fn fetch_loop(engine: &Engine<Files>, shared: &Shared) {
    while let Some(request) = shared.take_fetch() {
        let WalRequest::Fetch { group, from, to, max_bytes } = request else { continue };
        let max_bytes = usize::try_from(max_bytes).unwrap_or(usize::MAX);
        let entries = match recover::fetch(engine, group.get(), from.get(), to.get(), Some(max_bytes)) {
            Ok(entries) if entries.is_empty() => None,
            Ok(entries) => Some(entries),
            Err(Error::EntryCompacted | Error::EntryNotFound) => None,
            Err(error) => {
                tracing::error!(%group, %from, %error, "write-ahead log: entries can't be read");
                None
            }
        };
        shared.notify(vec![WalNotice::Fetched { group, from, entries }]);
    }
}
