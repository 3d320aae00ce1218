//! Field ownership (`metadata.managedFields`) and server-side apply.
//!
//! Simpler than the real thing in one way: a list is owned as a whole, where the real server owns the
//! elements of keyed lists one by one.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::object::{child_mut, metadata_mut};
use crate::{status::ApiError, time};

type Path = Vec<String>;

/// Metadata that the server sets: nobody owns it.
const SERVER_METADATA: [&str; 11] = [
    "name",
    "generateName",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "managedFields",
    "selfLink",
];

/// The field manager, as recorded in `managedFields`.
#[derive(Debug, Clone, Default)]
pub struct Manager {
    /// `fieldManager` of the request, or the first part of its user agent.
    pub name: String,
    /// `status`, `scale` or empty.
    pub subresource: &'static str,
    /// apiVersion of the object written.
    pub api_version: String,
}

/// One entry of `managedFields`.
#[derive(Debug)]
struct FieldOwner {
    header: Map<String, Value>,
    paths: BTreeSet<Path>,
}

impl FieldOwner {
    fn new(manager: &Manager, operation: &str) -> Self {
        let mut header = Map::new();
        header.insert("manager".into(), manager.name.as_str().into());
        header.insert("operation".into(), operation.into());
        header.insert("apiVersion".into(), manager.api_version.as_str().into());
        if !manager.subresource.is_empty() {
            header.insert("subresource".into(), manager.subresource.into());
        }
        Self {
            header,
            paths: BTreeSet::new(),
        }
    }

    fn text(&self, key: &str) -> &str {
        self.header.get(key).and_then(Value::as_str).unwrap_or_default()
    }

    fn is(&self, manager: &Manager, operation: &str) -> bool {
        self.text("manager") == manager.name
            && self.text("operation") == operation
            && self.text("subresource") == manager.subresource
    }

    fn touch(&mut self) {
        self.header
            .insert("time".into(), time::seconds(Timestamp::now()).into());
    }
}

/// Records that `manager` wrote the fields that differ between `old` and `new`.
pub(super) fn track_update(old: Option<&Value>, new: &mut Value, manager: &Manager) {
    let before = old.map(leaves).unwrap_or_default();
    let after = leaves(new);
    let changed: BTreeSet<Path> = after
        .iter()
        .filter(|path| old.is_none_or(|old| at(old, path) != at(new, path)))
        .cloned()
        .collect();
    let removed: BTreeSet<&Path> = before.difference(&after).collect();
    if changed.is_empty() && removed.is_empty() {
        return;
    }
    let mut owners = read(old);
    for owner in owners.iter_mut().filter(|owner| !owner.is(manager, "Update")) {
        owner
            .paths
            .retain(|path| !changed.contains(path) && !removed.contains(path));
    }
    let mine = entry(&mut owners, manager, "Update");
    mine.paths.retain(|path| !removed.contains(path));
    mine.paths.extend(changed);
    mine.touch();
    write(new, owners);
}

/// Applies `config` to `old` (`None`: to nothing) for `manager`.
///
/// # Errors
/// 409 listing the fields that others own with another value, unless `force`.
pub(super) fn apply(
    old: Option<&Value>,
    config: &Value,
    manager: &Manager,
    force: bool,
) -> Result<Value, ApiError> {
    let wanted = leaves(config);
    let mut owners = read(old);
    let mut new = old.cloned().unwrap_or_else(|| json!({}));
    let contested = |path: &Path| at(&new, path).is_some() && at(&new, path) != at(config, path);
    let mut conflicts = Vec::new();
    for owner in owners.iter().filter(|owner| !owner.is(manager, "Apply")) {
        for path in owner
            .paths
            .iter()
            .filter(|path| wanted.contains(*path) && contested(path))
        {
            conflicts.push((owner.text("manager").to_owned(), format!(".{}", path.join("."))));
        }
    }
    if !conflicts.is_empty() && !force {
        return Err(ApiError::apply_conflict(&conflicts));
    }
    let taken: BTreeSet<Path> = wanted.iter().filter(|path| contested(path)).cloned().collect();
    for owner in owners.iter_mut().filter(|owner| !owner.is(manager, "Apply")) {
        owner.paths.retain(|path| !taken.contains(path));
    }
    let mine = entry(&mut owners, manager, "Apply");
    let given_up: Vec<Path> = mine.paths.difference(&wanted).cloned().collect();
    mine.paths = wanted;
    mine.touch();
    for path in given_up {
        let shared = owners.iter().any(|owner| owner.paths.contains(&path));
        if !shared {
            remove(&mut new, &path);
        }
    }
    overlay(&mut new, config);
    write(&mut new, owners);
    Ok(new)
}

fn entry<'a>(owners: &'a mut Vec<FieldOwner>, manager: &Manager, operation: &str) -> &'a mut FieldOwner {
    let index = owners
        .iter()
        .position(|owner| owner.is(manager, operation))
        .unwrap_or_else(|| {
            owners.push(FieldOwner::new(manager, operation));
            owners.len() - 1
        });
    // `index` is the position found or that of the element just pushed.
    match owners.get_mut(index) {
        Some(owner) => owner,
        None => unreachable!("the owner was just found"),
    }
}

/// The paths of everything that is no non-empty map.
fn leaves(value: &Value) -> BTreeSet<Path> {
    fn walk(value: &Value, path: &mut Path, found: &mut BTreeSet<Path>) {
        match value {
            Value::Object(map) if !map.is_empty() => {
                for (key, child) in map {
                    let server_set = match path.as_slice() {
                        [] => key == "apiVersion" || key == "kind",
                        [root] => root == "metadata" && SERVER_METADATA.contains(&key.as_str()),
                        _ => false,
                    };
                    if !server_set {
                        path.push(key.clone());
                        walk(child, path, found);
                        path.pop();
                    }
                }
            }
            Value::Null => {}
            _ if path.is_empty() || path.as_slice() == ["metadata"] => {}
            _ => {
                found.insert(path.clone());
            }
        }
    }
    let mut found = BTreeSet::new();
    walk(value, &mut Vec::new(), &mut found);
    found
}

fn at<'a>(value: &'a Value, path: &Path) -> Option<&'a Value> {
    path.iter().try_fold(value, |value, key| value.get(key))
}

fn remove(value: &mut Value, path: &[String]) {
    match path {
        [] => {}
        [last] => {
            if let Some(map) = value.as_object_mut() {
                map.remove(last);
            }
        }
        [first, rest @ ..] => {
            if let Some(child) = value.get_mut(first) {
                remove(child, rest);
            }
        }
    }
}

/// Lays `config` over `value`: maps merge, all else replaces.
fn overlay(value: &mut Value, config: &Value) {
    match (value, config) {
        (Value::Object(value), Value::Object(config)) => {
            for (key, wanted) in config {
                overlay(value.entry(key.clone()).or_insert(Value::Null), wanted);
            }
        }
        (value, config) => *value = config.clone(),
    }
}

fn read(value: Option<&Value>) -> Vec<FieldOwner> {
    let entries = value
        .and_then(|value| value.pointer("/metadata/managedFields"))
        .and_then(Value::as_array);
    entries
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let mut header = entry.as_object()?.clone();
            header.remove("fieldsType");
            let mut paths = BTreeSet::new();
            if let Some(fields) = header.remove("fieldsV1") {
                decode(&fields, &mut Vec::new(), &mut paths);
            }
            Some(FieldOwner { header, paths })
        })
        .collect()
}

fn decode(fields: &Value, path: &mut Path, paths: &mut BTreeSet<Path>) {
    for (key, child) in fields.as_object().into_iter().flatten() {
        if let Some(name) = key.strip_prefix("f:") {
            path.push(name.to_owned());
            if child.as_object().is_none_or(Map::is_empty) {
                paths.insert(path.clone());
            } else {
                decode(child, path, paths);
            }
            path.pop();
        }
    }
}

fn write(value: &mut Value, owners: Vec<FieldOwner>) {
    let entries: Vec<Value> = owners
        .into_iter()
        .filter(|owner| !owner.paths.is_empty())
        .map(|owner| {
            let mut fields = json!({});
            for path in &owner.paths {
                let mut node = &mut fields;
                for key in path {
                    let key = format!("f:{key}");
                    child_mut(node, &key);
                    match node.get_mut(&key) {
                        Some(child) => node = child,
                        None => break,
                    }
                }
            }
            let mut header = owner.header;
            header.insert("fieldsType".into(), "FieldsV1".into());
            header.insert("fieldsV1".into(), fields);
            Value::Object(header)
        })
        .collect();
    metadata_mut(value).insert("managedFields".into(), Value::Array(entries));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manager(name: &str) -> Manager {
        Manager {
            name: name.into(),
            subresource: "",
            api_version: "v1".into(),
        }
    }

    #[test]
    fn apply_conflicts_with_another_manager_and_force_takes_over() {
        let first = apply(
            None,
            &json!({ "spec": { "a": 1, "b": 1 } }),
            &manager("one"),
            false,
        )
        .unwrap();
        // The same value is no conflict: both own it then.
        let both = apply(
            Some(&first),
            &json!({ "spec": { "a": 1 } }),
            &manager("two"),
            false,
        )
        .unwrap();
        let error = apply(
            Some(&both),
            &json!({ "spec": { "a": 2 } }),
            &manager("two"),
            false,
        )
        .unwrap_err();
        assert_eq!(
            error.message,
            "Apply failed with 1 conflict: conflict with \"one\": .spec.a"
        );
        let forced = apply(Some(&both), &json!({ "spec": { "a": 2 } }), &manager("two"), true).unwrap();
        assert_eq!(forced["spec"], json!({ "a": 2, "b": 1 }));
        // "one" lost `a`, so now "two" may change it without force.
        assert!(
            apply(
                Some(&forced),
                &json!({ "spec": { "a": 3 } }),
                &manager("two"),
                false
            )
            .is_ok()
        );
    }

    #[test]
    fn apply_removes_what_it_gave_up_unless_others_own_it() {
        let one = apply(
            None,
            &json!({ "spec": { "a": 1, "b": 1 } }),
            &manager("one"),
            false,
        )
        .unwrap();
        let two = apply(Some(&one), &json!({ "spec": { "b": 1 } }), &manager("two"), false).unwrap();
        let less = apply(Some(&two), &json!({ "spec": { "c": 1 } }), &manager("one"), false).unwrap();
        assert_eq!(less["spec"], json!({ "b": 1, "c": 1 }));
    }

    #[test]
    fn an_update_takes_ownership() {
        let applied = apply(None, &json!({ "spec": { "a": 1 } }), &manager("one"), false).unwrap();
        let mut updated = applied.clone();
        updated["spec"]["a"] = json!(2);
        track_update(Some(&applied), &mut updated, &manager("two"));
        let error = apply(
            Some(&updated),
            &json!({ "spec": { "a": 1 } }),
            &manager("one"),
            false,
        )
        .unwrap_err();
        assert!(error.message.contains("conflict with \"two\""), "{error}");
    }
}
