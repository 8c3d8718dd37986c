//! Whether the rest of the machine waited, too. Beside a series of faults, one thread flushes a small file and another one
//! sleeps for an instant, again and again. What they take too long, everything on this machine takes too long; who causes
//! it, another program, the host or the cluster itself, they do not say.

use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::measure::Gap;
use crate::Error;

/// Shorter ones are the machine's normal life.
const NOTICEABLE: Duration = Duration::from_millis(5);
/// From one flush to the next: little beside the cluster's own, and no stall that matters goes unseen.
const FLUSH_EVERY: Duration = Duration::from_millis(20);
/// What the sleeper sleeps.
const NAP: Duration = Duration::from_millis(5);
const BLOCK: [u8; 512] = [0x5A; 512];

/// Both threads, until it is dropped.
pub struct Pulse {
    began: Instant,
    stop: Arc<AtomicBool>,
    disk: Arc<Mutex<Vec<Gap>>>,
    processor: Arc<Mutex<Vec<Gap>>>,
    threads: Vec<JoinHandle<()>>,
}

/// How much of a span others on this machine waited, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stalled {
    /// A small flush of a file of its own was under way, beyond the 5 ms that are left out.
    pub disk: Duration,
    /// A thread that had slept enough was not woken, beyond the same.
    pub processor: Duration,
}

impl Pulse {
    /// Starts, with a file in `place`, which should lie on the disk that the nodes use. Times count from `began`.
    ///
    /// # Errors
    /// `place` cannot be written, or there are no threads.
    pub fn start(place: &Path, began: Instant) -> Result<Self, Error> {
        let mut file = tempfile::tempfile_in(place)
            .map_err(|e| Error::new(format!("cannot watch the disk at {}: {e}", place.display())))?;
        let (disk, processor) = (Arc::<Mutex<Vec<Gap>>>::default(), Arc::<Mutex<Vec<Gap>>>::default());
        let mut pulse =
            Self { began, stop: Arc::default(), disk: disk.clone(), processor: processor.clone(), threads: Vec::new() };
        pulse.watch("pulse-disk", disk, move || {
            std::thread::sleep(FLUSH_EVERY);
            let due = Instant::now();
            // A full or broken disk shows by the cluster; here it only means that nothing more is noticed.
            let _ = file.write_all(&BLOCK).and_then(|()| file.sync_data());
            due
        })?;
        pulse.watch("pulse-processor", processor, || {
            let due = Instant::now() + NAP;
            std::thread::sleep(NAP);
            due
        })?;
        Ok(pulse)
    }

    /// `beat` does something and says when it should have been over.
    fn watch(
        &mut self,
        name: &str,
        stalls: Arc<Mutex<Vec<Gap>>>,
        mut beat: impl FnMut() -> Instant + Send + 'static,
    ) -> Result<(), Error> {
        let (began, stop) = (self.began, self.stop.clone());
        let run = move || {
            while !stop.load(Ordering::Relaxed) {
                let due = beat() + NOTICEABLE;
                let now = Instant::now();
                if now > due {
                    let stall = Gap { from: due.duration_since(began), to: now.duration_since(began) };
                    stalls.lock().unwrap_or_else(PoisonError::into_inner).push(stall);
                }
            }
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run);
        self.threads.push(thread.map_err(|e| Error::new(format!("cannot watch the machine: {e}")))?);
        Ok(())
    }

    /// How much of `span` its flushes and threads waited. Stalls that ended before it are forgotten.
    #[must_use]
    pub fn within(&self, span: Gap) -> Stalled {
        Stalled { disk: overlap(&self.disk, span), processor: overlap(&self.processor, span) }
    }
}

fn overlap(stalls: &Mutex<Vec<Gap>>, span: Gap) -> Duration {
    let mut stalls = stalls.lock().unwrap_or_else(PoisonError::into_inner);
    stalls.retain(|stall| stall.to > span.from);
    stalls.iter().map(|stall| stall.to.min(span.to).saturating_sub(stall.from.max(span.from))).sum()
}

impl Drop for Pulse {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A thread that panicked has said so on standard error.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gap(from: u64, to: u64) -> Gap {
        Gap { from: Duration::from_millis(from), to: Duration::from_millis(to) }
    }

    #[test]
    fn what_lies_within_a_span_counts_and_what_ended_before_is_forgotten() {
        let stalls = Mutex::new(vec![gap(10, 20), gap(90, 130), gap(140, 150), gap(190, 260)]);
        assert_eq!(overlap(&stalls, gap(100, 200)), Duration::from_millis(30 + 10 + 10));
        assert_eq!(stalls.lock().expect("whole").len(), 3);
    }

    #[test]
    fn it_stops_and_its_file_is_gone() {
        let place = tempfile::tempdir().expect("a directory");
        let pulse = Pulse::start(place.path(), Instant::now()).expect("starts");
        assert_eq!(pulse.within(Gap::default()), Stalled::default());
        drop(pulse);
        assert_eq!(std::fs::read_dir(place.path()).expect("readable").count(), 0);
    }
}
