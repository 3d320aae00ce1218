//! Watches as streaming responses.

use std::{
    convert::Infallible,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::{BufMut, Bytes, BytesMut};
use futures::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use rand::Rng;
use serde_json::json;
use tokio::{sync::watch as signal, time::Instant};

use super::{
    ApiAnswer, Call, read,
    reply::{self, Representation},
};
use crate::{
    resource::ResourceType,
    store::{EventKind, StoreWatch, WatchEvent, WatchStep, object::encode},
};

/// Watches without timeoutSeconds last 30 to 60 minutes (`--min-request-timeout` of kube-apiserver).
const MIN_TIMEOUT_SECONDS: u64 = 1800;

/// The effects of a test on the watches that run.
#[derive(Debug, Default)]
pub(crate) struct WatchControl {
    /// Any change ends them all.
    pub(crate) drop: signal::Sender<()>,
    /// Any change silences them all.
    pub(crate) silence: signal::Sender<()>,
    /// Each of them has a clone.
    pub(crate) open: Arc<()>,
}

struct RunningWatch {
    watch: StoreWatch,
    res: Arc<ResourceType>,
    view: Representation,
    deadline: Instant,
    /// Interval and time of the next one, if the client allows bookmarks.
    bookmark: Option<(Duration, Instant)>,
    ended: bool,
    dropped: signal::Receiver<()>,
    silenced: signal::Receiver<()>,
    _open: Arc<()>,
}

/// GET with `watch=true`.
pub(super) fn start(call: &Call<'_>, res: &Arc<ResourceType>) -> ApiAnswer {
    let from = read::version(call.query.get("resourceVersion"))?;
    let watch = call
        .state
        .store
        .watch(&call.target.resource, read::selection(call)?, from);
    let watch = match watch {
        Ok(watch) => watch,
        // The watch cache of the real server reports this inside the stream.
        Err(error) if error.code == 410 && !call.state.gone_as_status.load(Ordering::SeqCst) => {
            return Ok(reply::json(200, line("ERROR", &encode(&error.to_value()))));
        }
        Err(error) => return Err(error),
    };
    let timeout = match call.query.get("timeoutSeconds").parse::<u64>() {
        Ok(seconds) if seconds > 0 => seconds,
        _ => MIN_TIMEOUT_SECONDS + rand::rng().random_range(0..MIN_TIMEOUT_SECONDS),
    };
    let (now, interval) = (Instant::now(), call.state.options.bookmark_interval);
    let running = RunningWatch {
        watch,
        res: res.clone(),
        view: call.view,
        deadline: now + Duration::from_secs(timeout),
        bookmark: call
            .query
            .flag("allowWatchBookmarks")
            .then(|| (interval, now + interval)),
        ended: false,
        dropped: call.state.watches.drop.subscribe(),
        silenced: call.state.watches.silence.subscribe(),
        _open: call.state.watches.open.clone(),
    };
    let frames = stream::unfold(running, |mut running| async move {
        let bytes = running.next().await?;
        Some((Ok::<_, Infallible>(Frame::data(bytes)), running))
    });
    let body = StreamBody::new(frames).boxed_unsync();
    Ok(reply::streaming(200, body, "application/json"))
}

impl RunningWatch {
    /// The next lines; `None` ends the watch.
    async fn next(&mut self) -> Option<Bytes> {
        if self.ended {
            return None;
        }
        loop {
            if self.silenced.has_changed().unwrap_or(false) {
                // For as long as the connection lives.
                return std::future::pending().await;
            }
            let revision = match self.watch.step() {
                WatchStep::Events(events) => return Some(self.lines(&events)),
                WatchStep::Gone(error) => {
                    self.ended = true;
                    return Some(line("ERROR", &encode(&error.to_value())));
                }
                WatchStep::Idle(revision) => revision,
            };
            let now = Instant::now();
            let due = self.bookmark.map(|(_, due)| due);
            self.ended = now >= self.deadline;
            if due.is_some_and(|due| self.ended || now >= due) {
                self.bookmark = self.bookmark.map(|(interval, _)| (interval, now + interval));
                return Some(self.bookmark(revision));
            }
            if self.ended {
                return None;
            }
            let wake = due.map_or(self.deadline, |due| due.min(self.deadline));
            tokio::select! {
                served = self.watch.changed() => if !served { return None },
                _ = self.dropped.changed() => return None,
                // Seen above.
                Ok(()) = async { self.silenced.clone().changed().await } => {}
                () = tokio::time::sleep_until(wake) => {}
            }
        }
    }

    fn lines(&self, events: &[WatchEvent]) -> Bytes {
        let mut out = BytesMut::new();
        for event in events {
            let kind = match event.kind {
                EventKind::Added => "ADDED",
                EventKind::Modified => "MODIFIED",
                EventKind::Deleted => "DELETED",
            };
            out.put_slice(&line(kind, &self.view.object(&event.object, &self.res)));
        }
        out.freeze()
    }

    fn bookmark(&self, revision: u64) -> Bytes {
        let (kind, version) = self.view.kind(&self.res);
        let metadata = json!({ "resourceVersion": revision.to_string(), "creationTimestamp": null });
        let object = json!({ "kind": kind, "apiVersion": version, "metadata": metadata });
        line("BOOKMARK", &encode(&object))
    }
}

/// One event on a line of its own.
fn line(kind: &str, object: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(object.len() + 40);
    out.put_slice(format!("{{\"type\":\"{kind}\",\"object\":").as_bytes());
    out.put_slice(object);
    out.put_slice(b"}\n");
    out.freeze()
}
