//! The kinds that an API server serves and how each behaves.

use std::borrow::Cow;

use crate::status::qualified;

/// Identifies a resource within one API server: group, version and plural.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ResourceKey {
    /// API group; empty for the core group.
    pub group: Cow<'static, str>,
    /// API version, for instance `v1`.
    pub version: Cow<'static, str>,
    /// Lower-case plural as it stands in the path.
    pub plural: Cow<'static, str>,
}

impl ResourceKey {
    /// A key known at compile time.
    pub const fn of(group: &'static str, version: &'static str, plural: &'static str) -> Self {
        Self {
            group: Cow::Borrowed(group),
            version: Cow::Borrowed(version),
            plural: Cow::Borrowed(plural),
        }
    }
}

/// Keys of the built-in resources, for the simulators and for tests.
pub mod keys {
    use super::ResourceKey;

    pub const NAMESPACES: ResourceKey = ResourceKey::of("", "v1", "namespaces");
    pub const SECRETS: ResourceKey = ResourceKey::of("", "v1", "secrets");
    pub const CONFIG_MAPS: ResourceKey = ResourceKey::of("", "v1", "configmaps");
    pub const NODES: ResourceKey = ResourceKey::of("", "v1", "nodes");
    pub const PODS: ResourceKey = ResourceKey::of("", "v1", "pods");
    pub const SERVICES: ResourceKey = ResourceKey::of("", "v1", "services");
    pub const ENDPOINTS: ResourceKey = ResourceKey::of("", "v1", "endpoints");
    pub const LEASES: ResourceKey = ResourceKey::of("coordination.k8s.io", "v1", "leases");
    pub const DEPLOYMENTS: ResourceKey = ResourceKey::of("apps", "v1", "deployments");
    pub const STATEFUL_SETS: ResourceKey = ResourceKey::of("apps", "v1", "statefulsets");
    pub const ENDPOINT_SLICES: ResourceKey = ResourceKey::of("discovery.k8s.io", "v1", "endpointslices");
    pub const EVENTS: ResourceKey = ResourceKey::of("events.k8s.io", "v1", "events");
    pub const CLUSTERS: ResourceKey = ResourceKey::of("extensions.gardener.cloud", "v1alpha1", "clusters");
    pub const MACHINES: ResourceKey = ResourceKey::of("machine.sapcloud.io", "v1alpha1", "machines");
}

/// Where the scale sub-resource finds its fields, as JSON pointers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScalePaths {
    /// Pointer to the wanted count, `/spec/replicas`.
    pub spec_replicas: Cow<'static, str>,
    /// Pointer to the observed count, `/status/replicas`.
    pub status_replicas: Cow<'static, str>,
}

impl ScalePaths {
    /// The paths of the apps/v1 workloads, and those that most custom resources declare.
    pub const USUAL: Self = Self {
        spec_replicas: Cow::Borrowed("/spec/replicas"),
        status_replicas: Cow::Borrowed("/status/replicas"),
    };
}

/// One served resource.
#[derive(Debug, Clone)]
pub struct ResourceType {
    /// API group; empty for the core group.
    pub group: Cow<'static, str>,
    /// API version.
    pub version: Cow<'static, str>,
    /// Kind, for instance `Deployment`.
    pub kind: Cow<'static, str>,
    /// Lower-case plural as in the path.
    pub plural: Cow<'static, str>,
    /// True if objects live in a namespace.
    pub namespaced: bool,
    /// True if there is a status sub-resource.
    pub status: bool,
    /// The scale sub-resource, if there is one.
    pub scale: Option<ScalePaths>,
    /// Defined by a CustomResourceDefinition: list items carry their type.
    pub custom: bool,
    /// Only POST is served and nothing is stored (access reviews).
    pub review: bool,
}

impl ResourceType {
    fn core(kind: &'static str, plural: &'static str) -> Self {
        Self::builtin("", "v1", kind, plural)
    }

    fn builtin(group: &'static str, version: &'static str, kind: &'static str, plural: &'static str) -> Self {
        Self {
            group: group.into(),
            version: version.into(),
            kind: kind.into(),
            plural: plural.into(),
            namespaced: true,
            status: false,
            scale: None,
            custom: false,
            review: false,
        }
    }

    fn workload(kind: &'static str, plural: &'static str) -> Self {
        Self {
            scale: Some(ScalePaths::USUAL),
            ..Self::builtin("apps", "v1", kind, plural).with_status()
        }
    }

    fn with_status(self) -> Self {
        Self { status: true, ..self }
    }

    fn of_cluster(self) -> Self {
        Self {
            namespaced: false,
            ..self
        }
    }

    /// A namespaced custom resource with a status sub-resource and, when `scale` is given, a scale one.
    pub fn custom(group: &str, version: &str, kind: &str, plural: &str, scale: Option<ScalePaths>) -> Self {
        Self {
            group: group.to_owned().into(),
            version: version.to_owned().into(),
            kind: kind.to_owned().into(),
            plural: plural.to_owned().into(),
            status: true,
            scale,
            custom: true,
            ..Self::builtin("", "", "", "")
        }
    }

    /// The key of this resource.
    pub fn key(&self) -> ResourceKey {
        ResourceKey {
            group: self.group.clone(),
            version: self.version.clone(),
            plural: self.plural.clone(),
        }
    }

    /// `plural.group`, or the plural alone in the core group.
    pub fn qualified(&self) -> String {
        qualified(&self.plural, &self.group)
    }

    /// `group/version`, or the version alone in the core group.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_string()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }
}

/// Every resource that is served unless options say otherwise.
pub fn builtin() -> Vec<ResourceType> {
    let (core, builtin) = (ResourceType::core, ResourceType::builtin);
    let review = builtin(
        "authorization.k8s.io",
        "v1",
        "SelfSubjectAccessReview",
        "selfsubjectaccessreviews",
    );
    let (gardener, machine) = ("extensions.gardener.cloud", "machine.sapcloud.io");
    vec![
        core("Namespace", "namespaces").of_cluster().with_status(),
        core("Node", "nodes").of_cluster().with_status(),
        core("Secret", "secrets"),
        core("ConfigMap", "configmaps"),
        core("Pod", "pods").with_status(),
        core("Service", "services").with_status(),
        core("Endpoints", "endpoints"),
        core("Event", "events"),
        builtin("coordination.k8s.io", "v1", "Lease", "leases"),
        ResourceType::workload("Deployment", "deployments"),
        ResourceType::workload("StatefulSet", "statefulsets"),
        builtin("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices"),
        builtin("events.k8s.io", "v1", "Event", "events"),
        ResourceType {
            review: true,
            ..review.of_cluster()
        },
        ResourceType {
            // Gardener's Cluster CRD declares no status sub-resource.
            status: false,
            ..ResourceType::custom(gardener, "v1alpha1", "Cluster", "clusters", None).of_cluster()
        },
        ResourceType::custom(machine, "v1alpha1", "Machine", "machines", None),
    ]
}
