"""The values by which a cluster fits the chart to its own policies, and what the schema refuses."""

import json
import re
import subprocess
import sys
from xml.etree import ElementTree

import helm_python as helm
import pytest
import yaml
from chart import CHART, MATRIX, NAMESPACE, SERVICES, notes, of_kind, render

VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
TEMPLATES = "".join(path.read_text() for path in (CHART / "templates").rglob("*") if path.is_file())
KEYS = {"lease-probe": "leaseProbe", "scaling-coordinator": "scalingCoordinator", "weeder": "weeder"}
RBAC = {"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}


def pods(objects: list[dict]) -> list[dict]:
    """The specs of all Pods: of the programs, of the Job that restores, and of helm test."""
    templates = [found["spec"]["template"] for found in objects if found["kind"] in ("Deployment", "Job")]
    specs = [found["spec"] for found in [*templates, *of_kind(objects, "Pod").values()]]
    assert len(specs) == 5
    return specs


def containers(objects: list[dict], kind: str = "Deployment") -> dict[str, dict]:
    """The container of each Pod of one kind."""
    found = of_kind(objects, kind).items()
    return {name: one["spec"]["template"]["spec"]["containers"][0] for name, one in found}


@pytest.mark.parametrize(
    ("values", "name", "label"),
    [
        ({}, "watchdog", "watchdog"),
        ({"nameOverride": "wd"}, "wd", "wd"),
        ({"fullnameOverride": "live"}, "live", "live"),
        ({"fullnameOverride": "live", "nameOverride": "wd"}, "live", "wd"),
    ],
    ids=str,
)
def test_names_and_the_label_of_the_name(values, name, label):
    extras = {key: MATRIX["operators"][key] for key in ("monitoring", "logging")}
    objects = render(values | extras)
    for found in objects:
        metadata = found["metadata"]
        assert re.match(rf"(gardener\.cloud:)?{name}([-:]|$)", metadata["name"]), metadata["name"]
        assert metadata["labels"]["app.kubernetes.io/name"] == label, metadata["name"]
    for service in of_kind(objects, "Service").values():
        assert service["spec"]["selector"]["app.kubernetes.io/name"] == label
    for container in containers(objects).values():
        options = " ".join(container["args"])
        assert f"--namespace={name}-leases" in options and f"--tls-authority={name}-authority" in options
    text = notes(values)
    assert f"-l app.kubernetes.io/name={label}\n" in text
    # A release of the usual name is found without it.
    assert (f" --name {name} status\n" in text) == (name != "watchdog") and " status\n" in text


def test_security_contexts_replace_fields_of_the_chart_in_every_pod():
    for spec in pods(render(MATRIX["policies"])):
        of_pod = spec["securityContext"]
        assert of_pod == {
            "runAsNonRoot": True,
            # None takes it away: so Kubernetes reads it.
            "runAsUser": None,
            "runAsGroup": 65532,
            "fsGroup": 2000,
            "supplementalGroups": [3000],
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        assert spec["containers"][0]["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": False,
            "capabilities": {"drop": ["NET_RAW"]},
        }


def test_extra_volumes_are_mounted_beside_those_of_the_chart():
    given = MATRIX["policies"]["scalingCoordinator"]
    objects = render(MATRIX["policies"])
    for kind in "Deployment", "Job":
        for name, found in of_kind(objects, kind).items():
            spec = found["spec"]["template"]["spec"]
            has = "scaling-coordinator" in name
            volumes, mounts = spec["volumes"], spec["containers"][0]["volumeMounts"]
            assert (volumes[-1:] == given["extraVolumes"]) == (mounts[-1:] == given["extraVolumeMounts"]) == has
            assert (volumes[0]["name"], mounts[0]["name"]) == ("config", "config")


def test_a_service_account_of_another_name():
    objects = render(MATRIX["policies"])
    assert sorted(of_kind(objects, "ServiceAccount")) == ["dwd-live-scaling-coordinator", "dwd-live-weeder", "prober"]
    assert_account(objects, "dwd-live-lease-probe", "prober")


@pytest.mark.parametrize("component", SERVICES)
@pytest.mark.parametrize("name", ["", "existing"])
def test_a_service_account_that_exists(component, name):
    values = {KEYS[component]: {"serviceAccount": {"create": False, "name": name}}}
    objects = render(values)
    expected = name or f"watchdog-{component}"
    assert sorted(of_kind(objects, "ServiceAccount")) == sorted(f"watchdog-{s}" for s in SERVICES if s != component)
    assert_account(objects, f"watchdog-{component}", expected)
    assert f"These ServiceAccounts must exist in namespace {NAMESPACE}:\n  {expected}\n" in notes(values)
    assert "ServiceAccounts must exist" not in notes()


def assert_account(objects: list[dict], service: str, account: str) -> None:
    """The Pods of a service use that account, and its bindings name it."""
    used = [
        found["spec"]["template"]["spec"]["serviceAccountName"]
        for found in [*of_kind(objects, "Deployment").values(), *of_kind(objects, "Job").values()]
        if found["metadata"]["name"].startswith(service)
    ]
    program = service.removeprefix("watchdog-").removeprefix("dwd-live-")
    bound = [
        [subject["name"] for subject in found["subjects"]]
        for found in objects
        if found["kind"].endswith("Binding") and program in found["metadata"]["name"]
    ]
    assert used and set(used) == {account}
    assert len(bound) >= 2 and all(names == [account] for names in bound)


def test_without_rbac_the_notes_say_what_must_exist():
    values = {"rbac": {"create": False}}
    objects, usual = render(values), render()
    assert {found["kind"] for found in objects} & RBAC == set()
    assert [found for found in usual if found["kind"] not in RBAC] == objects
    text = notes(values)
    assert "docs/reference/chart.md#permissions" in text
    # The command that prints the rules names the templates that have them.
    shown = re.findall(r"-s (templates/\S+\.yaml)", text)
    assert sorted(shown) == sorted(
        str(path.relative_to(CHART)) for path in (CHART / "templates").rglob("*.yaml") if grants(path)
    )
    # Helm fails at a template that renders nothing.
    fewer = notes(values | {"weeder": {"enabled": False}, "mode": "observe"})
    assert "weeder.yaml" not in fewer and "release.yaml" not in fewer and "membership.yaml" in fewer
    assert "rbac.create" not in notes()


def grants(path) -> bool:
    """A template writes RBAC objects."""
    return "kind: RoleBinding" in path.read_text() or "watchdog.clusterRoleAndBinding" in path.read_text()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, {"maxUnavailable": 1}),
        ({"maxUnavailable": 0}, {"maxUnavailable": 0}),
        ({"maxUnavailable": "50%"}, {"maxUnavailable": "50%"}),
        ({"minAvailable": 1}, {"minAvailable": 1}),
        ({"minAvailable": 0}, {"minAvailable": 0}),
        ({"minAvailable": "34%", "maxUnavailable": None}, {"minAvailable": "34%"}),
    ],
    ids=str,
)
def test_disruption_budgets(values, expected):
    for policy in "AlwaysAllow", "IfHealthyBudget":
        given = {"podDisruptionBudget": values | {"unhealthyPodEvictionPolicy": policy}}
        budgets = of_kind(render(given), "PodDisruptionBudget")
        assert len(budgets) == 3
        for budget in budgets.values():
            spec = {key: value for key, value in budget["spec"].items() if key != "selector"}
            assert spec == expected | {"unhealthyPodEvictionPolicy": policy}


def test_a_startup_probe_gives_a_slow_host_time():
    assert all("startupProbe" not in container for container in containers(render()).values())
    for tls, scheme in (False, {}), (True, {"scheme": "HTTPS"}):
        objects = render({"startupProbe": {"enabled": True, "failureThreshold": 9}, "adminTLS": {"enabled": tls}})
        for container in containers(objects).values():
            assert container["startupProbe"] == {
                "httpGet": {"path": "/healthz", "port": "metrics"} | scheme,
                "initialDelaySeconds": 0,
                "periodSeconds": 5,
                "timeoutSeconds": 5,
                "failureThreshold": 9,
            }
            assert container["startupProbe"]["httpGet"] == container["livenessProbe"]["httpGet"]
    policies = containers(render(MATRIX["policies"])).values()
    assert {container["startupProbe"]["initialDelaySeconds"] for container in policies} == {1}


# Objects whose fields are not the chart's: Helm's and gardenlet's own, and types that newer versions of Kubernetes and
# of the Prometheus operator extend. The API server refuses what these do not know.
OPEN = {"properties/global", "properties/gardener"} | {
    f"definitions/kubernetes/{name}"
    for name in (
        "affinity",
        "envVar",
        "podSecurityContext",
        "safeTLSConfig",
        "securityContext",
        "volume",
        "volumeMount",
    )
}


def test_the_schema_refuses_what_nothing_reads():
    found = set()
    for path, node in schemas(SCHEMA):
        if node.get("type") == "object" and node.get("additionalProperties") in (None, True):
            found.add(path)
        if "properties" in node and "type" in node:
            assert "additionalProperties" in node, path
    assert found == OPEN


def schemas(node, path=""):
    """Every mapping of the schema, with its path; names of properties are not keywords."""
    if isinstance(node, dict):
        yield path, node
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else []
    for key, child in children:
        yield from schemas(child, f"{path}/{key}".lstrip("/"))


def test_schema_and_values_have_the_same_keys():
    # gardenlet's and Helm's own.
    others = {"global", "gardener", "usablePorts"}
    assert set(keys_of_schema(SCHEMA)) - others == set(keys_of_values(VALUES))


def keys_of_schema(node: dict, path: str = ""):
    while "$ref" in node:
        node = follow(node["$ref"])
    for key, child in node.get("properties", {}).items():
        where = f"{path}.{key}".lstrip(".")
        if not passed_on(where):
            yield where
            yield from keys_of_schema(child, where)


def keys_of_values(values: dict, path: str = ""):
    for key, child in values.items():
        where = f"{path}.{key}".lstrip(".")
        if not passed_on(where):
            yield where
            if isinstance(child, dict):
                yield from keys_of_values(child, where)


def follow(reference: str) -> dict:
    node = SCHEMA
    for part in reference.removeprefix("#/").split("/"):
        node = node[part]
    return node


def passed_on(path: str) -> bool:
    """Within a value that the chart hands on as it is."""
    return re.search(r"^config\.\w+\.|\.(resources|minAllowed|affinity|dnsConfig)\.|tlsConfig\.", path) is not None


def test_the_readme_has_every_value():
    command = [sys.executable, CHART.parent / "generate-readme", "--check"]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert checked.returncode == 0, checked.stderr
    rows = re.findall(r"^\| `([\w.<>]+)` \|", (CHART / "README.md").read_text(), re.MULTILINE)
    assert len(rows) == len(set(rows))
    for path in keys_of_values(VALUES):
        names = {path, re.sub(f"^({'|'.join(KEYS.values())})\\.", "<program>.", path)}
        above = {name.rsplit(".", 1)[0] for name in names}
        below = [row for row in rows for name in names if row.startswith(f"{name}.")]
        assert (names | above) & set(rows) or below, path


def test_the_icon_is_in_the_chart():
    metadata = yaml.safe_load((CHART / "Chart.yaml").read_text())
    icon = CHART / metadata["icon"].removeprefix("file://")
    assert ElementTree.parse(icon).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    assert metadata["home"] in metadata["sources"] and metadata["maintainers"] == [
        {"name": "Gardener", "url": "https://github.com/gardener"}
    ]


def test_every_value_is_read():
    unread = [path for path in keys_of_values(VALUES) if not re.search(rf'[."]{path.split(".")[-1]}\b', TEMPLATES)]
    # As wholes: the fields of a probe, of a certificate's issuer and of Kubernetes' own types.
    as_wholes = r"startupProbe\.\w+Seconds|startupProbe\.failureThreshold|certManager\.issuerRef\.(group|kind)"
    assert [path for path in unread if not re.fullmatch(as_wholes, path)] == []


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"leaseprobe": {}}, "additional properties 'leaseprobe' not allowed"),
        ({"leaseProbe": {"replica": 1}}, "at '/leaseProbe': additional properties 'replica' not allowed"),
        ({"leaseProbe": {"image": "registry.example.org/probe"}}, "at '/leaseProbe/image': got string"),
        ({"leaseProbe": {"image": {"digest": "0123"}}}, "at '/leaseProbe/image/digest'"),
        ({"leaseProbe": {"extraArgs": ["verbose"]}}, "at '/leaseProbe/extraArgs/0'"),
        ({"seed": {"gardner": True}}, "additional properties 'gardner' not allowed"),
        ({"expectedShoots": 0}, "at '/expectedShoots'"),
        ({"leaseProbe": {"replicas": -1}}, "at '/leaseProbe/replicas': minimum"),
        ({"leaseProbe": {"replicas": "2"}}, "at '/leaseProbe/replicas': got string, want integer"),
        ({"leaseProbe": {"tlsSecretName": "Not_A_Name"}}, "at '/leaseProbe/tlsSecretName'"),
        ({"leaseProbe": {"resources": {"limits": {"memory": "much"}}}}, "/leaseProbe/resources/limits/memory"),
        ({"nameOverride": "Upper"}, "at '/nameOverride'"),
        ({"nameOverride": "a" * 34}, "at '/nameOverride'"),
        ({"insecurePlaintext": "yes"}, "at '/insecurePlaintext'"),
        ({"log": {"format": "xml"}}, "at '/log/format'"),
        ({"allowedClients": ["Gardenlet"]}, "at '/allowedClients/0'"),
        ({"certificates": {"source": "self-signed"}}, "at '/certificates/source'"),
        ({"monitoring": {"rules": {"runbookURL": "x"}}}, "additional properties 'runbookURL' not allowed"),
        ({"monitoring": {"rules": {"runbookUrl": "docs/how-to/runbook.md"}}}, "'/monitoring/rules/runbookUrl'"),
        ({"monitoring": {"rules": {"dashboardUrl": "https://a/#b"}}}, "'/monitoring/rules/dashboardUrl'"),
        ({"monitoring": {"dashboards": {"seedLabel": "a-b"}}}, "'/monitoring/dashboards/seedLabel'"),
        ({"monitoring": {"podMonitor": {"interval": "often"}}}, "at '/monitoring/podMonitor/interval'"),
        (
            {"leaseProbe": {"autoscaling": {"podMetric": {"name": "cpu"}}}},
            "at '/leaseProbe/autoscaling/podMetric/name'",
        ),
        ({"leaseProbe": {"autoscaling": {"minReplicas": 0}}}, "at '/leaseProbe/autoscaling/minReplicas'"),
        ({"leaseProbe": {"autoscaling": {"podMetric": {"averageValue": None}}}}, "missing property 'averageValue'"),
        ({"scalingCoordinator": {"requestRate": 1}}, "at '/scalingCoordinator/requestRate'"),
        ({"leaseProbe": {"requestRate": 1000}}, "additional properties 'requestRate' not allowed"),
        ({"weeder": {"requestRate": 0}}, "at '/weeder/requestRate'"),
        ({"mode": "off"}, "at '/mode'"),
        ({"weeder": {"mode": "watch"}}, "at '/weeder/mode'"),
        ({"config": {"weeder": {"excludeKinds": ["statefulset"]}}}, "at '/config/weeder/excludeKinds/0'"),
        ({"topologySpread": {"zone": {"maxSkew": 0}}}, "at '/topologySpread/zone/maxSkew'"),
        ({"networkPolicy": {"apiServerPorts": []}}, "at '/networkPolicy/apiServerPorts'"),
        ({"networkPolicy": {"callers": [{"podselector": {}}]}}, "at '/networkPolicy/callers/0'"),
        ({"config": {"prober": {"probIntervall": "30s"}}}, "additional properties 'probIntervall' not allowed"),
        ({"config": {"prober": {"probeInterval": 30}}}, "at '/config/prober/probeInterval': got number, want string"),
        ({"config": {"prober": {"probeInterval": "30"}}}, "at '/config/prober/probeInterval'"),
        ({"config": {"prober": {"kubeConfigSecretName": None}}}, "missing property 'kubeConfigSecretName'"),
        ({"config": {"weeder": {"watchDuration": "1d"}}}, "at '/config/weeder/watchDuration'"),
        ({"fullNameOverride": "x"}, "additional properties 'fullNameOverride' not allowed"),
        ({"fullnameOverride": "Upper"}, "at '/fullnameOverride'"),
        ({"fullnameOverride": "a" * 34}, "at '/fullnameOverride'"),
        ({"rbac": {"created": False}}, "at '/rbac': additional properties 'created' not allowed"),
        ({"weeder": {"serviceAccount": {"create": "no"}}}, "at '/weeder/serviceAccount/create'"),
        ({"weeder": {"serviceAccount": {"name": "A_b"}}}, "at '/weeder/serviceAccount/name'"),
        ({"weeder": {"service": {"name": "a"}}}, "at '/weeder/service': additional properties 'name' not allowed"),
        ({"weeder": {"extraVolumes": [{"name": "tls"}]}}, "at '/weeder/extraVolumes/0/name'"),
        ({"weeder": {"extraVolumeMounts": [{"name": "a"}]}}, "missing property 'mountPath'"),
        ({"weeder": {"tolerations": [{"keys": "a"}]}}, "additional properties 'keys' not allowed"),
        ({"weeder": {"affinity": {"nodeaffinity": {}}}}, "additional properties 'nodeaffinity' not allowed"),
        ({"weeder": {"dnsConfig": {"option": []}}}, "additional properties 'option' not allowed"),
        ({"seed": {"callerNamespaceSelectors": [{"labels": {}}]}}, "additional properties 'labels' not allowed"),
        ({"networkPolicy": {"callers": [{"ipBlock": {"cdir": "::/0"}}]}}, "additional properties 'cdir' not allowed"),
        ({"podDisruptionBudget": {"minAvailable": "most"}}, "at '/podDisruptionBudget/minAvailable'"),
        ({"podDisruptionBudget": {"maxUnavailable": -1}}, "at '/podDisruptionBudget/maxUnavailable'"),
        ({"podDisruptionBudget": {"maxUnavailable": "101%"}}, "at '/podDisruptionBudget/maxUnavailable'"),
        ({"startupProbe": {"periodSeconds": 0}}, "at '/startupProbe/periodSeconds'"),
        ({"startupProbe": {"httpGet": {}}}, "at '/startupProbe': additional properties 'httpGet' not allowed"),
        ({"securityContext": []}, "at '/securityContext': got array, want object"),
    ],
    ids=str,
)
def test_bad_values_are_refused(values, complaint):
    with pytest.raises(helm.HelmValuesError) as refused:
        render(values)
    assert complaint in str(refused.value)


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"image": {"registry": ""}}, "push them, and set image.registry to that registry"),
        ({"log": {"format": "text"}, "logging": {"gardener": {"enabled": True}}}, "set log.format to json"),
        (
            {"weeder": {"podLabels": {"app.kubernetes.io/name": "x"}}},
            "weeder.podLabels must not set app.kubernetes.io/name",
        ),
        ({"certificates": {"source": "certManager"}}, "which needs certManager.issuerRef.name"),
        (
            {"leaseProbe": {"tlsSecretName": "a"}},
            "leaseProbe.tlsSecretName is set, and with certificates.source builtIn",
        ),
        ({"insecurePlaintext": True, "allowedClients": ["a.example.org"]}, "it needs insecurePlaintext to be false"),
        ({"insecurePlaintext": True, "adminTLS": {"enabled": True}}, "adminTLS needs the certificates"),
        (
            {"leaseProbe": {"autoscaling": {"minReplicas": 11}}},
            "leaseProbe.autoscaling.minReplicas is 11, which is more than maxReplicas 10",
        ),
        (
            {"leaseProbe": {"autoscaling": {"enabled": True, "podMetric": {"name": ""}, "cpuUtilization": 0}}},
            "leaseProbe.autoscaling is enabled without a metric",
        ),
        (
            {"leaseProbe": {"autoscaling": {"enabled": True, "podMetric": None, "cpuUtilization": 0}}},
            "leaseProbe.autoscaling is enabled without a metric",
        ),
        (
            {"config": {"prober": {"probeInterval": "0s"}}},
            "probeInterval is 0s; it must be at least 1s and at most 24h",
        ),
        (
            {"podDisruptionBudget": {"minAvailable": 0, "maxUnavailable": 0}},
            "podDisruptionBudget.minAvailable and maxUnavailable are both set",
        ),
        (
            {"weeder": {"serviceAccount": {"create": False, "annotations": {"a": "b"}}}},
            "weeder.serviceAccount.annotations is set, and with create false",
        ),
        (
            {"weeder": {"serviceAccount": {"name": "x"}}, "leaseProbe": {"serviceAccount": {"name": "x"}}},
            "leaseProbe and weeder both create the ServiceAccount x",
        ),
    ],
    ids=str,
)
def test_values_that_do_not_go_together_are_refused(values, complaint):
    with pytest.raises(helm.HelmError) as refused:
        render(values)
    assert complaint in str(refused.value)


def test_one_account_may_serve_two_programs_if_one_of_them_creates_it():
    created, used = {"serviceAccount": {"name": "x"}}, {"serviceAccount": {"name": "x", "create": False}}
    accounts = of_kind(render({"leaseProbe": created, "weeder": used}), "ServiceAccount")
    assert sorted(accounts) == ["watchdog-scaling-coordinator", "x"]
