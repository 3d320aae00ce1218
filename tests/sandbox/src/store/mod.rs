//! The objects of one API server under one growing revision, as etcd keeps them for the real one.
//!
//! One mutex guards everything: a write takes the next revision, changes its table and appends to the table's history
//! in one step, so lists, watches and pages are consistent by construction. Nothing awaits while it is held.

mod fields;
pub mod object;
pub mod selector;
mod watch;
mod write;

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
};

use parking_lot::Mutex;
use rand::{Rng, seq::IndexedRandom};
use tokio::sync::watch as signal;

use self::{
    object::{Object, StoreKey},
    selector::LabelSelector,
    watch::{Log, LogEntry},
};
use crate::{
    resource::{ResourceKey, ResourceType},
    status::ApiError,
};

pub use self::{
    watch::{EventKind, StoreWatch, WatchEvent, WatchStep},
    write::{Part, Preconditions, WriteOptions},
};

/// The most lists that are remembered because they are not read to their end yet.
const MAX_UNFINISHED_LISTS: usize = 256;

/// The objects of one API server. Cheap to share behind an `Arc`.
#[derive(Debug)]
pub struct Store {
    inner: Mutex<StoreState>,
    log_capacity: usize,
}

/// All objects at one revision, as a snapshot of etcd has them.
#[derive(Debug, Clone)]
pub struct Backup {
    revision: u64,
    objects: HashMap<ResourceKey, Objects>,
}

type Objects = BTreeMap<StoreKey, Arc<Object>>;

#[derive(Debug)]
struct StoreState {
    revision: u64,
    tables: HashMap<ResourceKey, Table>,
    unfinished: VecDeque<UnfinishedList>,
    tokens: u64,
}

#[derive(Debug)]
struct Table {
    res: Arc<ResourceType>,
    objects: Objects,
    log: Log,
    /// Tells watchers that there was a change.
    changed: signal::Sender<()>,
}

/// The rest of a list, as it was when the list began.
#[derive(Debug)]
struct UnfinishedList {
    token: String,
    revision: u64,
    rest: Vec<Arc<Object>>,
}

/// The objects that a list or a watch is about; the default is all.
#[derive(Debug, Clone, Default)]
pub struct ListQuery {
    pub namespace: Option<String>,
    pub labels: LabelSelector,
    pub name: Option<String>,
}

#[derive(Debug)]
pub struct ListPage {
    /// The revision that the page shows.
    pub revision: u64,
    /// The objects, sorted by namespace and name.
    pub items: Vec<Arc<Object>>,
    /// Leads to the next page; empty on the last.
    pub continue_token: String,
    /// How many objects come after this page.
    pub remaining: usize,
}

impl ListQuery {
    pub(crate) fn matches(&self, object: &Object) -> bool {
        self.namespace
            .as_deref()
            .is_none_or(|namespace| namespace == object.namespace())
            && self.labels.matches(object)
            && self.name.as_deref().is_none_or(|name| name == object.name())
    }
}

impl Store {
    /// An empty store that keeps up to `log_capacity` changes per resource for watches.
    pub fn new(resources: impl IntoIterator<Item = ResourceType>, log_capacity: usize) -> Self {
        let store = Self {
            inner: Mutex::new(StoreState {
                revision: 1,
                tables: HashMap::new(),
                unfinished: VecDeque::new(),
                tokens: 0,
            }),
            log_capacity,
        };
        for res in resources {
            store.register(res);
        }
        store
    }

    /// Serves one more resource; one that is already there stays as it is.
    pub fn register(&self, res: ResourceType) {
        let mut inner = self.inner.lock();
        let revision = inner.revision;
        inner.tables.entry(res.key.clone()).or_insert_with(|| Table {
            res: Arc::new(res),
            objects: BTreeMap::new(),
            log: Log::new(self.log_capacity, revision),
            changed: signal::Sender::new(()),
        });
    }

    /// Stops serving a resource: its objects are gone and its watches end.
    pub fn unregister(&self, key: &ResourceKey) {
        self.inner.lock().tables.remove(key);
    }

    /// The resource served under `key`.
    pub fn resource(&self, key: &ResourceKey) -> Option<Arc<ResourceType>> {
        Some(self.inner.lock().tables.get(key)?.res.clone())
    }

    /// Everything that is served.
    pub fn resources(&self) -> Vec<Arc<ResourceType>> {
        let inner = self.inner.lock();
        inner.tables.values().map(|table| table.res.clone()).collect()
    }

    /// The newest revision.
    pub fn revision(&self) -> u64 {
        self.inner.lock().revision
    }

    /// One object.
    ///
    /// # Errors
    /// 404 if there is no such object or resource.
    pub fn get(&self, resource: &ResourceKey, namespace: &str, name: &str) -> Result<Arc<Object>, ApiError> {
        let (_, object) = self.inner.lock().existing(resource, namespace, name)?;
        Ok(object)
    }

    /// One object if it is there.
    pub fn find(&self, resource: &ResourceKey, namespace: &str, name: &str) -> Option<Arc<Object>> {
        self.get(resource, namespace, name).ok()
    }

    /// The first page of a list, of at most `limit` objects.
    ///
    /// # Errors
    /// 404 for an unknown resource.
    pub fn list(
        &self,
        resource: &ResourceKey,
        query: &ListQuery,
        limit: usize,
    ) -> Result<ListPage, ApiError> {
        let mut inner = self.inner.lock();
        // Keys sort by namespace first, so a namespace is one range.
        let namespace = query.namespace.as_deref();
        let objects = &inner.table(resource)?.objects;
        let items = objects
            .range(StoreKey::new(namespace.unwrap_or_default(), "")..)
            .map(|(_, object)| object)
            .take_while(|object| namespace.is_none_or(|namespace| namespace == object.namespace()))
            .filter(|object| query.matches(object));
        let items = items.cloned().collect();
        let revision = inner.revision;
        Ok(inner.page(revision, items, limit))
    }

    /// The page that a token leads to.
    ///
    /// # Errors
    /// 410 if the list is forgotten.
    pub fn next_page(&self, token: &str, limit: usize) -> Result<ListPage, ApiError> {
        let mut inner = self.inner.lock();
        let found = inner.unfinished.iter().find(|list| list.token == token);
        let list = found.ok_or_else(ApiError::expired_continue)?;
        let (revision, rest) = (list.revision, list.rest.clone());
        Ok(inner.page(revision, rest, limit))
    }

    /// Every object of a resource in a namespace (`None`: in all); empty for an unknown resource.
    pub fn all(&self, resource: &ResourceKey, namespace: Option<&str>) -> Vec<Arc<Object>> {
        let query = ListQuery {
            namespace: namespace.map(str::to_owned),
            ..ListQuery::default()
        };
        let page = self.list(resource, &query, usize::MAX);
        page.map(|page| page.items).unwrap_or_default()
    }

    /// Everything as it is now.
    pub fn backup(&self) -> Backup {
        let inner = self.inner.lock();
        let tables = inner.tables.iter();
        Backup {
            revision: inner.revision,
            objects: tables
                .map(|(key, table)| (key.clone(), table.objects.clone()))
                .collect(),
        }
    }

    /// Goes back to a backup: objects and revision are as they were then, and there is no history. A watch that goes on
    /// from a revision after that of the backup brings nothing until that revision is reached again.
    pub fn restore(&self, backup: &Backup) {
        let mut inner = self.inner.lock();
        inner.revision = backup.revision;
        inner.unfinished.clear();
        for (key, table) in &mut inner.tables {
            table.objects = backup.objects.get(key).cloned().unwrap_or_default();
            table.log = Log::new(self.log_capacity, backup.revision);
        }
    }

    /// Forgets all history, so that watches and pages from before get 410 Gone.
    ///
    /// The revision moves on by one, as an unrelated write would make it: without that, a client that has seen the
    /// newest revision could resume.
    pub fn compact(&self) {
        let mut inner = self.inner.lock();
        inner.revision += 1;
        inner.unfinished.clear();
        let revision = inner.revision;
        for table in inner.tables.values_mut() {
            table.log = Log::new(self.log_capacity, revision);
        }
    }
}

impl StoreState {
    fn table(&self, key: &ResourceKey) -> Result<&Table, ApiError> {
        self.tables.get(key).ok_or_else(ApiError::no_such_resource)
    }

    /// An object and its type; 404 if there is no such object or resource.
    fn existing(
        &self,
        resource: &ResourceKey,
        namespace: &str,
        name: &str,
    ) -> Result<(Arc<ResourceType>, Arc<Object>), ApiError> {
        let table = self.table(resource)?;
        match table.objects.get(&StoreKey::new(namespace, name)) {
            Some(object) => Ok((table.res.clone(), object.clone())),
            None => Err(ApiError::not_found(&table.res, name)),
        }
    }

    fn page(&mut self, revision: u64, mut items: Vec<Arc<Object>>, limit: usize) -> ListPage {
        let rest = items.split_off(limit.min(items.len()));
        let (mut continue_token, remaining) = (String::new(), rest.len());
        if remaining > 0 {
            self.tokens += 1;
            continue_token = self.tokens.to_string();
            if self.unfinished.len() >= MAX_UNFINISHED_LISTS {
                self.unfinished.pop_front();
            }
            let token = continue_token.clone();
            self.unfinished.push_back(UnfinishedList {
                token,
                revision,
                rest,
            });
        }
        ListPage {
            revision,
            items,
            continue_token,
            remaining,
        }
    }

    /// Stores a new state of `key` and announces it.
    fn put(
        &mut self,
        resource: &ResourceKey,
        key: StoreKey,
        value: serde_json::Value,
    ) -> Result<Arc<Object>, ApiError> {
        let revision = self.revision + 1;
        let table = self.tables.get_mut(resource);
        let table = table.ok_or_else(ApiError::no_such_resource)?;
        let object = Arc::new(Object::new(key.clone(), revision, value));
        let before = table.objects.insert(key, object.clone());
        table.announce(LogEntry {
            revision,
            before,
            after: object.clone(),
            deleted: false,
        });
        self.revision = revision;
        Ok(object)
    }

    /// Removes `key` and announces it; `None` if there is no such object.
    fn remove(&mut self, resource: &ResourceKey, key: &StoreKey) -> Option<Arc<Object>> {
        let revision = self.revision + 1;
        let table = self.tables.get_mut(resource)?;
        let before = table.objects.remove(key)?;
        let after = Arc::new(before.at(revision));
        table.announce(LogEntry {
            revision,
            before: Some(before),
            after: after.clone(),
            deleted: true,
        });
        self.revision = revision;
        Some(after)
    }
}

impl Table {
    fn announce(&mut self, change: LogEntry) {
        self.log.push(change);
        self.changed.send_replace(());
    }
}

/// Five characters of the alphabet that the real server uses: no vowels, so no words.
pub fn random_suffix() -> String {
    let alphabet = b"bcdfghjklmnpqrstvwxz2456789";
    let mut rng = rand::rng();
    let chosen = (0..5).filter_map(|_| alphabet.choose(&mut rng));
    chosen.map(|byte| char::from(*byte)).collect()
}

/// A random (version 4) UUID.
fn random_uid() -> String {
    let bits: u128 = rand::rng().random();
    let bits = (bits & !(0xf << 76) & !(0x3 << 62)) | (0x4 << 76) | (0x2 << 62);
    let hex = format!("{bits:032x}");
    let part = |from: usize, to: usize| hex.get(from..to).unwrap_or_default();
    [part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32)].join("-")
}
