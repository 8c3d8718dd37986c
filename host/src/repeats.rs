//! The limit on repeated log lines: one failing thing may not drown the line that explains it.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// A place in the code writes at most this many lines …
const LINES: u32 = 20;
/// … in this span.
const SPAN: Duration = Duration::from_secs(10);

/// Lines of one place in the code.
#[derive(Clone, Copy, Debug)]
struct Window {
    since: Instant,
    lines: u32,
    left_out: u64,
}

/// Whether a line may be written, and how many were left out before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Write { left_out: u64 },
    LeaveOut,
}

impl Window {
    fn new(now: Instant) -> Self {
        Self { since: now, lines: 0, left_out: 0 }
    }

    fn line(&mut self, now: Instant) -> Verdict {
        if now.saturating_duration_since(self.since) >= SPAN {
            let left_out = self.left_out;
            *self = Self { since: now, lines: 1, left_out: 0 };
            return Verdict::Write { left_out };
        }
        if self.lines < LINES {
            self.lines += 1;
            return Verdict::Write { left_out: 0 };
        }
        self.left_out += 1;
        Verdict::LeaveOut
    }
}

/// Formats log lines with `inner`, at most [`LINES`] of one place in the code per [`SPAN`]. The first line after such
/// a span is followed by the number of those left out.
#[derive(Debug)]
pub(crate) struct LimitedLines<F> {
    inner: F,
    windows: Mutex<HashMap<Identifier, Window>>,
}

impl<F> LimitedLines<F> {
    /// Around another format.
    pub(crate) fn new(inner: F) -> Self {
        Self { inner, windows: Mutex::default() }
    }
}

impl<S, N, F> FormatEvent<S, N> for LimitedLines<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(&self, ctx: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let now = Instant::now();
        let verdict = {
            let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
            windows.entry(event.metadata().callsite()).or_insert_with(|| Window::new(now)).line(now)
        };
        match verdict {
            // An empty line is nothing: the writer gets no bytes.
            Verdict::LeaveOut => Ok(()),
            Verdict::Write { left_out } => {
                self.inner.format_event(ctx, writer.by_ref(), event)?;
                if left_out > 0 {
                    writeln!(writer, "    ({left_out} lines like this one were left out before it)")?;
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use super::*;

    #[derive(Clone, Default)]
    struct Page(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Page {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_place_that_repeats_itself_is_cut_short_and_others_are_not() {
        let page = Page::default();
        let writer = page.clone();
        let lines = tracing_subscriber::fmt()
            .event_format(LimitedLines::new(tracing_subscriber::fmt::format()))
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(lines, || {
            for number in 0..100 {
                tracing::info!(number, "noise");
            }
            tracing::info!("signal");
        });
        let text = String::from_utf8(page.0.lock().unwrap().clone()).unwrap();
        assert_eq!(text.matches("noise").count(), LINES as usize, "{text}");
        assert_eq!(text.matches("signal").count(), 1, "{text}");
    }

    #[test]
    fn the_next_span_tells_how_many_were_left_out() {
        let start = Instant::now();
        let mut window = Window::new(start);
        let said: Vec<Verdict> = (0..30).map(|_| window.line(start)).collect();
        assert_eq!(said.iter().filter(|v| **v == Verdict::LeaveOut).count(), 10);
        assert_eq!(window.line(start + SPAN), Verdict::Write { left_out: 10 });
        assert_eq!(window.line(start + SPAN + SPAN), Verdict::Write { left_out: 0 });
    }
}
