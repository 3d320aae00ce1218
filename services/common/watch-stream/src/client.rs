//! Follows a feed as [`watchdog_client::follow`] does, with metrics, a log and readiness.

use tokio_util::sync::CancellationToken;
use watchdog_runtime::readiness::Readiness;

use crate::metrics::{CONNECTED, FeedName, RECONNECTS};

pub use watchdog_client::follow::{Received, Source, Update};

/// Follows a feed until `stop` is cancelled. `feed` names it in metrics, logs and `readiness`, whose instance is the
/// server. `on_update` is called for every update and must not block.
pub async fn follow<S: Source>(
    feed: &'static str,
    source: &mut S,
    readiness: &Readiness,
    stop: &CancellationToken,
    mut on_update: impl FnMut(Update<S::Key, S::Value>),
) {
    let reconnects = RECONNECTS.handle(FeedName(feed));
    let mut connected = None;
    watchdog_client::follow::follow(source, stop, |update| {
        match &update {
            Update::Snapshot(..) => {
                readiness.recovered(feed);
                connected.get_or_insert_with(|| Connected::to(feed));
            }
            Update::Lost(failure) => {
                connected = None;
                reconnects.increment(1);
                let (server, reason) = (readiness.instance(), failure.reason.as_str());
                let code = failure.code.map(tracing::field::debug);
                tracing::warn!(feed, server, code, reason, error = %failure, "stream lost; connecting again");
                readiness.failing(feed, failure.clone());
            }
            Update::Upsert(..) | Update::Removed(_) | Update::Completeness(_) => {}
        }
        on_update(update);
    })
    .await;
}

/// Counts a synchronised stream for as long as it lives, also when its follower is aborted.
struct Connected {
    feed: &'static str,
}

impl Connected {
    fn to(feed: &'static str) -> Self {
        CONNECTED.shift(FeedName(feed), 1.0);
        Self { feed }
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        CONNECTED.shift(FeedName(self.feed), -1.0);
    }
}
