//! The replicas of each program and their shares.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::table::{Cell, Style, TextTable};
use super::{Frame, text};

/// A program, and how much each of its replicas owns.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Shares {
    /// The name of the program.
    pub(crate) program: &'static str,
    /// The items that are shared: shoots or services.
    pub(crate) items: &'static str,
    /// Owner to number.
    pub(crate) owned: BTreeMap<String, usize>,
    /// Replicas that are known and were not reached.
    pub(crate) missing: Vec<String>,
}

pub(crate) fn render(programs: &[Shares], frame: &Frame) -> String {
    let mut table = TextTable::new(["PROGRAM", "REPLICA", "STATE", "OWNS", "SHARE"]);
    for shares in programs {
        let all: usize = shares.owned.values().sum();
        for (replica, owned) in &shares.owned {
            let is_missing = shares.missing.contains(replica);
            let fraction = *owned as f64 / all.max(1) as f64;
            let name = if replica.is_empty() { "(none)" } else { replica };
            table.row([
                shares.program.into(),
                name.into(),
                state(is_missing),
                format!("{owned} {}", shares.items).into(),
                text::percent(fraction).into(),
            ]);
        }
        for replica in shares
            .missing
            .iter()
            .filter(|name| !shares.owned.contains_key(*name))
        {
            let unknown = "unknown";
            table.row([
                shares.program.into(),
                replica.as_str().into(),
                state(true),
                unknown.into(),
                "-".into(),
            ]);
        }
        if shares.owned.is_empty() && shares.missing.is_empty() {
            table.row([
                shares.program.into(),
                "-".into(),
                Cell::styled(Style::Warn, "nothing is owned"),
                format!("0 {}", shares.items).into(),
                "-".into(),
            ]);
        }
    }
    table.render(frame)
}

/// The same for programs.
pub(crate) fn value(programs: &[Shares]) -> Value {
    let program = |shares: &Shares| {
        json!({
            "program": shares.program,
            "items": shares.items,
            "replicas": shares.owned,
            "missingReplicas": shares.missing,
        })
    };
    json!({"programs": programs.iter().map(program).collect::<Vec<_>>()})
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
            program: "lease-probe",
            items: "shoots",
            owned: BTreeMap::from([("lease-probe-0".to_owned(), 3), ("lease-probe-1".to_owned(), 1)]),
            missing: vec!["lease-probe-2".to_owned()],
        };
        let expected = "\
PROGRAM      REPLICA        STATE      OWNS      SHARE
lease-probe  lease-probe-0  connected  3 shoots  75 %
lease-probe  lease-probe-1  connected  1 shoots  25 %
lease-probe  lease-probe-2  missing    unknown   -
";
        assert_eq!(render(std::slice::from_ref(&shares), &testing::pipe()), expected);
        let value = value(&[shares]);
        assert_eq!(value["programs"][0]["replicas"]["lease-probe-0"], 3);
        assert_eq!(value["programs"][0]["missingReplicas"][0], "lease-probe-2");
    }
}
