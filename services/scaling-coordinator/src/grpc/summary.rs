//! The scaling of a seed in numbers.

use std::collections::BTreeMap;

use watchdog_proto::scaling::v1 as pb;

/// Numbers of shoots. The maps go by the numbers of the enums.
#[derive(Debug, Default)]
pub(super) struct ScalingCounts {
    shoots: u32,
    directions: BTreeMap<i32, u32>,
    states: BTreeMap<i32, u32>,
    hold_reasons: BTreeMap<i32, u32>,
    modes: BTreeMap<i32, u32>,
    meltdown_protection_active: u32,
    incidents: u32,
}

impl ScalingCounts {
    pub(super) fn add(&mut self, scaling: &pb::ShootScaling) {
        self.shoots += 1;
        *self.directions.entry(scaling.direction).or_default() += 1;
        *self.states.entry(scaling.state).or_default() += 1;
        *self.modes.entry(scaling.mode).or_default() += 1;
        if scaling.direction() == pb::Direction::Hold {
            *self.hold_reasons.entry(scaling.hold_reason).or_default() += 1;
        }
        self.meltdown_protection_active += u32::from(scaling.meltdown_protection_active);
        self.incidents += u32::from(scaling.incident.is_some());
    }

    pub(super) fn summary(self, leader: &str) -> pb::SeedSummary {
        let directions = self.directions.into_iter();
        let states = self.states.into_iter();
        let hold_reasons = self.hold_reasons.into_iter();
        let modes = self.modes.into_iter();
        pb::SeedSummary {
            shoots: self.shoots,
            directions: directions
                .map(|(direction, shoots)| pb::DirectionCount { direction, shoots })
                .collect(),
            states: states
                .map(|(state, shoots)| pb::FlowStateCount { state, shoots })
                .collect(),
            hold_reasons: hold_reasons
                .map(|(hold_reason, shoots)| pb::HoldReasonCount { hold_reason, shoots })
                .collect(),
            modes: modes
                .map(|(mode, shoots)| pb::ModeCount { mode, shoots })
                .collect(),
            meltdown_protection_active: self.meltdown_protection_active,
            incidents: self.incidents,
            leader: leader.to_owned(),
        }
    }
}
