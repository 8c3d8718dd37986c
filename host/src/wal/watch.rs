//! Watches for a flush that hangs for too long (B4), on a thread of its own: the event loop may hang with the disk.
//!
//! It counts how often it found the same flush in flight instead of comparing times: a process that was stopped and goes
//! on has an old flush too, and that is no fault of the disk.

use std::sync::Arc;
use std::time::Duration;

use super::queue::Shared;

/// The same flush in flight this often in a row: it hangs.
const LOOKS: u32 = 30;

/// Runs until the log is closed, or until it has told of a hanging flush.
pub(super) fn watch(shared: &Arc<Shared>, hang_after: Duration) {
    let period = hang_after / LOOKS;
    let (mut seen, mut times) = (None, 0);
    while !shared.stopped_within(period) {
        let flush = shared.flush_in_flight();
        times = if flush.is_some() && flush == seen { times + 1 } else { 0 };
        seen = flush;
        if times >= LOOKS {
            shared.hung(period * times);
            return;
        }
    }
}
