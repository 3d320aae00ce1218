"""What dashboards and alerts ask for is what the running programs expose, during an incident in the sandbox."""

import json
import re
import subprocess
from collections import defaultdict

import pytest
import yaml
from chart import CHART
from incident import Incident
from test_documents import SOURCES, metrics
from test_rules import ALERTS, RULES

FLAVORS = {
    flavor: {
        path.stem: json.loads(path.read_text()) for path in sorted((CHART / "dashboards" / flavor).glob("*.json"))
    }
    for flavor in ("grafana", "plutono")
}
DASHBOARDS = FLAVORS["grafana"]

# What the incident does not bring about, and what would. Queries with these are checked for their syntax only.
RARE = {
    "watchdog_stream_client_skipped_total": "a message that cannot be read",
    "watchdog_stream_dropped_total": "a reader that misses a thousand removals",
    "watchdog_certificate_expiry_timestamp_seconds": "TLS, see tests/e2e",
    "watchdog_stream_trimmed_total": "an item with very long texts",
    "watchdog_readiness_blocked": "seen while a program starts or stops, if a scrape falls into that time",
    "watchdog_shoot_clock_skew_seconds": "a node whose clock is off",
    "watchdog_shoot_eligible_lease_fraction": "leases that are not eligible",
    "watchdog_scaling_shoot_mode": "an annotation that sets the mode",
    "watchdog_shoot_grace_period_too_short": "a grace period below 26 s",
    "watchdog_shoot_malformed": "a Cluster that cannot be read",
    "watchdog_shoot_permission_missing": "a shoot that refuses something",
    "watchdog_shoot_verdict_expired": "a lease-probe that hangs",
    "watchdog_tls_files_valid": "TLS, see tests/e2e",
    "watchdog_weeder_malformed_objects_total": "objects that cannot be read",
}
# Label values that the incident does not bring about.
RARE_VALUES = {
    "api_server_unreachable",
    "external_unreachable",
    "connect",
    "malformed",
    "forbidden",
    "failed",
    "observe",
    "certificate",
    "disagreement",
    "unreported",
}
# Of the scraper, and of Prometheus itself.
FOREIGN = {"pod", "instance", "job", "le", "alertname", "seed"}
# More series than that of one metric, on one replica with three shoots, would mean a label without bounds.
MOST_SERIES = 60


def panels(dashboard: dict):
    for panel in dashboard["panels"]:
        yield panel
        yield from panel.get("panels", [])


def queries() -> list[tuple[str, str, str]]:
    """All of dashboards and rules: where from, the expression, the text that the labels are for."""
    found = []
    for name, dashboard in DASHBOARDS.items():
        for panel in panels(dashboard):
            for target in panel.get("targets", []):
                found.append((f"{name}: {panel['title']}", target["expr"], target["legendFormat"]))
        for mark in dashboard["annotations"]["list"]:
            found.append((f"{name}: {mark['name']}", mark["expr"], ""))
        for variable in dashboard["templating"]["list"]:
            if variable["type"] == "query":
                metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["definition"]).groups()
                found.append((f"{name}: ${variable['name']}", f"max by ({label}) ({metric})", ""))
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        found += [(rule["alert"], rule["expr"], "") for rule in group["rules"]]
    return found


QUERIES = queries()


@pytest.fixture(scope="module")
def incident(tmp_path_factory):
    with Incident(tmp_path_factory.mktemp("incident")) as started:
        started.happen()
        yield started


def test_metrics_are_well_formed(incident):
    for program in incident.programs:
        checked = subprocess.run(
            ["promtool", "check", "metrics"], input=program.metrics(), capture_output=True, text=True, timeout=30
        )
        assert checked.returncode == 0, f"{program.replica}: {checked.stdout}{checked.stderr}"


def test_label_sets_are_bounded(incident):
    for program in incident.programs:
        series = defaultdict(set)
        for line in program.metrics().splitlines():
            if not line.startswith("#") and line:
                series[re.match(r"\w+", line).group()].add(line.rsplit(" ", 1)[0])
        for name, found in series.items():
            # A histogram has a series for each bucket.
            bound = MOST_SERIES * (17 if name.endswith("_bucket") else 1)
            assert len(found) <= bound, f"{program.replica}: {name} has {len(found)} series"


def test_log_level_changes_at_run_time(incident):
    for program in incident.programs:
        before = len(program.log.read_text())
        program.set_log_level("trace")
        incident.wait("trace in the log", lambda p=program, b=before: "TRACE" in p.log.read_text()[b:])
        program.set_log_level("info")


@pytest.mark.parametrize(("where", "expression", "legend"), QUERIES, ids=[where for where, _, _ in QUERIES])
def test_query_finds_something(incident, where, expression, legend):
    variables = {
        "$__rate_interval": "20s",
        "$__interval": "5s",
        "$shoot": incident.shoots[0],
        "$seeds": incident.SEED,
    }
    for variable, value in variables.items():
        expression = expression.replace(variable, value)
    names = set()
    for selector, name, inner in re.findall(r"((watchdog_\w+)(?:{([^}]*)})?)", expression):
        names.add(base(name))
        if base(name) in RARE or RARE_VALUES & set(re.findall(r"[\w]+", inner or "")):
            continue
        assert incident.series(f"max_over_time({selector}[10m])"), f"nothing is {selector}"
    # Prometheus judges the syntax; labels are those that series have.
    labels = set().union(*(found.keys() for found in incident.series(expression)), FOREIGN)
    grouped = re.findall(r"\b(?:by|on) \(([^)]*)\)", expression)
    asked = {label.strip() for group in grouped for label in group.split(",") if label.strip()}
    asked |= set(re.findall(r"{{(\w+)}}", legend))
    if not names & set(RARE):
        exposed = labels.union(*(found for name in names for found in seen_labels(incident, name)))
        assert asked <= exposed, f"no series has {asked - exposed}"


def test_what_is_rare_is_not_there(incident):
    """Else it belongs to the rest."""
    seen = {name for name in RARE if seen_labels(incident, name)}
    assert seen <= {"watchdog_readiness_blocked"}


def test_alerts_fire_in_prometheus(incident):
    """The rules load, and the clearest of them see the incident."""
    groups = incident.ask("rules")["groups"]
    assert {rule["name"] for group in groups for rule in group["rules"]} == set(ALERTS)
    assert all(rule["health"] == "ok" for group in groups for rule in group["rules"])
    raised = {found["alertname"] for found in incident.series("ALERTS")}
    clear = ("ProtectionActive", "ZoneLost")
    assert {f"DependencyWatchdog{name}" for name in clear} <= raised
    # The alert names the shoot that was cut off, and no other.
    active = incident.series('ALERTS{alertname="DependencyWatchdogProtectionActive",alertstate="firing"}')
    assert {found["shoot"] for found in active} == {incident.shoots[0]}


def test_dashboards_are_generated():
    checked = subprocess.run(
        [CHART.parent / "generate-dashboards", "--check"], capture_output=True, text=True, timeout=30
    )
    assert checked.returncode == 0, checked.stderr


# Panels, and what the JSON may have, of each flavor. Grafana 9 has no graph panel for new dashboards any more; Plutono
# 7.5 has no state timeline, no data source that is an object, and no schema above 27.
PANELS = {"grafana": {"row", "stat", "table", "timeseries"}, "plutono": {"row", "stat", "table", "graph"}}
SCHEMAS = {"grafana": 36, "plutono": 27}


@pytest.mark.parametrize("flavor", FLAVORS)
def test_dashboards_fit_what_draws_them(flavor):
    dashboards = FLAVORS[flavor]
    assert sorted(dashboards) == ["fleet", "landscape", "services", "shoot", "weeder"]
    assert len({d["uid"] for d in dashboards.values()}) == len(dashboards)
    for dashboard in dashboards.values():
        assert dashboard["schemaVersion"] == SCHEMAS[flavor]
        # Of Gardener's data sources "prometheus" is the aggregate Prometheus, with what the chart's monitors collect.
        source = "prometheus" if flavor == "plutono" else {"type": "prometheus", "uid": "${datasource}"}
        variables = [variable for variable in dashboard["templating"]["list"] if variable["type"] == "query"]
        for of in [*panels(dashboard), *dashboard["annotations"]["list"], *variables]:
            assert of.get("datasource", source) == source or of["type"] == "row"
            assert all(target.get("datasource", source) == source for target in of.get("targets", []))
        ids = [panel["id"] for panel in panels(dashboard)]
        assert len(ids) == len(set(ids))
        for panel in panels(dashboard):
            assert panel["type"] in PANELS[flavor]
            assert panel["type"] == "row" or (panel["description"] and panel["targets"]), panel["title"]
            assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
        assert dashboard["annotations"]["list"], "no annotation marks a change"


def test_both_flavors_ask_the_same():
    asked = [
        [
            (p["title"], [t["expr"] for t in p.get("targets", [])], p["gridPos"])
            for d in dashboards.values()
            for p in panels(d)
        ]
        for dashboards in FLAVORS.values()
    ]
    assert asked[0] == asked[1]


def colors(panel: dict) -> dict[str, str]:
    """By the name of a series."""
    found = dict(panel.get("aliasColors", {}))
    for override in panel.get("fieldConfig", {}).get("overrides", []):
        for given in override["properties"]:
            if given["id"] == "color":
                found[override["matcher"]["options"]] = given["value"]["fixedColor"]
    return found


# A series, or the last word of its name: what it means.
MEANING = {
    "green": {"healthy", "ready", "deleted", "applied", "settled"},
    "red": {"leases_expired", "external_unreachable", "not_ready", "failed", "forbidden", "refused", "expired"},
    "amber": {"pending", "down, settled", "held down", "conflict"},
    "gray": {"api_server_unreachable", "inconclusive", "unknown", "gone"},
}


@pytest.mark.parametrize("flavor", FLAVORS)
def test_colors_mean_the_same_everywhere(flavor):
    def hue(color: str) -> str:
        red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
        if max(red, green, blue) - min(red, green, blue) < 20:
            return "gray"
        if green > red:
            return "green"
        return "amber" if green > 80 else "red"

    seen = 0
    for dashboard in FLAVORS[flavor].values():
        for panel in panels(dashboard):
            for name, color in colors(panel).items():
                word = name if any(name in names for names in MEANING.values()) else name.split(", ")[-1]
                for meant, names in MEANING.items():
                    if word in names:
                        assert hue(color) == meant, f"{panel['title']}: {name} is {color}"
                        seen += 1
    assert seen > 40


def test_no_color_follows_from_the_order_of_the_series():
    """Grafana's own colors are red and green, too, which would seem to mean something."""
    seen = 0
    for dashboard in FLAVORS["grafana"].values():
        for panel in panels(dashboard):
            if panel["type"] == "timeseries":
                named = colors(panel).keys() - {"none"}
                by_value = panel["fieldConfig"]["defaults"].get("color") == {"mode": "continuous-blues"}
                assert by_value != bool(named), panel["title"]
                seen += 1
    assert seen > 40


def test_no_panel_is_empty_in_an_ordinary_hour():
    """What has series only while something is wrong says "none" or 0 otherwise; what is for debugging is folded."""
    only_then = (
        r"held_down_resources|resources_to_restore|zones_expired|outcome\b|readiness_blocked|loop_failing|skew"
    )
    for dashboard in DASHBOARDS.values():
        for panel in panels(dashboard):
            asked = [target["expr"] for target in panel.get("targets", [])]
            for expression in asked:
                if re.search(f"_shoot_({only_then})|_({only_then})|quantile|> 0$", expression):
                    calm = "vector(0)" in asked[-1] + expression or re.search(r"^sum\(|stream_lag", expression)
                    assert calm, f"{panel['title']}: {expression}"
        for row in (panel for panel in panels(dashboard) if panel["type"] == "row"):
            assert row["collapsed"] == row["title"].startswith("Debugging")


def test_every_metric_is_on_a_dashboard():
    asked = {base(name) for _, expression, _ in QUERIES for name in re.findall(r"watchdog_\w+", expression)}
    declared = {name for text in SOURCES.values() for name in metrics(text)}
    assert declared == asked, "a metric that nobody looks at, or one that nobody exposes"


def base(name: str) -> str:
    """The metric that a series of a histogram belongs to."""
    return re.sub(r"_(bucket|sum|count)$", "", name)


def seen_labels(incident, name: str) -> list[set[str]]:
    """The labels of the series of a metric, or of a histogram's."""
    found = incident.ask("series", **{"match[]": f'{{__name__=~"{name}(_bucket)?"}}', "start": incident.began})
    return [set(metric) for metric in found]
