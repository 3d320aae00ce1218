//! Gets and lists.

use std::{borrow::Cow, collections::BTreeMap, ops::Bound, sync::Arc};

use super::{
    Store,
    object::{Object, StoreKey},
    selector::LabelSelector,
};
use crate::{resource::ResourceKey, status::ApiError};

/// The parameters of a list.
#[derive(Debug, Clone, Default)]
pub struct ListQuery {
    /// Only this namespace.
    pub namespace: Option<String>,
    /// Only objects with these labels.
    pub labels: LabelSelector,
    /// Only objects of this name.
    pub name: Option<String>,
    /// At most this many items; 0 is unlimited.
    pub limit: usize,
    /// The state at exactly this revision instead of the newest.
    pub revision: Option<u64>,
    /// Only objects after this key: where the page before ended.
    pub after: Option<StoreKey>,
}

impl ListQuery {
    /// True if an object is asked for, paging aside.
    pub(crate) fn matches(&self, object: &Object) -> bool {
        self.namespace
            .as_deref()
            .is_none_or(|namespace| namespace == object.namespace())
            && self.labels.matches(object)
            && self.name.as_deref().is_none_or(|name| name == object.name())
    }
}

#[derive(Debug)]
pub struct ListPage {
    /// The revision that the page shows.
    pub revision: u64,
    /// The objects, sorted by namespace and name.
    pub items: Vec<Arc<Object>>,
    /// How many matching objects come after this page; 0 on the last.
    pub remaining: usize,
}

impl Store {
    /// One object.
    ///
    /// # Errors
    /// 404 if there is no such object or resource.
    pub fn get(&self, resource: &ResourceKey, namespace: &str, name: &str) -> Result<Arc<Object>, ApiError> {
        let (_, object) = self.inner.lock().existing(resource, namespace, name)?;
        Ok(object)
    }

    /// One object if it is there: for simulators, to which absence is no error.
    pub fn find(&self, resource: &ResourceKey, namespace: &str, name: &str) -> Option<Arc<Object>> {
        self.get(resource, namespace, name).ok()
    }

    /// A page of objects as they were at one revision.
    ///
    /// # Errors
    /// 404 for an unknown resource; 410 for a revision older than the history kept.
    pub fn list(&self, resource: &ResourceKey, query: &ListQuery) -> Result<ListPage, ApiError> {
        let inner = self.inner.lock();
        let table = inner.table(resource)?;
        let revision = query.revision.unwrap_or(inner.revision);
        let mut objects = Cow::Borrowed(&table.objects);
        if revision < inner.revision {
            let mut past: BTreeMap<_, _> = table.objects.clone();
            table
                .log
                .roll_back(&mut past, revision)
                .map_err(|_| ApiError::expired_continue())?;
            objects = Cow::Owned(past);
        }
        // Keys sort by namespace first, so a namespace is one range.
        let start = match (&query.after, &query.namespace) {
            (Some(after), _) => Bound::Excluded(after.clone()),
            (None, Some(namespace)) => Bound::Included(StoreKey::new(namespace, "")),
            (None, None) => Bound::Unbounded,
        };
        let mut matching = objects
            .range((start, Bound::Unbounded))
            .map(|(_, object)| object)
            .take_while(|object| {
                query
                    .namespace
                    .as_deref()
                    .is_none_or(|namespace| namespace == object.namespace())
            })
            .filter(|object| query.matches(object));
        let limit = if query.limit == 0 { usize::MAX } else { query.limit };
        let items: Vec<_> = matching.by_ref().take(limit).cloned().collect();
        let remaining = if items.len() < limit { 0 } else { matching.count() };
        Ok(ListPage {
            revision,
            items,
            remaining,
        })
    }

    /// Every object of a resource in a namespace (`None`: in all); empty for an unknown resource.
    pub fn all(&self, resource: &ResourceKey, namespace: Option<&str>) -> Vec<Arc<Object>> {
        let query = ListQuery {
            namespace: namespace.map(str::to_owned),
            ..ListQuery::default()
        };
        self.list(resource, &query)
            .map(|page| page.items)
            .unwrap_or_default()
    }
}
