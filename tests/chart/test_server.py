"""What a real kube-apiserver makes of the chart."""

import helm_python as helm
import pytest
import real_kubernetes
import yaml
from chart import CHART, MATRIX, NAMESPACE, RELEASE, SERVICES, of_kind
from permissions import EVERYWHERE, MEMBERSHIP, NOWHERE

NAMESPACED = {
    "ConfigMap": "configmaps",
    "Deployment": "deployments",
    "NetworkPolicy": "networkpolicies",
    "PodDisruptionBudget": "poddisruptionbudgets",
    "Role": "roles",
    "RoleBinding": "rolebindings",
    "Service": "services",
    "ServiceAccount": "serviceaccounts",
}
CLUSTER_SCOPED = {"ClusterRole": "clusterroles", "ClusterRoleBinding": "clusterrolebindings"}


@pytest.fixture(scope="session")
def seed(tmp_path_factory):
    """A seed with its namespace garden."""
    server = real_kubernetes.Kubernetes(real_kubernetes.assets(), tmp_path_factory.mktemp("seed"))
    try:
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        assert server.request("POST", "/api/v1/namespaces", namespace)[0] == 201
        yield server
    finally:
        server.close()


@pytest.fixture
def releases(seed):
    """Helm on that seed; nothing is left of the release afterwards."""
    with helm.Config(kubeconfig_content=seed.kubeconfig(), namespace=NAMESPACE) as config:
        yield config
        config.uninstall(RELEASE, ignore_not_found=True)


@pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX.keys())
def test_every_object_is_accepted_whole(seed, releases, values):
    for sent in objects(releases.install(CHART, RELEASE, values, dry_run="server")):
        query = "?dryRun=All&fieldManager=check&force=true&fieldValidation=Strict"
        status, got = seed.request("PATCH", path(sent) + query, sent, "application/apply-patch+yaml")
        assert status in (200, 201), f"{sent['kind']} {sent['metadata']['name']}: {got}"
        # An older API server drops in silence what it does not know.
        assert lost(sent, got) == []


def test_install_upgrade_roll_back_uninstall(seed, releases):
    installed = objects(releases.install(CHART, RELEASE))
    for found in installed:
        assert seed.request("GET", path(found))[0] == 200
    assert replicas(seed, "lease-probe") == 2

    values = {"leaseProbe": {"replicas": 3}, "weeder": {"enabled": False}}
    releases.upgrade(CHART, RELEASE, values)
    assert replicas(seed, "lease-probe") == 3
    assert replicas(seed, "weeder") is None
    assert seed.request("GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles/" + role("weeder"))[0] == 404

    releases.rollback(RELEASE, version=1)
    assert replicas(seed, "lease-probe") == 2
    assert replicas(seed, "weeder") == 2
    assert [r["status"] for r in releases.history(RELEASE)] == ["superseded", "superseded", "deployed"]

    releases.uninstall(RELEASE)
    for found in installed:
        assert seed.request("GET", path(found))[0] == 404


def test_rules_grant_what_is_asked_for_and_nothing_else(releases):
    rendered = objects(releases.install(CHART, RELEASE, dry_run="server"))
    for service in SERVICES:
        assert granted(of_kind(rendered, "ClusterRole")[role(service)]) == EVERYWHERE[service]
        assert granted(of_kind(rendered, "Role")[f"dependency-watchdog-{service}"]) == MEMBERSHIP


def test_rules_follow_the_configuration(releases):
    rendered = objects(releases.install(CHART, RELEASE, MATRIX["everything-set"], dry_run="server"))
    probe = granted(of_kind(rendered, "ClusterRole")["gardener.cloud:wd:lease-probe"])
    assert ("list", "", "secrets", "shoot-access-external") in probe
    coordinator = granted(of_kind(rendered, "ClusterRole")["gardener.cloud:wd:scaling-coordinator"])
    scaled = {(group, resource, name) for _, group, resource, name in coordinator if name}
    assert scaled == {
        ("apps", "statefulsets", "etcd"),
        ("apps", "statefulsets/scale", "etcd"),
        ("example.org", "proxies", "egress"),
        ("example.org", "proxies/scale", "egress"),
    }


def test_the_server_grants_the_same(seed, releases):
    releases.install(CHART, RELEASE)
    for service in SERVICES:
        needed = {(*rule, "shoot--a--b") for rule in EVERYWHERE[service]}
        # In all namespaces at once, where the services ask so.
        needed |= {(*rule, "") for rule in EVERYWHERE[service] if rule[0] in ("list", "watch")}
        needed |= {(*rule, NAMESPACE) for rule in MEMBERSHIP}
        refused = {rule for rule in needed if not allowed(seed, service, *rule)}
        assert refused == set(), service
        too_much = {rule for rule in NOWHERE if allowed(seed, service, *rule)}
        assert too_much == set(), service


def test_names_in_rules_hold_for_lists_by_field_selector(seed, releases):
    """A list of all namespaces that asks for one name is what the services send; the same without it is refused."""
    releases.install(CHART, RELEASE)
    for service, resource, name in (
        ("lease-probe", "/api/v1/secrets", "shoot-access-dependency-watchdog-probe"),
        ("scaling-coordinator", "/apis/apps/v1/deployments", "kube-controller-manager"),
        ("weeder", "/api/v1/endpoints", "kube-apiserver"),
    ):
        account = f"dependency-watchdog-{service}"
        status, got = seed.request("GET", f"{resource}?fieldSelector=metadata.name%3D{name}", user=account)
        assert status == 200, got
        assert seed.request("GET", f"{resource}?fieldSelector=metadata.name%3Dother", user=account)[0] == 403
        assert seed.request("GET", resource, user=account)[0] == 403


def test_services_can_ask_what_they_may(seed, releases):
    """The preflight of the services is a SelfSubjectAccessReview."""
    releases.install(CHART, RELEASE)
    for service in SERVICES:
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {"verb": "list", "resource": "secrets"}},
        }
        reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        status, got = seed.request("POST", reviews, review, user=f"dependency-watchdog-{service}")
        assert status == 201 and got["status"]["allowed"] is False


def objects(release) -> list[dict]:
    """Of an installation, also of one that was only tried."""
    # There is no manifest where nothing was rendered.
    return [parsed for parsed in yaml.safe_load_all(release.get("manifest", "")) if parsed]


def path(found: dict) -> str:
    """Where the API server has an object."""
    version, kind, name = found["apiVersion"], found["kind"], found["metadata"]["name"]
    prefix = f"/apis/{version}" if "/" in version else f"/api/{version}"
    if kind in CLUSTER_SCOPED:
        return f"{prefix}/{CLUSTER_SCOPED[kind]}/{name}"
    return f"{prefix}/namespaces/{NAMESPACE}/{NAMESPACED[kind]}/{name}"


def lost(sent, got, where="") -> list[str]:
    """Where something that was sent is not in the answer."""
    if isinstance(sent, dict) and isinstance(got, dict):
        return [place for key, value in sent.items() for place in lost(value, got.get(key), f"{where}.{key}")]
    if isinstance(sent, list) and isinstance(got, list) and len(sent) == len(got):
        return [place for i, pair in enumerate(zip(sent, got)) for place in lost(*pair, f"{where}[{i}]")]
    # Empty values are left out of answers.
    return [] if sent == got or (not sent and not got) else [f"{where}: sent {sent!r}, got {got!r}"]


def replicas(seed, service):
    """Of the Deployment of a service; none without it."""
    found = seed.request("GET", f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/dependency-watchdog-{service}")
    return found[1]["spec"]["replicas"] if found[0] == 200 else None


def role(service: str) -> str:
    """Name of the ClusterRole of a service."""
    return f"gardener.cloud:dependency-watchdog:{service}"


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
            "user": f"system:serviceaccount:{NAMESPACE}:dependency-watchdog-{service}",
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
