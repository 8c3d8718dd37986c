//! The client for programs without a runtime: a thin wrapper that owns one thread.

use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use quorate_proto::refusal::Refusal;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use super::{Client, ConnectError, ConsumedRecord, Consumer, Pending, Producer, StartAt};
use crate::core::error::SendError;
use crate::core::receipt::CloseReport;
use crate::core::record::Record;

/// A [`Client`] with a runtime thread of its own. Not to be used within another runtime: its calls block.
#[derive(Debug)]
pub struct BlockingClient {
    client: Client,
    runtime: Handle,
    _thread: Thread,
}

/// Ends the runtime thread with the client.
#[derive(Debug)]
struct Thread {
    stop: Option<oneshot::Sender<()>>,
    joined: Option<JoinHandle<()>>,
}

impl Drop for Thread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(joined) = self.joined.take() {
            // It cannot panic: it only waits.
            let _ = joined.join();
        }
    }
}

impl BlockingClient {
    /// Connects to the cluster of these observers.
    ///
    /// # Errors
    /// [`ConnectError`], as [`super::ClientBuilder::build`].
    ///
    /// # Panics
    /// If the operating system gives no thread.
    pub fn connect<S: Into<String>>(observers: impl IntoIterator<Item = S>) -> Result<Self, ConnectError> {
        let (stop, stopped) = oneshot::channel::<()>();
        let (handle, started) = mpsc::channel();
        let run = move || {
            let runtime =
                Builder::new_current_thread().enable_all().build().expect("a runtime needs a few descriptors");
            // The receiver waits below.
            let _ = handle.send(runtime.handle().clone());
            // Either way the client is gone.
            let _ = runtime.block_on(stopped);
        };
        let thread = std::thread::Builder::new().name("quorate-client".into());
        let joined = thread.spawn(run).expect("the operating system gives a thread");
        let thread = Thread { stop: Some(stop), joined: Some(joined) };
        let runtime = started.recv().expect("the thread sends its handle first");
        let client = runtime.block_on(Client::builder().observers(observers).build())?;
        Ok(Self { client, runtime, _thread: thread })
    }

    /// The client inside.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// A producer with default settings.
    ///
    /// # Errors
    /// As [`super::ProducerBuilder::build`].
    pub fn producer(&self, topic: &str) -> Result<BlockingProducer, Refusal> {
        let producer = self.runtime.block_on(self.client.producer(topic).build())?;
        Ok(BlockingProducer { producer, runtime: self.runtime.clone() })
    }

    /// A consumer of all partitions.
    ///
    /// # Errors
    /// As [`super::ConsumerBuilder::build`].
    pub fn consumer(&self, topic: &str, from: StartAt) -> Result<BlockingConsumer, Refusal> {
        let consumer = self.runtime.block_on(self.client.consumer(topic).from(from).build())?;
        Ok(BlockingConsumer { consumer, runtime: self.runtime.clone() })
    }
}

/// A [`Producer`] whose calls block. It must not outlive its client.
#[derive(Debug)]
pub struct BlockingProducer {
    producer: Producer,
    runtime: Handle,
}

impl BlockingProducer {
    /// Admits a record; blocks while the buffer is full. [`Pending::wait`] blocks for its outcome.
    ///
    /// # Errors
    /// As [`Producer::send`].
    pub fn send(&self, record: Record) -> Result<Pending, SendError> {
        self.runtime.block_on(self.producer.send(record))
    }

    /// As [`Producer::flush`].
    pub fn flush(&self, limit: Duration) -> bool {
        self.runtime.block_on(self.producer.flush(limit))
    }

    /// As [`Producer::close`].
    pub fn close(self, limit: Duration) -> CloseReport {
        self.runtime.block_on(self.producer.close(limit))
    }
}

/// A [`Consumer`] as an iterator. It must not outlive its client.
#[derive(Debug)]
pub struct BlockingConsumer {
    consumer: Consumer,
    runtime: Handle,
}

impl Iterator for BlockingConsumer {
    type Item = Result<ConsumedRecord, Refusal>;

    /// Blocks until there is a record; `None` when every partition has ended with an error.
    fn next(&mut self) -> Option<Self::Item> {
        self.runtime.block_on(self.consumer.next())
    }
}
