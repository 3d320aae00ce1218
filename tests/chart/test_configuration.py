"""docs/reference/configuration.md, compared with the code: defaults by the constants, ranges by --check-config."""

import re
import subprocess

import helm_python as helm
import pytest
import yaml
from chart import ROOT, render
from programs import binary
from test_documents import CONFIGURATION, SOURCES

API = ROOT / "services/common/api/src"
SPELT = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
RESOURCE = {"ref": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "x"}, "scaleUp": {}, "scaleDown": {}}
PROBER = {"kubeConfigSecretName": "x", "dependentResourceInfos": [RESOURCE]}
WEEDER = {"servicesAndDependantSelectors": {"x": {"podSelectors": [{"matchLabels": {"a": "b"}}]}}}


def number(text: str) -> float:
    """A number, or a duration in milliseconds."""
    if re.fullmatch(r"[\d.]+", text):
        return float(text)
    return sum(float(n) * SPELT[unit] for n, unit in re.findall(r"([\d.]+)(ms|s|m|h)", text))


def rows(section: str) -> dict[str, list[str]]:
    """The tables of a section: field to type, default, range. What both directions have begins with "…."."""
    text = CONFIGURATION.split(f"## {section}\n")[1].split("\n## ")[0]
    found = {}
    for line in re.findall(r"^\| `.*", text, re.MULTILINE):
        names, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        found |= {name: cells[:3] for name in re.findall(r"`([^`]+)`", names)}
    return found


FIELDS = rows("Prober file") | rows("Weeder file")


def test_defaults_are_those_of_the_code():
    checked = set()
    for file in "prober.rs", "prober/dependents.rs", "weeder.rs":
        text = SOURCES[API / file]
        durations = re.findall(r'at\.duration\(\s*"(\w+)",\s*[\w.]+,\s*secs\((\d+)\)', text)
        numbers = re.findall(r'at\.number\(\s*"(\w+)",\s*[\w.]+\.unwrap_or\(([\d.]+)\)', text)
        declared = [(field, float(default) * SPELT["s"]) for field, default in durations]
        declared += [(field, float(default)) for field, default in numbers]
        for field, default in declared:
            documented = f"….{field}" if "dependents" in file else field
            assert number(FIELDS[documented][1].strip("`")) == default, documented
            checked.add(documented)
    fraction = "nodeLeaseFailureFraction"
    default = re.search(r"node_lease_failure_fraction\.unwrap_or\(([\d.]+)\)", SOURCES[API / "prober.rs"])[1]
    assert number(FIELDS[fraction][1].strip("`")) == float(default)
    assert {"probeInterval", "failureThreshold", "….timeout", "watchDuration"} <= checked
    assert len(checked) == 13


def ranges():
    """Of every field with one: the field, values that are good and values that are not."""
    for field, (kind, _, text) in FIELDS.items():
        found = re.fullmatch(r"(more than )?([\w.]+),? to ([\w.]+)", text)
        if not found:
            continue
        over, low, high = found.groups()
        unit = 1 if kind in ("whole number", "number") else SPELT["ms"]
        step = 0.001 if kind == "number" else unit
        low, high = number(low), number(high)
        good, bad = [high], [high + step, low if over else low - step]
        good.append(low + step if over else low)
        spell = (lambda ms: f"{ms:.0f}ms") if kind == "duration" else (lambda n, k=kind: n if k == "number" else int(n))
        yield field, [spell(v) for v in good], [spell(v) for v in bad]


RANGES = list(ranges())


@pytest.mark.parametrize(("field", "good", "bad"), RANGES, ids=[field for field, _, _ in RANGES])
def test_ranges_are_those_of_the_code(tmp_path, field, good, bad):
    for value in good:
        assert judge(tmp_path, field, value) == (0, ""), f"{field}: {value} is documented as good"
    for value in bad:
        code, found = judge(tmp_path, field, value)
        assert code == 2 and field.split(".")[-1] in found, f"{field}: {value} is documented as bad"


def test_ranges_are_found():
    assert len(RANGES) >= 13


@pytest.mark.parametrize(("field", "good", "bad"), RANGES, ids=[field for field, _, _ in RANGES])
def test_ranges_are_those_of_the_chart(field, good, bad):
    for value in good:
        render({"config": with_field(field, value)})
    for value in bad:
        with pytest.raises(helm.HelmError, match=field.split(".")[-1]):
            render({"config": with_field(field, value)})


EXPRESSION = {"key": "role", "operator": "In", "values": ["a"]}
# Selectors, and whether they are good.
SELECTORS = [
    ({}, False),
    ({"matchLabels": {}}, False),
    ({"matchExpressions": []}, False),
    ({"matchLabels": {}, "matchExpressions": []}, False),
    ({"matchLabels": {}, "matchExpressions": [EXPRESSION]}, True),
    ({"matchLabels": {"example.com/role": ""}}, True),
    ({"matchLabels": {"a b": "c"}}, False),
    ({"matchLabels": {"a": "b c"}}, False),
    ({"matchLabels": {"a": "b" * 64}}, False),
    ({"matchExpressions": [EXPRESSION | {"values": []}]}, False),
    ({"matchExpressions": [EXPRESSION | {"operator": "NotIn", "values": []}]}, False),
    ({"matchExpressions": [{"key": "a", "operator": "In"}]}, False),
    ({"matchExpressions": [EXPRESSION | {"operator": "NotIn"}]}, True),
    ({"matchExpressions": [{"key": "a", "operator": "Exists"}]}, True),
    ({"matchExpressions": [{"key": "a", "operator": "DoesNotExist", "values": []}]}, True),
    ({"matchExpressions": [EXPRESSION | {"operator": "Exists"}]}, False),
    ({"matchExpressions": [EXPRESSION | {"key": "/a"}]}, False),
]
DURATIONS = [
    ("24h", True),
    ("23h60m", True),
    ("23h60m0.001s", False),
    ("1000ms", True),
    ("1s1ns", True),
    ("999999us", False),
]
TWICE = {"dependentResourceInfos": [RESOURCE, RESOURCE]}
JUDGED = [({"servicesAndDependantSelectors": {"x": {"podSelectors": [s]}}}, good) for s, good in SELECTORS]
JUDGED += [(WEEDER | {"watchDuration": text}, good) for text, good in DURATIONS]
JUDGED += [(PROBER | {"probeInterval": text}, good) for text, good in DURATIONS]
JUDGED += [(PROBER | TWICE, False)]


@pytest.mark.parametrize(("config", "good"), JUDGED, ids=str)
def test_chart_and_program_judge_alike(tmp_path, config, good):
    weeder = "servicesAndDependantSelectors" in config
    code, found = check(tmp_path, config, weeder)
    assert (code == 0) == good, found
    values = {"config": {"weeder" if weeder else "prober": config}}
    if good:
        render(values)
    else:
        with pytest.raises(helm.HelmError):
            render(values)


def with_field(field: str, value) -> dict:
    """A good configuration but for that field, under the name that the chart has for it."""
    weeder = field in rows("Weeder file")
    config = yaml.safe_load(yaml.safe_dump(WEEDER if weeder else PROBER))
    if FIELDS[field][0] == "list":
        value = [{**RESOURCE, "ref": {**RESOURCE["ref"], "name": f"x{i}"}} for i in range(value)]
    for place in places(config, field):
        place[field.split(".")[-1]] = value
    return {"weeder" if weeder else "prober": config}


def judge(folder, field: str, value) -> tuple[int, str]:
    """What the program makes of a field."""
    ((name, config),) = with_field(field, value).items()
    return check(folder, config, name == "weeder")


def check(folder, config: dict, weeder: bool) -> tuple[int, str]:
    """What --check-config makes of a configuration: the exit code and the errors."""
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(config))
    program = binary("weeder" if weeder else "lease-probe")
    command = [program, f"--config-file={file}", "--check-config", "--insecure-plaintext"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=30)
    return result.returncode, (result.stdout + result.stderr) if result.returncode else ""


def places(config: dict, field: str) -> list[dict]:
    """The mappings that hold a field."""
    first = field.split(".")[0]
    if "." not in field:
        return [config]
    resource = config["dependentResourceInfos"][0]
    return [resource[first]] if first in resource else [resource["scaleUp"], resource["scaleDown"]]
