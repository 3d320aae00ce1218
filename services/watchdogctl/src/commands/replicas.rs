//! `replicas`

use std::collections::BTreeMap;

use serde::Serialize;
use watchdog_proto::probe::v1::{self as probe, ListReplicasRequest, ListReplicasResponse};
use watchdog_proto::{scaling::v1 as scaling, weeder::v1 as weeder};

use super::CommandAnswer;
use crate::connect::ProgramDialer;
use crate::error::CommandError;
use crate::fetch::{all_pages, ask, missing};
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
    let (items, total, replicas, completeness) = match program {
        Program::LeaseProbe => {
            let client = dialer.lease_probe().await?;
            let request = probe::GetSeedSummaryRequest::default();
            let summary = ask(program, client.get_seed_summary(request)).await?.summary;
            let pages = all_pages(async |page_size, page_token| {
                let request = ListReplicasRequest {
                    page_size,
                    page_token,
                };
                ask(program, client.list_replicas(request)).await
            });
            let listed: ListReplicasResponse = pages.await?;
            let replicas = listed.replicas.into_iter();
            let replicas = replicas.map(|replica| (replica.name, replica.shoots)).collect();
            let total = summary.unwrap_or_default().shoots;
            ("shoots", total, replicas, listed.completeness)
        }
        Program::ScalingCoordinator => {
            let request = scaling::GetSeedSummaryRequest::default();
            let client = dialer.coordinator().await?;
            let answer = ask(program, client.get_seed_summary(request)).await?;
            let summary = answer.summary.unwrap_or_default();
            let leader = BTreeMap::from([(summary.leader, summary.shoots)]);
            ("shoots", summary.shoots, leader, answer.completeness)
        }
        Program::Weeder => {
            let request = weeder::GetSeedSummaryRequest::default();
            let client = dialer.weeder().await?;
            let answer = ask(program, client.get_seed_summary(request)).await?;
            let summary = answer.summary.unwrap_or_default();
            let leader = BTreeMap::from([(summary.leader, summary.services)]);
            ("services", summary.services, leader, answer.completeness)
        }
    };
    Ok(Shares {
        program,
        items,
        total,
        replicas,
        missing_replicas: missing(program, completeness.as_ref()),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::testing;

    #[test]
    fn a_missing_replica_stands_beside_those_that_own_something() {
        let shares = Shares {
            program: Program::LeaseProbe,
            items: "shoots",
            total: 4,
            replicas: BTreeMap::from([("lease-probe-0".to_owned(), 3), ("lease-probe-1".to_owned(), 1)]),
            missing_replicas: vec!["lease-probe-2".to_owned()],
        };
        let replicas = Replicas {
            programs: vec![shares],
        };
        let expected = "\
PROGRAM      REPLICA        STATE      OWNS      SHARE
lease-probe  lease-probe-0  connected  3 shoots  75 %
lease-probe  lease-probe-1  connected  1 shoots  25 %
lease-probe  lease-probe-2  missing    unknown   -
";
        assert_eq!(replicas.text(&testing::pipe()), expected);
        let value = serde_json::to_value(&replicas).unwrap();
        assert_eq!(value["programs"][0]["program"], "lease-probe");
        assert_eq!(value["programs"][0]["replicas"]["lease-probe-0"], 3);
        assert_eq!(value["programs"][0]["missingReplicas"][0], "lease-probe-2");
    }
}
