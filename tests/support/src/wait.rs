//! Waiting for a condition, never for a time.

use std::future::Future;
use std::time::Duration;

use anyhow::{anyhow, bail};
use tokio::time::{Instant, sleep, timeout};

/// For waits that end with a condition. This long only when something is broken: machines are at times three times
/// slower than at others.
pub const BOUND: Duration = Duration::from_secs(120);

/// How often a condition is looked at: short against everything that the tests wait for, long enough to leave the
/// processors to the servers under test.
const POLL: Duration = Duration::from_millis(50);

/// Looks until `probe` gives a value, for at most `bound`. An error of the probe counts as "not yet": servers come
/// and go in these tests; the last one is part of the error.
pub async fn until<T, R>(what: &str, bound: Duration, mut probe: impl FnMut() -> R) -> anyhow::Result<T>
where
    R: Future<Output = anyhow::Result<Option<T>>>,
{
    let end = Instant::now() + bound;
    let mut last = None;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        match timeout(left, probe()).await {
            Ok(Ok(Some(value))) => return Ok(value),
            Ok(Ok(None)) => last = None,
            Ok(Err(error)) => last = Some(error),
            Err(_) if last.is_none() => last = Some(anyhow!("the last look at it did not come to an end")),
            Err(_) => {}
        }
        if Instant::now() + POLL >= end {
            let why = last.map(|error| format!(": {error:#}")).unwrap_or_default();
            bail!("waited {bound:?} in vain: {what}{why}");
        }
        sleep(POLL).await;
    }
}

/// Like [`until`], for a condition without a value.
pub async fn until_true<R>(what: &str, bound: Duration, mut probe: impl FnMut() -> R) -> anyhow::Result<()>
where
    R: Future<Output = anyhow::Result<bool>>,
{
    until(what, bound, || {
        let look = probe();
        async { Ok(look.await?.then_some(())) }
    })
    .await
}

/// Looks for the whole of `period` and fails at the first look that does not hold. For "nothing happens": the
/// period is the time in which it would have happened.
pub async fn holds<R>(what: &str, period: Duration, mut probe: impl FnMut() -> R) -> anyhow::Result<()>
where
    R: Future<Output = anyhow::Result<bool>>,
{
    let begin = Instant::now();
    while begin.elapsed() < period {
        // A look that hangs must not pass for one that holds.
        if !timeout(period, probe()).await?? {
            bail!("held only for {:?} of {period:?}: {what}", begin.elapsed());
        }
        sleep(POLL).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_wait_in_vain_names_the_last_error() {
        let error = until::<(), _>("a miracle", Duration::from_millis(60), || async {
            bail!("no such thing")
        })
        .await;
        let text = error.unwrap_err().to_string();
        assert!(
            text.contains("a miracle") && text.contains("no such thing"),
            "{text}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_that_hangs_is_ended() {
        let hang = until::<(), _>("an answer", Duration::from_millis(60), pending).await;
        assert!(hang.unwrap_err().to_string().contains("did not come to an end"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_condition_that_breaks_is_reported() {
        let mut looks = 0;
        let broken = holds("calm", Duration::from_secs(5), || {
            looks += 1;
            ready(Ok(looks < 3))
        });
        assert!(broken.await.unwrap_err().to_string().contains("calm"));
    }
}
