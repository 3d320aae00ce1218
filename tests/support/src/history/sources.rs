//! Where records come from: the sandbox, and the audit log of a real kube-apiserver.

use std::path::Path;

use anyhow::Context;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;
use watchdog_sandbox::AuditEntry;

use super::Write;

/// The record of a sandbox.
#[must_use]
pub fn from_sandbox(entries: &[AuditEntry]) -> Vec<Write> {
    let writes = entries.iter().filter(|entry| entry.is_write());
    writes
        .map(|entry| Write {
            at: entry.time,
            done: entry.done,
            author: entry.user.clone(),
            verb: entry.verb.to_owned(),
            path: entry.path.clone(),
            // Unanswered, but with its body read: a fault that applies and then hangs.
            applied: match entry.code {
                0 => !entry.body.is_empty(),
                code => (200..300).contains(&code),
            },
            body: serde_json::from_slice(&entry.body).unwrap_or_default(),
        })
        .collect()
}

/// An event of `audit.k8s.io/v1`, as far as it is read.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AuditEvent {
    #[serde(rename = "requestURI")]
    request_uri: String,
    verb: String,
    user: User,
    request_received_timestamp: Timestamp,
    stage_timestamp: Timestamp,
    response_status: Option<AuditStatus>,
    request_object: Option<Value>,
}

#[derive(Deserialize)]
struct User {
    username: String,
}

#[derive(Deserialize)]
struct AuditStatus {
    code: u16,
}

/// The record in the audit log of a kube-apiserver: the writes at the fixture `ResponseComplete`, at level Request.
///
/// # Errors
/// When the file cannot be read or a line is no audit event.
pub fn from_audit_log(path: &Path) -> anyhow::Result<Vec<Write>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    let mut writes = Vec::new();
    // The last line may still be written.
    let complete = text
        .rfind('\n')
        .map_or("", |end| text.get(..end).unwrap_or_default());
    for line in complete.lines() {
        let event: AuditEvent =
            serde_json::from_str(line).with_context(|| format!("audit event {line:?}"))?;
        if matches!(event.verb.as_str(), "get" | "list" | "watch") {
            continue;
        }
        let path = event.request_uri.split('?').next().unwrap_or_default().to_owned();
        writes.push(Write {
            at: event.request_received_timestamp,
            done: event.stage_timestamp,
            author: event.user.username,
            verb: event.verb,
            path,
            applied: event
                .response_status
                .is_some_and(|status| (200..300).contains(&status.code)),
            body: event.request_object.unwrap_or_default(),
        });
    }
    Ok(writes)
}
