//! `verdicts`

use watchdog_proto::probe::v1::ListVerdictsResponse;

use super::CommandAnswer;
use crate::api_message::ApiMessage;
use crate::args::VerdictsArgs;
use crate::connect::ProgramDialer;
use crate::error::CommandError;
use crate::fetch::{self, of_shoots};
use crate::program::Program;
use crate::render::table::TextTable;
use crate::render::{self, Format, Frame, cells, text};

pub(crate) type Verdicts = ApiMessage<ListVerdictsResponse>;

pub(crate) async fn read(dialer: &ProgramDialer, args: &VerdictsArgs) -> Result<Verdicts, CommandError> {
    let client = dialer.lease_probe().await?;
    if !args.shoots.is_empty() {
        let get = async |shoot: &str| {
            let answer = fetch::verdict(&client, shoot).await?;
            Ok((answer.verdict, answer.completeness))
        };
        return of_shoots(&args.shoots, get).await.map(ApiMessage);
    }
    fetch::verdicts(&client, &args.outcome).await.map(ApiMessage)
}

impl CommandAnswer for Verdicts {
    /// One row for each verdict; a wide table also has who observed it and the sentence.
    fn text(&self, frame: &Frame) -> String {
        let wide = frame.format == Format::Wide;
        let table = TextTable::of(&self.verdicts)
            .column("SHOOT", |verdict| verdict.shoot.clone())
            .column("OUTCOME", |verdict| cells::outcome(verdict))
            .column("EXPIRED", |verdict| {
                text::shown(verdict.evidence.as_ref().map(text::share))
            })
            .column("SINCE", |verdict| {
                text::since(verdict.outcome_change_time, frame.now)
            })
            .column("VALID", |verdict| cells::valid(verdict))
            .column_if(wide, "OBSERVER", |verdict| verdict.observer.clone())
            .column_if(wide, "AGE", |verdict| text::sent_duration(verdict.age))
            .column_if(wide, "MESSAGE", |verdict| verdict.message.clone());
        let missing = fetch::missing(Program::LeaseProbe, self.completeness.as_ref());
        render::missing(&missing, frame) + &table.render(frame)
    }

    fn headline(&self, _: &Frame) -> String {
        format!("{} verdicts", self.total_size)
    }
}

#[cfg(test)]
mod tests {
    use watchdog_proto::probe::v1::{Outcome, SkipReason, Verdict};

    use watchdog_client::message::COMPLETE;

    use super::*;
    use crate::render::testing;

    #[test]
    fn wide_adds_the_observer_and_the_sentence() {
        let skipped = Verdict {
            skip_reason: SkipReason::Hibernating.into(),
            evidence: None,
            ..testing::verdict("shoot--a--c", Outcome::Skipped)
        };
        let verdicts = vec![testing::verdict("shoot--a--b", Outcome::LeasesExpired), skipped];
        let list = ApiMessage(ListVerdictsResponse {
            verdicts,
            completeness: Some(COMPLETE),
            ..ListVerdictsResponse::default()
        });
        assert_eq!(
            list.text(&testing::pipe()),
            "\
SHOOT        OUTCOME              EXPIRED      SINCE              VALID
shoot--a--b  LEASES_EXPIRED       100 % (6/6)  2m10s (00:37:50Z)  12s
shoot--a--c  SKIPPED HIBERNATING  -            2m10s (00:37:50Z)  12s
"
        );
        let wide = list.text(&testing::wide());
        assert!(
            wide.contains("12s    lease-probe-0  1s   A sentence.\n"),
            "{wide}"
        );
    }
}
