//! Notices when the process itself lacks CPU time, file descriptors, or a place for its log. /readyz and a metric show
//! that while it lasts. Readiness is not blocked: a program without current knowledge of a shoot holds that shoot
//! anyway.

use std::fs::File;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::{Resource, getrlimit};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep_until};
use tracing_appender::non_blocking::ErrorCounter;

use crate::failure::{Failure, Reason, is_local_limit};
use crate::metrics::{Counter, Gauge, Histogram};
use crate::readiness::Readiness;

pub(crate) const STALL_SECONDS: Histogram = Histogram::new(
    "watchdog_stall_seconds",
    "How late a timer was, if by at least 1 s: the process was frozen, or got too little CPU.",
);

pub(crate) const LOG_LINES_LOST: Counter = Counter::new(
    "watchdog_log_lines_lost_total",
    "Log lines that could not be written to standard error, or were dropped because it was not read.",
);

/// A leak in an asynchronous program is first a leak of tasks.
pub(crate) const TASKS: Gauge = Gauge::new(
    "watchdog_runtime_tasks",
    "Tasks of the asynchronous runtime that have not ended.",
);

/// How often everything is checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// A timer that is later by this has stalled: a probe that is due in between is late, too.
const SHORTEST_STALL: Duration = Duration::from_secs(1);

/// A stall, or a lack of file descriptors, is shown until it has not come again for this time.
const SHOWN_FOR: Duration = Duration::from_secs(10);

/// Opening it needs a file descriptor and nothing else.
const NULL_DEVICE: &str = "/dev/null";

/// The log lines that could not be written, and the error number of the last.
static LOST_LOG_LINES: AtomicU64 = AtomicU64::new(0);
static LAST_LOG_ERRNO: AtomicI32 = AtomicI32::new(0);

/// Counts the log lines that were dropped because too many were waiting.
static DROPPED_LOG_LINES: OnceLock<ErrorCounter> = OnceLock::new();

/// A line of the log could not be written.
pub(crate) fn log_line_lost(error: &io::Error) {
    LAST_LOG_ERRNO.store(error.raw_os_error().unwrap_or_default(), Ordering::Relaxed);
    LOST_LOG_LINES.fetch_add(1, Ordering::Relaxed);
}

/// Has the log lines counted that are dropped because too many are waiting.
pub(crate) fn count_dropped_log_lines(dropped: ErrorCounter) {
    // The log of a process is installed once.
    let _ = DROPPED_LOG_LINES.set(dropped);
}

/// Checks until the process ends.
///
/// # Errors
/// Never; the type is that of a critical task.
pub(crate) async fn run(readiness: Readiness) -> anyhow::Result<()> {
    let mut known = LostLines::default();
    loop {
        let due = Instant::now() + CHECK_INTERVAL;
        sleep_until(due).await;
        check_timer(due.elapsed(), &readiness);
        check_file_descriptors(File::open(NULL_DEVICE), &readiness);
        let dropped = DROPPED_LOG_LINES.get().map(ErrorCounter::dropped_lines);
        let lost = LostLines {
            unwritten: LOST_LOG_LINES.load(Ordering::Relaxed),
            dropped: dropped.unwrap_or_default() as u64,
        };
        check_log(&mut known, lost, &readiness);
        TASKS.set((), Handle::current().metrics().num_alive_tasks() as f64);
    }
}

fn check_timer(late: Duration, readiness: &Readiness) {
    if late < SHORTEST_STALL {
        return;
    }
    STALL_SECONDS.record((), late);
    let late_seconds = late.as_secs_f64();
    let text = format!(
        "it was {late_seconds:.1} s late: the process was frozen, or got too little CPU. Check the CPU limit of the \
         container and the load of the node"
    );
    if readiness.show("timer", Failure::new(Reason::Stalled, &text), SHOWN_FOR) {
        tracing::warn!(
            late_seconds,
            "a timer was late: the process was frozen, or got too little CPU"
        );
    }
}

fn check_file_descriptors<F>(opened: io::Result<F>, readiness: &Readiness) {
    let Some(error) = opened.err().filter(is_local_limit) else {
        return;
    };
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let text = format!(
        "{error}: no connection can be opened. The limit is {limit} open files. Raise the limit of open files in the \
         container runtime, or find out which clients open the connections"
    );
    let failure = Failure::new(Reason::LocalLimit, &text);
    if readiness.show("file-descriptors", failure, SHOWN_FOR) {
        tracing::error!(%error, limit, "no file descriptor is left; no connection can be opened");
    }
}

/// The log lines that were lost so far.
#[derive(Debug, Clone, Copy, Default)]
struct LostLines {
    unwritten: u64,
    /// Because nobody read the others.
    dropped: u64,
}

fn check_log(known: &mut LostLines, now: LostLines, readiness: &Readiness) {
    let LostLines { unwritten, dropped } = now;
    let before = std::mem::replace(known, now);
    let lost = (unwritten + dropped).saturating_sub(before.unwritten + before.dropped);
    if lost == 0 {
        return;
    }
    LOG_LINES_LOST.handle(()).increment(lost);
    let failure = if dropped > before.dropped {
        let text = format!(
            "{dropped} lines were dropped so far because standard error is not read fast enough: check the container \
             runtime's log"
        );
        Failure::new(Reason::LocalLimit, &text)
    } else {
        let error = io::Error::from_raw_os_error(LAST_LOG_ERRNO.load(Ordering::Relaxed));
        let text = format!(
            "{unwritten} lines could not be written to standard error so far, the last one with: {error}"
        );
        Failure::new(Reason::of_transport(&error), &text)
    };
    readiness.failing("log", failure);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_the_process_lacks_is_shown_until_it_does_not_come_again() {
        let readiness = Readiness::default();
        check_timer(Duration::from_millis(900), &readiness);
        let absent: io::Result<()> = Err(io::ErrorKind::NotFound.into());
        check_file_descriptors(absent, &readiness);
        assert_eq!(readiness.lines(), [""; 0], "neither is a lack");
        check_timer(Duration::from_secs_f64(20.04), &readiness);
        const EMFILE: i32 = 24;
        let none_left: io::Result<()> = Err(io::Error::from_raw_os_error(EMFILE));
        check_file_descriptors(none_left, &readiness);
        let [files, timer] = &readiness.lines()[..] else {
            panic!()
        };
        assert!(
            files.starts_with("file-descriptors: ") && files.contains("Raise the limit"),
            "{files}"
        );
        assert!(
            timer.starts_with("timer: the last try failed: it was 20.0 s late: "),
            "{timer}"
        );
        assert!(readiness.is_ready(), "they block nothing");
        tokio::time::advance(SHOWN_FOR).await;
        assert_eq!(readiness.lines(), [""; 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn lost_lines_are_counted_on_readyz() {
        let (mut known, readiness) = (LostLines::default(), Readiness::default());
        for (unwritten, dropped, expected) in [
            (3, 0, "log: the last try failed: 3 lines could not be"),
            (3, 2, "log: the last try failed: 2 lines were dropped"),
        ] {
            let lost = LostLines { unwritten, dropped };
            check_log(&mut known, lost, &readiness);
            let [line] = &readiness.lines()[..] else { panic!() };
            assert!(line.starts_with(expected), "{line}");
            tokio::time::advance(Duration::from_secs(180)).await;
            check_log(&mut known, lost, &readiness);
            assert_eq!(readiness.lines(), [""; 0]);
        }
    }
}
