"""What each service may do on the seed with the default values: the same as the functions named `permissions` in the
sources ask for when a service starts."""

from chart import LEASES, NAMESPACE

GARDENER_DEPENDANTS = "kube-controller-manager", "machine-controller-manager", "cluster-autoscaler"
GARDENER_SERVICES = "etcd-main-client", "kube-apiserver"
PROBE_SECRET = "shoot-access-dependency-watchdog-probe"


def _election(lease: str) -> set[tuple]:
    return {("create", "coordination.k8s.io", "leases", "")} | {
        (verb, "coordination.k8s.io", "leases", lease) for verb in ("get", "update")
    }


# In the namespace of the Leases, for every service: (verb, group, resource, name).
# On the certificate authority that the programs share, and the certificate of people that they issue by it; none where
# certificates come from elsewhere.
AUTHORITY = {
    (verb, "", "secrets", name) for verb in ("get", "update") for name in ("watchdog-authority", "watchdog-observer")
}
# In the same namespace, by service.
LEASE_RULES = {
    "lease-probe": {(verb, "coordination.k8s.io", "leases", "") for verb in ("list", "create", "patch", "delete")},
    # Lists the Leases of lease-probe to find its replicas.
    "scaling-coordinator": {("list", "coordination.k8s.io", "leases", "")} | _election("scaling-coordinator-leader"),
    "weeder": _election("weeder-leader"),
}

# In all namespaces, by service: (verb, group, resource, name).
EVERYWHERE = {
    "lease-probe": {
        ("list", "extensions.gardener.cloud", "clusters", ""),
        ("watch", "extensions.gardener.cloud", "clusters", ""),
        ("list", "machine.sapcloud.io", "machines", ""),
        ("list", "", "secrets", PROBE_SECRET),
        ("watch", "", "secrets", PROBE_SECRET),
    },
    "scaling-coordinator": {
        ("get", "extensions.gardener.cloud", "clusters", ""),
        ("list", "extensions.gardener.cloud", "clusters", ""),
        ("watch", "extensions.gardener.cloud", "clusters", ""),
        ("create", "events.k8s.io", "events", ""),
        ("patch", "events.k8s.io", "events", ""),
    }
    | {
        (verb, "apps", "deployments", name)
        for name in GARDENER_DEPENDANTS
        for verb in ("get", "list", "watch", "patch")
    },
    "weeder": {
        ("list", "discovery.k8s.io", "endpointslices", ""),
        ("watch", "discovery.k8s.io", "endpointslices", ""),
        ("list", "", "pods", ""),
        ("watch", "", "pods", ""),
        ("delete", "", "pods", ""),
        ("create", "events.k8s.io", "events", ""),
        ("patch", "events.k8s.io", "events", ""),
    }
    | {(verb, "", "endpoints", service) for service in GARDENER_SERVICES for verb in ("list", "watch")},
}

# What a careless rule would give: (verb, group, resource, name, namespace).
NOWHERE = {
    ("list", "", "secrets", "", ""),
    ("get", "", "secrets", "ca", "garden"),
    ("list", "", "secrets", "", "garden"),
    ("update", "", "secrets", "ca", "garden"),
    ("get", "", "secrets", "watchdog-authority", "garden"),
    ("get", "", "secrets", "ca", LEASES),
    ("delete", "", "secrets", "watchdog-authority", LEASES),
    ("create", "", "secrets", "", LEASES),
    ("create", "", "secrets", "", "garden"),
    ("create", "", "secrets", "", "shoot--a--b"),
    ("create", "coordination.k8s.io", "leases", "", "garden"),
    ("update", "coordination.k8s.io", "leases", "x", "garden"),
    ("list", "apps", "deployments", "", ""),
    ("list", "", "endpoints", "", ""),
    ("patch", "apps", "deployments", "kube-apiserver", "shoot--a--b"),
    ("update", "apps", "deployments", "kube-controller-manager", "shoot--a--b"),
    ("patch", "apps", "deployments/scale", "etcd", "shoot--a--b"),
    ("update", "apps", "deployments/scale", "kube-controller-manager", "shoot--a--b"),
    ("delete", "apps", "deployments", "kube-controller-manager", "shoot--a--b"),
    ("create", "", "pods", "", "garden"),
    ("create", "", "pods/exec", "", "shoot--a--b"),
    ("update", "", "pods", "x", "shoot--a--b"),
    ("deletecollection", "", "pods", "", "shoot--a--b"),
    ("update", "extensions.gardener.cloud", "clusters", "shoot--a--b", ""),
    ("delete", "machine.sapcloud.io", "machines", "x", "shoot--a--b"),
    ("update", "coordination.k8s.io", "leases", "x", "kube-system"),
    ("create", "rbac.authorization.k8s.io", "clusterrolebindings", "", ""),
    ("impersonate", "", "users", "admin", ""),
}


def role(service: str) -> str:
    """Name of the ClusterRole of a service."""
    return f"gardener.cloud:watchdog:{service}"


def granted(role: dict) -> set[tuple]:
    """The rules of a role, one by one: (verb, group, resource, name)."""
    return {
        (verb, group, resource, name)
        for rule in role["rules"]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", [""])
    }


def allowed(seed, service, verb, group, resource, name, namespace) -> bool:
    """Whether the ServiceAccount of a service may do that."""
    resource, _, subresource = resource.partition("/")
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": f"system:serviceaccount:{NAMESPACE}:watchdog-{service}",
            "groups": ["system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}", "system:authenticated"],
            "resourceAttributes": {
                "verb": verb,
                "group": group,
                "resource": resource,
                "subresource": subresource,
                "name": name,
                "namespace": namespace,
            },
        },
    }
    status, got = seed.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    assert status == 201, got
    return got["status"]["allowed"]
