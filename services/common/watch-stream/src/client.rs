//! Follows a stream as [`watchdog_client::follow`] does, with metrics, a log and readiness.

use tokio_stream::Stream;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use watchdog_runtime::readiness::Readiness;

use crate::message::Incoming;
use crate::metrics::{CONNECTED, RECONNECTS, SKIPPED, StreamName};

pub use watchdog_client::follow::{Received, Update};

/// Follows a stream until `stop` is cancelled. `name` is its name in metrics, logs and `readiness`, whose instance is
/// the server. `open` opens a stream. `on_update` is called for every update and must not block.
pub async fn follow<K, V, O, S, I>(
    name: &'static str,
    open: impl FnMut() -> O,
    readiness: &Readiness,
    stop: &CancellationToken,
    mut on_update: impl FnMut(Update<K, V>),
) where
    K: Ord,
    O: Future<Output = Result<S, Status>>,
    S: Stream<Item = Result<I, Status>> + Unpin,
    I: Into<Incoming<K, V>>,
{
    let reconnects = RECONNECTS.handle(StreamName(name));
    let mut connected = None;
    // One line for each stream: a hostile item may come with every probe.
    let mut skipped_before = false;
    watchdog_client::follow::follow(open, stop, |update| {
        match &update {
            Update::Snapshot(..) => {
                readiness.recovered(name);
                connected.get_or_insert_with(|| CONNECTED.track(StreamName(name)));
            }
            Update::Lost(failure) => {
                connected = None;
                skipped_before = false;
                reconnects.increment(1);
                let (server, reason) = (readiness.instance(), failure.reason.as_str());
                let code = failure.code.map(tracing::field::debug);
                if readiness.failing(name, failure.clone()) {
                    tracing::warn!(
                        stream = name,
                        server,
                        code,
                        reason,
                        error = %failure,
                        "stream lost; connecting again"
                    );
                }
            }
            Update::Skipped(why) => {
                SKIPPED.inc(StreamName(name));
                if !std::mem::replace(&mut skipped_before, true) {
                    let server = readiness.instance();
                    tracing::warn!(
                        stream = name,
                        server,
                        reason = %why,
                        "message of a stream skipped; further ones of this stream are only counted"
                    );
                }
            }
            Update::Upsert(..) | Update::Removed(_) | Update::Completeness(_) => {}
        }
        on_update(update);
    })
    .await;
}
