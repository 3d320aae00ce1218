//! `scaling`

use watchdog_proto::scaling::v1::{ListScalingRequest, ListScalingResponse, ShootScaling};

use super::CommandAnswer;
use crate::api_message::ApiMessage;
use crate::args::ScalingArgs;
use crate::connect::ProgramDialer;
use crate::error::CommandError;
use crate::fetch::{self, of_shoots};
use crate::program::Program;
use crate::render::table::TextTable;
use crate::render::{self, Format, Frame, cells, text};

pub(crate) type Scalings = ApiMessage<ListScalingResponse>;

pub(crate) async fn read(dialer: &ProgramDialer, args: &ScalingArgs) -> Result<Scalings, CommandError> {
    let client = dialer.coordinator().await?;
    if !args.shoots.is_empty() {
        let get = async |shoot: &str| {
            let answer = fetch::scaling(&client, shoot).await?;
            Ok((answer.scaling, answer.completeness))
        };
        return of_shoots(&args.shoots, get).await.map(ApiMessage);
    }
    let directions = args.direction.iter().map(|direction| (*direction).into());
    let filter = ListScalingRequest {
        directions: directions.collect(),
        ..ListScalingRequest::default()
    };
    fetch::scalings(&client, filter).await.map(ApiMessage)
}

impl CommandAnswer for Scalings {
    /// One row for each shoot; a wide table also has the replica that reports it and the reason.
    fn text(&self, frame: &Frame) -> String {
        let wide = frame.format == Format::Wide;
        let table = TextTable::of(&self.scalings)
            .column("SHOOT", |scaling| scaling.shoot.clone())
            .column("DIRECTION", |scaling| cells::direction(scaling.direction()))
            .column("SINCE", |scaling| {
                text::since(scaling.direction_change_time, frame.now)
            })
            .column("STATE", |scaling| cells::flow_state(scaling.state()))
            .column("LEVEL", |scaling| text::shown(scaling.level))
            .column("HELD DOWN", |scaling| held_down(scaling))
            .column_if(wide, "REPLICA", |scaling| scaling.replica.clone())
            .column_if(wide, "REASON", |scaling| scaling.reason.clone())
            .column("WAITS FOR", |scaling| cells::waits_for(scaling));
        let missing = fetch::missing(Program::ScalingCoordinator, self.completeness.as_ref());
        render::missing(&missing, frame) + &table.render(frame)
    }

    fn headline(&self, _: &Frame) -> String {
        format!("{} shoots", self.total_size)
    }
}

const fn held_down(scaling: &ShootScaling) -> &'static str {
    if scaling.meltdown_protection_active {
        "yes"
    } else {
        "-"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::testing;

    #[test]
    fn a_row_says_where_a_shoot_goes() {
        let list = ApiMessage(ListScalingResponse {
            scalings: vec![testing::scaling_down("shoot--a--b")],
            ..ListScalingResponse::default()
        });
        let expected = "\
SHOOT        DIRECTION  SINCE              STATE    LEVEL  HELD DOWN  WAITS FOR
shoot--a--b  down       2m09s (00:37:51Z)  running  1      yes        kube-controller-manager WAITING: \
    It has 1 ready replica.
";
        assert_eq!(list.text(&testing::pipe()), expected);
        let wide = list.text(&testing::wide());
        assert!(
            wide.contains("scaling-coordinator-0  The nodes are cut off.  "),
            "{wide}"
        );
    }
}
