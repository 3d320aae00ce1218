//! `replicas`

use std::collections::BTreeMap;

use serde::Serialize;
use watchdog_proto::probe::v1::{ListReplicasRequest, ListReplicasResponse};

use super::CommandAnswer;
use crate::connect::ProgramDialer;
use crate::error::CommandError;
use crate::fetch::{self, all_pages, ask};
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
    let summary = fetch::summary(dialer, program).await?;
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
    /// Program, replica, whether it is missing, and how much it has, if that is known.
    fn rows(&self) -> impl Iterator<Item = (&Self, &str, bool, Option<u32>)> {
        let is_missing = |name: &String| self.missing_replicas.contains(name);
        let owning = self.replicas.iter();
        let owning = owning.map(move |(name, owns)| (self, name.as_str(), is_missing(name), Some(*owns)));
        let others = self.missing_replicas.iter();
        let others = others.filter(|name| !self.replicas.contains_key(*name));
        owning.chain(others.map(move |name| (self, name.as_str(), true, None)))
    }

    fn share(&self, owns: Option<u32>) -> String {
        let owns = owns.filter(|_| self.total > 0).map(f64::from);
        owns.map_or_else(
            || "-".to_owned(),
            |owns| text::percent(owns / f64::from(self.total)),
        )
    }
}

impl CommandAnswer for Replicas {
    fn text(&self, frame: &Frame) -> String {
        let owns = |of: &Shares, owns: Option<u32>| {
            owns.map_or_else(|| "unknown".to_owned(), |owns| format!("{owns} {}", of.items))
        };
        TextTable::of(self.programs.iter().flat_map(Shares::rows))
            .column("PROGRAM", |(of, ..)| of.program.as_str())
            .column("REPLICA", |(_, name, ..)| (*name).to_owned())
            .column("STATE", |(.., is_missing, _)| state(*is_missing))
            .column("OWNS", |(of, .., has)| owns(of, *has))
            .column("SHARE", |(of, .., has)| of.share(*has))
            .render(frame)
    }
}

fn state(is_missing: bool) -> Cell {
    if is_missing {
        Cell::styled(Style::Bad, "missing")
    } else {
        Cell::styled(Style::Good, "connected")
    }
}
