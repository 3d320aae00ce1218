//! Finds the release of the chart on a seed, by its Deployments.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::Deployment;

use super::seed::SeedReader;
use crate::args::ConnectArgs;
use crate::error::CommandError;
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

/// One release.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ChartRelease {
    pub(crate) namespace: String,
    /// First part of the names of its objects.
    pub(crate) name: String,
    pub(crate) deployments: BTreeMap<Program, ReleaseDeployment>,
    /// The programs that were installed, as the chart says; all if it does not.
    pub(crate) installed: Option<String>,
    /// The Secret with the observer certificate, if the chart names one.
    pub(crate) observer_secret: Option<String>,
    /// True if the programs serve without TLS.
    pub(crate) is_plaintext: bool,
}

/// The Deployment of one program.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ReleaseDeployment {
    /// Replicas that it asks for.
    pub(crate) desired: i32,
    /// The labels of its Pods.
    pub(crate) selector: String,
}

impl ChartRelease {
    /// True for a program that belongs to the release, even if its Deployment is gone.
    pub(crate) fn includes(&self, program: Program) -> bool {
        let is_named = |installed: &str| installed.split(',').any(|name| name == program.as_str());
        self.deployments.contains_key(&program) || self.installed.as_deref().is_none_or(is_named)
    }

    fn add(&mut self, deployment: &Deployment, program: Program) {
        let spec = deployment.spec.clone().unwrap_or_default();
        let containers = spec.template.spec.into_iter().flat_map(|spec| spec.containers);
        let mut options = containers.flat_map(|container| container.args.unwrap_or_default());
        self.is_plaintext |= options.any(|option| option == "--insecure-plaintext");
        let annotation = |key: &str| deployment.metadata.annotations.as_ref()?.get(key).cloned();
        self.observer_secret = self
            .observer_secret
            .take()
            .or_else(|| annotation(OBSERVER_SECRET));
        self.installed = self.installed.take().or_else(|| annotation(INSTALLED));
        let labels = spec.selector.match_labels.unwrap_or_default().into_iter();
        let labels: Vec<String> = labels.map(|(key, value)| format!("{key}={value}")).collect();
        let deployment = ReleaseDeployment {
            // The API server sets it.
            desired: spec.replicas.unwrap_or(1),
            selector: labels.join(","),
        };
        self.deployments.insert(program, deployment);
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
pub(crate) async fn named(seed: &SeedReader, args: &ConnectArgs) -> Result<ChartRelease, CommandError> {
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
pub(super) async fn find(seed: &SeedReader, args: &ConnectArgs) -> Result<ChartRelease, CommandError> {
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

async fn search(seed: &SeedReader, args: &ConnectArgs) -> Result<Option<ChartRelease>, CommandError> {
    let namespaces = match args.namespace.as_deref() {
        Some(namespace) => vec![Some(namespace)],
        None => vec![Some(NAMESPACE), None],
    };
    for namespace in namespaces {
        let deployments: Vec<Deployment> = seed.list(namespace, PROGRAMS).await?;
        let found = releases(&deployments, args.name.as_deref());
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
fn releases(deployments: &[Deployment], name: Option<&str>) -> Vec<ChartRelease> {
    let mut found: BTreeMap<(String, String), ChartRelease> = BTreeMap::new();
    for deployment in deployments {
        let Some((release, program)) = of_chart(deployment) else {
            continue;
        };
        if name.is_none_or(|name| name == release) {
            let namespace = deployment.metadata.namespace.clone().unwrap_or_default();
            let key = (namespace, release.to_owned());
            found.entry(key).or_default().add(deployment, program);
        }
    }
    let named = found
        .into_iter()
        .map(|((namespace, name), release)| ChartRelease {
            namespace,
            name,
            ..release
        });
    named.collect()
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
        assert!(found[0].is_plaintext && found[0].observer_secret.is_none());
        assert_eq!(found[1].observer_secret.as_deref(), Some("garden/my-certificate"));
        let weeder = &found[1].deployments[&Program::Weeder];
        assert_eq!(weeder.desired, 2);
        assert_eq!(
            weeder.selector,
            "app.kubernetes.io/component=weeder,app.kubernetes.io/instance=watchdog"
        );
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
