//! The Pods of a release, as `check` judges them.

use futures::future::join_all;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod, PodStatus};
use watchdog_api::text::{printable_message, printable_name};

use super::release::ChartRelease;
use super::seed::SeedReader;
use crate::error::CommandError;
use crate::program::Program;
use crate::render::pods::{ContainerExit, ContainerFacts, ProgramPods, ReplicaPod};

/// Logs that are read at most, so that a release with many crashing replicas costs no more than one with a few.
const MAX_LOGS: usize = 8;

/// The Pods of all programs, whatever they do.
pub(super) async fn of_release(
    seed: &SeedReader,
    release: &ChartRelease,
) -> Result<Vec<ProgramPods>, CommandError> {
    let mut programs = Vec::new();
    for program in Program::ALL
        .into_iter()
        .filter(|program| release.includes(*program))
    {
        let deployment = release.deployments.get(&program);
        let pods = match deployment {
            Some(deployment) => seed.pods(&release.namespace, &deployment.selector).await?,
            None => Vec::new(),
        };
        programs.push(ProgramPods {
            program,
            deployment: format!("{}/{}-{program}", release.namespace, release.name),
            desired: deployment.map(|deployment| deployment.desired),
            pods: pods.iter().map(facts).collect(),
        });
    }
    Ok(programs)
}

/// Adds the end of the log of each container that crashes.
pub(super) async fn read_logs(seed: &SeedReader, release: &ChartRelease, programs: &mut [ProgramPods]) {
    let pods = programs.iter_mut().flat_map(|program| &mut program.pods);
    let crashing = pods.flat_map(|pod| {
        let name = &pod.name;
        let crashing = pod.containers.iter_mut().filter(|container| container.has_log());
        crashing.map(move |container| (name, container))
    });
    let reads = crashing.take(MAX_LOGS).map(async |(pod, container)| {
        let log = seed.previous_log(&release.namespace, pod, &container.name).await;
        container.log = Some(log.map_err(|error| error.what().to_owned()));
    });
    join_all(reads).await;
}

/// The facts about a Pod. Texts are from kubelets and container runtimes.
pub(super) fn facts(pod: &Pod) -> ReplicaPod {
    let status = pod.status.clone().unwrap_or_default();
    let PodStatus {
        phase,
        reason,
        message,
        ..
    } = &status;
    let condition = |wanted: &str| {
        let conditions = status.conditions.iter().flatten();
        conditions.into_iter().find(|condition| condition.type_ == wanted)
    };
    let unscheduled = condition("PodScheduled").filter(|condition| condition.status == "False");
    let ended = [reason, message].into_iter().flatten().cloned();
    let containers = status.init_container_statuses.iter().flatten();
    let containers = containers.chain(status.container_statuses.iter().flatten());
    ReplicaPod {
        // It is a part of paths of the API, which takes no other.
        name: printable_name(pod.metadata.name.as_deref().unwrap_or_default()),
        is_deleted: pod.metadata.deletion_timestamp.is_some(),
        is_ready: condition("Ready").is_some_and(|condition| condition.status == "True"),
        is_running: phase.as_deref() == Some("Running"),
        ended: matches!(phase.as_deref(), Some("Failed" | "Succeeded"))
            .then(|| printable_message(&ended.collect::<Vec<_>>().join(": "))),
        unscheduled: unscheduled.map(|condition| {
            let why = condition.message.as_ref().or(condition.reason.as_ref());
            printable_message(why.map_or("no reason is given", |why| why))
        }),
        containers: containers.map(container_facts).collect(),
    }
}

fn container_facts(status: &ContainerStatus) -> ContainerFacts {
    let state = status.state.clone().unwrap_or_default();
    let last = status.last_state.clone().unwrap_or_default().terminated;
    let waiting = state.waiting.map(|waiting| {
        let reason = printable_name(waiting.reason.as_deref().unwrap_or_default());
        (
            reason,
            printable_message(waiting.message.as_deref().unwrap_or_default()),
        )
    });
    ContainerFacts {
        name: printable_name(&status.name),
        waiting,
        restarts: status.restart_count,
        // Between its end and CrashLoopBackOff, the state itself is that of the end.
        last_exit: state.terminated.or(last).as_ref().map(exit),
        log: None,
    }
}

fn exit(terminated: &ContainerStateTerminated) -> ContainerExit {
    ContainerExit {
        code: terminated.exit_code,
        reason: printable_name(terminated.reason.as_deref().unwrap_or_default()),
        at: terminated.finished_at.as_ref().map(|at| at.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_read_without_what_a_terminal_acts_upon() {
        let pod = serde_json::json!({
            "metadata": {"name": "weeder-0", "deletionTimestamp": "2026-01-01T00:00:00Z"},
            "status": {
                "phase": "Pending",
                "conditions": [
                    {"type": "Ready", "status": "False"},
                    {"type": "PodScheduled", "status": "False", "message": "0/3 nodes\u{1b}[2J"},
                ],
                "containerStatuses": [{
                    "name": "weeder", "image": "", "imageID": "", "ready": false, "restartCount": 7,
                    "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s\u{7}"}},
                    "lastState": {"terminated": {
                        "exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-11-23T00:39:20Z",
                    }},
                }],
            },
        });
        let facts = facts(&serde_json::from_value(pod).unwrap());
        assert!(facts.is_deleted && !facts.is_ready && !facts.is_running);
        assert_eq!(facts.unscheduled.as_deref(), Some("0/3 nodes [2J"));
        let container = &facts.containers[0];
        let waiting = container.waiting.clone().unwrap();
        assert_eq!(
            waiting,
            ("CrashLoopBackOff".to_owned(), "back-off 5m0s ".to_owned())
        );
        let exit = container.last_exit.clone().unwrap();
        assert_eq!(
            (exit.code, exit.reason.as_str(), container.restarts),
            (137, "OOMKilled", 7)
        );
    }
}
