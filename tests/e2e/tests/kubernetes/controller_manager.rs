//! Checks the model of the node lifecycle controller by which the simulation judges lease-probe against a real
//! kube-controller-manager: the same Leases and heartbeats must lead to the same changes of the Ready condition.

use std::fmt::Write;

use futures::future::try_join_all;
use watchdog_test_support::real::{
    ControllerManagerOptions, NodeRecorder, NodeTransition, RealControlPlane, create_namespace,
};

use crate::node_lifecycle::{GracePeriods, NodeActivity, NodeLifecycleModel, ReadyChange};
use crate::node_lifecycle_input::TimeSpan;
use crate::random::{MILLISECOND, Micros, SECOND};
use crate::scripted_nodes::{END, NodeScript, Ready, Schedule, ScriptedKubelet, between_two_looks, scripts};

const GRACE: GracePeriods = GracePeriods {
    monitor: 40 * SECOND,
    startup: 60 * SECOND,
};

/// `--node-monitor-period`, which is also its default.
const MONITOR_PERIOD: Micros = 5 * SECOND;

/// The delay that a busy machine may add to any step.
const SLACK: Micros = 2 * SECOND;

/// The recorded changes of one node between Unknown and anything else.
fn real_changes(transitions: &[NodeTransition], node: &str, schedule: Schedule) -> Vec<ReadyChange> {
    let mut was_unknown = false;
    let mut changes = Vec::new();
    for transition in transitions.iter().filter(|transition| transition.node == node) {
        let unknown = transition.ready == "Unknown";
        if unknown != was_unknown {
            changes.push(ReadyChange {
                at: schedule.micros(transition.at),
                unknown,
            });
        }
        was_unknown = unknown;
    }
    changes
}

fn kinds(changes: &[ReadyChange]) -> Vec<Ready> {
    let kind = |change: &ReadyChange| match change.unknown {
        true => Ready::Unknown,
        false => Ready::Back,
    };
    changes.iter().map(kind).collect()
}

/// The greatest time between a transition and its counterpart; none if one of them has none.
fn deviation(model: &[ReadyChange], real: &[ReadyChange]) -> Option<Micros> {
    let apart = model.iter().zip(real).map(|(a, b)| (a.at - b.at).abs());
    (kinds(model) == kinds(real)).then(|| apart.max().unwrap_or(0))
}

/// The model in each phase that its monitor may have, against reality. A single phase must explain all transitions, and
/// in every other one they must be less than a period further apart.
struct Comparison {
    /// The greatest deviation in the phase that fits best.
    least: Micros,
    disagreements: String,
}

impl Comparison {
    fn new(
        scripts: &[NodeScript],
        activities: &[NodeActivity],
        real: &[Vec<ReadyChange>],
        until: Micros,
    ) -> Self {
        let mut comparison = Self {
            least: Micros::MAX,
            disagreements: String::new(),
        };
        let (mut best, mut worst) = (0, 0);
        for phase in (0..MONITOR_PERIOD).step_by(50 * MILLISECOND as usize) {
            let model = NodeLifecycleModel {
                grace: GRACE,
                monitor_changes: &[],
                terms: &[TimeSpan::new(phase - 2 * MONITOR_PERIOD, Micros::MAX)],
                watch_gaps: &[],
                seed: 0,
                until,
            };
            let mut greatest = 0;
            for ((script, activity), real) in scripts.iter().zip(activities).zip(real) {
                let modelled = model.ready_changes(activity);
                let deviation = deviation(&modelled, real);
                greatest = greatest.max(deviation.unwrap_or(Micros::MAX));
                if deviation.is_none_or(|deviation| deviation > MONITOR_PERIOD + SLACK) {
                    let phase = crate::random::seconds(phase);
                    let (name, modelled, real) = (script.name, text(&modelled), text(real));
                    let line = format!("phase {phase}: {name}: model{modelled}; real{real}\n");
                    comparison.disagreements.push_str(&line);
                }
            }
            worst = worst.max(greatest);
            if greatest < comparison.least {
                (comparison.least, best) = (greatest, phase);
            }
        }
        println!(
            "greatest deviation: {} s in the phase {} s that fits best, {} s in the one that fits worst",
            crate::random::seconds(comparison.least),
            crate::random::seconds(best),
            crate::random::seconds(worst)
        );
        comparison
    }
}

fn text(changes: &[ReadyChange]) -> String {
    changes.iter().fold(String::new(), |mut text, change| {
        let kind = if change.unknown { "Unknown" } else { "back" };
        let _ = write!(text, " {kind} {}", crate::random::seconds(change.at));
        text
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn the_model_of_the_node_lifecycle_agrees_with_a_real_kube_controller_manager() {
    let plane = RealControlPlane::start("node-lifecycle").await.unwrap();
    let server = plane.api_server("shoot").await.unwrap();
    let client = server.client();
    create_namespace(&client, "kube-node-lease").await.unwrap();
    let recorder = NodeRecorder::start(&client).await.unwrap();
    let options = ControllerManagerOptions {
        flags: vec!["--node-startup-grace-period=60s".to_owned()],
        ..ControllerManagerOptions::default()
    };
    let controller_manager = plane.controller_manager(&server, &options).unwrap();
    controller_manager.start().await.unwrap();
    let schedule = between_two_looks(&client).await.unwrap();

    let scripts = scripts();
    let kubelets: Vec<_> = scripts
        .iter()
        .map(|script| ScriptedKubelet::new(&client, script, &recorder))
        .collect();
    let activities = try_join_all(kubelets.iter().map(|kubelet| kubelet.run(schedule)))
        .await
        .unwrap();
    schedule.wait_for(END).await;
    assert!(controller_manager.is_running());
    let ended = schedule.now();

    let transitions = recorder.transitions();
    let real: Vec<_> = scripts
        .iter()
        .map(|script| real_changes(&transitions, script.name, schedule))
        .collect();
    for (script, real) in scripts.iter().zip(&real) {
        println!("{}:{}", script.name, text(real));
    }
    let comparison = Comparison::new(&scripts, &activities, &real, ended);
    for (script, real) in scripts.iter().zip(&real) {
        assert_eq!(kinds(real), script.expected, "{}", script.name);
    }
    assert!(
        comparison.disagreements.is_empty(),
        "{}",
        comparison.disagreements
    );
    assert!(
        comparison.least <= SLACK,
        "no phase of the monitor explains all transitions"
    );
}
