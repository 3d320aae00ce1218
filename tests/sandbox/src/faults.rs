//! Faults on command: what happens to requests that match.

use std::time::Duration;

use parking_lot::Mutex;
use serde::Deserialize;

/// The effect of a fault on a request.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "type")]
pub enum FaultAction {
    /// Answer as usual, but this much later.
    Delay {
        /// Milliseconds.
        millis: u64,
    },
    /// Never answer.
    Hang,
    /// Answer 429 with `Retry-After`.
    TooManyRequests {
        /// Seconds for the header.
        retry_after: u64,
    },
    /// Answer 500.
    InternalError,
    /// Answer 200 with a body that is no JSON.
    Garbage,
    /// Answer 200 with an empty body: a watch that ends at once.
    Empty,
    /// Close the connection without an answer.
    Cut,
    /// Do what was asked, then never answer.
    ApplyAndHang,
}

/// The requests that a fault affects; absent fields match everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct Matcher {
    /// Verbs as in the audit log; empty: all.
    verbs: Vec<String>,
    /// The start of the path.
    path_prefix: Option<String>,
    /// A part of the query, for instance `continue=`: the pages of a list after the first.
    query_part: Option<String>,
    /// The authenticated user.
    user: Option<String>,
}

impl Matcher {
    fn matches(&self, verb: &str, path: &str, query: &str, user: &str) -> bool {
        (self.verbs.is_empty() || self.verbs.iter().any(|wanted| wanted == verb))
            && self
                .path_prefix
                .as_deref()
                .is_none_or(|prefix| path.starts_with(prefix))
            && self.query_part.as_deref().is_none_or(|part| query.contains(part))
            && self.user.as_deref().is_none_or(|wanted| wanted == user)
    }
}

/// A fault: which requests, what happens, how often.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Fault {
    /// The requests concerned.
    #[serde(default)]
    when: Matcher,
    /// The effect on them.
    action: FaultAction,
    /// How many requests are hit before the fault ends; absent: until cleared.
    #[serde(default)]
    pub times: Option<u32>,
}

impl Fault {
    /// A fault that hits every request until cleared.
    pub fn always(action: FaultAction) -> Self {
        Self {
            when: Matcher::default(),
            action,
            times: None,
        }
    }

    /// Only requests with this verb.
    #[must_use]
    pub fn verb(mut self, verb: &str) -> Self {
        self.when.verbs.push(verb.to_owned());
        self
    }

    /// Only paths that start like this.
    #[must_use]
    pub fn path(mut self, prefix: &str) -> Self {
        self.when.path_prefix = Some(prefix.to_owned());
        self
    }

    /// Only queries with this part.
    #[must_use]
    pub fn query(mut self, part: &str) -> Self {
        self.when.query_part = Some(part.to_owned());
        self
    }

    /// Only requests of this user.
    #[must_use]
    pub fn user(mut self, user: &str) -> Self {
        self.when.user = Some(user.to_owned());
        self
    }

    /// Only this many requests.
    #[must_use]
    pub fn times(mut self, times: u32) -> Self {
        self.times = Some(times);
        self
    }
}

/// Identifies an injected fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FaultId(u64);

/// The active faults of one API server.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    inner: Mutex<Active>,
}

#[derive(Debug, Default)]
struct Active {
    next: u64,
    faults: Vec<(FaultId, Fault)>,
}

impl Faults {
    pub(crate) fn inject(&self, fault: Fault) -> FaultId {
        let mut active = self.inner.lock();
        active.next += 1;
        let id = FaultId(active.next);
        active.faults.push((id, fault));
        id
    }

    pub(crate) fn clear(&self, id: FaultId) -> bool {
        let mut active = self.inner.lock();
        let before = active.faults.len();
        active.faults.retain(|(known, _)| *known != id);
        active.faults.len() < before
    }

    pub(crate) fn clear_all(&self) {
        self.inner.lock().faults.clear();
    }

    pub(crate) fn list(&self) -> Vec<(FaultId, Fault)> {
        self.inner.lock().faults.clone()
    }

    /// How long to wait before a request is answered, and what to do instead of, or after, that. Delays add up; the
    /// first fault of another kind decides. Counts those that hit.
    pub(crate) fn judge(
        &self,
        verb: &str,
        path: &str,
        query: &str,
        user: &str,
    ) -> (Duration, Option<FaultAction>) {
        let mut active = self.inner.lock();
        let (mut delay, mut decided) = (Duration::ZERO, None);
        for (_, fault) in &mut active.faults {
            if decided.is_some() || !fault.when.matches(verb, path, query, user) {
                continue;
            }
            if let Some(times) = &mut fault.times {
                *times -= 1;
            }
            match &fault.action {
                FaultAction::Delay { millis } => delay += Duration::from_millis(*millis),
                action => decided = Some(action.clone()),
            }
        }
        active.faults.retain(|(_, fault)| fault.times != Some(0));
        (delay, decided)
    }
}
