//! The Pods of a release, as `check` and `status` judge them.

use futures::future::join_all;

use super::release::ChartRelease;
use super::seed::SeedReader;
use crate::error::CommandError;
use crate::pods::{self, ProgramPods};
use crate::program::Program;

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
            Some(deployment) => seed.list(Some(&release.namespace), &deployment.selector).await?,
            None => Vec::new(),
        };
        programs.push(ProgramPods {
            program,
            deployment: format!("{}/{}-{program}", release.namespace, release.name),
            desired: deployment.map(|deployment| deployment.desired),
            pods,
            logs: Default::default(),
        });
    }
    Ok(programs)
}

/// Adds the end of the log of each container that crashes.
pub(super) async fn read_logs(seed: &SeedReader, release: &ChartRelease, programs: &mut [ProgramPods]) {
    let mut crashed = Vec::new();
    for (n, program) in programs.iter().enumerate() {
        for pod in &program.pods {
            crashed.extend(pods::crashed(pod).map(|container| (n, pods::name(pod), container.to_owned())));
        }
    }
    crashed.truncate(MAX_LOGS);
    let reads = crashed.into_iter().map(async |(n, pod, container)| {
        let log = seed.previous_log(&release.namespace, &pod, &container).await;
        (n, (pod, container), log.map_err(|error| error.what().to_owned()))
    });
    for (n, container, log) in join_all(reads).await {
        if let Some(program) = programs.get_mut(n) {
            program.logs.insert(container, log);
        }
    }
}
