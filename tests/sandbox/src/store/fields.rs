//! Field ownership: `metadata.managedFields` names who wrote a field last.
//!
//! Simpler than the real thing: a list is owned as a whole, where the real server owns the elements of keyed lists one
//! by one, and a manager has one entry, whatever sub-resource it writes to. There is no server-side apply, so a field
//! has one owner.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::object::metadata_mut;
use super::write::now;

type Path = Vec<String>;

/// Metadata that writers own; the server sets the rest.
const OWNED_METADATA: [&str; 3] = ["annotations", "labels", "ownerReferences"];

/// Records that `manager` wrote the fields that differ between `old` and `new`.
pub(super) fn track(old: Option<&Value>, new: &mut Value, manager: &str, api_version: &str) {
    let (before, after) = (old.map(leaves).unwrap_or_default(), leaves(new));
    let differs = |(path, value): &(&Path, &&Value)| before.get(*path) != Some(*value);
    let written: Vec<Path> = after
        .iter()
        .filter(differs)
        .map(|(path, _)| path.clone())
        .collect();
    let removed = before.keys().filter(|path| !after.contains_key(*path));
    let lost: Vec<Path> = removed.chain(&written).cloned().collect();
    if lost.is_empty() {
        return;
    }
    let mut entries = match metadata_mut(new).remove("managedFields") {
        Some(Value::Array(entries)) => entries,
        _ => Vec::new(),
    };
    for entry in &mut entries {
        for path in &lost {
            disown(&mut entry["fieldsV1"], path);
        }
    }
    let mut mine = match entries.iter().position(|entry| entry["manager"] == manager) {
        Some(index) => entries.remove(index),
        None => json!({
            "manager": manager, "operation": "Update", "apiVersion": api_version,
            "fieldsType": "FieldsV1", "fieldsV1": {},
        }),
    };
    mine["time"] = now().into();
    for path in &written {
        let mut fields = &mut mine["fieldsV1"];
        for key in path {
            fields = &mut fields[format!("f:{key}")];
        }
        *fields = json!({});
    }
    entries.push(mine);
    entries.retain(|entry| entry["fieldsV1"] != json!({}));
    metadata_mut(new).insert("managedFields".into(), entries.into());
}

/// Everything that is no map with entries, by its path.
fn leaves(value: &Value) -> BTreeMap<Path, &Value> {
    fn walk<'a>(value: &'a Value, path: &mut Path, found: &mut BTreeMap<Path, &'a Value>) {
        match value {
            Value::Object(map) if !map.is_empty() => {
                for (key, child) in map {
                    let is_owned = match path.as_slice() {
                        [] => key != "apiVersion" && key != "kind",
                        [root] => root != "metadata" || OWNED_METADATA.contains(&key.as_str()),
                        _ => true,
                    };
                    if is_owned {
                        path.push(key.clone());
                        walk(child, path, found);
                        path.pop();
                    }
                }
            }
            Value::Null => {}
            _ => {
                found.insert(path.clone(), value);
            }
        }
    }
    let mut found = BTreeMap::new();
    walk(value, &mut Vec::new(), &mut found);
    found
}

/// Takes a field, and the maps that are empty without it, from an owner.
fn disown(fields: &mut Value, path: &[String]) {
    let (Some((first, rest)), Some(map)) = (path.split_first(), fields.as_object_mut()) else {
        return;
    };
    let key = format!("f:{first}");
    if let Some(child) = map.get_mut(&key) {
        disown(child, rest);
        if *child == json!({}) {
            map.remove(&key);
        }
    }
}
