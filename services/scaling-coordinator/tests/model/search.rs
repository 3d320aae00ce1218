//! Breadth-first search. States are remembered by a 64-bit fingerprint: with a million states the odds of missing one
//! are about one in 40 million.

use std::collections::{HashSet, VecDeque};
use std::fmt::Write;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash};

use crate::restore_checker::{RestoreChecker, goes_down};
use crate::rules::Rules;
use crate::state::{Event, ModelState};

/// The result of a search.
pub struct Explored {
    /// Different states seen.
    pub states: usize,
    /// The first violation, with a shortest path to it.
    pub broken: Option<String>,
}

/// The same for equal states, in every run.
pub fn fingerprint(state: &impl Hash) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(state)
}

/// Visits every state that can be reached from `start`, until one breaks a rule.
pub fn explore(start: &ModelState, rules: Rules) -> Explored {
    let mut first = start.clone();
    first.begin(rules);
    let mut seen = HashSet::from([fingerprint(&first)]);
    let mut origins: Vec<(usize, Event)> = vec![(0, Event::Begin)];
    let mut open = VecDeque::from([(0, first)]);
    let mut checker = RestoreChecker::default();
    while let Some((index, state)) = open.pop_front() {
        for event in state.events(rules) {
            let mut next = state.clone();
            let broken = next.play(event, rules).and_then(|()| {
                // A state that was seen has been checked.
                if seen.insert(fingerprint(&next)) {
                    if rules.unlisted.is_some() {
                        goes_down(&next, rules)?;
                    }
                    checker.check(&next, rules).map(|()| true)
                } else {
                    Ok(false)
                }
            });
            match broken {
                Ok(false) => {}
                Ok(true) => {
                    origins.push((index, event));
                    open.push_back((origins.len() - 1, next));
                }
                Err(why) => {
                    let mut text = format!("{why}, after:");
                    for event in path(&origins, index).iter().chain([&event]) {
                        let _ = write!(text, "\n  {event:?}");
                    }
                    let _ = write!(text, "\nin the state {next:#?}");
                    return Explored {
                        states: seen.len(),
                        broken: Some(text),
                    };
                }
            }
        }
    }
    Explored {
        states: seen.len(),
        broken: None,
    }
}

fn path(origins: &[(usize, Event)], mut index: usize) -> Vec<Event> {
    let mut path = Vec::new();
    while index != 0 {
        path.push(origins[index].1);
        index = origins[index].0;
    }
    path.reverse();
    path
}
