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
pub(crate) struct RefusalLog(Mutex<BTreeMap<CloseReason, Unwritten>>);

/// The refusals of one reason since its last line.
#[derive(Debug)]
struct Unwritten {
    count: u64,
    /// The last one.
    peer: SocketAddr,
    error: String,
    /// When the next line may be written.
    due: Instant,
}

impl RefusalLog {
    /// Counts a connection that was refused.
    pub(crate) fn refuse(&self, peer: SocketAddr, reason: CloseReason, error: &str) {
        CONNECTIONS_REFUSED.inc(reason);
        let mut reasons = self.0.lock();
        let before = reasons.get(&reason);
        let (count, due) = before.map_or((0, Instant::now()), |before| (before.count, before.due));
        let unwritten = Unwritten {
            count: count + 1,
            peer,
            error: error.to_owned(),
            due,
        };
        reasons.insert(reason, unwritten);
        drop(reasons);
        self.flush();
    }

    /// Writes the lines that are due. To be called every few seconds.
    pub(crate) fn flush(&self) {
        let now = Instant::now();
        for (reason, unwritten) in self.0.lock().iter_mut() {
            if unwritten.count == 0 || now < unwritten.due {
                continue;
            }
            let Unwritten {
                count, peer, error, ..
            } = unwritten;
            tracing::warn!(reason = reason.as_str(), count, %peer, %error, "gRPC connections refused");
            unwritten.count = 0;
            unwritten.due = now + SUMMARY_INTERVAL;
        }
    }
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
