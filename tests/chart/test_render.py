"""What the chart renders, without any server."""

import json
import re

import helm_python as helm
import kubernetes_validate
import pytest
import yaml
from chart import CHART, DIGEST, LEASES, MATRIX, NAMESPACE, ROOT, SERVICES, hooks, merged, notes, of_kind, render
from kubernetes_validate.utils import all_versions
from permissions import EVERYWHERE, granted, role


@pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX.keys())
def test_lint_finds_nothing(values):
    report = helm.lint(CHART, merged(values), strict=True, namespace=NAMESPACE)
    assert report["errors"] == []
    assert [m["error"] for m in report["messages"] if m["severity"] > 0] == []


@pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX.keys())
def test_objects_are_distinct_and_fit_together(values):
    objects = render(values)
    names = [(found["kind"], found["metadata"]["name"]) for found in objects]
    assert len(names) == len(set(names))
    accounts, maps = of_kind(objects, "ServiceAccount"), of_kind(objects, "ConfigMap")
    deployments = of_kind(objects, "Deployment")
    for deployment in deployments.values():
        pod = deployment["spec"]["template"]
        selector = deployment["spec"]["selector"]["matchLabels"].items()
        assert selector <= pod["metadata"]["labels"].items()
        assert pod["spec"]["serviceAccountName"] in accounts
        used = [v["configMap"]["name"] for v in pod["spec"]["volumes"] if "configMap" in v]
        assert len(used) == 1 and used[0] in maps
        account = {"name": pod["spec"]["serviceAccountName"], "kind": "ServiceAccount", "namespace": NAMESPACE}
        assert account in [
            subject for b in of_kind(objects, "ClusterRoleBinding").values() for subject in b["subjects"]
        ]
    for kind in "Service", "PodDisruptionBudget", "NetworkPolicy":
        for found in of_kind(objects, kind).values():
            spec = found["spec"]
            selector = spec.get("podSelector", spec["selector"] if kind != "NetworkPolicy" else None)
            labels = selector.get("matchLabels", selector).items()
            pods = [d["spec"]["template"]["metadata"]["labels"].items() for d in deployments.values()]
            assert sum(labels <= pod for pod in pods) == 1, f"{kind} selects the Pods of one Deployment"


SUPPORTED = sorted({version for version in all_versions() if int(version.split(".")[1]) >= 25})
# Their schemas are not Kubernetes' own.
FOREIGN = {"monitoring.coreos.com", "cert-manager.io", "autoscaling.k8s.io", "fluentbit.fluent.io"}


@pytest.mark.parametrize("version", SUPPORTED)
def test_every_supported_kubernetes_knows_every_field(version):
    names = "operators", "everything-set", "without-gardener", "policies"
    objects = [found for name in names for found in render(MATRIX[name])]
    # One of each shape: to validate one takes a tenth of a second.
    shapes = {shape(found): found for found in objects if found["apiVersion"].split("/")[0] not in FOREIGN}
    for found in shapes.values():
        if version.startswith("1.25") and found["kind"] == "PodDisruptionBudget":
            # Helm's library renders for the newest Kubernetes; the chart leaves this out below 1.27.
            del found["spec"]["unhealthyPodEvictionPolicy"]
        kubernetes_validate.validate(found, version, strict=True)


def shape(value) -> str:
    """The keys of an object, without values."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{shape(inner)}" for key, inner in sorted(value.items())) + "}"
    if isinstance(value, list):
        return "[" + "|".join(sorted({shape(inner) for inner in value})) + "]"
    return type(value).__name__


def test_three_deployments_each_with_its_own():
    objects = render()
    names = [f"watchdog-{service}" for service in SERVICES]
    lasting = [found for found in objects if found not in hooks(objects)]
    for kind in "Deployment", "ServiceAccount", "PodDisruptionBudget", "NetworkPolicy", "Role":
        assert sorted(of_kind(lasting, kind)) == sorted(names), kind
    services = of_kind(objects, "Service")
    assert sorted(services) == sorted(names + [f"{name}-headless" for name in names])
    for name in names:
        assert [port["port"] for port in services[name]["spec"]["ports"]] == [9645]
        assert services[f"{name}-headless"]["spec"]["clusterIP"] == "None"
        # helm test asks each replica, also right after an installation.
        assert services[f"{name}-headless"]["spec"]["publishNotReadyAddresses"] is True
    for budget in of_kind(objects, "PodDisruptionBudget").values():
        assert budget["apiVersion"] == "policy/v1" and budget["spec"]["maxUnavailable"] == 1


def test_a_new_witness_is_ready_when_it_can_prove_a_loss():
    """rolling_update_around_a_loss in the simulation of lease-probe: at most as far apart, and no loss is late. A
    PodDisruptionBudget counts Pods that are ready and does not know minReadySeconds."""
    pods = {name: found["spec"]["template"]["spec"] for name, found in of_kind(render(), "Deployment").items()}
    waits = {name: pod["containers"][0]["readinessProbe"].get("initialDelaySeconds") for name, pod in pods.items()}
    assert waits == {"watchdog-lease-probe": 45, "watchdog-scaling-coordinator": None, "watchdog-weeder": None}


def test_pods_may_do_little():
    for deployment in of_kind(render(), "Deployment").values():
        pod = deployment["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["priorityClassName"] == "gardener-system-800"
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert "memory" in container["resources"]["limits"]
        assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"
        spread = {s["topologyKey"]: s["maxSkew"] for s in pod["topologySpreadConstraints"]}
        assert spread == {"kubernetes.io/hostname": 1, "topology.kubernetes.io/zone": 1}
        probes = container["livenessProbe"]["httpGet"], container["readinessProbe"]["httpGet"]
        assert [probe["path"] for probe in probes] == ["/healthz", "/readyz"]
        environment = {e["name"]: e["valueFrom"]["fieldRef"]["fieldPath"] for e in container["env"]}
        assert environment == {"POD_NAME": "metadata.name", "POD_IP": "status.podIP"}


def test_tls_unless_plaintext_is_asked_for_by_name():
    secrets_of_others = {"certificates": {"source": "secrets"}}
    for values, flag, absent in (
        (None, "--tls-authority", "--insecure"),
        (secrets_of_others, "--tls-cert", "--insecure"),
        (MATRIX["plaintext"], "--insecure", "--tls-"),
    ):
        for name, deployment in of_kind(render(values), "Deployment").items():
            pod = deployment["spec"]["template"]["spec"]
            arguments = " ".join(pod["containers"][0]["args"])
            assert flag in arguments and absent not in arguments
            secrets = [v["secret"]["secretName"] for v in pod["volumes"] if "secret" in v]
            assert secrets == ([f"{name}-tls"] if values is secrets_of_others else [])


def test_other_callers_are_added_by_name():
    """The programs derive the names of their own services from that of their replicas."""
    assert "allowed-client" not in str(render())
    allowed = {}
    for name, deployment in of_kind(render(MATRIX["operators"]), "Deployment").items():
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        options = [option.partition("=") for option in container["args"]]
        allowed[name] = [value for option, _, value in options if option == "--tls-allowed-client"]
    # cert-manager issues the certificate for people.
    given = [*MATRIX["operators"]["allowedClients"], "watchdog-observer.garden.svc"]
    for service in "lease-probe", "scaling-coordinator", "weeder":
        assert allowed[f"watchdog-{service}"] == given


def test_port_9643_has_tls_if_asked_for():
    tls = {"serverName": "watchdog-lease-probe.garden.svc"}
    monitors = {"podMonitor": {"enabled": True}, "serviceMonitor": {"enabled": True}}
    for enabled, scheme in (False, "http"), (True, "https"):
        rendered = render({"adminTLS": {"enabled": enabled, "tlsConfig": tls}, "monitoring": monitors})
        for deployment in of_kind(rendered, "Deployment").values():
            template = deployment["spec"]["template"]
            (container,) = template["spec"]["containers"]
            assert ("--admin-tls" in container["args"]) == enabled
            assert template["metadata"]["annotations"]["prometheus.io/scheme"] == scheme
            probes = container["livenessProbe"]["httpGet"], container["readinessProbe"]["httpGet"]
            assert {probe.get("scheme", "HTTP") for probe in probes} == {scheme.upper()}
        (pod_monitor,) = of_kind(rendered, "PodMonitor").values()
        (service_monitor,) = of_kind(rendered, "ServiceMonitor").values()
        endpoints = pod_monitor["spec"]["podMetricsEndpoints"] + service_monitor["spec"]["endpoints"]
        for endpoint in endpoints:
            assert (endpoint.get("scheme"), endpoint.get("tlsConfig")) == (("https", tls) if enabled else (None, None))


def test_services_are_called_by_the_names_in_their_certificates():
    """The names that the programs expect without the options: see services/common/runtime/src/args.rs."""
    deployments = of_kind(render(), "Deployment")
    for service in "lease-probe", "scaling-coordinator", "weeder":
        arguments = _arguments(deployments[f"watchdog-{service}"])
        assert arguments["tls-peer-server-name"] == f"watchdog-{service}.{NAMESPACE}.svc"
    assert '"watchdog-{service}.{}.svc"' in _source("services/common/runtime/src/args.rs")


def test_what_is_held_down_is_restored_before_an_uninstallation():
    rendered = render()
    found = hooks(rendered, "pre-delete")
    assert sorted(hook["kind"] for hook in found) == ["Job", "Role", "RoleBinding"]
    for hook in found:
        annotations = hook["metadata"]["annotations"]
        assert annotations["helm.sh/hook"] == "pre-delete"
        assert {"before-hook-creation", "hook-succeeded"} <= set(annotations["helm.sh/hook-delete-policy"].split(","))
        # The right is there before the Job, and does not stay.
        if hook["kind"] != "Job":
            assert int(annotations["helm.sh/hook-weight"]) < 0
            assert "hook-failed" in annotations["helm.sh/hook-delete-policy"]
    coordinator = "watchdog-scaling-coordinator"
    (job,), (role_of_job,) = of_kind(found, "Job").values(), of_kind(found, "Role").values()
    pod = job["spec"]["template"]
    assert pod["spec"]["serviceAccountName"] == coordinator
    (container,) = pod["spec"]["containers"]
    deployment = of_kind(rendered, "Deployment")[coordinator]["spec"]
    (of_service,) = deployment["template"]["spec"]["containers"]
    for same in "image", "resources", "securityContext":
        assert container[same] == of_service[same]
    assert pod["spec"]["securityContext"] == deployment["template"]["spec"]["securityContext"]
    assert "--release-all" in container["args"] and f"--stop-deployment={NAMESPACE}/{coordinator}" in container["args"]
    own = _fields(_source("services/scaling-coordinator/src/config.rs"), "Args")
    common = _fields(_source("services/common/runtime/src/args.rs"), "CommonArgs")
    assert set(_arguments(job)) <= own | common
    assert role_of_job["rules"] == [
        {"apiGroups": ["apps"], "resources": ["deployments/scale"], "resourceNames": [coordinator], "verbs": ["patch"]}
    ]
    (binding,) = of_kind(found, "RoleBinding").values()
    assert [subject["name"] for subject in binding["subjects"]] == [coordinator]
    # Nobody sends it requests.
    for service in of_kind(rendered, "Service").values():
        assert not service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    # The program gives up before the Job ends, and the Job before Helm does.
    assert job["spec"]["activeDeadlineSeconds"] < 300
    assert _arguments(job)["release-timeout"] == "4m"


def test_the_release_waits_for_replicas_where_their_leases_are():
    (job,) = of_kind(hooks(render({"membership": {"namespace": "leases"}})), "Job").values()
    assert _arguments(job)["namespace"] == "leases"
    assert _arguments(job)["stop-deployment"] == f"{NAMESPACE}/watchdog-scaling-coordinator"


@pytest.mark.parametrize(
    "values", [{"replicas": 0}, {"enabled": False}, {"releaseOnUninstall": False}], ids=lambda values: "".join(values)
)
def test_what_another_program_holds_down_is_left_to_it(values):
    assert hooks(render({"scalingCoordinator": values}), "pre-delete") == []


def test_programs_know_every_option():
    common = _fields(_source("services/common/runtime/src/args.rs"), "CommonArgs")
    for values in MATRIX.values():
        for name, deployment in of_kind(render(values), "Deployment").items():
            service = next(service for service in SERVICES if name.endswith(service))
            own = _fields(_source(f"services/{service}/src/config.rs"), "Args")
            unknown = set(_arguments(deployment)) - common - own
            assert not unknown, f"{service} does not know {unknown}"


def test_permissions_in_the_sources_are_spelt_out_here():
    for service in SERVICES:
        for source in (ROOT / "services" / service / "src" / "cluster").rglob("*.rs"):
            for asked in re.findall(r'Permission::new\(\s*"(\w+)",\s*"([\w.]*)",\s*"([\w/]+)"', source.read_text()):
                assert asked in {rule[:3] for rule in EVERYWHERE[service]}, f"{source.name} asks for {asked}"


def test_local_addresses_stay_refused_whatever_the_values():
    assert '"--allow-local-addresses"' not in str(MATRIX)
    for values in MATRIX.values():
        assert "allow-local-addresses" not in str(render(values))


def test_ports_are_those_of_the_programs():
    defaults = re.findall(r'default_value = "\[::\]:(\d+)"', _source("services/common/runtime/src/args.rs"))
    for deployment in of_kind(render(), "Deployment").values():
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        assert [str(port["containerPort"]) for port in container["ports"]] == defaults


def test_default_configuration_is_gardeners():
    maps = of_kind(render(), "ConfigMap")
    for role, fixture in ("prober", "prober-gardener.yaml"), ("weeder", "weeder-gardener.yaml"):
        text = maps[f"watchdog-{role}-config"]["data"]["config.yaml"]
        gardener = _source(f"services/common/api/tests/fixtures/{fixture}")
        assert yaml.safe_load(text) == yaml.safe_load(gardener)


def test_values_reach_the_configuration():
    maps = of_kind(render(MATRIX["everything-set"]), "ConfigMap")
    prober = yaml.safe_load(maps["wd-prober-config"]["data"]["config.yaml"])
    given = MATRIX["everything-set"]["config"]
    assert given["prober"].items() <= prober.items()
    weeder = yaml.safe_load(maps["wd-weeder-config"]["data"]["config.yaml"])
    assert sorted(weeder["servicesAndDependantSelectors"]) == ["dns", "kube-apiserver"]


def test_images():
    def images(values):
        deployments = of_kind(render(values), "Deployment").values()
        return [d["spec"]["template"]["spec"]["containers"][0]["image"] for d in deployments]

    assert images(None) == [f"registry.example.org/dependency-watchdog/{service}:0.1.0" for service in SERVICES]
    probe, coordinator, weeder = images(MATRIX["everything-set"])
    assert probe == f"mirror.example.org/probe:1.2.3@{DIGEST}"
    assert coordinator == "registry.example.org/team/watchdog/scaling-coordinator:1.2.3"
    assert weeder == "registry.example.org/team/watchdog/weeder:1.2.3"


def test_network_policies_let_through_what_is_needed():
    policies = of_kind(render(MATRIX["without-gardener"]), "NetworkPolicy")
    for name, policy in policies.items():
        ports = {p["port"] for rule in policy["spec"]["egress"] for p in rule["ports"]}
        assert {443, 53, 9645} <= ports
    with_gardener = of_kind(render(), "NetworkPolicy")
    peers = lambda rule, end: [p["podSelector"]["matchLabels"]["app.kubernetes.io/component"] for p in rule[end]]
    for name, calls, called_by in (
        ("lease-probe", ["lease-probe"], ["lease-probe", "scaling-coordinator"]),
        ("scaling-coordinator", ["scaling-coordinator", "lease-probe"], ["scaling-coordinator"]),
        ("weeder", ["weeder"], ["weeder"]),
    ):
        spec = with_gardener[f"watchdog-{name}"]["spec"]
        assert peers(spec["egress"][0], "to") == calls
        assert peers(spec["ingress"][0], "from") == [*called_by, "watchdogctl"]


def test_openshift_chooses_the_user_and_answers_dns_on_a_port_of_its_own():
    values = {"seed": {"gardener": False, "openshift": True}, "networkPolicy": {"enabled": True}}
    objects = render(values)
    pods = [d["spec"]["template"]["spec"] for d in of_kind(objects, "Deployment").values()]
    for pod in pods:
        assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    for policy in of_kind(objects, "NetworkPolicy").values():
        ports = [port for rule in policy["spec"]["egress"] for port in rule["ports"]]
        assert {port["port"] for port in ports if port["protocol"] == "UDP"} == {53, 5353}


def test_helm_test_asks_each_replica_as_people_do():
    (pod,) = hooks(render(), "test")
    (container,) = pod["spec"]["containers"]
    assert container["args"][0] == "check"
    arguments = dict(option.removeprefix("--").split("=", 1) for option in container["args"][1:])
    options = _fields(_source("services/watchdogctl/src/args.rs"), "ConnectArgs")
    assert set(arguments) <= options
    for service in SERVICES:
        assert arguments[service] == f"watchdog-{service}-headless.garden.svc:9645"
        allowed = f"networking.resources.gardener.cloud/to-garden-watchdog-{service}-tcp-9645"
        assert pod["metadata"]["labels"][allowed] == "allowed"
    assert pod["spec"]["volumes"][0]["secret"]["secretName"] == "watchdog-observer"
    assert arguments["tls-ca"].endswith("/ca.crt") and arguments["tls-key"].endswith("/tls.key")
    (pod,) = hooks(render({"certificates": {"source": "secrets"}}), "test")
    assert pod["spec"]["volumes"][0]["secret"]["secretName"] == "watchdog-lease-probe-tls"
    assert "--tls-cert=" in " ".join(pod["spec"]["containers"][0]["args"])
    assert pod["metadata"]["namespace"] == NAMESPACE
    (pod,) = hooks(render(), "test")
    assert pod["metadata"]["namespace"] == LEASES, "where the Secret is that it mounts"
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert container["image"] == "registry.example.org/dependency-watchdog/watchdogctl:0.1.0"

    (pod,) = hooks(render(MATRIX["plaintext"]), "test")
    assert "--insecure-plaintext" in pod["spec"]["containers"][0]["args"] and "volumes" not in pod["spec"]
    (pod,) = hooks(render(MATRIX["shadow"]), "test")
    asked = " ".join(pod["spec"]["containers"][0]["args"])
    assert "--lease-probe" in asked and "--scaling-coordinator" not in asked and "--weeder" not in asked
    for nothing in MATRIX["nothing"], {"watchdogctl": {"enabled": False}}:
        assert hooks(render(nothing), "test") == []


def test_an_autoscaler_takes_over_the_replicas_of_lease_probe():
    assert of_kind(render(), "HorizontalPodAutoscaler") == {}
    objects = render(MATRIX["operators"])
    deployments = of_kind(objects, "Deployment")
    # Of the others one replica acts.
    ((name, scaler),) = of_kind(objects, "HorizontalPodAutoscaler").items()
    assert name == scaler["spec"]["scaleTargetRef"]["name"] == "watchdog-lease-probe"
    assert {name for name, found in deployments.items() if "replicas" not in found["spec"]} == {name}
    pods, resource = scaler["spec"]["metrics"]
    assert [pods["type"], resource["type"]] == ["Pods", "Resource"]
    metric = pods["pods"]["metric"]["name"]
    assert re.search(rf'Gauge::new\(\s*"{metric}"', _source("services/lease-probe/src/metrics.rs"))
    # A service that is off stays off.
    off = render({"leaseProbe": {"replicas": 0, "autoscaling": {"enabled": True}}})
    assert of_kind(off, "HorizontalPodAutoscaler") == {}
    assert of_kind(off, "Deployment")["watchdog-lease-probe"]["spec"]["replicas"] == 0


def test_an_autoscaler_without_a_metric_of_pods():
    for nothing in None, {"name": ""}:
        scaling = {"enabled": True, "podMetric": nothing}
        (scaler,) = of_kind(render({"leaseProbe": {"autoscaling": scaling}}), "HorizontalPodAutoscaler").values()
        assert [m["type"] for m in scaler["spec"]["metrics"]] == ["Resource"]


MODE = "dependency-watchdog.gardener.cloud/mode"


@pytest.mark.parametrize(
    ("values", "coordinator", "weeder"),
    [
        ({}, "protect", "protect"),
        ({"mode": "observe"}, "observe", "observe"),
        ({"mode": "observe", "weeder": {"mode": "protect"}}, "observe", "protect"),
        ({"scalingCoordinator": {"mode": "observe"}}, "observe", "protect"),
        ({"gardener": {"seed": {"annotations": None}}}, "protect", "protect"),
        ({"gardener": {"seed": {"annotations": {MODE: "observe"}}}}, "observe", "observe"),
        ({"mode": "observe", "gardener": {"seed": {"annotations": {MODE: "protect"}}}}, "protect", "protect"),
    ],
    ids=str,
)
def test_the_mode_is_that_of_the_seed_or_of_the_program(values, coordinator, weeder):
    rendered = render(values)
    deployments = of_kind(rendered, "Deployment")
    assert _arguments(deployments["watchdog-scaling-coordinator"])["mode"] == coordinator
    assert _arguments(deployments["watchdog-weeder"])["mode"] == weeder
    assert "mode" not in _arguments(deployments["watchdog-lease-probe"])
    # What another watchdog holds down is not restored when the chart goes. gardenlet knows no hooks.
    assert bool(hooks(rendered, "pre-delete")) == (coordinator == "protect" and "gardener" not in values)


def test_a_malformed_mode_of_a_seed_is_named():
    with pytest.raises(helm.HelmError) as refused:
        render({"gardener": {"seed": {"annotations": {MODE: "off"}}}})
    assert f'annotation {MODE} of the Seed is "off"' in str(refused.value)


@pytest.mark.parametrize(("key", "service"), [("scalingCoordinator", "scaling-coordinator"), ("weeder", "weeder")])
def test_the_request_rate_is_that_of_the_program_unless_it_is_set(key, service):
    source = _source(f"services/{service}/src/config.rs")
    default = re.search(r'(?:default_value_t = |default_value = ")([\d_]+).*\n    pub request_rate', source)
    name = f"watchdog-{service}"
    for rate, rendered in (
        ({}, default.group(1).replace("_", "")),
        ({"requestRate": 10_000}, "10000"),
        ({"requestRate": None}, None),
    ):
        deployments = of_kind(render({key: rate}), "Deployment")
        assert _arguments(deployments[name]).get("request-rate") == rendered
        assert "request-rate" not in _arguments(deployments["watchdog-lease-probe"])


def test_monitors_find_each_replica_once():
    objects = render(MATRIX["operators"])
    (pods,), (services,) = of_kind(objects, "PodMonitor").values(), of_kind(objects, "ServiceMonitor").values()
    wanted = pods["spec"]["selector"]["matchLabels"].items()
    for deployment in of_kind(objects, "Deployment").values():
        template = deployment["spec"]["template"]
        assert wanted <= template["metadata"]["labels"].items()
        ports = [port["name"] for port in template["spec"]["containers"][0]["ports"]]
        assert pods["spec"]["podMetricsEndpoints"][0]["port"] in ports
        assert "prometheus.io/scrape" not in template["metadata"]["annotations"]
    port = services["spec"]["endpoints"][0]["port"]
    matched = [s for s in of_kind(objects, "Service").values() if port in [p["name"] for p in s["spec"]["ports"]]]
    assert len(matched) == len(SERVICES)
    assert all(services["spec"]["selector"]["matchLabels"].items() <= s["metadata"]["labels"].items() for s in matched)


def test_rules_are_those_of_the_file_with_the_addresses_of_the_installation():
    (rule,) = of_kind(render(MATRIX["operators"]), "PrometheusRule").values()
    for alert in (alert for group in rule["spec"]["groups"] for alert in group["rules"]):
        assert (alert["labels"].pop("type"), alert["labels"].pop("visibility")) == ("seed", "operator")
    plain = (CHART / "rules" / "dependency-watchdog.yaml").read_text()
    addresses = {
        "runbook: docs/how-to/runbook.md#": "runbook_url: https://runbooks.example.org/watchdog#",
        "dashboard: /d/": "dashboard_url: https://grafana.example.org/d/",
    }
    expected = plain
    for path, address in addresses.items():
        expected = expected.replace(path, address)
    assert rule["spec"] == yaml.safe_load(expected)
    # Without addresses, and on a seed that Gardener does not manage.
    unset = {"monitoring": {"rules": {"enabled": True}}, "seed": {"gardener": False}}
    (rule,) = of_kind(render(unset), "PrometheusRule").values()
    assert rule["spec"] == yaml.safe_load(plain)


@pytest.mark.parametrize(
    ("gardener", "asked", "flavor", "label"),
    [
        (True, "", "plutono", "dashboard.monitoring.gardener.cloud/seed"),
        (False, "", "grafana", "grafana_dashboard"),
        (False, "plutono", "plutono", "grafana_dashboard"),
        (True, "grafana", "grafana", "dashboard.monitoring.gardener.cloud/seed"),
    ],
)
def test_dashboards_come_as_they_are(gardener, asked, flavor, label):
    dashboards = {"enabled": True, "flavor": asked}
    objects = render({"monitoring": {"dashboards": dashboards}, "seed": {"gardener": gardener}})
    maps = {name: m for name, m in of_kind(objects, "ConfigMap").items() if "-dashboard-" in name}
    # The landscape dashboard needs the label of seeds.
    assert len(maps) == 4
    for name, found in maps.items():
        assert label in found["metadata"]["labels"]
        ((key, text),) = found["data"].items()
        file = CHART / "dashboards" / flavor / f"{name.removeprefix('watchdog-dashboard-')}.json"
        assert key == f"dependency-watchdog-{file.name}"
        assert json.loads(text) == json.loads(file.read_text())


@pytest.mark.parametrize("flavor", ["grafana", "plutono"])
def test_the_landscape_dashboard_has_the_label_of_seeds(flavor):
    def texts(found) -> list[str]:
        """Titles, descriptions and names of variables, which are the same for every label."""
        if isinstance(found, list):
            return [text for part in found for text in texts(part)]
        if not isinstance(found, dict):
            return []
        named = [found[key] for key in ("title", "description", "name", "label") if isinstance(found.get(key), str)]
        return named + [text for part in found.values() for text in texts(part)]

    def rendered(label: str) -> dict:
        dashboards = {"enabled": True, "flavor": flavor, "seedLabel": label}
        maps = of_kind(render({"monitoring": {"dashboards": dashboards}}), "ConfigMap")
        return json.loads(maps["watchdog-dashboard-landscape"]["data"]["dependency-watchdog-landscape.json"])

    plain = json.loads((CHART / "dashboards" / flavor / "landscape.json").read_text())
    assert rendered("seed") == plain
    other = rendered("source_cluster")
    assert texts(other) == texts(plain)
    expressions = [
        [target["expr"] for panel in found["panels"] for target in panel.get("targets", [])]
        + [mark["expr"] for mark in found["annotations"]["list"]]
        + [variable["definition"] for variable in found["templating"]["list"] if "definition" in variable]
        for found in (plain, other)
    ]
    assert expressions[1] == [re.sub(r"\bseed\b", "source_cluster", text) for text in expressions[0]]
    assert all("source_cluster" in text for text in expressions[1] if "watchdog_" in text)
    # Legends, and the columns of tables.
    assert '"seed"' not in json.dumps(other) and "{{seed}}" not in json.dumps(other)
    assert json.dumps(other).count("{{source_cluster}}") == json.dumps(plain).count("{{seed}}") > 0


def test_certificates_are_for_the_secrets_that_are_mounted():
    objects = render(MATRIX["operators"])
    certificates = of_kind(objects, "Certificate")
    for name, deployment in of_kind(objects, "Deployment").items():
        volumes = deployment["spec"]["template"]["spec"]["volumes"]
        (secret,) = [v["secret"]["secretName"] for v in volumes if "secret" in v]
        spec = certificates[name]["spec"]
        assert spec["secretName"] == secret
        assert f"{name}.{NAMESPACE}.svc" in spec["dnsNames"]
        assert {"server auth", "client auth"} <= set(spec["usages"])
        assert spec["issuerRef"]["name"] == "seed-ca"
    people = certificates["watchdog-observer"]["spec"]
    assert people["usages"] == ["digital signature", "key encipherment", "client auth"], "and no server's"
    assert (people["dnsNames"], people["secretName"]) == ([f"watchdog-observer.{NAMESPACE}.svc"], "watchdog-observer")
    plaintext = {**MATRIX["operators"], "allowedClients": [], "insecurePlaintext": True}
    assert of_kind(render(plaintext), "Certificate") == {}


def test_the_programs_issue_their_own_certificates_unless_others_do():
    objects = render({"membership": {"namespace": "leases"}})
    for deployment in of_kind(objects, "Deployment").values():
        pod = deployment["spec"]["template"]["spec"]
        assert "--tls-authority=watchdog-authority" in pod["containers"][0]["args"]
        assert "--tls-observer=watchdog-observer" in pod["containers"][0]["args"]
        assert not [v for v in pod["volumes"] if "secret" in v]
    # Where the Secrets are, next to the membership Leases, and nothing but these Secrets.
    for role in of_kind(objects, "Role").values():
        secrets = [rule for rule in role["rules"] if rule["resources"] == ["secrets"]]
        if role["metadata"]["namespace"] == "leases":
            assert [rule["verbs"] for rule in secrets] == [["get", "update"]]
            assert secrets[0]["resourceNames"] == ["watchdog-authority", "watchdog-observer"]
    # They are there before the programs, which may not create one, and whoever empties the first locks them out.
    secrets = of_kind(objects, "Secret")
    assert set(secrets) == {"watchdog-authority", "watchdog-observer"}
    for secret in secrets.values():
        assert secret["metadata"]["namespace"] == "leases"
        assert (secret["type"], secret.get("data"), secret.get("stringData")) == ("Opaque", None, None)
    for other in [MATRIX["operators"], MATRIX["plaintext"]]:
        assert of_kind(render(other), "Secret") == {}
        for role in of_kind(render(other), "Role").values():
            assert not [rule for rule in role["rules"] if rule["resources"] == ["secrets"]]


def test_watchdogctl_finds_its_certificate_by_an_annotation_of_the_deployments():
    source = _source("services/watchdogctl/src/connect/release.rs")
    annotation = "dependency-watchdog.gardener.cloud/observer-secret"
    assert f'"{annotation}"' in source and '"dependency-watchdog-"' in source
    own = {"certificates": {"source": "secrets"}, "watchdogctl": {"tlsSecretName": "own"}}
    for values, secret in [
        ({}, f"{LEASES}/watchdog-observer"),
        (MATRIX["operators"], f"{NAMESPACE}/watchdog-observer"),
        ({"certificates": {"source": "secrets"}}, None),
        (own, f"{NAMESPACE}/own"),
        (MATRIX["plaintext"], None),
    ]:
        for deployment in of_kind(render(values), "Deployment").values():
            metadata = deployment["metadata"]
            assert metadata.get("annotations", {}).get(annotation) == secret
            assert metadata["labels"]["helm.sh/chart"].startswith("dependency-watchdog-")


def test_notes_tell_how_to_look():
    text = notes()
    assert "-servername watchdog-weeder.garden.svc localhost:9647" in text
    # All forwards run at once, each to where its call goes.
    forwards = re.findall(
        r"port-forward service/(\S+) (\d+):9645 &\n +grpcurl .*-servername (\S+) localhost:(\d+) ", text
    )
    assert [(f"{service}.garden.svc", port) for service, port, _, _ in forwards] == [(n, p) for _, _, n, p in forwards]
    assert [port for _, port, _, _ in forwards] == ["9645", "9646", "9647"]
    assert "WARNING" not in text
    plaintext = notes(MATRIX["plaintext"])
    assert "WARNING" in plaintext and "grpcurl -plaintext localhost:9645" in plaintext
    assert "nothing is scaled" in notes(MATRIX["shadow"])
    # The calls that it names exist.
    protos = "".join(path.read_text() for path in (ROOT / "proto").rglob("*.proto"))
    for package, service, method in re.findall(r"(gardener\.watchdog\.\w+\.v1)\.(\w+)/(\w+)", text):
        assert f"package {package};" in protos and f"service {service} " in protos and f"rpc {method}(" in protos


def _source(path: str) -> str:
    return (ROOT / path).read_text()


def _arguments(deployment: dict) -> dict[str, str]:
    """The options of the container, without dashes, and their values."""
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return {flag.removeprefix("--"): value for flag, _, value in (a.partition("=") for a in container["args"])}


def _fields(source: str, struct: str) -> set[str]:
    """The options that a clap parser makes of the fields of a struct."""
    found = re.search(rf"pub(?:\(crate\))? struct {struct} {{(.*?)\n}}", source, re.DOTALL)
    assert found, f"there is no struct {struct}"
    return {
        name.replace("_", "-")
        for name in re.findall(r"^    (?:pub(?:\(crate\))? )?(\w+):", found.group(1), re.MULTILINE)
    }
