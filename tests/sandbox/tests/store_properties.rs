//! Any interleaving of writes and watches: what a watch delivers, applied to the list that it starts from, is the
//! store; and the pages of a list show the moment at which it began.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a failed test may panic"
)]

use std::{collections::BTreeMap, sync::Arc};

use proptest::prelude::*;
use serde_json::json;
use watchdog_sandbox::{
    resource::{self, keys},
    store::{
        EventKind, ListQuery, Part, Preconditions, Store, StoreWatch, WatchStep, WriteOptions,
        object::StoreKey, selector::LabelSelector,
    },
};

/// Few enough for collisions, more than the history holds.
const NAMES: u8 = 6;

/// Short, so that watches are overtaken.
const HISTORY: usize = 8;

#[derive(Debug, Clone)]
enum Step {
    /// Create, or change if it exists.
    Write {
        name: u8,
        namespace: bool,
        matching: bool,
    },
    Delete {
        name: u8,
        namespace: bool,
    },
    /// A write to another resource moves the revision on.
    Elsewhere,
    Compact,
    /// A new watcher lists and watches.
    Join {
        selector: bool,
        namespace: bool,
    },
    /// A watcher reads one batch.
    Read {
        watcher: usize,
    },
    /// A watcher's connection breaks: it resumes from the last version that it saw.
    Resume {
        watcher: usize,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (0..NAMES, any::<bool>(), any::<bool>())
            .prop_map(|(name, namespace, matching)| Step::Write { name, namespace, matching }),
        4 => (0..NAMES, any::<bool>()).prop_map(|(name, namespace)| Step::Delete { name, namespace }),
        1 => Just(Step::Elsewhere),
        1 => Just(Step::Compact),
        2 => (any::<bool>(), any::<bool>())
            .prop_map(|(selector, namespace)| Step::Join { selector, namespace }),
        6 => (0..4_usize).prop_map(|watcher| Step::Read { watcher }),
        2 => (0..4_usize).prop_map(|watcher| Step::Resume { watcher }),
    ];
    prop::collection::vec(step, 1..120)
}

type Contents = BTreeMap<StoreKey, u64>;

/// A client with a copy of what it is allowed to see.
struct StoreClient {
    query: ListQuery,
    watch: StoreWatch,
    copy: Contents,
    /// The resourceVersion that a client would resume from.
    seen: u64,
}

impl StoreClient {
    fn join(store: &Arc<Store>, query: ListQuery) -> Self {
        let page = store.list(&keys::CONFIG_MAPS, &query, usize::MAX).unwrap();
        let copy = page
            .items
            .iter()
            .map(|item| (item.key().clone(), item.resource_version()))
            .collect();
        let watch = store
            .watch(&keys::CONFIG_MAPS, query.clone(), Some(page.revision))
            .unwrap();
        Self {
            query,
            watch,
            copy,
            seen: page.revision,
        }
    }

    /// Reads one batch; true if there was one.
    fn read(&mut self, store: &Arc<Store>) -> bool {
        match self.watch.step() {
            WatchStep::Events(events) => {
                for event in events {
                    let (key, version) = (event.object.key().clone(), event.object.resource_version());
                    assert!(version > self.seen, "revisions grow");
                    self.seen = version;
                    match event.kind {
                        EventKind::Added => assert!(self.copy.insert(key, version).is_none()),
                        EventKind::Modified => assert!(self.copy.insert(key, version).is_some()),
                        EventKind::Deleted => assert!(self.copy.remove(&key).is_some()),
                    }
                }
                true
            }
            WatchStep::Idle(revision) => {
                assert!(revision >= self.seen);
                // A bookmark.
                self.seen = revision;
                false
            }
            WatchStep::Gone(error) => {
                assert_eq!(error.code, 410);
                *self = Self::join(store, self.query.clone());
                true
            }
        }
    }

    fn resume(&mut self, store: &Arc<Store>) {
        match store.watch(&keys::CONFIG_MAPS, self.query.clone(), Some(self.seen)) {
            Ok(watch) => self.watch = watch,
            Err(error) => {
                assert_eq!(error.code, 410);
                *self = Self::join(store, self.query.clone());
            }
        }
    }
}

fn namespace(second: bool) -> &'static str {
    if second { "default" } else { "kube-system" }
}

fn write(store: &Store, name: u8, namespace: &str, matching: bool, nonce: usize) {
    let labels = json!({ "match": matching.to_string(), "nonce": nonce.to_string() });
    let name = format!("m{name}");
    let object = json!({ "metadata": { "name": name, "labels": labels } });
    let options = WriteOptions::default();
    if store
        .create(&keys::CONFIG_MAPS, namespace, object, &options)
        .is_err()
    {
        store
            .modify(
                &keys::CONFIG_MAPS,
                namespace,
                &name,
                Part::Main,
                &options,
                |value| {
                    value["metadata"]["labels"] = labels;
                    Ok(())
                },
            )
            .unwrap();
    }
}

fn contents(store: &Store, query: &ListQuery) -> Contents {
    let page = store.list(&keys::CONFIG_MAPS, query, usize::MAX).unwrap();
    page.items
        .iter()
        .map(|item| (item.key().clone(), item.resource_version()))
        .collect()
}

proptest! {
    #[test]
    fn watches_reconstruct_the_store(steps in steps()) {
        let store = Arc::new(Store::new(resource::builtin(), HISTORY));
        let options = WriteOptions::default();
        for name in ["default", "kube-system"] {
            store.create(&keys::NAMESPACES, "", json!({ "metadata": { "name": name } }), &options).unwrap();
        }
        let mut watchers: Vec<StoreClient> = Vec::new();
        for (nonce, step) in steps.into_iter().enumerate() {
            match step {
                Step::Write { name, namespace: second, matching } => {
                    write(&store, name, namespace(second), matching, nonce);
                }
                Step::Delete { name, namespace: second } => {
                    let none = Preconditions::default();
                    let name = format!("m{name}");
                    let _absent = store.delete(&keys::CONFIG_MAPS, namespace(second), &name, &none);
                }
                Step::Elsewhere => {
                    let node = json!({ "metadata": { "name": format!("n{nonce}") } });
                    store.create(&keys::NODES, "", node, &options).unwrap();
                }
                Step::Compact => store.compact(),
                Step::Join { selector, namespace: second } => {
                    let labels = if selector { "match=true" } else { "" };
                    let query = ListQuery {
                        namespace: second.then(|| "default".to_owned()),
                        labels: LabelSelector::parse(labels).unwrap(),
                        ..ListQuery::default()
                    };
                    watchers.push(StoreClient::join(&store, query));
                }
                Step::Read { watcher } => {
                    if let Some(watcher) = watchers.get_mut(watcher) {
                        watcher.read(&store);
                    }
                }
                Step::Resume { watcher } => {
                    if let Some(watcher) = watchers.get_mut(watcher) {
                        watcher.resume(&store);
                    }
                }
            }
        }
        for watcher in &mut watchers {
            // More than there were writes: a watch that repeats itself must not run endlessly.
            let caught_up = (0..1000).any(|_| !watcher.read(&store));
            prop_assert!(caught_up);
            prop_assert_eq!(&watcher.copy, &contents(&store, &watcher.query));
        }
    }

    #[test]
    fn pages_of_any_size_make_the_whole(objects in 0_u8..20, size in 1_usize..8) {
        let store = Store::new(resource::builtin(), HISTORY);
        let options = WriteOptions::default();
        store.create(&keys::NAMESPACES, "", json!({ "metadata": { "name": "default" } }), &options).unwrap();
        for name in 0..objects {
            write(&store, name, "default", true, 0);
        }
        let mut page = store.list(&keys::CONFIG_MAPS, &ListQuery::default(), size).unwrap();
        // What happens after the begin of a list is not in it.
        let late = json!({ "metadata": { "name": "a-late-one" } });
        store.create(&keys::CONFIG_MAPS, "default", late, &options).unwrap();
        let (mut names, revision) = (Vec::new(), page.revision);
        loop {
            names.extend(page.items.iter().map(|item| item.name().to_owned()));
            prop_assert_eq!((page.remaining, page.revision), (usize::from(objects) - names.len(), revision));
            if page.remaining == 0 {
                break;
            }
            page = store.next_page(&page.continue_token, size).unwrap();
        }
        let mut expected: Vec<_> = (0..objects).map(|name| format!("m{name}")).collect();
        expected.sort();
        prop_assert_eq!(names, expected);
    }
}
