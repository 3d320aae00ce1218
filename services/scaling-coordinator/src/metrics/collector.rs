//! The series of every shoot, read at the scrape.

use std::collections::BTreeMap;
use std::sync::Arc;

use watchdog_api::policy::ModeInForce;
use watchdog_runtime::metrics::{Collector, Exposition};
use watchdog_watch_stream::server::StateStore;

use crate::controller::verdicts::VerdictTable;
use crate::controller::write_counts::WriteCounts;
use crate::domain::Direction;
use crate::domain::decision::HoldReason;
use crate::domain::overview::ShootScaling;
use crate::domain::status::FlowState;
use crate::metrics;

/// Reads the state of the shoots that this replica owns.
pub(crate) struct Scrape {
    pub(crate) shoots: StateStore<String, ShootScaling>,
    pub(crate) write_counts: Arc<WriteCounts>,
    pub(crate) verdicts: Arc<VerdictTable>,
}

impl Collector for Scrape {
    fn collect(&self, out: &mut Exposition) {
        let mut shoots: BTreeMap<(&str, &str, &str), f64> = BTreeMap::new();
        let (mut held, mut to_restore, mut failed) = (0, 0, 0_u32);
        let (mut held_of, mut to_restore_of) = (Vec::new(), Vec::new());
        for (shoot, scaling) in self.shoots.snapshot() {
            let direction = scaling.direction.map_or("hold", Direction::as_str);
            let why_held = scaling.held.map_or("no", HoldReason::as_str);
            *shoots
                .entry((direction, scaling.status.state.as_str(), why_held))
                .or_default() += 1.0;
            held += scaling.held_down();
            if scaling.held_down() > 0 {
                let of_shoot = (shoot, scaling.held_down() as f64);
                if scaling.direction == Some(Direction::Up) {
                    to_restore += scaling.held_down();
                    to_restore_of.push(of_shoot.clone());
                }
                held_of.push(of_shoot);
            }
            failed += u32::from(scaling.status.state == FlowState::Failed);
        }
        let series = shoots.into_iter().map(|((direction, state, held), n)| {
            ([("direction", direction), ("state", state), ("held", held)], n)
        });
        out.family(&metrics::SHOOTS, series);
        self.collect_modes(out);
        let none: [(&str, &str); 0] = [];
        out.family(&metrics::HELD_DOWN, [(none, held as f64)]);
        let series = held_of.iter().map(|(shoot, n)| ([("shoot", &**shoot)], *n));
        out.family(&metrics::HELD_DOWN_OF, series);
        out.family(&metrics::TO_RESTORE, [(none, to_restore as f64)]);
        let series = to_restore_of.iter().map(|(shoot, n)| ([("shoot", &**shoot)], *n));
        out.family(&metrics::TO_RESTORE_OF, series);
        out.family(&metrics::FAILED_LEVELS, [(none, f64::from(failed))]);
        let streams = self.verdicts.streams();
        let observers = [("known", streams.known), ("synced", streams.synced)];
        out.family(
            &metrics::OBSERVERS,
            observers.map(|(state, n)| ([("state", state)], n as f64)),
        );
        let write_counts = self.write_counts.all();
        let series = write_counts.iter().flat_map(|(shoot, counts)| {
            counts.iter().map(|((direction, result), n)| {
                (
                    [
                        ("shoot", &**shoot),
                        ("direction", direction.as_str()),
                        ("result", *result),
                    ],
                    *n as f64,
                )
            })
        });
        out.family(&metrics::OPERATIONS, series);
    }
}

impl Scrape {
    fn collect_modes(&self, out: &mut Exposition) {
        let mut modes: BTreeMap<(&str, &str, &str), f64> = BTreeMap::new();
        for (_, scaling) in self.shoots.snapshot() {
            let ModeInForce {
                mode,
                of_shoot,
                until,
            } = scaling.mode;
            let source = if of_shoot { "shoot" } else { "seed" };
            let end = if until.is_some() { "set" } else { "never" };
            *modes.entry((mode.as_str(), source, end)).or_default() += 1.0;
        }
        let series = modes
            .into_iter()
            .map(|((mode, source, end), n)| ([("mode", mode), ("source", source), ("end", end)], n));
        out.family(&metrics::SHOOTS_BY_MODE, series);
    }
}
