//! `replicas`

use std::collections::BTreeMap;

use serde::Serialize;
use watchdog_proto::probe::v1::{ListReplicasRequest, ListReplicasResponse};

use super::CommandAnswer;
use crate::connect::ProgramDialer;
use crate::error::CommandError;
use crate::fetch::{all_pages, ask};
use crate::program::Program;
use crate::render::Frame;
use crate::render::table::{Cell, Style, TextTable};
use crate::render::text;

/// The replicas of all programs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Replicas {
    programs: Vec<Shares>,
}

/// The shoots or services that each replica of a program probes or acts on.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Shares {
    program: Program,
    /// `shoots` or `services`.
    items: &'static str,
    /// All of them on the seed.
    #[serde(skip)]
    total: u32,
    /// How many each replica has.
    replicas: BTreeMap<String, u32>,
    missing_replicas: Vec<String>,
}

pub(crate) async fn read(dialer: &ProgramDialer) -> Result<Replicas, CommandError> {
    let mut programs = Vec::new();
    for program in dialer.programs() {
        programs.push(shares(dialer, program).await?);
    }
    Ok(Replicas { programs })
}

/// Two replicas of lease-probe probe each shoot. Of the others, the leader acts on everything.
async fn shares(dialer: &ProgramDialer, program: Program) -> Result<Shares, CommandError> {
    let summary = dialer.summary(program).await?;
    let replicas = match summary.leader {
        Some(leader) => BTreeMap::from([(leader, summary.items)]),
        None => {
            let client = dialer.lease_probe().await?;
            let pages = all_pages(async |page_size, page_token| {
                let request = ListReplicasRequest {
                    page_size,
                    page_token,
                };
                ask(program, client.list_replicas(request)).await
            });
            let listed: ListReplicasResponse = pages.await?;
            let replicas = listed.replicas.into_iter();
            replicas.map(|replica| (replica.name, replica.shoots)).collect()
        }
    };
    Ok(Shares {
        program,
        items: if program == Program::Weeder {
            "services"
        } else {
            "shoots"
        },
        total: summary.items,
        replicas,
        missing_replicas: summary.missing,
    })
}

impl Shares {
    fn state(&self, replica: &String) -> Cell {
        if self.missing_replicas.contains(replica) {
            Cell::styled(Style::Bad, "missing")
        } else {
            Cell::styled(Style::Good, "connected")
        }
    }

    fn owns(&self, owns: Option<u32>) -> String {
        owns.map_or_else(|| "unknown".to_owned(), |owns| format!("{owns} {}", self.items))
    }

    fn share(&self, owns: Option<u32>) -> String {
        let owns = owns.filter(|_| self.total > 0).map(f64::from);
        text::shown(owns.map(|owns| text::percent(owns / f64::from(self.total))))
    }
}

impl CommandAnswer for Replicas {
    fn text(&self, frame: &Frame) -> String {
        let mut rows = Vec::new();
        for of in &self.programs {
            rows.extend(of.replicas.iter().map(|(name, owns)| (of, name, Some(*owns))));
            let others = of.missing_replicas.iter();
            let others = others.filter(|name| !of.replicas.contains_key(*name));
            rows.extend(others.map(|name| (of, name, None)));
        }
        TextTable::of(rows)
            .column("PROGRAM", |(of, ..)| of.program.as_str())
            .column("REPLICA", |(_, name, _)| (*name).clone())
            .column("STATE", |(of, name, _)| of.state(name))
            .column("OWNS", |(of, _, owns)| of.owns(*owns))
            .column("SHARE", |(of, _, owns)| of.share(*owns))
            .render(frame)
    }
}
