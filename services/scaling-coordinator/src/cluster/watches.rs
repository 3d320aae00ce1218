//! The watches that feed the indexes.

use std::sync::Arc;
use std::time::Duration;

use kube::Api;
use kube::core::ApiResource;
use kube::runtime::watcher::Config;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;
use watchdog_api::prober::{ProberConfig, ResourceRef};
use watchdog_api::workload::Workload;
use watchdog_kube::watch::{Change, Watch};
use watchdog_runtime::backoff::Backoff;
use watchdog_runtime::readiness::{Blocker, Readiness};

use super::kinds;
use super::resources::Resources;
use crate::domain::observed::Observed;

/// The interval at which the index is checked for dropped resources that are still held down.
const LOOK_AT_DROPPED: Duration = Duration::from_secs(5);

/// A kind counts as absent once the seed has answered for this long that it does not serve the kind. A starting API
/// server serves custom resources some seconds after everything else, and an absent optional resource does not hold up
/// the next level (S3).
const ABSENT_AFTER: Duration = Duration::from_secs(10);

/// The longest pause before the seed is asked again for a kind that it does not serve.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// The longest pause before a seed is asked again that did not answer.
const LONGEST_OUTAGE_PAUSE: Duration = Duration::from_secs(5);

/// Watches the resources that the configuration file names, one watch each, and applies its changes.
pub(crate) async fn resources(
    seed: kube::Client,
    resources: Arc<Resources>,
    mut file: watch::Receiver<Arc<ProberConfig>>,
    readiness: Readiness,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let mut tasks = JoinSet::new();
    loop {
        let now = Instant::now();
        resources.configure(now, &file.borrow_and_update().dependent_resource_infos);
        resources.unwatch(now);
        for new in resources.new_watches(&stop) {
            // A span of a lower level would be left out, with its field, where only warnings are logged.
            let span = tracing::error_span!("watch", resource = %new.reference);
            let watch = ResourceWatch {
                seed: seed.clone(),
                resources: resources.clone(),
                reference: new.reference,
                // The permissions on a dropped resource may be gone, and all other resources still work.
                readiness: match new.is_dropped {
                    true => readiness.part("the removed resource"),
                    false => readiness.clone(),
                },
            };
            tasks.spawn(watch.run_until(new.stop).instrument(span));
        }
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            Ok(()) = file.changed() => {}
            () = tokio::time::sleep(LOOK_AT_DROPPED) => {}
            Some(ended) = tasks.join_next() => ended??,
        }
    }
}

/// The pause before the seed is asked for a kind again. A seed that does not answer may be back at any moment, and
/// every flow waits until the kind is known. A kind that is not served, or cannot be scaled, changes when somebody
/// installs something.
fn pause(backoff: &mut Backoff, failed: bool) -> Duration {
    let pause = backoff.next_delay();
    if failed {
        pause.min(LONGEST_OUTAGE_PAUSE)
    } else {
        pause
    }
}

/// The watch of a resource. It blocks readiness until it has listed the resource and whenever the seed refuses access.
struct ResourceWatch {
    seed: kube::Client,
    resources: Arc<Resources>,
    reference: ResourceRef,
    readiness: Readiness,
}

impl ResourceWatch {
    async fn run_until(self, stop: CancellationToken) -> anyhow::Result<()> {
        let ended = stop.run_until_cancelled(self.run()).await;
        self.readiness.recovered(name(&self.reference));
        ended.unwrap_or(Ok(()))
    }

    /// Follows the resource; safe to cancel. A kind that is not served may come with the next component of the seed, at
    /// any time.
    async fn run(&self) -> anyhow::Result<()> {
        let (reference, readiness, name) = (&self.reference, &self.readiness, name(&self.reference));
        let mut backoff = Backoff::new(Duration::from_secs(1), LONGEST_PAUSE);
        let mut missing_since = None;
        let mut unlisted = None;
        loop {
            let blocker = unlisted.get_or_insert_with(|| readiness.block(name.clone(), "not listed yet"));
            let found = kinds::resolve(&self.seed, reference).await;
            let mut pause = pause(&mut backoff, found.is_err());
            if !matches!(found, Ok(Err(Observed::Absent))) {
                missing_since = None;
            }
            match found {
                Ok(Ok(served)) => {
                    self.resources.set_kind(reference, Ok(served.clone()));
                    self.watch(&served, unlisted.take(), &mut backoff).await?;
                    tracing::warn!("the seed no longer serves the kind of a resource; looking it up again");
                    let gone = Observed::Unknown("the seed no longer serves its kind".to_owned());
                    self.resources.set_kind(reference, Err(gone));
                    pause = backoff.next_delay();
                }
                Ok(Err(everywhere)) => {
                    let why = match &everywhere {
                        Observed::Unusable(why) => why.clone(),
                        _ => format!(
                            "the seed does not serve {} {}",
                            reference.api_version, reference.kind
                        ),
                    };
                    blocker.because(format!("{why}: correct the configuration"));
                    tracing::warn!(%why, "a configured resource cannot be scaled; looking up its kind again");
                    let missing_since = missing_since.get_or_insert_with(Instant::now);
                    let is_served = matches!(everywhere, Observed::Unusable(_));
                    if is_served || missing_since.elapsed() >= ABSENT_AFTER {
                        self.resources.set_kind(reference, Err(everywhere));
                    }
                }
                Err(error) => {
                    let failure = error.failure();
                    let reason = failure.reason.as_str();
                    blocker.because("cannot look up its kind on the seed");
                    if readiness.failing(name.clone(), failure) {
                        tracing::warn!(reason, %error, "cannot look up a kind on the seed; trying again");
                    }
                }
            }
            tokio::time::sleep(pause).await;
        }
    }

    async fn watch(
        &self,
        served: &ApiResource,
        unlisted: Option<Blocker>,
        backoff: &mut Backoff,
    ) -> anyhow::Result<()> {
        let (resources, reference) = (&self.resources, &self.reference);
        let watch = Watch {
            name: name(reference).into(),
            api: Api::<Workload>::all_with(self.seed.clone(), served),
            config: Config::default().fields(&format!("metadata.name={}", reference.name)),
            ends_if_not_served: true,
        };
        let take_in = |change| {
            if matches!(change, Change::Synced(_)) {
                backoff.reset();
            }
            resources.take_in(reference, change);
        };
        // It ends with its future.
        let stop = CancellationToken::new();
        let watching = watch.run(self.readiness.clone(), stop, take_in);
        // From now on the watch blocks.
        drop(unlisted);
        watching.await
    }
}

/// The name of a watch in logs, metrics and readiness, as `deployment/kube-controller-manager`.
fn name(reference: &ResourceRef) -> String {
    let group = reference.group();
    let kind = reference.kind.to_ascii_lowercase();
    let kind = if group.is_empty() || group == "apps" {
        kind
    } else {
        format!("{kind}.{group}")
    };
    format!("{kind}/{}", reference.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_that_does_not_answer_is_asked_again_soon() {
        for (failed, bound) in [(true, LONGEST_OUTAGE_PAUSE), (false, LONGEST_PAUSE)] {
            let mut backoff = Backoff::new(Duration::from_secs(1), LONGEST_PAUSE);
            let longest = (0..20).map(|_| pause(&mut backoff, failed)).max().unwrap();
            assert!(longest > bound / 2 && longest <= bound, "{longest:?}");
        }
    }
}
