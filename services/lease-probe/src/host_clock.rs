//! Warns when it is this host's clock that is off.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::controller::prober_manager::Verdicts;
use crate::domain::host;
use crate::domain::moment::micros;

/// A clock is not set often, and the estimates need some renewals of kubelets, 10 s apart, to follow.
const EVERY: Duration = Duration::from_secs(10);

/// A skew that changes by less is the same skew: estimates are that exact.
const SAME_WITHIN: Duration = Duration::from_secs(10);

/// The skew of this host's clock according to the verdicts: see [`host::skew`].
#[must_use]
pub fn skew(verdicts: &Verdicts) -> Option<i64> {
    let all = verdicts.snapshot();
    let judged = all.iter().filter_map(|(_, verdict)| verdict.evidence.as_ref());
    // Without an eligible lease, a verdict has no estimate of the clocks.
    let typical = judged.filter(|evidence| evidence.candidates > 0);
    host::skew(&mut typical.map(|evidence| evidence.typical_skew).collect::<Vec<_>>())
}

/// Says so in the log when this host's clock turns out to be off, when that changes and when it is over.
pub async fn watch(verdicts: Verdicts, replica: Arc<str>, stop: CancellationToken) {
    let mut told: Option<i64> = None;
    let mut ticks = tokio::time::interval(EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = ticks.tick() => {}
        }
        let found = skew(&verdicts);
        match (told, found) {
            (Some(before), Some(now))
                if now.saturating_sub(before).saturating_abs() <= micros(SAME_WITHIN) =>
            {
                continue;
            }
            (_, Some(now)) => tracing::warn!(
                replica = &*replica,
                // Microseconds, far below 2^52.
                seconds = now as f64 / 1e6,
                "the clock of this host is off: all shoots seem to be off by the same amount; verdicts are corrected"
            ),
            (Some(_), None) => tracing::info!(replica = &*replica, "the clock of this host is right again"),
            (None, None) => {}
        }
        told = found;
    }
}
