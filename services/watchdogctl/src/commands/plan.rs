//! `plan`

use serde::Serialize;
use watchdog_proto::scaling::v1::{
    Action, Direction, PlanScalingRequest, PlanScalingResponse, PlannedResource,
};

use super::CommandAnswer;
use crate::api_message::ApiMessage;
use crate::connect::ProgramDialer;
use crate::error::CommandError;
use crate::fetch;
use crate::program::Program;
use crate::render::table::{Cell, Style, TextTable};
use crate::render::{Frame, text};

/// The effect of a direction on a shoot.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(transparent)]
pub(crate) struct DirectionPlan {
    #[serde(skip)]
    pub(crate) shoot: String,
    #[serde(skip)]
    pub(crate) direction: Direction,
    pub(crate) plan: ApiMessage<PlanScalingResponse>,
}

pub(crate) async fn read(
    dialer: &ProgramDialer,
    shoot: &str,
    direction: Direction,
) -> Result<DirectionPlan, CommandError> {
    let request = PlanScalingRequest {
        shoot: shoot.to_owned(),
        direction: direction.into(),
    };
    let client = dialer.coordinator().await?;
    let plan = fetch::ask(Program::ScalingCoordinator, client.plan_scaling(request)).await?;
    Ok(DirectionPlan {
        shoot: shoot.to_owned(),
        direction,
        plan: ApiMessage(plan),
    })
}

impl CommandAnswer for DirectionPlan {
    fn text(&self, frame: &Frame) -> String {
        format!("{} {}", self.shoot, self.levels(frame))
    }
}

impl DirectionPlan {
    /// The levels in the order in which they would run.
    pub(crate) fn levels(&self, frame: &Frame) -> String {
        let (plan, direction) = (&self.plan, text::direction(self.direction));
        let (style, head) = match (plan.allowed, is_done(plan)) {
            (false, _) => (Style::Bad, format!("would NOT be scaled {direction}")),
            (true, true) => (Style::Good, format!("is scaled {direction} already")),
            (true, false) => (Style::Warn, format!("would be scaled {direction}")),
        };
        let levels = plan.levels.iter();
        let rows = levels.flat_map(|level| level.resources.iter().map(|resource| (level.level, resource)));
        let table = TextTable::of(rows)
            .indented(2)
            .column("LEVEL", |(level, _)| level.to_string())
            .column("DEPENDANT", |(_, one)| text::resource(one.resource.as_ref()))
            .column("ACTION", |(_, one)| action(one.action()))
            .column("REPLICAS", |(_, one)| replicas(one))
            .column("DELAY", |(_, one)| text::sent_duration(one.initial_delay))
            .column("TIMEOUT", |(_, one)| text::sent_duration(one.timeout))
            .column("WHY", |(_, one)| one.reason.clone());
        let levels = match table.render_rows(frame) {
            none if none.is_empty() => "  No dependant is configured for this direction.\n".to_owned(),
            levels => levels,
        };
        format!("{}: {}\n{levels}", frame.paint(style, &head), plan.reason)
    }
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

fn action(action: Action) -> Cell {
    let style = match action {
        Action::Scale => Style::Warn,
        Action::FailAbsent => Style::Bad,
        _ => Style::Plain,
    };
    Cell::styled(style, text::bare(action.as_str_name(), "ACTION_"))
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

    fn shown(direction: Direction, plan: PlanScalingResponse) -> String {
        let plan = DirectionPlan {
            shoot: String::new(),
            direction,
            plan: ApiMessage(plan),
        };
        plan.levels(&testing::pipe())
    }

    #[test]
    fn each_level_names_its_dependants() {
        let scaled = PlannedResource {
            resource: testing::resource("cluster-autoscaler", 0, Default::default()).resource,
            action: Action::Scale.into(),
            spec_replicas: Some(1),
            target_replicas: Some(0),
            initial_delay: testing::seconds(0),
            timeout: testing::seconds(30),
            reason: "It has 1 replica.".to_owned(),
        };
        let plan = |resource| PlanScalingResponse {
            levels: vec![PlannedLevel {
                level: 0,
                resources: vec![resource],
            }],
            allowed: true,
            reason: "The shoot is protected.".to_owned(),
        };
        let expected = "\
would be scaled down: The shoot is protected.
  LEVEL  DEPENDANT                      ACTION  REPLICAS  DELAY  TIMEOUT  WHY
  0      Deployment/cluster-autoscaler  SCALE   1 -> 0    0s     30s      It has 1 replica.
";
        assert_eq!(shown(Direction::Down, plan(scaled.clone())), expected);
        let done = PlannedResource {
            action: Action::None.into(),
            ..scaled
        };
        let text = shown(Direction::Down, plan(done));
        assert!(text.starts_with("is scaled down already: "), "{text}");
    }

    #[test]
    fn a_plan_that_is_not_allowed_says_so_first() {
        let plan = PlanScalingResponse {
            reason: "The shoot hibernates.".to_owned(),
            ..Default::default()
        };
        let text = shown(Direction::Up, plan);
        assert!(
            text.starts_with("would NOT be scaled up: The shoot hibernates.\n"),
            "{text}"
        );
    }
}
