"""The chart on a seed of Gardener. The data comes from gardener/gardener v1.150, by the paths that are named."""

import fnmatch
import hashlib
import json
import re
import subprocess
import sys
import tarfile

import helm_python as helm
import pytest
from chart import (
    CHART,
    GARDENLET,
    LEASES,
    MATRIX,
    OTHER_LEASES,
    SERVICES,
    hooks,
    manifests,
    merged,
    of_kind,
    render,
)
from programs import binary

# pkg/component/nodemanagement/dependencywatchdog: what gardenlet writes into the namespace garden of every seed.
OF_GARDENLET = {
    (kind, f"dependency-watchdog-{role}")
    for role in ("prober", "weeder")
    for kind in ("ServiceAccount", "Deployment", "PodDisruptionBudget", "VerticalPodAutoscaler")
} | {
    (kind, f"gardener.cloud:dependency-watchdog-{role}")
    for role in ("prober", "weeder")
    for kind in ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
}
# Of the Pods of that prober and weeder.
TO_SEED = {"networking.gardener.cloud/to-dns", "networking.gardener.cloud/to-runtime-apiserver"}
TO_SHOOTS = {
    "networking.gardener.cloud/to-public-networks",
    "networking.gardener.cloud/to-private-networks",
    "networking.resources.gardener.cloud/to-istio-ingress-istio-ingressgateway-tcp-9443",
    "networking.resources.gardener.cloud/to-all-shoots-kube-apiserver-tcp-443",
}
ALL = {
    "monitoring": {kind: {"enabled": True} for kind in ("podMonitor", "serviceMonitor", "rules", "dashboards")},
    "verticalPodAutoscaler": {"enabled": True},
    "leaseProbe": {"autoscaling": {"enabled": True}},
}


def test_values_of_gardenlet_change_nothing_but_the_hooks():
    plain, theirs = render(ALL), render(ALL | GARDENLET)
    assert hooks(plain) and hooks(theirs) == []
    assert theirs == [found for found in plain if found not in hooks(plain)]


def test_nothing_is_asked_of_an_api_server():
    templates = {path: path.read_text() for path in CHART.rglob("templates/**/*") if path.is_file()}
    assert templates
    for path, text in templates.items():
        for asks in "APIVersions", "lookup":
            assert asks not in text, path.name


def test_an_old_kubernetes_is_refused_with_the_version_that_is_needed(tmp_path):
    """gardenlet sets the version and does not read kubeVersion in Chart.yaml, and neither does an offline rendering."""
    with helm.Chart.load(CHART) as loaded:
        chart = loaded.save_dir(tmp_path)
    metadata = tmp_path / CHART.name / "Chart.yaml"
    assert "kubeVersion: '>=1.25.0-0'" in metadata.read_text() or 'kubeVersion: ">=1.25.0-0"' in metadata.read_text()
    # The version of the library is newer than any that is refused, so the bound is moved.
    metadata.write_text(re.sub(r"kubeVersion: .*", 'kubeVersion: ">=9.99.0-0"', metadata.read_text()))
    with pytest.raises(helm.HelmError, match="this chart is for Kubernetes >=9.99.0-0, and the cluster runs v1"):
        manifests(merged(), chart=chart)


def test_names_are_not_those_of_gardenlet():
    objects = render(ALL)
    assert {(found["kind"], found["metadata"]["name"]) for found in objects} & OF_GARDENLET == set()
    # Its ConfigMaps end with a hash.
    assert not [name for name in of_kind(objects, "ConfigMap") if name.startswith("dependency-watchdog-")]
    # Its selectors are of the label app.
    for deployment in of_kind(objects, "Deployment").values():
        assert "app" not in deployment["spec"]["template"]["metadata"]["labels"]


@pytest.mark.parametrize("policies", [True, False])
def test_pods_carry_the_labels_of_those_that_they_replace(policies):
    objects = render({"networkPolicy": {"enabled": policies}})
    assert bool(of_kind(objects, "NetworkPolicy")) == policies
    for name, deployment in of_kind(objects, "Deployment").items():
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        allowed = {label for label, value in labels.items() if value == "allowed"}
        assert TO_SEED <= allowed
        assert (TO_SHOOTS <= allowed) == name.endswith("lease-probe")
        # docs/concepts/resource-manager.md, NetworkPolicy controller: the name of the Service and the port of its Pods.
        calls = {name, "watchdog-lease-probe"} if name.endswith("coordinator") else {name}
        to_services = {label for label in allowed if label.endswith("-tcp-9645")}
        assert to_services == {f"networking.resources.gardener.cloud/to-{called}-tcp-9645" for called in calls}
    service = of_kind(objects, "Service")["watchdog-lease-probe"]
    assert [port["targetPort"] for port in service["spec"]["ports"]] == [9645]


@pytest.mark.parametrize(
    ("namespace", "selectors", "alias"),
    [("garden", None, None), ("extension-watchdog-x7k2p", "garden", "extensions"), ("watchdog", "garden", None)],
)
def test_services_let_the_prometheis_of_the_seed_in(namespace, selectors, alias):
    """docs/operations/network_policies.md, Logging & Monitoring."""
    prefix = "networking.resources.gardener.cloud/"
    for name, service in of_kind(render(namespace=namespace), "Service").items():
        annotations = service["metadata"].get("annotations", {})
        if not name.endswith("-headless"):
            # The Pod of helm test.
            (own,) = json.loads(annotations[f"{prefix}namespace-selectors"])
            assert own == {"matchLabels": {"kubernetes.io/metadata.name": LEASES}} and len(annotations) == 1
            continue
        ports = json.loads(annotations.pop(f"{prefix}from-all-seed-scrape-targets-allowed-ports"))
        assert ports == [{"port": 9643, "protocol": "TCP"}]
        expected = {}
        if selectors:
            named = [{"matchLabels": {"kubernetes.io/metadata.name": selectors}}]
            expected[f"{prefix}namespace-selectors"] = named
        found = {key: json.loads(value) for key, value in annotations.items() if key.endswith("namespace-selectors")}
        assert found == expected
        assert annotations.get(f"{prefix}pod-label-selector-namespace-alias") == alias


def test_callers_in_other_namespaces_are_let_in_by_annotation():
    given = MATRIX["everything-set"]["seed"]["callerNamespaceSelectors"]
    services = of_kind(render(MATRIX["everything-set"]), "Service")
    for service in SERVICES:
        annotations = services[f"wd-{service}"]["metadata"]["annotations"]
        assert json.loads(annotations["networking.resources.gardener.cloud/namespace-selectors"]) == given
    elsewhere = of_kind(render(MATRIX["everything-set"] | {"seed": {"gardener": False}}), "Service")
    assert "networking." not in str(elsewhere)


def test_replicas_spread_over_hosts_and_zones():
    """pkg/utils/kubernetes/highavailability.go: minDomains is the number of zones, but at most that of replicas."""
    values = {"topologySpread": {"zone": {"minDomains": 3}}, "weeder": {"replicas": 3}, "leaseProbe": {"replicas": 1}}
    values["scalingCoordinator"] = {"replicas": 0}
    domains = {"watchdog-weeder": 3, "watchdog-lease-probe": 1, "watchdog-scaling-coordinator": None}
    for name, deployment in of_kind(render(values), "Deployment").items():
        host, zone = deployment["spec"]["template"]["spec"]["topologySpreadConstraints"]
        assert [host["topologyKey"], zone["topologyKey"]] == ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
        assert [(c["maxSkew"], c["whenUnsatisfiable"]) for c in (host, zone)] == [(1, "DoNotSchedule")] * 2
        assert [host.get("minDomains"), zone.get("minDomains")] == [None, domains[name]]


@pytest.mark.parametrize(
    ("probe", "host", "domains"),
    [
        ({"replicas": 5}, "DoNotSchedule", 3),
        ({"replicas": 6}, "ScheduleAnyway", 3),
        ({"autoscaling": {"enabled": True, "maxReplicas": 2}}, "DoNotSchedule", 2),
        ({"autoscaling": {"enabled": True, "maxReplicas": 10}}, "ScheduleAnyway", 3),
    ],
)
def test_many_replicas_in_few_zones_do_not_block_each_other(probe, host, domains):
    """The same file, and kubernetes/kubernetes#109364: from twice as many replicas as zones on, hosts give way."""
    deployments = of_kind(render({"topologySpread": {"zone": {"minDomains": 3}}, "leaseProbe": probe}), "Deployment")
    hosts, zones = deployments["watchdog-lease-probe"]["spec"]["template"]["spec"]["topologySpreadConstraints"]
    assert (hosts["whenUnsatisfiable"], zones["whenUnsatisfiable"]) == (host, "DoNotSchedule")
    assert zones["minDomains"] == domains


def test_the_webhook_of_the_seed_takes_over():
    """pkg/resourcemanager/webhook/highavailabilityconfig: replicas of 0 stay, others become those of the annotation."""
    prefix = "high-availability-config.resources.gardener.cloud"
    for deployment in of_kind(render(), "Deployment").values():
        assert prefix not in str(deployment)
    values = {"topologySpread": {"highAvailabilityWebhook": True}, "weeder": {"replicas": 3}}
    for name, deployment in of_kind(render(values), "Deployment").items():
        assert deployment["metadata"]["labels"][f"{prefix}/type"] == "controller"
        assert deployment["metadata"]["annotations"][f"{prefix}/replicas"] == ("3" if name.endswith("weeder") else "2")
        assert "topologySpreadConstraints" not in deployment["spec"]["template"]["spec"]


def test_a_vertical_autoscaler_sets_requests_of_memory_alone():
    assert of_kind(render(), "VerticalPodAutoscaler") == {}
    objects = render(ALL)
    scalers = of_kind(objects, "VerticalPodAutoscaler")
    assert sorted(scalers) == sorted(of_kind(objects, "Deployment"))
    for name, scaler in scalers.items():
        assert scaler["spec"]["targetRef"]["name"] == name
        (policy,) = scaler["spec"]["resourcePolicy"]["containerPolicies"]
        (container,) = of_kind(objects, "Deployment")[name]["spec"]["template"]["spec"]["containers"]
        assert policy["containerName"] == container["name"]
        assert policy["controlledResources"] == ["memory"] and policy["controlledValues"] == "RequestsOnly"
        assert list(policy["minAllowed"]) == ["memory"]


# Most resident MiB that one replica with all shoots of 20 nodes has ever taken in an incident; today's is less (see
# docs/explanation/performance.md). lease-probe by shoots; scaling-coordinator with 1,000 shoots; weeder with 1,000
# Services.
MEASURED = [("lease-probe", 1_000, 167), ("lease-probe", 5_000, 568), ("lease-probe", 10_000, 2_249)]
MEASURED += [("scaling-coordinator", 1_000, 126), ("weeder", 500, 30)]


@pytest.mark.parametrize(("service", "shoots", "most"), MEASURED)
def test_one_replica_holds_all_shoots_within_its_limit(service, shoots, most):
    deployment = of_kind(render({"expectedShoots": shoots}), "Deployment")[f"watchdog-{service}"]
    resources = deployment["spec"]["template"]["spec"]["containers"][0]["resources"]
    request, limit = (int(resources[kind]["memory"].removesuffix("Mi")) for kind in ("requests", "limits"))
    # A fifth to spare.
    assert 1.2 * most <= limit and request < limit


def test_escape_hatches():
    objects = render(MATRIX["everything-set"])
    given = MATRIX["everything-set"]["leaseProbe"]
    for found in objects:
        assert found["metadata"]["annotations"]["owner"] == "team-a", found["kind"]
        assert found["metadata"]["labels"]["landscape"] == "live"
        assert found["metadata"]["labels"]["app.kubernetes.io/name"] == "wd"
    probe = of_kind(objects, "Deployment")["wd-lease-probe"]
    installed = {"dependency-watchdog.gardener.cloud/programs": "lease-probe,scaling-coordinator,weeder"}
    assert probe["metadata"]["annotations"] == {"owner": "team-a"} | given["annotations"] | installed
    pod = probe["spec"]["template"]
    assert pod["metadata"]["labels"]["networking.gardener.cloud/to-public-networks"] == "denied"
    assert pod["metadata"]["labels"]["landscape"] == "live" and pod["metadata"]["annotations"]["owner"] == "team-a"
    for key in "dnsConfig", "nodeSelector", "tolerations", "affinity":
        assert pod["spec"][key] == given[key]
    (container,) = pod["spec"]["containers"]
    assert container["resources"] == given["resources"]
    assert container["args"][-1:] == given["extraArgs"] and container["env"][-1:] == given["extraEnv"]
    assert {"--grpc-addr=[::]:9645", "--admin-addr=[::]:9643", f"--namespace={OTHER_LEASES}"} <= set(container["args"])
    account = of_kind(objects, "ServiceAccount")["wd-lease-probe"]
    assert given["serviceAccount"]["annotations"].items() <= account["metadata"]["annotations"].items()
    for name in "wd-lease-probe", "wd-lease-probe-headless":
        annotations = of_kind(objects, "Service")[name]["metadata"]["annotations"]
        assert given["service"]["annotations"].items() <= annotations.items()


def test_logs_are_taken_apart_by_the_logging_of_gardener():
    """pkg/component/observability/logging: chosen by label; tag: kubernetes.<Pod>_<namespace>_<container>-<id>.log."""
    objects = render(MATRIX["operators"])
    filters, (parser,) = of_kind(objects, "ClusterFilter"), of_kind(objects, "ClusterParser").values()
    assert sorted(filters) == sorted(of_kind(objects, "Deployment"))
    for found in *filters.values(), parser:
        assert found["metadata"]["labels"]["fluentbit.gardener/type"] == "seed"
    tags = [f"kubernetes.watchdog-{service}-6c9f-x2x_garden_{service}-0123.log" for service in SERVICES]
    # Those of the program that gardenlet installs have a parser already.
    tags.append("kubernetes.dependency-watchdog-weeder-6c9f-x2x_garden_dependency-watchdog-0123.log")
    for service, tag in zip((*SERVICES, None), tags):
        matched = [name for name, found in filters.items() if fnmatch.fnmatch(tag, found["spec"]["match"])]
        assert matched == ([f"watchdog-{service}"] if service else []), tag
    for found in filters.values():
        assert found["spec"]["filters"][0]["parser"]["parser"] == parser["metadata"]["name"]


def test_the_parser_knows_the_lines_of_the_programs(tmp_path):
    config = tmp_path / "weeder.yaml"
    config.write_text("servicesAndDependantSelectors: {x: {podSelectors: [{matchLabels: {a: b}}]}}")
    options = [
        "--insecure-plaintext",
        "--grpc-addr=127.0.0.1:0",
        "--admin-addr=127.0.0.1:0",
        "--kubeconfig=/nonexistent",
    ]
    ended = subprocess.run(
        [binary("weeder"), f"--config-file={config}", *options], capture_output=True, text=True, timeout=60
    )
    lines = [json.loads(line) for line in (ended.stdout + ended.stderr).splitlines()]
    (parser,) = of_kind(render(MATRIX["operators"]), "ClusterParser").values()
    filters, *_ = of_kind(render(MATRIX["operators"]), "ClusterFilter").values()
    renamed = {key for rule in filters["spec"]["filters"][1]["modify"]["rules"] for key in rule["rename"]}
    assert lines and "message" in renamed
    for line in lines:
        assert {parser["spec"]["json"]["timeKey"]} | renamed <= set(line)


def test_leases_are_in_a_namespace_of_their_own():
    (created,) = of_kind(render(), "Namespace")
    assert created == LEASES and of_kind(render({"nameOverride": "wd"}), "Namespace").keys() == {"wd-leases"}
    for role in of_kind(render(), "Role").values():
        assert role["metadata"]["namespace"] == LEASES or role["metadata"]["name"].endswith("-release")
    # One that exists is not created, garden neither, which takes a value of its own.
    for name in OTHER_LEASES, "garden":
        named = render({"membership": {"namespace": name}})
        assert of_kind(named, "Namespace") == {}
        assert of_kind(named, "Secret")["watchdog-authority"]["metadata"]["namespace"] == name


def test_gardener_leaves_the_authority_alone():
    """gardener-resource-manager takes data away that a Secret does not have in the chart, unless it carries this
    annotation: then it creates the Secret where it is missing, and does nothing else (applyNewResources in
    pkg/resourcemanager/controller/managedresource/reconciler.go)."""
    secrets = of_kind(render(GARDENLET), "Secret")
    assert set(secrets) == {"watchdog-authority", "watchdog-observer"}
    for secret in secrets.values():
        assert secret["metadata"]["annotations"]["resources.gardener.cloud/ignore"] == "true"


def test_membership_leases_in_a_namespace_that_exists():
    for kind in "Role", "RoleBinding":
        for service in SERVICES:
            found = of_kind(render(MATRIX["everything-set"]), kind)[f"wd-{service}"]
            assert found["metadata"]["namespace"] == OTHER_LEASES
            assert kind == "Role" or found["subjects"][0]["namespace"] == "garden"


def test_the_package_is_the_chart(tmp_path):
    """As Helm's archive, and as what a ControllerDeployment or an operator Extension pulls."""
    for folder in "one", "other":
        subprocess.run([sys.executable, CHART.parent / "package", tmp_path / folder], check=True, capture_output=True)
    archive, layout = sorted((tmp_path / "one").iterdir(), key=lambda path: path.suffix, reverse=True)
    for path in archive, layout:
        assert path.read_bytes() == (tmp_path / "other" / path.name).read_bytes()
    with helm.Chart.load_archive(archive.read_bytes()) as packed:
        assert packed.render(merged(ALL | GARDENLET)) == manifests(merged(ALL | GARDENLET), name=None, namespace=None)
    with tarfile.open(layout) as tar:
        read = {entry.name: tar.extractfile(entry).read() for entry in tar}

    def blob(found: dict) -> bytes:
        content = read[found["digest"].replace("sha256:", "blobs/sha256/")]
        assert f"sha256:{hashlib.sha256(content).hexdigest()}" == found["digest"] and len(content) == found["size"]
        return content

    (manifest,) = json.loads(read["index.json"])["manifests"]
    inner = json.loads(blob(manifest))
    (layer,) = inner["layers"]
    assert blob(layer) == archive.read_bytes()
    assert json.loads(blob(inner["config"]))["version"] == manifest["annotations"]["org.opencontainers.image.ref.name"]


def test_a_config_map_of_somebody_else():
    """gardenlet's has the key dep-config.yaml."""
    theirs = {"prober": "dependency-watchdog-prober-config-1234", "weeder": "dependency-watchdog-weeder-config-5678"}
    objects = render({"existingConfigMap": theirs})
    assert of_kind(objects, "ConfigMap") == {}
    for name, found in (of_kind(objects, "Deployment") | of_kind(objects, "Job")).items():
        (volume,) = [v for v in found["spec"]["template"]["spec"]["volumes"] if v["name"] == "config"]
        file = "weeder" if name.endswith("weeder") else "prober"
        items = [{"key": "dep-config.yaml", "path": "config.yaml"}]
        assert volume["configMap"] == {"name": theirs[file], "items": items}
        assert "--ignore-unknown-fields" in str(found)
    assert "--ignore-unknown-fields" not in str(render({"existingConfigMap": theirs | {"ignoreUnknownFields": False}}))
    assert "--ignore-unknown-fields" not in str(render())
