//! The series of every shoot, read at the scrape.

use std::collections::BTreeMap;
use std::sync::Arc;

use watchdog_api::unix_time::UnixTime;
use watchdog_runtime::clock::Clock;
use watchdog_runtime::metrics::{Collector, Exposition, ShootLabel};
use watchdog_watch_stream::server::StateStore;

use crate::controller::verdicts::VerdictTable;
use crate::controller::write_counts::WriteCounts;
use crate::domain::overview::ShootScaling;
use crate::domain::status::FlowState;
use crate::metrics::{self, ModeLabels, ReplicaState, ShootLabels};

/// Reads the state of the shoots that this replica owns.
pub(crate) struct Scrape {
    pub(crate) shoots: StateStore<String, ShootScaling>,
    pub(crate) write_counts: Arc<WriteCounts>,
    pub(crate) verdicts: Arc<VerdictTable>,
    pub(crate) clock: Clock,
}

impl Collector for Scrape {
    fn collect(&self, out: &mut Exposition) {
        let mut shoots: BTreeMap<ShootLabels, f64> = BTreeMap::new();
        let (mut held, mut to_restore, mut failed) = (0, 0, 0_u32);
        let (mut held_of, mut to_restore_of) = (Vec::new(), Vec::new());
        for (shoot, scaling) in self.shoots.snapshot() {
            let state = ShootLabels {
                direction: scaling.direction,
                flow: scaling.status.state,
                held: scaling.held,
            };
            *shoots.entry(state).or_default() += 1.0;
            held += scaling.held_down();
            if scaling.held_down() > 0 {
                held_of.push((shoot.clone(), scaling.held_down() as f64));
            }
            if scaling.to_restore() > 0 {
                to_restore += scaling.to_restore();
                to_restore_of.push((shoot, scaling.to_restore() as f64));
            }
            failed += u32::from(scaling.status.state == FlowState::Failed);
        }
        out.family(&metrics::SHOOTS, shoots);
        self.collect_modes(out);
        out.family(&metrics::HELD_DOWN, [((), held as f64)]);
        let series = held_of.iter().map(|(shoot, n)| (ShootLabel(shoot), *n));
        out.family(&metrics::HELD_DOWN_OF, series);
        out.family(&metrics::TO_RESTORE, [((), to_restore as f64)]);
        let series = to_restore_of.iter().map(|(shoot, n)| (ShootLabel(shoot), *n));
        out.family(&metrics::TO_RESTORE_OF, series);
        out.family(&metrics::FAILED_LEVELS, [((), f64::from(failed))]);
        let streams = self.verdicts.streams();
        let observers = [
            (ReplicaState::Known, streams.known as f64),
            (ReplicaState::Synced, streams.synced as f64),
        ];
        out.family(&metrics::OBSERVERS, observers);
        let write_counts = self.write_counts.all();
        let series = write_counts.iter().flat_map(|(shoot, counts)| {
            let counts = counts.iter();
            counts.map(|(labels, n)| ((ShootLabel(shoot), *labels), *n as f64))
        });
        out.family(&metrics::OPERATIONS, series);
    }
}

impl Scrape {
    fn collect_modes(&self, out: &mut Exposition) {
        let mut modes: BTreeMap<ModeLabels, f64> = BTreeMap::new();
        let now = UnixTime(self.clock.now_micros());
        for (_, scaling) in self.shoots.snapshot() {
            let labels = ModeLabels {
                mode: scaling.mode.mode,
                from_annotation: scaling.mode.from_annotation,
                has_end: scaling.mode.has_end(now),
            };
            *modes.entry(labels).or_default() += 1.0;
        }
        out.family(&metrics::SHOOTS_BY_MODE, modes);
    }
}
