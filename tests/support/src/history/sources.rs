//! Where records come from: the sandbox, and the audit log of a real kube-apiserver.

use std::path::PathBuf;

use anyhow::Context;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;
use watchdog_sandbox::AuditEntry;

use super::Write;
use crate::log::LogReader;

/// The record of a sandbox.
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

/// The audit log of a kube-apiserver at level Request, which is read on from where it was read last.
#[derive(Debug)]
pub struct AuditFile {
    path: PathBuf,
    reader: Option<LogReader>,
    writes: Vec<Write>,
}

// === impl AuditFile ===

impl AuditFile {
    /// The log in this file, which need not be there before the first request.
    pub const fn new(path: PathBuf) -> Self {
        Self {
            path,
            reader: None,
            writes: Vec::new(),
        }
    }

    /// All writes at the stage `ResponseComplete` so far.
    pub fn writes(&mut self) -> anyhow::Result<&[Write]> {
        let reader = match &mut self.reader {
            Some(reader) => reader,
            none => none.insert(LogReader::new(&self.path)?),
        };
        while let Some(event) = reader.find(|line| Some(event(line.text)))? {
            let event = event?;
            if !matches!(event.verb.as_str(), "get" | "list" | "watch") {
                self.writes.push(event.into());
            }
        }
        Ok(&self.writes)
    }
}

fn event(line: &str) -> anyhow::Result<AuditEvent> {
    serde_json::from_str(line).with_context(|| format!("audit event {line:?}"))
}

impl From<AuditEvent> for Write {
    fn from(event: AuditEvent) -> Self {
        let is_good = |status: AuditStatus| (200..300).contains(&status.code);
        Self {
            at: event.request_received_timestamp,
            done: event.stage_timestamp,
            author: event.user.username,
            verb: event.verb,
            path: event.request_uri.split('?').next().unwrap_or_default().to_owned(),
            applied: event.response_status.is_some_and(is_good),
            body: event.request_object.unwrap_or_default(),
        }
    }
}
