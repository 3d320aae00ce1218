//! Watches as streaming responses.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::{BufMut, Bytes, BytesMut};
use futures::stream;
use http::Response;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use rand::Rng;
use serde_json::json;
use tokio::{sync::watch as signal, time::Instant};

use super::{
    ApiState,
    path::{Query, Target},
    read,
    reply::{self, Body, Representation},
};
use crate::{
    resource::ResourceType,
    status::ApiError,
    store::{StoreWatch, WatchEvent, WatchStep, object::encode},
};

/// Watches without timeoutSeconds last 30 to 60 minutes (`--min-request-timeout` of kube-apiserver).
const MIN_TIMEOUT_SECONDS: u64 = 1800;

/// Counts a running watch for as long as it lives.
struct WatchGuard(Arc<AtomicUsize>);

impl WatchGuard {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count.clone())
    }
}

impl Drop for WatchGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

struct RunningWatch {
    watch: StoreWatch,
    res: Arc<ResourceType>,
    view: Representation,
    deadline: Instant,
    /// Interval and time of the next one, if the client allows bookmarks.
    bookmark: Option<(Duration, Instant)>,
    ended: bool,
    dropped: signal::Receiver<u64>,
    silenced: signal::Receiver<u64>,
    _open: WatchGuard,
}

/// GET with `watch=true`.
pub(super) fn start(
    state: &ApiState,
    res: &Arc<ResourceType>,
    target: &Target,
    query: &Query,
    view: Representation,
) -> Result<Response<Body>, ApiError> {
    let filter = read::filter(target, query)?;
    let from = read::version(query.get("resourceVersion"))?;
    let watch = match state.store.watch(&target.resource, filter, from) {
        Ok(watch) => watch,
        // The watch cache of the real server reports this inside the stream.
        Err(error) if error.code == 410 && !state.gone_as_status.load(Ordering::SeqCst) => {
            return Ok(reply::json(200, line("ERROR", &encode(&error.to_value()))));
        }
        Err(error) => return Err(error),
    };
    let timeout = match query.get("timeoutSeconds").parse::<u64>() {
        Ok(seconds) if seconds > 0 => seconds,
        _ => MIN_TIMEOUT_SECONDS + rand::rng().random_range(0..MIN_TIMEOUT_SECONDS),
    };
    let now = Instant::now();
    let interval = state.options.bookmark_interval;
    let running = RunningWatch {
        watch,
        res: res.clone(),
        view,
        deadline: now + Duration::from_secs(timeout),
        bookmark: query
            .flag("allowWatchBookmarks")
            .then(|| (interval, now + interval)),
        ended: false,
        dropped: state.drop_watches.subscribe(),
        silenced: state.silence_watches.subscribe(),
        _open: WatchGuard::new(&state.open_watches),
    };
    let frames = stream::unfold(running, |mut running| async move {
        let bytes = running.next().await?;
        Some((Ok::<_, Infallible>(Frame::data(bytes)), running))
    });
    Ok(reply::streaming(
        200,
        StreamBody::new(frames).boxed_unsync(),
        "application/json",
    ))
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
            if now >= self.deadline {
                self.ended = true;
                return self.bookmark.is_some().then(|| self.bookmark(revision));
            }
            if let Some((interval, due)) = &mut self.bookmark
                && now >= *due
            {
                *due = now + *interval;
                return Some(self.bookmark(revision));
            }
            let wake = self
                .bookmark
                .map_or(self.deadline, |(_, due)| due.min(self.deadline));
            tokio::select! {
                served = self.watch.changed() => if !served { return None },
                _ = self.dropped.changed() => return None,
                Ok(()) = self.silenced.changed() => return std::future::pending().await,
                () = tokio::time::sleep_until(wake) => {}
            }
        }
    }

    fn lines(&self, events: &[WatchEvent]) -> Bytes {
        let mut out = BytesMut::new();
        for event in events {
            let object = self.view.object(&event.object, &self.res);
            out.put_slice(&line(event.kind.as_str(), &object));
        }
        out.freeze()
    }

    fn bookmark(&self, revision: u64) -> Bytes {
        let (kind, version) = match self.view {
            Representation::Full => (self.res.kind.as_ref(), self.res.api_version()),
            Representation::Partial => ("PartialObjectMetadata", "meta.k8s.io/v1".into()),
        };
        let metadata = json!({ "resourceVersion": revision.to_string(), "creationTimestamp": null });
        line(
            "BOOKMARK",
            &encode(&json!({ "kind": kind, "apiVersion": version, "metadata": metadata })),
        )
    }
}

/// One event on a line of its own.
fn line(kind: &str, object: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(object.len() + 40);
    out.put_slice(b"{\"type\":\"");
    out.put_slice(kind.as_bytes());
    out.put_slice(b"\",\"object\":");
    out.put_slice(object);
    out.put_slice(b"}\n");
    out.freeze()
}
