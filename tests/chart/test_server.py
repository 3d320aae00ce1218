"""What a real kube-apiserver makes of the chart."""

import helm_python as helm
import pytest
from chart import CHART, LEASES, MATRIX, NAMESPACE, RELEASE, SERVICES, hooks, objects, of_kind, render
from permissions import AUTHORITY, EVERYWHERE, LEASE_RULES, NOWHERE, allowed, granted, role
from real_kubernetes import path
from test_gardener import OF_GARDENLET


@pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX.keys())
def test_every_object_is_accepted_whole(seed, releases, values):
    installed = objects(releases.install(values, dry_run="server"))
    # What is only tried finds no namespace that is only tried.
    namespaces = of_kind(installed, "Namespace").values()
    for namespace in namespaces:
        seed.create("/api/v1/namespaces", namespace)
    # The hooks are no part of the release.
    sent_later = [found for found in installed if found not in namespaces] + hooks(render(values, chart=releases.chart))
    for sent in sent_later:
        query = "?dryRun=All&fieldManager=check&force=true&fieldValidation=Strict"
        status, got = seed.request("PATCH", path(sent) + query, sent, "application/apply-patch+yaml")
        assert status in (200, 201), f"{sent['kind']} {sent['metadata']['name']}: {got}"
        # An older API server drops in silence what it does not know.
        assert lost(sent, got) == []


def test_an_api_server_that_is_too_old_is_refused(releases, fitting):
    if fitting == CHART:
        pytest.skip("this API server is not too old")
    with pytest.raises(helm.HelmError, match=r">=1\.25\.0-0.* Kubernetes v1\.2[0-4]"):
        releases.install(chart=CHART)


def test_it_is_installed_and_removed_beside_the_existing_watchdog(seed, releases):
    """Helm refuses to install over an object that it has not made."""
    labels = {"app": "dependency-watchdog-weeder"}
    container = {"name": "dependency-watchdog", "image": "none"}
    specs = {
        "Deployment": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
        "VerticalPodAutoscaler": {},
    }
    versions = {"ServiceAccount": "v1", "Deployment": "apps/v1", "VerticalPodAutoscaler": "autoscaling.k8s.io/v1"}
    theirs = []
    for kind, name in sorted(OF_GARDENLET):
        if kind in versions:
            found = {"apiVersion": versions[kind], "kind": kind, "metadata": {"name": name, "namespace": NAMESPACE}}
            found |= {"spec": specs[kind]} if kind in specs else {}
            theirs.append((path(found), seed.create(path(found).rpartition("/")[0], found)))
    try:
        releases.install(MATRIX["gardenlet"])
        releases.uninstall(RELEASE)
        for where, before in theirs:
            status, after = seed.request("GET", where)
            assert (status, after.get("spec")) == (200, before.get("spec")), where
    finally:
        for where, _ in theirs:
            seed.request("DELETE", where)


def test_install_upgrade_roll_back_uninstall(seed, releases):
    installed = objects(releases.install())
    for found in installed:
        assert seed.request("GET", path(found))[0] == 200
    assert replicas(seed, "lease-probe") == 2

    values = {"leaseProbe": {"replicas": 3}, "weeder": {"enabled": False}}
    releases.upgrade(values)
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
    (job,) = releases.jobs
    assert "--release-all" in job["spec"]["template"]["spec"]["containers"][0]["args"]
    for found in hooks(render()):
        assert seed.request("GET", path(found))[0] == 404


def test_the_authority_outlives_upgrades_and_is_removed_in_the_end(seed, releases):
    """The programs fill the Secrets. What Helm merges has no data."""
    secrets = of_kind(objects(releases.install()), "Secret")
    assert "data" not in secrets["watchdog-observer"]
    secret = secrets["watchdog-authority"]
    where, data = path(secret), {"ca.crt": "YQ==", "ca.key": "Yg=="}
    assert secret["type"] == "Opaque" and "data" not in secret
    account = "watchdog-lease-probe"
    _, empty = seed.request("GET", where, user=account)
    status, got = seed.request("PUT", where, empty | {"data": data}, user=account)
    assert status == 200, got
    assert seed.request("POST", where.rpartition("/")[0], {"metadata": {"name": "x"}}, user=account)[0] == 403
    releases.upgrade({"commonLabels": {"landscape": "live"}})
    assert seed.request("GET", where)[1]["data"] == data
    releases.rollback(RELEASE, version=1)
    assert seed.request("GET", where)[1]["data"] == data
    releases.uninstall(RELEASE)
    assert seed.request("GET", where)[0] == 404


@pytest.mark.parametrize("values", ["operators", "without-gardener", "everything-set"])
def test_any_installation_can_be_changed_changed_back_and_removed(seed, releases, values):
    before = objects(releases.install(MATRIX[values]))
    after = objects(releases.upgrade({"log": {"level": "debug"}, "weeder": {"enabled": False}}))
    assert {path(found) for found in after} != {path(found) for found in before}
    for found in after:
        assert seed.request("GET", path(found))[0] == 200
    releases.rollback(RELEASE, version=1)
    for found in before:
        status, got = seed.request("GET", path(found))
        assert status == 200 and lost(found, got) == []
    releases.uninstall(RELEASE)
    for found in before + after:
        assert seed.request("GET", path(found))[0] == 404


def test_rules_grant_what_is_asked_for_and_nothing_else(releases):
    rendered = objects(releases.install(dry_run="server"))
    for service in SERVICES:
        assert granted(of_kind(rendered, "ClusterRole")[role(service)]) == EVERYWHERE[service]
        assert granted(of_kind(rendered, "Role")[f"watchdog-{service}"]) == LEASE_RULES[service] | AUTHORITY


def test_rules_follow_the_configuration(releases):
    rendered = objects(releases.install(MATRIX["everything-set"], dry_run="server"))
    probe = granted(of_kind(rendered, "ClusterRole")["gardener.cloud:wd:lease-probe"])
    assert ("list", "", "secrets", "shoot-access-external") in probe
    coordinator = granted(of_kind(rendered, "ClusterRole")["gardener.cloud:wd:scaling-coordinator"])
    scaled = {(group, resource, name) for _, group, resource, name in coordinator if name}
    assert scaled == {
        ("apps", "statefulsets", "etcd"),
        ("example.org", "proxies", "egress"),
        ("example.org", "proxies/scale", "egress"),
    }


def test_the_server_grants_the_same(seed, releases):
    releases.install()
    for service in SERVICES:
        needed = {(*rule, "shoot--a--b") for rule in EVERYWHERE[service]}
        # In all namespaces at once, where the services ask so.
        needed |= {(*rule, "") for rule in EVERYWHERE[service] if rule[0] in ("list", "watch")}
        needed |= {(*rule, LEASES) for rule in LEASE_RULES[service] | AUTHORITY}
        refused = {rule for rule in needed if not allowed(seed, service, *rule)}
        assert refused == set(), service
        too_much = {rule for rule in NOWHERE if allowed(seed, service, *rule)}
        assert too_much == set(), service


def test_names_in_rules_hold_for_lists_by_field_selector(seed, releases):
    """A list of all namespaces that asks for one name is what the services send; the same without it is refused."""
    releases.install()
    for service, resource, name in (
        ("lease-probe", "/api/v1/secrets", "shoot-access-dependency-watchdog-probe"),
        ("scaling-coordinator", "/apis/apps/v1/deployments", "kube-controller-manager"),
        ("weeder", "/api/v1/endpoints", "kube-apiserver"),
    ):
        account = f"watchdog-{service}"
        status, got = seed.request("GET", f"{resource}?fieldSelector=metadata.name%3D{name}", user=account)
        assert status == 200, got
        assert seed.request("GET", f"{resource}?fieldSelector=metadata.name%3Dother", user=account)[0] == 403
        assert seed.request("GET", resource, user=account)[0] == 403


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
    found = seed.request("GET", f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/watchdog-{service}")
    return found[1]["spec"]["replicas"] if found[0] == 200 else None
