//! The series of every shoot, read at the scrape.

use std::collections::BTreeMap;
use std::sync::Arc;

use watchdog_api::policy::Mode;
use watchdog_api::unix_time::UnixTime;
use watchdog_runtime::metrics::{Collector, Exposition, Gauge, ShootLabel};
use watchdog_watch_stream::server::StreamStore;

use super::inputs::DecisionInputs;
use crate::domain::Direction;
use crate::domain::status::{FlowState, ShootScaling};
use crate::metrics::{self, ModeLabels, ReplicaState, ScalingLabels, WriteResult};

/// Reads the state of the shoots while this replica leads. It lives as long as the servers of the process, so it must
/// not hold the reconciler: the task that publishes the last Kubernetes Events waits for that to go.
pub(crate) struct Scrape {
    pub(crate) inputs: Arc<DecisionInputs>,
    pub(crate) states: StreamStore<String, ShootScaling>,
}

impl Collector for Scrape {
    fn collect(&self, out: &mut Exposition) {
        let Self { inputs, states } = self;
        let now = UnixTime(inputs.clock.now_micros());
        let all = states.snapshot();
        let mut shoots: BTreeMap<ScalingLabels, f64> = BTreeMap::new();
        let mut modes: BTreeMap<ModeLabels, f64> = BTreeMap::new();
        let (mut need_attention, mut unprotected, mut operations) = (Vec::new(), Vec::new(), Vec::new());
        let (mut held_down, mut to_restore) = (Vec::new(), Vec::new());
        let mut failed = 0_u32;
        for (shoot, scaling) in &all {
            let shoot = ShootLabel(shoot);
            let state = ScalingLabels {
                // A release is shown as a hold.
                direction: scaling
                    .direction
                    .filter(|direction| *direction != Direction::Release),
                flow: scaling.status.state,
                held: scaling.held,
            };
            *shoots.entry(state).or_default() += 1.0;
            if state.needs_attention() {
                need_attention.push(((shoot, state), 1.0));
            }
            let mode = ModeLabels {
                mode: scaling.mode.mode,
                from_annotation: scaling.mode.from_annotation,
                has_end: scaling.mode.has_end(now),
            };
            *modes.entry(mode).or_default() += 1.0;
            if mode.from_annotation && mode.mode != Mode::Protect {
                unprotected.push(((shoot, mode), 1.0));
            }
            let counts = scaling.write_counts.iter();
            operations.extend(counts.map(|((direction, result), n)| {
                let labels = (*direction, WriteResult(result));
                ((shoot, labels), *n as f64)
            }));
            failed += u32::from(scaling.status.state == FlowState::Failed);
            for (resources, n) in [
                (&mut held_down, scaling.status.held_down()),
                (&mut to_restore, scaling.to_restore()),
            ] {
                if n > 0 {
                    resources.push((shoot, n as f64));
                }
            }
        }
        out.family(&metrics::SHOOTS, shoots);
        out.family(&metrics::SHOOT_STATE, need_attention);
        out.family(&metrics::SHOOTS_BY_MODE, modes);
        out.family(&metrics::SHOOT_MODE, unprotected);
        collect_resources(out, &metrics::HELD_DOWN, &metrics::HELD_DOWN_OF, held_down);
        collect_resources(out, &metrics::TO_RESTORE, &metrics::TO_RESTORE_OF, to_restore);
        out.family(&metrics::FAILED_LEVELS, [((), f64::from(failed))]);
        let streams = inputs.verdicts.streams();
        let observers = [
            (ReplicaState::Known, streams.known as f64),
            (ReplicaState::Synced, streams.synced as f64),
        ];
        out.family(&metrics::OBSERVERS, observers);
        out.family(&metrics::OPERATIONS, operations);
    }
}

/// Writes the resources of all shoots together, and of each shoot that has one.
fn collect_resources<'a>(
    out: &mut Exposition,
    total: &Gauge,
    of_shoot: &Gauge<ShootLabel<'a>>,
    counts: Vec<(ShootLabel<'a>, f64)>,
) {
    // Not `sum`: of nothing, that is -0.
    out.family(total, [((), counts.iter().fold(0.0, |sum, (_, n)| sum + n))]);
    out.family(of_shoot, counts);
}
