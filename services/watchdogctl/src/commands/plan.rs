//! `plan`

use watchdog_proto::scaling::v1::{
    Action, Direction, PlanScalingRequest, PlanScalingResponse, PlannedResource, ShootScaling,
};

use super::WrittenAnswer;
use crate::api_message::ApiMessage;
use crate::connect::ProgramDialer;
use crate::error::{CommandError, CommandResult};
use crate::program::Program;
use crate::render::table::TextTable;
use crate::render::{Frame, Style, cells, text};

/// The plan of a direction for a shoot.
pub(crate) async fn of_direction(
    dialer: &ProgramDialer,
    shoot: &str,
    direction: Direction,
) -> CommandResult<ApiMessage<PlanScalingResponse>> {
    let request = PlanScalingRequest {
        shoot: shoot.to_owned(),
        direction: direction.into(),
    };
    dialer
        .ask(Program::ScalingCoordinator, request)
        .await
        .map(ApiMessage)
}

pub(crate) async fn read(
    dialer: &ProgramDialer,
    shoot: &str,
    direction: Direction,
    frame: &Frame,
) -> CommandResult<WrittenAnswer> {
    let scaling = dialer.scaling(shoot).await?.scaling;
    let scaling = scaling.ok_or_else(|| CommandError::unexpected("an answer has no scaling"))?;
    let plan = of_direction(dialer, shoot, direction).await?;
    let text = format!("{shoot} {}", levels(&plan, direction, &scaling, frame));
    WrittenAnswer::of(frame, text, plan)
}

/// The effect of a direction on a shoot now and its reason, and the levels in the order in which they would run.
pub(crate) fn levels(
    plan: &PlanScalingResponse,
    direction: Direction,
    scaling: &ShootScaling,
    frame: &Frame,
) -> String {
    let direction = text::value(direction.as_str_name());
    let now = text::value(scaling.direction().as_str_name());
    let (style, head, why) = if !plan.allowed {
        (
            Style::Bad,
            format!("would NOT be scaled {direction}"),
            &plan.reason,
        )
    } else if is_done(plan) {
        (
            Style::Good,
            format!("is scaled {direction} already"),
            &plan.reason,
        )
    } else if now == direction {
        (Style::Warn, format!("would be scaled {direction}"), &plan.reason)
    } else {
        // The program may act, but the verdict does not want this direction.
        let head = format!("would NOT be scaled {direction}, because its direction is {now}");
        (Style::Bad, head, &scaling.reason)
    };
    let levels = plan.levels.iter();
    let rows = levels.flat_map(|level| level.resources.iter().map(|resource| (level.level, resource)));
    let table = TextTable::of(rows)
        .indented(2)
        .column("LEVEL", |(level, _)| level.to_string())
        .column("DEPENDANT", |(_, one)| text::resource(one.resource.as_ref()))
        .column("ACTION", |(_, one)| cells::value(one.action().as_str_name()))
        .column("REPLICAS", |(_, one)| replicas(one))
        .column("DELAY", |(_, one)| text::sent_duration(one.initial_delay))
        .column("TIMEOUT", |(_, one)| text::sent_duration(one.timeout))
        .column("WHY", |(_, one)| one.reason.clone());
    let levels = if plan.levels.is_empty() {
        "  No dependant is configured for this direction.\n".to_owned()
    } else {
        table.render(frame)
    };
    format!("{}: {why}\n{levels}", frame.paint(style, &head))
}

/// True if there are dependants, and nothing is left to do with any of them.
fn is_done(plan: &PlanScalingResponse) -> bool {
    let mut actions = plan
        .levels
        .iter()
        .flat_map(|level| &level.resources)
        .map(PlannedResource::action)
        .peekable();
    actions.peek().is_some()
        && actions.all(|action| matches!(action, Action::None | Action::Ignore | Action::SkipAbsent))
}

fn replicas(resource: &PlannedResource) -> String {
    let now = text::shown(resource.spec_replicas);
    match resource.target_replicas {
        Some(target) => format!("{now} -> {target}"),
        None => now,
    }
}

#[cfg(test)]
mod tests {
    use watchdog_proto::scaling::v1::PlannedLevel;

    use super::*;
    use crate::render::testing;

    /// Of a shoot whose direction is down.
    fn shown(direction: Direction, plan: PlanScalingResponse) -> String {
        levels(&plan, direction, &testing::scaling_down("a"), &testing::pipe())
    }

    #[test]
    fn each_level_names_its_dependants_and_the_head_says_what_would_happen() {
        let scaled = PlannedResource {
            resource: testing::resource("cluster-autoscaler", 0, Default::default()).resource,
            action: Action::Scale.into(),
            spec_replicas: Some(1),
            target_replicas: Some(0),
            initial_delay: testing::seconds(0),
            timeout: testing::seconds(30),
            reason: "It has 1 replica.".to_owned(),
        };
        let done = PlannedResource {
            action: Action::None.into(),
            ..scaled.clone()
        };
        let plan = |resource: &PlannedResource, allowed| PlanScalingResponse {
            levels: vec![PlannedLevel {
                level: 0,
                resources: vec![resource.clone()],
            }],
            allowed,
            reason: "Why.".to_owned(),
        };
        let expected = "\
would be scaled down: Why.
  LEVEL  DEPENDANT                      ACTION  REPLICAS  DELAY  TIMEOUT  WHY
  0      Deployment/cluster-autoscaler  SCALE   1 -> 0    0s     30s      It has 1 replica.
";
        assert_eq!(shown(Direction::Down, plan(&scaled, true)), expected);
        for (direction, plan, head) in [
            (
                Direction::Down,
                plan(&done, true),
                "is scaled down already: Why.\n",
            ),
            (
                Direction::Up,
                plan(&scaled, false),
                "would NOT be scaled up: Why.\n",
            ),
            (
                Direction::Up,
                plan(&scaled, true),
                "would NOT be scaled up, because its direction is down: The nodes are cut off.\n",
            ),
        ] {
            let text = shown(direction, plan);
            assert!(text.starts_with(head), "{text}");
        }
    }
}
