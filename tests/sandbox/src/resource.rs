//! The kinds that an API server serves and how each behaves.

use std::borrow::Cow;

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

/// Keys of the built-in resources.
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

/// One served resource.
#[derive(Debug, Clone)]
pub struct ResourceType {
    pub key: ResourceKey,
    /// Kind, for instance `Deployment`.
    pub kind: Cow<'static, str>,
    /// True if objects live in a namespace.
    pub namespaced: bool,
    /// True if there is a status sub-resource.
    pub status: bool,
    /// The scale sub-resource, if there is one.
    pub scale: Option<ScalePaths>,
    /// Defined by a CustomResourceDefinition: the server knows no defaults.
    pub custom: bool,
}

impl ResourceType {
    fn builtin(key: ResourceKey, kind: &'static str) -> Self {
        Self {
            key,
            kind: kind.into(),
            namespaced: true,
            status: false,
            scale: None,
            custom: false,
        }
    }

    fn workload(key: ResourceKey, kind: &'static str) -> Self {
        Self {
            scale: Some(ScalePaths {
                spec_replicas: "/spec/replicas".into(),
                status_replicas: "/status/replicas".into(),
            }),
            ..Self::builtin(key, kind).with_status()
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
        let key = ResourceKey {
            group: group.to_owned().into(),
            version: version.to_owned().into(),
            plural: plural.to_owned().into(),
        };
        Self {
            kind: kind.to_owned().into(),
            scale,
            custom: true,
            ..Self::builtin(key, "").with_status()
        }
    }

    /// `plural.group`, or the plural alone in the core group.
    pub fn qualified(&self) -> String {
        match (&*self.key.plural, &*self.key.group) {
            (plural, "") => plural.to_owned(),
            (plural, group) => format!("{plural}.{group}"),
        }
    }

    /// `group/version`, or the version alone in the core group.
    pub fn api_version(&self) -> String {
        match (&*self.key.group, &*self.key.version) {
            ("", version) => version.to_owned(),
            (group, version) => format!("{group}/{version}"),
        }
    }
}

/// Every resource that is served unless options say otherwise.
pub fn builtin() -> Vec<ResourceType> {
    let builtin = ResourceType::builtin;
    vec![
        builtin(keys::NAMESPACES, "Namespace").of_cluster().with_status(),
        builtin(keys::NODES, "Node").of_cluster().with_status(),
        builtin(keys::SECRETS, "Secret"),
        builtin(keys::CONFIG_MAPS, "ConfigMap"),
        builtin(keys::PODS, "Pod").with_status(),
        builtin(keys::SERVICES, "Service").with_status(),
        builtin(keys::ENDPOINTS, "Endpoints"),
        builtin(ResourceKey::of("", "v1", "events"), "Event"),
        builtin(keys::LEASES, "Lease"),
        ResourceType::workload(keys::DEPLOYMENTS, "Deployment"),
        ResourceType::workload(keys::STATEFUL_SETS, "StatefulSet"),
        builtin(keys::ENDPOINT_SLICES, "EndpointSlice"),
        builtin(keys::EVENTS, "Event"),
        // Gardener's Clusters have no status sub-resource.
        builtin(keys::CLUSTERS, "Cluster").of_cluster(),
        builtin(keys::MACHINES, "Machine").with_status(),
    ]
}
