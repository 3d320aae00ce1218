//! Refused connections in the log: one line a minute for each reason, however many there are.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::label;
use crate::metrics::Counter;

label!(pub(crate) enum CloseReason: "reason" {
    Limit = "limit",
    Evicted = "evicted",
    Handshake = "handshake",
    Identity = "identity",
    Timeout = "timeout",
    Silent = "silent",
    Unread = "unread",
    Distrusted = "distrusted",
});

pub(crate) const CONNECTIONS_REFUSED: Counter<CloseReason> = Counter::new(
    "watchdog_grpc_connections_refused_total",
    "Connections to the gRPC server that were refused or closed because of the caller, by reason: limit, evicted, \
     handshake, identity, timeout, silent, unread or distrusted.",
);

/// From one line of a reason to the next.
const SUMMARY_INTERVAL: Duration = Duration::from_secs(60);

/// Counts refusals, and writes the first one of a reason and then a summary a minute.
#[derive(Debug, Default)]
pub(crate) struct RefusalLog(Mutex<BTreeMap<&'static str, Unwritten>>);

/// The refusals of one reason since its last line.
#[derive(Debug)]
struct Unwritten {
    next_line: Instant,
    count: u64,
    last: Option<(SocketAddr, String)>,
}

impl RefusalLog {
    /// Counts a connection that was refused.
    pub(crate) fn refuse(&self, peer: SocketAddr, reason: CloseReason, error: &str) {
        CONNECTIONS_REFUSED.inc(reason);
        let mut unwritten = self.0.lock();
        if let Some(unwritten) = unwritten.get_mut(reason.as_str()) {
            unwritten.count += 1;
            unwritten.last = Some((peer, error.to_owned()));
            return;
        }
        let next_line = Instant::now() + SUMMARY_INTERVAL;
        let first = Unwritten {
            next_line,
            count: 0,
            last: None,
        };
        unwritten.insert(reason.as_str(), first);
        drop(unwritten);
        write(reason.as_str(), 1, peer, error);
    }

    /// Writes the summaries that are due. To be called every few seconds.
    pub(crate) fn flush(&self) {
        let now = Instant::now();
        let mut due = Vec::new();
        self.0.lock().retain(|reason, unwritten| {
            if now < unwritten.next_line {
                return true;
            }
            unwritten.next_line = now + SUMMARY_INTERVAL;
            let count = std::mem::take(&mut unwritten.count);
            let last = unwritten.last.take();
            let is_written = last.is_some();
            due.extend(last.map(|(peer, error)| (*reason, count, peer, error)));
            // A minute without any: the next one is written at once.
            is_written
        });
        for (reason, count, peer, error) in due {
            write(reason, count, peer, &error);
        }
    }
}

/// `peer` and `error` are those of the last one.
fn write(reason: &str, count: u64, peer: SocketAddr, error: &str) {
    tracing::warn!(reason, count, %peer, %error, "gRPC connections refused");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::LogFormat;
    use crate::telemetry::tests::logged;

    #[test]
    fn a_flood_of_refusals_is_one_line_a_minute_for_each_reason() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        let lines = logged(LogFormat::Text, |_| {
            runtime.block_on(async {
                let (log, peer) = (RefusalLog::default(), "192.0.2.1:4711".parse().unwrap());
                for _ in 0..100_000 {
                    log.refuse(peer, CloseReason::Evicted, "too many");
                    log.refuse(peer, CloseReason::Timeout, "too slow");
                    log.flush();
                }
                tokio::time::advance(SUMMARY_INTERVAL).await;
                for _ in 0..10 {
                    log.flush();
                }
                // A minute of silence.
                tokio::time::advance(SUMMARY_INTERVAL).await;
                log.flush();
                log.refuse(peer, CloseReason::Evicted, "too many");
            });
        });
        let count = |part: &str| lines.iter().filter(|line| line.contains(part)).count();
        assert_eq!(lines.len(), 5, "{lines:?}");
        assert_eq!(
            (count("reason=evicted"), count("reason=timeout")),
            (3, 2),
            "{lines:?}"
        );
        assert_eq!((count("count=1 "), count("count=99999 ")), (3, 2), "{lines:?}");
    }
}
