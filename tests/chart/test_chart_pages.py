"""docs/how-to/landscape.md and docs/reference/chart.md, compared with the chart."""

import re

import pytest
import yaml
from chart import GARDENLET, ROOT, of_kind, render
from test_gardener import OF_GARDENLET

PAGE = (ROOT / "docs" / "how-to" / "landscape.md").read_text()
CHART_PAGE = (ROOT / "docs" / "reference" / "chart.md").read_text()
EXAMPLES = {
    found["kind"]: found
    for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    for found in yaml.safe_load_all(block)
}


def values(kind: str) -> dict:
    """Those of an example."""
    if kind == "Extension":
        return EXAMPLES[kind]["spec"]["deployment"]["extension"]["values"]
    return EXAMPLES[kind]["helm"]["values"]


@pytest.mark.parametrize("kind", ["Extension", "ControllerDeployment"])
def test_examples_render_beside_the_existing_watchdog(kind):
    objects = render(values(kind) | GARDENLET, namespace="extension-watchdog-x7k2p")
    assert {(found["kind"], found["metadata"]["name"]) for found in objects} & OF_GARDENLET == set()
    deployments = of_kind(objects, "Deployment")
    containers = {name: found["spec"]["template"]["spec"]["containers"][0] for name, found in deployments.items()}
    observers = {name for name, container in containers.items() if "--mode=observe" in container["args"]}
    assert observers == set(containers) - {"watchdog-lease-probe"} and len(containers) == 3
    for container in containers.values():
        assert "--tls-authority=watchdog-authority" in container["args"]
    assert bool(of_kind(objects, "PrometheusRule")) == (kind == "Extension")


def test_dashboards_of_a_landscape_come_without_the_programs():
    (values,) = re.findall(r"^cat >landscape\.yaml <<END\n(.*?)^END$", PAGE, re.DOTALL | re.MULTILINE)
    maps = of_kind(render(yaml.safe_load(values)), "ConfigMap")
    landscape = maps["watchdog-landscape-dashboard-landscape"]
    assert "dashboard.monitoring.gardener.cloud/garden" in landscape["metadata"]["labels"]
    assert "label_values(watchdog_ready, seed)" in landscape["data"]["dependency-watchdog-landscape.json"]


def test_examples_name_the_same_chart_and_each_other():
    extension = EXAMPLES["Extension"]["spec"]["deployment"]["extension"]
    deployment, registration = EXAMPLES["ControllerDeployment"], EXAMPLES["ControllerRegistration"]
    assert extension["helm"] == {"ociRepository": deployment["helm"]["ociRepository"]}
    assert extension["policy"] == registration["spec"]["deployment"]["policy"] == "Always"
    assert registration["spec"]["deployment"]["deploymentRefs"] == [{"name": deployment["metadata"]["name"]}]


def test_the_table_of_sizes_is_that_of_the_chart():
    rows = re.findall(r"^\| ([\d,]+) \| (\d+), (\d+) \| (\d+), (\d+) \| (\d+), (\d+) \|$", CHART_PAGE, re.MULTILINE)
    assert len(rows) == 5
    for shoots, *sizes in rows:
        deployments = of_kind(render({"expectedShoots": int(shoots.replace(",", ""))}), "Deployment")
        found = [d["spec"]["template"]["spec"]["containers"][0]["resources"] for d in deployments.values()]
        assert [f"{size}Mi" for size in sizes] == [r[kind]["memory"] for r in found for kind in ("requests", "limits")]


def test_the_table_of_permissions_is_that_of_the_chart():
    resources = {
        "Clusters": ["clusters"],
        "Machines": ["machines"],
        "Secrets": ["secrets"],
        "resources": ["deployments"],
        "EndpointSlices;": ["endpointslices", "endpoints"],
        "Pods": ["pods"],
        "Events": ["events"],
        "`scale`": ["deployments/scale"],
    }
    granted, documented = {}, {}
    objects = render({})
    # A Role of the Job that restores before an uninstallation.
    release = {"scaling-coordinator": of_kind(objects, "Role")["watchdog-scaling-coordinator-release"]}
    for name, role in (of_kind(objects, "ClusterRole") | release).items():
        for rule in role["rules"]:
            for resource in rule["resources"]:
                granted[name.split(":")[-1], resource] = set(rule["verbs"])
    section = CHART_PAGE.split("## Permissions")[1].split("\n## ")[0]
    lines = re.findall(r"^\|(.*)\|$", section, re.MULTILINE)
    head, _, *rows = [[cell.strip() for cell in line.split("|")] for line in lines]
    for subject, *cells in rows:
        for resource in resources.get(subject.split()[0], []):
            for program, cell in zip(head[1:], cells):
                if cell:
                    documented[program, resource] = set(cell.split(";")[0].split(", "))
    assert documented == granted
