//! The traces that verdicts carry, by shoot; nothing is kept while traces are off.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::domain::Direction;

/// Where the trace of the last change of a verdict goes on.
#[derive(Debug, Default)]
pub(crate) struct TraceContexts {
    on: bool,
    by_shoot: Mutex<HashMap<String, VerdictContext>>,
}

#[derive(Debug)]
struct VerdictContext {
    observer: Arc<str>,
    direction: Option<Direction>,
    traceparent: String,
}

impl TraceContexts {
    /// None are known yet; none ever will be while traces are off.
    pub(crate) fn new(on: bool) -> Self {
        Self {
            on,
            by_shoot: Mutex::default(),
        }
    }

    /// An observer says something that wants this direction, with the context that its verdict carries, if any.
    pub(crate) fn update(
        &self,
        shoot: &str,
        observer: &Arc<str>,
        direction: Option<Direction>,
        traceparent: &str,
    ) {
        if !self.on {
            return;
        }
        let mut trace_contexts = self.by_shoot.lock();
        if !traceparent.is_empty() {
            let context = VerdictContext {
                observer: observer.clone(),
                direction,
                traceparent: traceparent.to_owned(),
            };
            trace_contexts.insert(shoot.to_owned(), context);
        } else if trace_contexts
            .get(shoot)
            .is_some_and(|known| known.observer == *observer)
        {
            trace_contexts.remove(shoot);
        }
    }

    /// The context of the change that turned a shoot in this direction.
    pub(crate) fn of(&self, shoot: &str, direction: Direction) -> Option<String> {
        let trace_contexts = self.by_shoot.lock();
        let context = trace_contexts.get(shoot)?;
        (context.direction == Some(direction)).then(|| context.traceparent.clone())
    }

    pub(crate) fn forget(&self, shoot: &str) {
        if self.on {
            self.by_shoot.lock().remove(shoot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_belongs_to_a_direction_and_goes_with_its_verdict() {
        let (trace_contexts, a, b): (_, Arc<str>, Arc<str>) =
            (TraceContexts::new(true), "a".into(), "b".into());
        trace_contexts.update("s", &a, Some(Direction::Down), "one");
        trace_contexts.update("s", &b, Some(Direction::Down), "");
        assert_eq!(trace_contexts.of("s", Direction::Down).as_deref(), Some("one"));
        assert_eq!(
            trace_contexts.of("s", Direction::Up),
            None,
            "that is another change"
        );
        trace_contexts.update("s", &a, Some(Direction::Down), "");
        assert_eq!(
            trace_contexts.of("s", Direction::Down),
            None,
            "the change since is not traced"
        );
        trace_contexts.update("s", &a, Some(Direction::Up), "two");
        trace_contexts.forget("s");
        assert_eq!(trace_contexts.of("s", Direction::Up), None);

        let off = TraceContexts::new(false);
        off.update("s", &a, Some(Direction::Down), "one");
        assert_eq!(off.of("s", Direction::Down), None);
    }
}
