//! The services and weeders of a seed in numbers.

use std::collections::BTreeMap;

use watchdog_proto::weeder::v1 as pb;

/// Numbers of services and weeders, by the numbers of the enums.
#[derive(Debug, Default)]
pub(super) struct WeederCounts {
    readiness: BTreeMap<i32, u32>,
    weeders: BTreeMap<i32, u32>,
}

impl WeederCounts {
    pub(super) fn add_service(&mut self, service: &pb::EndpointReadiness) {
        *self.readiness.entry(service.readiness).or_default() += 1;
    }

    pub(super) fn add_weeder(&mut self, weeder: &pb::Weeder) {
        *self.weeders.entry(weeder.state).or_default() += 1;
    }

    pub(super) fn summary(self, leader: &str) -> pb::SeedSummary {
        let services = self.readiness.values().sum();
        let readiness = self.readiness.into_iter();
        let weeders = self.weeders.into_iter();
        pb::SeedSummary {
            services,
            readiness: readiness
                .map(|(readiness, services)| pb::ReadinessCount { readiness, services })
                .collect(),
            weeders: weeders
                .map(|(state, weeders)| pb::WeederStateCount { state, weeders })
                .collect(),
            leader: leader.to_owned(),
        }
    }
}
