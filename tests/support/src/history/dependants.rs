//! Checks what was done to the dependants of a shoot: the order of the levels, and the counts.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::Value;

use super::{Counts, Report, Violation, Write};

/// Annotation with the count from before the incident.
const RECORDED: &str = "/metadata/annotations/dependency-watchdog.gardener.cloud~1replicas";

/// Follows the writes that took effect on one shoot. Its resources go down from the last of `counts` to the first
/// (all but the first are one level), and come up from the first to the last.
pub(super) fn judge<'a>(
    shoot: &str,
    writes: impl Iterator<Item = &'a Write>,
    counts: Counts<'_>,
    report: &mut Report,
) {
    let mut applied: Vec<&Write> = writes.filter(|write| write.applied).collect();
    applied.sort_by_key(|write| write.done);
    let mut replicas: BTreeMap<&str, u32> = counts.iter().copied().collect();
    for write in applied {
        let Some((name, is_scale)) = resource(&write.path) else {
            continue;
        };
        if let Some(to) = replicas_written(&write.body, is_scale) {
            if let Some(what) = too_early(name, to, counts, &replicas) {
                report.violations.push(order(shoot, what, write.done));
            }
            if let Some(now) = replicas.get_mut(name) {
                *now = to;
            }
        }
        if let Some(recorded) = write.body.pointer(RECORDED) {
            let expected = counts.iter().find(|(of, _)| *of == name);
            let expected = expected.map(|(_, count)| count.to_string());
            if recorded.as_str() != expected.as_deref() {
                report.violations.push(Violation::Count {
                    shoot: shoot.to_owned(),
                    what: format!("{name}: {recorded}"),
                    at: write.done,
                });
            }
        }
    }
}

/// The error in scaling a resource now, if any.
fn too_early(name: &str, to: u32, counts: Counts<'_>, replicas: &BTreeMap<&str, u32>) -> Option<String> {
    let place = counts.iter().position(|(of, _)| *of == name)?;
    let is_up = |(of, _): &&(&str, u32)| replicas.get(of).is_some_and(|now| *now > 0);
    let (direction, other) = if to > 0 {
        ("up", counts.iter().take(place).find(|other| !is_up(other))?)
    } else if place == 0 {
        ("down", counts.iter().skip(1).find(is_up)?)
    } else {
        return None;
    };
    Some(format!(
        "{name} was scaled {direction} although {}, of a level before, was not",
        other.0
    ))
}

fn order(shoot: &str, what: String, at: Timestamp) -> Violation {
    Violation::Order {
        shoot: shoot.to_owned(),
        what,
        at,
    }
}

/// The resource that a path names, and whether it is about its scale.
fn resource(path: &str) -> Option<(&str, bool)> {
    let name = path.split("/deployments/").nth(1)?;
    Some(match name.strip_suffix("/scale") {
        Some(name) => (name, true),
        None => (name, false),
    })
}

/// The replica count that a write sets, if it sets one. A scale leaves out a zero.
fn replicas_written(body: &Value, is_scale: bool) -> Option<u32> {
    match body.pointer("/spec/replicas") {
        Some(replicas) => u32::try_from(replicas.as_u64()?).ok(),
        None => is_scale.then_some(0),
    }
}
