//! Verdicts as a table.

use watchdog_proto::probe::v1::Verdict;

use super::status::{outcome_cell, valid_cell};
use super::table::{Cell, TextTable};
use super::{Frame, text};

/// One row for each verdict; with `wide`, also who observed it and the sentence.
pub(crate) fn render(verdicts: &[Verdict], wide: bool, frame: &Frame) -> String {
    let mut header = vec!["SHOOT", "OUTCOME", "EXPIRED", "SINCE", "VALID"];
    if wide {
        header.extend(["OBSERVER", "AGE", "MESSAGE"]);
    }
    let mut table = TextTable::new(header);
    for verdict in verdicts {
        let mut cells: Vec<Cell> = vec![
            verdict.shoot.as_str().into(),
            outcome_cell(verdict),
            text::share(verdict.evidence.as_ref()).into(),
            text::since(verdict.outcome_change_time.as_ref(), frame.now).into(),
            valid_cell(verdict),
        ];
        if wide {
            cells.push(verdict.observer.as_str().into());
            cells.push(text::sent_duration(verdict.age.as_ref()).into());
            cells.push(verdict.message.as_str().into());
        }
        table.row(cells);
    }
    table.render(frame)
}

#[cfg(test)]
mod tests {
    use watchdog_proto::probe::v1::{Outcome, SkipReason};

    use super::*;
    use crate::render::testing;

    #[test]
    fn wide_adds_the_observer_and_the_sentence() {
        let skipped = Verdict {
            skip_reason: SkipReason::Hibernating.into(),
            evidence: None,
            ..testing::verdict("shoot--a--c", Outcome::Skipped)
        };
        let verdicts = [testing::verdict("shoot--a--b", Outcome::LeasesExpired), skipped];
        assert_eq!(
            render(&verdicts, false, &testing::pipe()),
            "\
SHOOT        OUTCOME              EXPIRED      SINCE              VALID
shoot--a--b  LEASES_EXPIRED       100 % (6/6)  2m10s (00:37:50Z)  12s
shoot--a--c  SKIPPED HIBERNATING  -            2m10s (00:37:50Z)  12s
"
        );
        let wide = render(&verdicts, true, &testing::pipe());
        assert!(
            wide.contains("12s    lease-probe-0  1s   A sentence.\n"),
            "{wide}"
        );
    }
}
