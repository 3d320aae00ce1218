//! Scaling states as a table.

use watchdog_proto::scaling::v1::{Direction, FlowState, ResourceScaling, ResourceState, ShootScaling};

use super::status::waits_for;
use super::table::{Cell, Style, TextTable};
use super::{Frame, text};

/// One row for each shoot; with `wide`, also the replica that reports it and the reason.
pub(crate) fn render(scalings: &[ShootScaling], wide: bool, frame: &Frame) -> String {
    let mut header = vec!["SHOOT", "DIRECTION", "SINCE", "STATE", "LEVEL", "HELD DOWN"];
    if wide {
        header.extend(["REPLICA", "REASON"]);
    }
    header.push("WAITS FOR");
    let mut table = TextTable::new(header);
    for scaling in scalings {
        let mut cells: Vec<Cell> = vec![
            scaling.shoot.as_str().into(),
            direction_cell(scaling.direction()),
            text::since(scaling.direction_change_time.as_ref(), frame.now).into(),
            state_cell(scaling.state()),
            text::number(scaling.level).into(),
            held_down(scaling).into(),
        ];
        if wide {
            cells.push(scaling.replica.as_str().into());
            cells.push(scaling.reason.as_str().into());
        }
        cells.push(waits_for(scaling).into());
        table.row(cells);
    }
    table.render(frame)
}

const fn held_down(scaling: &ShootScaling) -> &'static str {
    if scaling.meltdown_protection_active {
        "yes"
    } else {
        "-"
    }
}

pub(crate) fn direction_cell(direction: Direction) -> Cell {
    let style = match direction {
        Direction::Down => Style::Bad,
        Direction::Hold => Style::Warn,
        _ => Style::Plain,
    };
    Cell::styled(style, text::direction(direction))
}

pub(crate) fn state_cell(state: FlowState) -> Cell {
    let style = match state {
        FlowState::Failed => Style::Bad,
        FlowState::Running => Style::Warn,
        _ => Style::Plain,
    };
    Cell::styled(style, text::flow_state(state))
}

/// The dependants of one shoot, in the order of their levels.
pub(crate) fn resources(resources: &[ResourceScaling], frame: &Frame) -> String {
    let mut table = TextTable::new([
        "DEPENDANT",
        "LEVEL",
        "STATE",
        "REPLICAS",
        "READY",
        "RECORDED",
        "TARGET",
        "NEXT",
    ])
    .indented(2);
    let mut ordered: Vec<&ResourceScaling> = resources.iter().collect();
    ordered.sort_by_key(|resource| resource.level);
    for resource in ordered {
        let style = match resource.state() {
            ResourceState::Failed | ResourceState::BackingOff => Style::Bad,
            ResourceState::Reached | ResourceState::Absent | ResourceState::Ignored => Style::Plain,
            _ => Style::Warn,
        };
        table.row([
            text::resource(resource.resource.as_ref()).into(),
            text::number(resource.level).into(),
            Cell::styled(style, text::resource_state(resource.state())),
            text::number(resource.spec_replicas).into(),
            text::number(resource.ready_replicas).into(),
            text::number(resource.recorded_replicas).into(),
            text::number(resource.target_replicas).into(),
            resource.message.as_str().into(),
        ]);
    }
    table.render(frame)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::testing;

    #[test]
    fn a_row_says_where_a_shoot_goes() {
        let scalings = [testing::scaling_down("shoot--a--b")];
        let expected = "\
SHOOT        DIRECTION  SINCE              STATE    LEVEL  HELD DOWN  WAITS FOR
shoot--a--b  down       2m09s (00:37:51Z)  running  1      yes        kube-controller-manager WAITING: \
    It has 1 ready replica.
";
        assert_eq!(render(&scalings, false, &testing::pipe()), expected);
        let wide = render(&scalings, true, &testing::pipe());
        assert!(
            wide.contains("scaling-coordinator-0  The nodes are cut off.  "),
            "{wide}"
        );
    }

    #[test]
    fn dependants_stand_in_the_order_of_their_levels() {
        let shown = resources(&testing::scaling_down("a").resources, &testing::pipe());
        let expected = "  \
  DEPENDANT                              LEVEL  STATE    REPLICAS  READY  RECORDED  TARGET  NEXT
  Deployment/machine-controller-manager  0      REACHED  0         1      1         0       It has 1 ready replica.
  Deployment/kube-controller-manager     1      WAITING  0         1      1         0       It has 1 ready replica.
";
        assert_eq!(shown.trim_start(), expected.trim_start());
    }
}
