//! The plan of a direction.

use watchdog_proto::scaling::v1::{Action, PlanScalingResponse, PlannedResource};

use super::table::{Cell, Style, TextTable};
use super::{Frame, text};

/// The levels in the order in which they would run.
pub(crate) fn render(direction: &str, plan: &PlanScalingResponse, frame: &Frame) -> String {
    let (style, head) = match (plan.allowed, is_done(plan)) {
        (false, _) => (Style::Bad, format!("would NOT be scaled {direction}")),
        (true, true) => (Style::Good, format!("is scaled {direction} already")),
        (true, false) => (Style::Warn, format!("would be scaled {direction}")),
    };
    let mut out = format!("{}: {}\n", frame.paint(style, &head), plan.reason);
    let mut table = TextTable::new([
        "LEVEL",
        "DEPENDANT",
        "ACTION",
        "REPLICAS",
        "DELAY",
        "TIMEOUT",
        "WHY",
    ])
    .indented(2);
    for level in &plan.levels {
        for resource in &level.resources {
            table.row(cells(level.level, resource));
        }
    }
    if table.is_empty() {
        out.push_str("  No dependant is configured for this direction.\n");
    } else {
        out.push_str(&table.render(frame));
    }
    out
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

fn cells(level: i32, resource: &PlannedResource) -> Vec<Cell> {
    let style = match resource.action() {
        Action::Scale => Style::Warn,
        Action::FailAbsent => Style::Bad,
        _ => Style::Plain,
    };
    let replicas = match resource.target_replicas {
        Some(target) => format!("{} -> {target}", text::number(resource.spec_replicas)),
        None => text::number(resource.spec_replicas),
    };
    vec![
        level.to_string().into(),
        text::resource(resource.resource.as_ref()).into(),
        Cell::styled(style, text::action(resource.action())),
        replicas.into(),
        text::sent_duration(resource.initial_delay.as_ref()).into(),
        text::sent_duration(resource.timeout.as_ref()).into(),
        resource.reason.as_str().into(),
    ]
}

#[cfg(test)]
mod tests {
    use watchdog_proto::scaling::v1::PlannedLevel;

    use super::*;
    use crate::render::testing;

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
        assert_eq!(render("down", &plan(scaled.clone()), &testing::pipe()), expected);
        let done = PlannedResource {
            action: Action::None.into(),
            ..scaled
        };
        let text = render("down", &plan(done), &testing::pipe());
        assert!(text.starts_with("is scaled down already: "), "{text}");
    }

    #[test]
    fn a_plan_that_is_not_allowed_says_so_first() {
        let plan = PlanScalingResponse {
            reason: "The shoot hibernates.".to_owned(),
            ..Default::default()
        };
        let text = render("up", &plan, &testing::pipe());
        assert!(
            text.starts_with("would NOT be scaled up: The shoot hibernates.\n"),
            "{text}"
        );
    }
}
