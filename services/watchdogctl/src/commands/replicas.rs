//! `replicas`

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;
use watchdog_proto::probe::v1::ListReplicasRequest;

use super::WrittenAnswer;
use crate::connect::ProgramDialer;
use crate::error::CommandResult;
use crate::fetch::ProgramSummary;
use crate::program::Program;
use crate::render::table::{Cell, TextTable};
use crate::render::{Frame, Style, text};

/// A row for each replica, with the shoots or services that it probes or acts on.
pub(crate) async fn read(dialer: &ProgramDialer, frame: &Frame) -> CommandResult<WrittenAnswer> {
    let (mut rows, mut programs) = (Vec::new(), Vec::new());
    for program in dialer.programs() {
        let summary = dialer.summary(program).await?;
        let replicas = shares(dialer, &summary).await?;
        let items = match program {
            Program::Weeder => "services",
            _ => "shoots",
        };
        let names: BTreeSet<&String> = replicas.keys().chain(&summary.missing).collect();
        for name in names {
            let state = if summary.missing.contains(name) {
                Cell::styled(Style::Bad, "missing")
            } else {
                Cell::styled(Style::Good, "connected")
            };
            let owns = replicas.get(name).copied();
            let share = owns.filter(|_| summary.items > 0);
            let share = share.map(|owns| text::percent(f64::from(owns) / f64::from(summary.items)));
            let owns = owns.map_or_else(|| "unknown".to_owned(), |owns| format!("{owns} {items}"));
            rows.push((program, name.clone(), state, owns, text::shown(share)));
        }
        programs.push(json!({
            "program": program.as_str(), "items": items, "replicas": replicas, "missingReplicas": summary.missing,
        }));
    }
    let table = TextTable::of(rows)
        .column("PROGRAM", |row| row.0.as_str())
        .column("REPLICA", |row| row.1.clone())
        .column("STATE", |row| row.2.clone())
        .column("OWNS", |row| row.3.clone())
        .column("SHARE", |row| row.4.clone());
    let value = json!({"programs": programs});
    WrittenAnswer::of(frame, table.render(frame), value)
}

/// Two replicas of lease-probe probe each shoot. Of the others, the leader acts on everything.
async fn shares(dialer: &ProgramDialer, summary: &ProgramSummary) -> CommandResult<BTreeMap<String, u32>> {
    if let Some(leader) = &summary.leader {
        let leader = Some(leader.clone()).filter(|leader| !leader.is_empty());
        return Ok(leader.map(|leader| (leader, summary.items)).into_iter().collect());
    }
    let all = ListReplicasRequest::default();
    let listed = dialer.all_pages(Program::LeaseProbe, all).await?;
    let replicas = listed.replicas.into_iter();
    Ok(replicas.map(|replica| (replica.name, replica.shoots)).collect())
}
