//! Names of objects in namespaces.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Namespace and name of an object. Ordered by namespace, so that the objects of one namespace stand together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct NamespacedName {
    pub(crate) namespace: Arc<str>,
    pub(crate) name: Arc<str>,
}

impl NamespacedName {
    pub(crate) fn new(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

/// The objects of a namespace.
pub(crate) fn in_namespace<'a, T>(
    objects: &'a BTreeMap<NamespacedName, T>,
    namespace: &'a str,
) -> impl Iterator<Item = (&'a NamespacedName, &'a T)> + Clone {
    // No name sorts before the empty one.
    let objects = objects.range(NamespacedName::new(namespace, "")..);
    objects.take_while(move |(key, _)| *key.namespace == *namespace)
}

/// As [`in_namespace`], to change them.
pub(crate) fn in_namespace_mut<'a, T>(
    objects: &'a mut BTreeMap<NamespacedName, T>,
    namespace: &'a str,
) -> impl Iterator<Item = (&'a NamespacedName, &'a mut T)> {
    let objects = objects.range_mut(NamespacedName::new(namespace, "")..);
    objects.take_while(move |(key, _)| *key.namespace == *namespace)
}
