//! The permission preflight: a service asks at its start whether it may do what it will have to do.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::Api;
use kube::api::PostParams;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use watchdog_runtime::args::CommonArgs;
use watchdog_runtime::backoff::Backoff;
use watchdog_runtime::readiness::{Blocker, Readiness};

use crate::client::{REFUSALS, RequestError, request};
use crate::metrics::{PERMISSION_MISSING, ResourceName, Verb};

/// Name of the blocker, and of the loop in the metric of failed tries.
const NAME: &str = "permissions";

/// Something that a service must be allowed to do on the seed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Permission {
    /// For example `list`.
    pub verb: &'static str,
    /// API group; empty for the core group.
    pub group: String,
    /// Plural resource, with its sub-resource: `deployments/scale`.
    pub resource: String,
    /// Namespace; empty for all.
    pub namespace: String,
    /// Name; empty for all.
    pub name: String,
}

impl Permission {
    /// A permission in all namespaces.
    #[must_use]
    pub fn new(verb: &'static str, group: &str, resource: &str) -> Self {
        Self {
            verb,
            group: group.to_owned(),
            resource: resource.to_owned(),
            namespace: String::new(),
            name: String::new(),
        }
    }

    /// Only in this namespace.
    #[must_use]
    pub fn in_namespace(mut self, namespace: &str) -> Self {
        namespace.clone_into(&mut self.namespace);
        self
    }

    /// Only for objects of this name: RBAC may limit it by `resourceNames`.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    /// `deployments.apps/scale`, as people write it.
    #[must_use]
    pub fn full_resource(&self) -> String {
        let (resource, subresource) = self.split();
        let mut full = resource.to_owned();
        if !self.group.is_empty() {
            full = format!("{full}.{}", self.group);
        }
        if subresource.is_empty() {
            full
        } else {
            format!("{full}/{subresource}")
        }
    }

    fn split(&self) -> (&str, &str) {
        self.resource.split_once('/').unwrap_or((&self.resource, ""))
    }
}

impl std::fmt::Display for Permission {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.verb, self.full_resource())?;
        if !self.name.is_empty() {
            write!(f, " named {}", self.name)?;
        }
        if self.namespace.is_empty() {
            f.write_str(" in all namespaces")
        } else {
            write!(f, " in namespace {}", self.namespace)
        }
    }
}

/// The permissions that a replica needs which others find by its membership Lease.
#[must_use]
pub fn of_member(common: &CommonArgs) -> Vec<Permission> {
    let leases = ["list", "create", "patch", "delete"];
    let leases = leases.map(|verb| Permission::new(verb, "coordination.k8s.io", "leases"));
    let leases = leases.map(|permission| permission.in_namespace(&common.namespace));
    leases.into_iter().chain(of_authority(common)).collect()
}

/// The permissions on the Secrets of the certificate authority and of the observer, where there are any.
#[must_use]
pub fn of_authority(common: &CommonArgs) -> Vec<Permission> {
    let secrets = common.tls_authority.iter().chain(&common.tls_observer);
    let authority = secrets.flat_map(|secret| {
        [
            Permission::new("get", "", "secrets").named(secret),
            Permission::new("update", "", "secrets").named(secret),
        ]
    });
    authority
        .map(|permission| permission.in_namespace(&common.namespace))
        .collect()
}

/// The permissions that a leader election on this Lease needs.
#[must_use]
pub fn of_leader(lease: &str, common: &CommonArgs) -> Vec<Permission> {
    let on_leases = |verb| Permission::new(verb, "coordination.k8s.io", "leases");
    let named = ["get", "update"].map(|verb| on_leases(verb).named(lease));
    let all = named.into_iter().chain([on_leases("create")]);
    all.map(|permission| permission.in_namespace(&common.namespace))
        .collect()
}

/// Asks for every permission that is needed, again and again, and anew when `changes` says that the needs may have
/// changed or the seed refuses a request of this process, until `stop` is cancelled. From this call on it blocks
/// readiness until all are granted, and names those that are missing, also in the log and in the metric.
///
/// # Errors
/// Never; the type is that of a task.
pub fn preflight<T>(
    client: kube::Client,
    readiness: Readiness,
    needed: impl Fn() -> Vec<Permission>,
    changes: watch::Receiver<T>,
    stop: CancellationToken,
) -> impl Future<Output = anyhow::Result<()>> {
    let asking = keep_asking(ASK_AGAIN, client, readiness, needed, changes);
    async move {
        stop.run_until_cancelled(asking).await;
        Ok(())
    }
}

/// From an answer by which everything is granted to the next question. What is withdrawn is otherwise noticed in the
/// incident that needs it; some twenty small requests in ten minutes are nothing to the seed.
const ASK_AGAIN: Duration = Duration::from_secs(10 * 60);

/// After a refusal they are asked for this many times as soon: within 10 s, and not more often.
const SOONER_AFTER_REFUSAL: u32 = 60;

/// As [`preflight`], with this pause when all are granted, and growing ones while some are missing. Never ends.
pub fn keep_asking<T>(
    ask_again: Duration,
    client: kube::Client,
    readiness: Readiness,
    needed: impl Fn() -> Vec<Permission>,
    mut changes: watch::Receiver<T>,
) -> impl Future<Output = ()> {
    let mut refusals = REFUSALS.subscribe();
    let mut answers = PreflightAnswers {
        client,
        blocker: Some(readiness.block(NAME, "not checked yet")),
        readiness,
        shown: MissingPermissions::new(),
        missing: None,
    };
    async move {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
        loop {
            changes.mark_unchanged();
            refusals.mark_unchanged();
            let pause = if answers.ask(&needed()).await {
                backoff.reset();
                ask_again
            } else {
                backoff.next_delay()
            };
            let refused = async {
                tokio::time::sleep(ask_again / SOONER_AFTER_REFUSAL).await;
                refusals.changed().await
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                // The sender lives as long as the process.
                Ok(()) = refused => {}
                Ok(()) = changes.changed() => {
                    // Of other needs nothing is known.
                    answers.missing = None;
                    backoff.reset();
                }
            }
        }
    }
}

/// The answers of the seed so far.
struct PreflightAnswers {
    client: kube::Client,
    readiness: Readiness,
    blocker: Option<Blocker>,
    shown: MissingPermissions,
    /// The missing ones by the last answer, if there was one; empty if all are granted.
    missing: Option<String>,
}

/// The values of the metric: whether a permission is missing, by verb and resource. Several permissions share one
/// series where they differ in the name only.
type MissingPermissions = BTreeMap<(&'static str, String), bool>;

impl PreflightAnswers {
    /// Returns true if all permissions are granted.
    async fn ask(&mut self, needed: &[Permission]) -> bool {
        let missing = match missing(&self.client, needed).await {
            Ok(missing) => missing,
            Err(error) => {
                // What was granted is believed until the seed says otherwise.
                if self.missing.as_deref() != Some("") {
                    self.blocker = Some(self.readiness.block(NAME, "cannot check them on the seed"));
                }
                let failure = error.failure();
                let reason = failure.reason.as_str();
                if self.readiness.failing(NAME, failure) {
                    tracing::warn!(reason, %error, "cannot check the permissions on the seed; trying again");
                }
                return false;
            }
        };
        self.readiness.recovered(NAME);
        self.show(needed, &missing);
        let list: Vec<_> = missing.iter().map(ToString::to_string).collect();
        let list = list.join("; ");
        let is_news = self.missing.as_ref() != Some(&list);
        self.missing = Some(list.clone());
        if list.is_empty() {
            self.blocker = None;
            if is_news {
                tracing::info!(
                    permissions = needed.len(),
                    "all permissions on the seed are granted"
                );
            }
            return true;
        }
        let why = format!("grant this service on the seed: {list}");
        // The blocker before this one blocks until this one does.
        self.blocker = Some(self.readiness.block(NAME, why));
        if is_news {
            tracing::error!(missing = list, "permissions on the seed are missing: grant them");
        }
        false
    }

    fn show(&mut self, needed: &[Permission], missing: &[Permission]) {
        update(&mut self.shown, needed, missing);
        for ((verb, resource), missing) in &self.shown {
            let labels = (Verb(verb), ResourceName(resource));
            PERMISSION_MISSING.set(labels, f64::from(u8::from(*missing)));
        }
    }
}

/// A series is missing something when one of its permissions is; what is no longer needed is not missing.
fn update(shown: &mut MissingPermissions, needed: &[Permission], missing: &[Permission]) {
    shown.values_mut().for_each(|is_missing| *is_missing = false);
    for permission in needed {
        let series = (permission.verb, permission.full_resource());
        *shown.entry(series).or_default() |= missing.contains(permission);
    }
}

async fn missing(client: &kube::Client, needed: &[Permission]) -> Result<Vec<Permission>, RequestError> {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let mut missing = Vec::new();
    for permission in needed {
        let (resource, subresource) = permission.split();
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let review = SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(ResourceAttributes {
                    group: some(&permission.group),
                    name: some(&permission.name),
                    namespace: some(&permission.namespace),
                    resource: some(resource),
                    subresource: some(subresource),
                    verb: Some(permission.verb.to_owned()),
                    ..Default::default()
                }),
                ..Default::default()
            },
            ..Default::default()
        };
        let answer = request(reviews.create(&PostParams::default(), &review)).await?;
        if !answer.status.is_some_and(|status| status.allowed) {
            missing.push(permission.clone());
        }
    }
    Ok(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_is_missing_something_when_one_of_its_names_is_and_is_needed() {
        let named = |name: &str| Permission::new("patch", "apps", "deployments").named(name);
        let needed = [named("kcm"), named("mcm"), Permission::new("list", "", "secrets")];
        let expected = |deployments| {
            let list = (("list", "secrets".to_owned()), false);
            MissingPermissions::from([list, (("patch", "deployments.apps".to_owned()), deployments)])
        };
        let mut shown = MissingPermissions::new();
        for missing in [named("kcm"), named("mcm")] {
            update(&mut shown, &needed, &[missing]);
            assert_eq!(shown, expected(true));
        }
        update(&mut shown, &needed[2..], &[]);
        assert_eq!(shown, expected(false));
    }
}
