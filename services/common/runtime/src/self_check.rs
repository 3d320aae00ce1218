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

/// The names on /readyz and of the label `loop` of `watchdog_retry_loop_failing`.
const TIMER: &str = "timer";
const FILE_DESCRIPTORS: &str = "file-descriptors";
const LOG: &str = "log";

/// How often everything is checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// A timer that is later by this has stalled: a probe that is due in between is late, too.
const SHORTEST_STALL: Duration = Duration::from_secs(1);

/// A stall, or a lack of file descriptors, is over when it has not come again for this time.
const RECOVERED_AFTER: Duration = Duration::from_secs(10);

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
    LOG_LINES_LOST.inc(());
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
    let (mut stalls, mut out_of_files) = (Stalls::default(), None);
    let (mut lost, mut dropped) = (0, 0);
    loop {
        let due = Instant::now() + CHECK_INTERVAL;
        sleep_until(due).await;
        check_timer(&mut stalls, due.elapsed(), &readiness);
        check_file_descriptors(&mut out_of_files, File::open(NULL_DEVICE), &readiness);
        check_log(&mut lost, LOST_LOG_LINES.load(Ordering::Relaxed), &readiness);
        let lines = DROPPED_LOG_LINES.get().map(ErrorCounter::dropped_lines);
        check_log_reader(&mut dropped, lines.unwrap_or_default(), &readiness);
        TASKS.set((), Handle::current().metrics().num_alive_tasks() as f64);
    }
}

/// The stalls since timers were last on time.
#[derive(Debug, Default)]
struct Stalls {
    longest: Duration,
    last: Option<Instant>,
}

fn check_timer(stalls: &mut Stalls, late: Duration, readiness: &Readiness) {
    if late >= SHORTEST_STALL {
        STALL_SECONDS.record((), late);
        // One line for each doubling.
        if late >= 2 * stalls.longest {
            let late_seconds = late.as_secs_f64();
            tracing::warn!(
                late_seconds,
                "a timer was late: the process was frozen, or got too little CPU"
            );
        }
        stalls.longest = stalls.longest.max(late);
        stalls.last = Some(Instant::now());
        let text = format!(
            "it was up to {:.1} s late: the process was frozen, or got too little CPU. Check the CPU limit of the \
             container and the load of the node",
            stalls.longest.as_secs_f64()
        );
        readiness.failing(TIMER, Failure::new(Reason::Stalled, &text));
    } else if stalls.last.is_some_and(is_over) {
        *stalls = Stalls::default();
        readiness.recovered(TIMER);
        tracing::info!("timers are on time again");
    }
}

fn is_over(last: Instant) -> bool {
    last.elapsed() >= RECOVERED_AFTER
}

/// `out` is when none was left for the last time.
fn check_file_descriptors<F>(out: &mut Option<Instant>, opened: io::Result<F>, readiness: &Readiness) {
    match (opened, *out) {
        (Err(error), last) if is_local_limit(&error) => {
            let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
            let text = format!(
                "{error}: no connection can be opened. The limit is {limit} open files. Raise the limit of \
                 open files in the container runtime, or find out which clients open the connections"
            );
            if last.is_none() {
                tracing::error!(%error, limit, "no file descriptor is left; no connection can be opened");
            }
            readiness.failing(FILE_DESCRIPTORS, Failure::new(Reason::LocalLimit, &text));
            *out = Some(Instant::now());
        }
        (_, Some(last)) if is_over(last) => {
            *out = None;
            readiness.recovered(FILE_DESCRIPTORS);
            tracing::info!("file descriptors are available again");
        }
        _ => {}
    }
}

/// `before` is the number of lines that were lost by the last check. The line on /readyz disappears by itself when no
/// more are lost.
fn check_log(before: &mut u64, lost: u64, readiness: &Readiness) {
    if std::mem::replace(before, lost) < lost {
        let error = io::Error::from_raw_os_error(LAST_LOG_ERRNO.load(Ordering::Relaxed));
        let text =
            format!("{lost} lines could not be written to standard error so far, the last one with: {error}");
        readiness.failing(LOG, Failure::new(Reason::of_transport(&error), &text));
    }
}

/// The same for the lines that were dropped because nobody read the others.
fn check_log_reader(before: &mut usize, dropped: usize, readiness: &Readiness) {
    let more = dropped.saturating_sub(std::mem::replace(before, dropped));
    if more > 0 {
        LOG_LINES_LOST.handle(()).increment(more as u64);
        let text = format!(
            "{dropped} lines were dropped so far because standard error is not read fast enough: check the container \
             runtime's log"
        );
        readiness.failing(LOG, Failure::new(Reason::LocalLimit, &text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn out_of_files() -> io::Result<()> {
        const EMFILE: i32 = 24;
        Err(io::Error::from_raw_os_error(EMFILE))
    }

    #[tokio::test(start_paused = true)]
    async fn a_stall_is_shown_until_timers_are_on_time() {
        let (mut stalls, readiness) = (Stalls::default(), Readiness::default());
        check_timer(&mut stalls, Duration::from_millis(900), &readiness);
        assert_eq!(readiness.lines(), [""; 0]);
        for late in [20.04, 1.2] {
            check_timer(&mut stalls, Duration::from_secs_f64(late), &readiness);
            let [line] = &readiness.lines()[..] else { panic!() };
            assert!(
                line.starts_with("timer: the last try failed: it was up to 20.0 s late: "),
                "{line}"
            );
        }
        assert!(*readiness.subscribe().borrow(), "it blocks nothing");
        tokio::time::advance(RECOVERED_AFTER).await;
        check_timer(&mut stalls, Duration::ZERO, &readiness);
        assert_eq!(readiness.lines(), [""; 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn missing_file_descriptors_are_shown_until_there_are_some() {
        let (mut out, readiness) = (None, Readiness::default());
        check_file_descriptors(&mut out, out_of_files(), &readiness);
        let [(name, _, failure)] = &readiness.failures()[..] else {
            panic!()
        };
        assert_eq!((&**name, failure.reason), (FILE_DESCRIPTORS, Reason::LocalLimit));
        assert!(failure.to_string().contains("Raise the limit"), "{failure}");
        check_file_descriptors(&mut out, Ok(()), &readiness);
        assert_eq!(readiness.lines().len(), 1, "there is one for a moment");
        tokio::time::advance(RECOVERED_AFTER).await;
        check_file_descriptors(&mut out, Ok(()), &readiness);
        assert_eq!(readiness.lines(), [""; 0]);
        let absent: io::Result<()> = Err(io::ErrorKind::NotFound.into());
        check_file_descriptors(&mut out, absent, &readiness);
        assert_eq!(
            readiness.lines(),
            [""; 0],
            "it says nothing about file descriptors"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn lost_lines_are_counted_on_readyz() {
        let (mut before, readiness) = (0, Readiness::default());
        check_log(&mut before, 3, &readiness);
        let [line] = &readiness.lines()[..] else { panic!() };
        assert!(
            line.starts_with("log: the last try failed: 3 lines could not be"),
            "{line}"
        );
        tokio::time::advance(Duration::from_secs(180)).await;
        check_log(&mut before, 3, &readiness);
        assert_eq!(readiness.lines(), [""; 0]);
    }
}
