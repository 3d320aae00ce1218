//! The kinds that an API server serves and how each behaves.

use std::borrow::Cow;

use serde_json::Value;

use crate::{
    schema,
    status::qualified,
    validate::{self, Validate},
};

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
    /// Pointer to the selector: a LabelSelector object or a string.
    pub selector: Cow<'static, str>,
}

impl ScalePaths {
    /// The paths of the apps/v1 workloads.
    pub const WORKLOAD: Self = Self {
        spec_replicas: Cow::Borrowed("/spec/replicas"),
        status_replicas: Cow::Borrowed("/status/replicas"),
        selector: Cow::Borrowed("/spec/selector"),
    };

    /// The paths that most custom resources declare.
    pub const CUSTOM: Self = Self {
        spec_replicas: Cow::Borrowed("/spec/replicas"),
        status_replicas: Cow::Borrowed("/status/replicas"),
        selector: Cow::Borrowed("/status/labelSelector"),
    };
}

/// When `metadata.generation` grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Generation {
    /// The kind has no generation.
    None,
    /// Grows when `spec` changes.
    Spec,
    /// Grows when `spec` or the annotations change (Deployments).
    SpecAndAnnotations,
    /// Grows when anything but metadata and status changes (custom resources).
    AllButStatus,
}

/// Checks an object against its Go type and returns it as that type would be stored.
pub(crate) type Normalise = fn(Value) -> Result<Value, String>;

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
    /// When the generation grows.
    pub generation: Generation,
    /// True if an update without resourceVersion is accepted.
    pub unconditional_update: bool,
    /// Defined by a CustomResourceDefinition: list items carry their type.
    pub custom: bool,
    /// Only POST is served and nothing is stored (access reviews).
    pub review: bool,
    pub(crate) normalise: Option<Normalise>,
    pub(crate) validate: Option<Validate>,
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
            generation: Generation::None,
            unconditional_update: true,
            custom: false,
            review: false,
            normalise: None,
            validate: None,
        }
    }

    fn workload(kind: &'static str, plural: &'static str, normalise: Normalise) -> Self {
        Self {
            status: true,
            scale: Some(ScalePaths::WORKLOAD),
            generation: Generation::Spec,
            normalise: Some(normalise),
            ..Self::builtin("apps", "v1", kind, plural)
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
            generation: Generation::AllButStatus,
            unconditional_update: false,
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
    use k8s_openapi::api::{apps::v1 as apps, core::v1 as core, discovery::v1 as discovery};

    let core_typed = |kind, plural, normalise: Normalise| ResourceType {
        normalise: Some(normalise),
        ..ResourceType::core(kind, plural)
    };
    vec![
        ResourceType {
            namespaced: false,
            status: true,
            ..core_typed("Namespace", "namespaces", schema::typed::<core::Namespace>)
        },
        ResourceType {
            namespaced: false,
            status: true,
            ..core_typed("Node", "nodes", schema::typed::<core::Node>)
        },
        core_typed("Secret", "secrets", schema::typed::<core::Secret>),
        core_typed("ConfigMap", "configmaps", schema::typed::<core::ConfigMap>),
        ResourceType {
            status: true,
            ..core_typed("Pod", "pods", schema::typed::<core::Pod>)
        },
        ResourceType {
            status: true,
            ..core_typed("Service", "services", schema::typed::<core::Service>)
        },
        core_typed("Endpoints", "endpoints", schema::typed::<core::Endpoints>),
        core_typed("Event", "events", schema::typed::<core::Event>),
        ResourceType {
            unconditional_update: false,
            normalise: Some(schema::lease),
            ..ResourceType::builtin("coordination.k8s.io", "v1", "Lease", "leases")
        },
        ResourceType {
            generation: Generation::SpecAndAnnotations,
            ..ResourceType::workload("Deployment", "deployments", schema::typed::<apps::Deployment>)
        },
        ResourceType::workload("StatefulSet", "statefulsets", schema::typed::<apps::StatefulSet>),
        ResourceType {
            generation: Generation::AllButStatus,
            normalise: Some(schema::typed::<discovery::EndpointSlice>),
            ..ResourceType::builtin("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices")
        },
        ResourceType {
            normalise: Some(schema::event),
            validate: Some(validate::event),
            ..ResourceType::builtin("events.k8s.io", "v1", "Event", "events")
        },
        ResourceType {
            namespaced: false,
            review: true,
            ..ResourceType::builtin(
                "authorization.k8s.io",
                "v1",
                "SelfSubjectAccessReview",
                "selfsubjectaccessreviews",
            )
        },
        ResourceType {
            namespaced: false,
            // Gardener's Cluster CRD declares no status sub-resource.
            status: false,
            ..ResourceType::custom(
                "extensions.gardener.cloud",
                "v1alpha1",
                "Cluster",
                "clusters",
                None,
            )
        },
        ResourceType::custom("machine.sapcloud.io", "v1alpha1", "Machine", "machines", None),
    ]
}
