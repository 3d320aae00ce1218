//! Finds the release of the chart on a seed, by its Deployments.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::Deployment;
use watchdog_api::list::Item;

use super::seed::SeedReader;
use crate::args::ConnectArgs;
use crate::error::{CommandError, CommandResult};
use crate::program::Program;

/// The namespace of Gardener's programs, and the first part of the chart's names.
pub(crate) const NAMESPACE: &str = "garden";
pub(crate) const NAME: &str = "watchdog";

/// The labels by which the chart's Deployments are found, and what the value of the last one begins with.
const PROGRAMS: &str =
    "app.kubernetes.io/component in (lease-probe,scaling-coordinator,weeder),helm.sh/chart";
const CHART: (&str, &str) = ("helm.sh/chart", "dependency-watchdog-");

/// The annotation of the chart's Deployments with the Secret for people: `NAMESPACE/NAME`.
const OBSERVER_SECRET: &str = "dependency-watchdog.gardener.cloud/observer-secret";

/// The annotation of the chart's Deployments with the programs that were installed, joined by commas.
const INSTALLED: &str = "dependency-watchdog.gardener.cloud/programs";

/// One release, by its Deployments.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ChartRelease {
    pub(crate) namespace: String,
    /// First part of the names of its objects.
    pub(crate) name: String,
    pub(crate) deployments: BTreeMap<Program, Deployment>,
}

impl ChartRelease {
    /// True for a program that was installed, even if its Deployment is gone. All were if the chart does not say.
    pub(crate) fn includes(&self, program: Program) -> bool {
        let is_named = |installed: &str| installed.split(',').any(|name| name == program.as_str());
        self.deployments.contains_key(&program) || self.annotation(INSTALLED).is_none_or(is_named)
    }

    /// The Secret with the observer certificate, if the chart names one.
    pub(crate) fn observer_secret(&self) -> Option<&str> {
        self.annotation(OBSERVER_SECRET)
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        let annotations = self
            .deployments
            .values()
            .flat_map(|one| &one.metadata.annotations);
        let mut found = annotations.filter_map(|annotations| annotations.get(key));
        found.next().map(String::as_str)
    }

    /// True if the programs serve without TLS.
    pub(crate) fn is_plaintext(&self) -> bool {
        let specs = self.deployments.values().flat_map(|deployment| &deployment.spec);
        let pods = specs.flat_map(|spec| &spec.template.spec);
        let mut options = pods.flat_map(|pod| &pod.containers).flat_map(|one| &one.args);
        options.any(|options| options.iter().any(|option| option == "--insecure-plaintext"))
    }

    /// Replicas that the Deployment of a program asks for; none without one.
    pub(crate) fn desired(&self, program: Program) -> Option<i32> {
        let spec = self.deployments.get(&program)?.spec.as_ref();
        // The API server sets it.
        Some(spec.and_then(|spec| spec.replicas).unwrap_or(1))
    }

    /// The labels of the Pods of a program; none without a Deployment.
    pub(crate) fn selector(&self, program: Program) -> Option<String> {
        let spec = self.deployments.get(&program)?.spec.as_ref()?;
        let labels = spec.selector.match_labels.iter().flatten();
        let labels: Vec<String> = labels.map(|(key, value)| format!("{key}={value}")).collect();
        Some(labels.join(","))
    }

    /// `NAMESPACE/NAME`, for people.
    fn shown(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// The release; one with the names of the options or the chart's defaults, if its Deployments are gone.
///
/// # Errors
/// When there are several, or the seed does not say.
pub(crate) async fn named(seed: &SeedReader, args: &ConnectArgs) -> CommandResult<ChartRelease> {
    let found = match (&args.namespace, &args.name) {
        (Some(_), Some(_)) => None,
        _ => search(seed, args).await?,
    };
    let or = |given: &Option<String>, default: &str| given.clone().unwrap_or_else(|| default.to_owned());
    Ok(found.unwrap_or_else(|| ChartRelease {
        namespace: or(&args.namespace, NAMESPACE),
        name: or(&args.name, NAME),
        ..ChartRelease::default()
    }))
}

/// Finds the release: the one in `--namespace`, else the one in `garden`, else the only one of the seed.
///
/// # Errors
/// When there is none, or several and `--name` does not say which.
pub(super) async fn find(seed: &SeedReader, args: &ConnectArgs) -> CommandResult<ChartRelease> {
    let name = args.name.as_ref().map(|name| format!(" named {name}"));
    let place = match &args.namespace {
        Some(namespace) => format!("in namespace {namespace}"),
        None => "in any namespace".to_owned(),
    };
    search(seed, args).await?.ok_or_else(|| {
        let name = name.unwrap_or_default();
        CommandError::unreachable(
            format!("the watchdog is not installed: no Deployment of the chart{name} {place}"),
            "kubectl get deployments -A -l app.kubernetes.io/component=lease-probe lists those of the seed; correct \
             --context, --namespace or --name",
        )
    })
}

async fn search(seed: &SeedReader, args: &ConnectArgs) -> CommandResult<Option<ChartRelease>> {
    let namespaces = match args.namespace.as_deref() {
        Some(namespace) => vec![Some(namespace)],
        None => vec![Some(NAMESPACE), None],
    };
    for namespace in namespaces {
        let listed = seed.list(namespace, PROGRAMS).await?;
        let found = releases(listed.iter().filter_map(Item::ok), args.name.as_deref());
        match found.as_slice() {
            [] => {}
            [_] => return Ok(found.into_iter().next()),
            several => {
                let names: Vec<String> = several.iter().map(ChartRelease::shown).collect();
                let what = format!("there are several releases of the watchdog: {}", names.join(", "));
                let what_to_do = "choose one with --namespace and --name";
                return Err(CommandError::usage(what, what_to_do));
            }
        }
    }
    Ok(None)
}

/// The releases that these Deployments belong to, in the order of their namespaces and names.
fn releases<'a>(
    deployments: impl IntoIterator<Item = &'a Deployment>,
    name: Option<&str>,
) -> Vec<ChartRelease> {
    let mut found: BTreeMap<_, ChartRelease> = BTreeMap::new();
    for deployment in deployments {
        let Some((release, program)) = of_chart(deployment) else {
            continue;
        };
        if name.is_none_or(|name| name == release) {
            let namespace = deployment.metadata.namespace.as_deref().unwrap_or_default();
            let found = found.entry((namespace, release)).or_default();
            (found.namespace, found.name) = (namespace.to_owned(), release.to_owned());
            found.deployments.insert(program, deployment.clone());
        }
    }
    found.into_values().collect()
}

/// The first part of the name, and the program; none if it is not of the chart.
fn of_chart(deployment: &Deployment) -> Option<(&str, Program)> {
    let labels = deployment.metadata.labels.as_ref()?;
    let component = labels.get("app.kubernetes.io/component")?;
    let mut programs = Program::ALL.into_iter();
    let program = programs.find(|program| program.as_str() == component)?;
    labels.get(CHART.0)?.strip_prefix(CHART.1)?;
    let name = deployment.metadata.name.as_deref()?;
    Some((name.strip_suffix(component.as_str())?.strip_suffix('-')?, program))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::pod_api;

    fn deployment(namespace: &str, name: &str, change: impl FnOnce(&mut serde_json::Value)) -> Deployment {
        let mut value = pod_api::deployment(namespace, name, Program::Weeder, 2);
        change(&mut value);
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_release_is_known_by_the_labels_of_the_chart() {
        let none = |_: &mut serde_json::Value| {};
        let all = [
            deployment("garden", "watchdog", none),
            deployment("garden", "second", |value| {
                value["spec"]["template"]["spec"]["containers"][0]["args"] =
                    serde_json::json!(["--insecure-plaintext"]);
                value["metadata"]["annotations"] = serde_json::json!(null);
            }),
            deployment("other", "foreign", |value| {
                value["metadata"]["labels"]["helm.sh/chart"] = "something-1.0.0".into();
            }),
            deployment("other", "misnamed", |value| {
                value["metadata"]["name"] = "a-deployment".into();
            }),
        ];
        let found = releases(&all, None);
        let names: Vec<String> = found.iter().map(ChartRelease::shown).collect();
        assert_eq!(names, ["garden/second", "garden/watchdog"]);
        assert!(found[0].is_plaintext() && found[0].observer_secret().is_none());
        assert_eq!(found[1].observer_secret(), Some("garden/my-certificate"));
        assert_eq!(found[1].desired(Program::Weeder), Some(2));
        let selector = "app.kubernetes.io/component=weeder,app.kubernetes.io/instance=watchdog";
        assert_eq!(found[1].selector(Program::Weeder).as_deref(), Some(selector));
        assert_eq!(releases(&all, Some("second")), found[..1]);
        assert!(
            found[0].includes(Program::LeaseProbe),
            "nothing says that it was not installed"
        );
        let without = deployment("garden", "third", |value| {
            value["metadata"]["annotations"] = serde_json::json!({INSTALLED: "scaling-coordinator,weeder"});
        });
        let without = &releases(&[without], None)[0];
        let included = Program::ALL.map(|program| without.includes(program));
        assert_eq!(
            included,
            [false, true, true],
            "lease-probe was not installed, the coordinator is gone"
        );
        assert!(releases(&all, Some("foreign")).is_empty());
    }
}
