//! The objects of one API server under one growing revision, as etcd keeps them for the real one.
//!
//! One mutex guards everything: a write takes the next revision, changes its table and appends to the
//! table's history in one step, so lists, watches and pages are consistent by construction. Nothing awaits
//! while it is held.

mod fields;
mod log;
pub mod object;
mod read;
pub mod selector;
mod watch;
mod write;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use parking_lot::Mutex;
use rand::{Rng, seq::IndexedRandom};
use tokio::sync::watch as signal;

use self::{
    log::{Log, LogEntry},
    object::{Object, StoreKey},
};
use crate::{
    resource::{ResourceKey, ResourceType},
    status::ApiError,
};

pub use self::{
    read::{ListPage, ListQuery},
    watch::{EventKind, StoreWatch, WatchEvent, WatchStep},
    write::{Part, Preconditions, WriteOptions},
};

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
    objects: HashMap<ResourceKey, BTreeMap<StoreKey, Arc<Object>>>,
}

#[derive(Debug)]
struct StoreState {
    revision: u64,
    tables: HashMap<ResourceKey, Table>,
}

#[derive(Debug)]
struct Table {
    res: Arc<ResourceType>,
    objects: BTreeMap<StoreKey, Arc<Object>>,
    log: Log,
    /// Tells watchers the revision of the last change.
    changed: signal::Sender<u64>,
}

impl Store {
    /// An empty store that keeps up to `log_capacity` changes per resource for watches and paging.
    pub fn new(resources: impl IntoIterator<Item = ResourceType>, log_capacity: usize) -> Self {
        let store = Self {
            inner: Mutex::new(StoreState {
                revision: 1,
                tables: HashMap::new(),
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
        inner.tables.entry(res.key()).or_insert_with(|| Table {
            res: Arc::new(res),
            objects: BTreeMap::new(),
            log: Log::new(self.log_capacity, revision),
            changed: signal::Sender::new(revision),
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

    /// Everything that is served, sorted by group, version and plural.
    pub fn resources(&self) -> Vec<Arc<ResourceType>> {
        let mut resources: Vec<_> = self
            .inner
            .lock()
            .tables
            .values()
            .map(|table| table.res.clone())
            .collect();
        resources.sort_by_key(|res| res.key());
        resources
    }

    /// The newest revision.
    pub fn revision(&self) -> u64 {
        self.inner.lock().revision
    }

    /// Everything as it is now.
    pub fn backup(&self) -> Backup {
        let inner = self.inner.lock();
        let objects = inner.tables.iter();
        Backup {
            revision: inner.revision,
            objects: objects
                .map(|(key, table)| (key.clone(), table.objects.clone()))
                .collect(),
        }
    }

    /// Goes back to a backup: objects and revision are as they were then, and there is no history. A watch that goes on
    /// from a revision after that of the backup brings nothing until that revision is reached again.
    pub fn restore(&self, backup: &Backup) {
        let mut inner = self.inner.lock();
        inner.revision = backup.revision;
        for (key, table) in &mut inner.tables {
            table.objects = backup.objects.get(key).cloned().unwrap_or_default();
            table.log = Log::new(self.log_capacity, backup.revision);
        }
    }

    /// Forgets all history, so that watches and pages from before get 410 Gone.
    ///
    /// The revision moves on by one, as an unrelated write would make it: without that, a client that has
    /// seen the newest revision could resume.
    pub fn compact(&self) {
        let mut inner = self.inner.lock();
        inner.revision += 1;
        let revision = inner.revision;
        for table in inner.tables.values_mut() {
            table.log.compact(revision);
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

    /// Stores a new state of `key` and announces it.
    fn put(
        &mut self,
        resource: &ResourceKey,
        key: StoreKey,
        value: serde_json::Value,
    ) -> Result<Arc<Object>, ApiError> {
        let revision = self.revision + 1;
        let table = self
            .tables
            .get_mut(resource)
            .ok_or_else(ApiError::no_such_resource)?;
        let object = Arc::new(Object::new(key.clone(), revision, value));
        let before = table.objects.insert(key, object.clone());
        table.log.push(LogEntry {
            revision,
            before,
            after: object.clone(),
            deleted: false,
        });
        table.changed.send_replace(revision);
        self.revision = revision;
        Ok(object)
    }

    /// Removes `key` and announces it; `None` if there is no such object.
    fn remove(&mut self, resource: &ResourceKey, key: &StoreKey) -> Option<Arc<Object>> {
        let revision = self.revision + 1;
        let table = self.tables.get_mut(resource)?;
        let before = table.objects.remove(key)?;
        let after = Arc::new(before.at(revision));
        table.log.push(LogEntry {
            revision,
            before: Some(before),
            after: after.clone(),
            deleted: true,
        });
        table.changed.send_replace(revision);
        self.revision = revision;
        Some(after)
    }
}

/// Five characters of the alphabet that the real server uses: no vowels, so no words.
pub(crate) fn random_suffix() -> String {
    let mut rng = rand::rng();
    (0..5)
        .filter_map(|_| {
            b"bcdfghjklmnpqrstvwxz2456789"
                .choose(&mut rng)
                .map(|b| char::from(*b))
        })
        .collect()
}

/// A random (version 4) UUID.
fn random_uid() -> String {
    let bits: u128 = rand::rng().random();
    let bits = (bits & !(0xf << 76) & !(0x3 << 62)) | (0x4 << 76) | (0x2 << 62);
    let hex = format!("{bits:032x}");
    let part = |from: usize, to: usize| hex.get(from..to).unwrap_or_default();
    [part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32)].join("-")
}
