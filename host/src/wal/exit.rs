//! Leaving the process when the log can't be trusted any more.

use std::process::{abort, exit};
use std::thread;
use std::time::Duration;

/// Exit status after a failed append or flush: the supervisor must not restart the node, and its log is suspect
/// afterwards, whatever it looks like (B2, B3, S2).
pub const EXIT_DISK: i32 = 74;

/// Exit status after a flush that hung for too long (B4). Nothing is known to be lost: the supervisor starts the node
/// again, and it reads its log from the disk instead of the system's cache ([`super::WalConfig::distrust_cache`]).
pub const EXIT_HUNG: i32 = 75;

/// Time between the poisoning and the exit: enough to close fences and to tell observers and peers, on a path that
/// touches no disk. The whole must end within 200 ms (B3).
pub const EXIT_GRACE: Duration = Duration::from_millis(150);

/// Ends the process with [`EXIT_DISK`] after [`EXIT_GRACE`], from a thread of its own: the event loop may hang.
/// Call it from [`super::WalNotices::poisoned`].
pub fn exit_on_poison() {
    let spawned = thread::Builder::new().name("exit".into()).spawn(|| {
        thread::sleep(EXIT_GRACE);
        exit(EXIT_DISK);
    });
    if spawned.is_err() {
        exit(EXIT_DISK);
    }
}

/// Ends the process with [`EXIT_HUNG`]. The thread that waits for the disk keeps the process from ending entirely until
/// the disk lets go of it; it serves nobody from here on. Call it from [`super::WalNotices::hung`].
pub fn exit_on_hang() -> ! {
    exit(EXIT_HUNG)
}

/// Makes every panic of every thread end the process, after the usual message. First line of `main` of every
/// process that holds a log: a thread that unwinds out of a failed write group would let others take it for done.
pub fn install_abort_hook() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        abort();
    }));
}
