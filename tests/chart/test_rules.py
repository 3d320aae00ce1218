"""The alert rules, judged by promtool: each alert is raised by what it is for, not a moment too early, and alone."""

import re
import subprocess
from collections import Counter

import pytest
import yaml
from chart import CHART, ROOT

RULES = CHART / "rules" / "dependency-watchdog.yaml"
ALERTS = {rule["alert"]: rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]}
RUNBOOK = (ROOT / "docs" / "how-to" / "runbook.md").read_text()

# A seed on which all is well, for two and a half hours, a sample every 30 s: what its replicas expose.
HEALTHY = {
    'watchdog_ready{pod="probe-0"}': "1x300",
    'watchdog_ready{pod="probe-1"}': "1x300",
    'watchdog_ready{pod="coordinator-0"}': "1x300",
    'watchdog_ready{pod="weeder-0"}': "1x300",
    'watchdog_permission_missing{pod="probe-0",verb="list",resource="secrets"}': "0x300",
    'watchdog_config_valid{pod="probe-0"}': "1x300",
    'watchdog_tls_files_valid{pod="probe-0"}': "1x300",
    # A certificate that a program issues itself ends within 24 h, and is replaced when 16 h are left.
    'watchdog_certificate_expiry_timestamp_seconds{pod="probe-0",certificate="own",source="issued"}': "57600x300",
    'watchdog_certificate_expiry_timestamp_seconds{pod="probe-0",certificate="authority",source="issued"}': (
        "9000000x300"
    ),
    'watchdog_certificate_expiry_timestamp_seconds{pod="probe-1",certificate="own",source="files"}': "9000000x300",
    'watchdog_membership_lease_valid{pod="probe-0",service="lease-probe"}': "1x300",
    'watchdog_membership_lease_valid{pod="probe-1",service="lease-probe"}': "1x300",
    'watchdog_membership_lease_valid{pod="coordinator-0",service="scaling-coordinator"}': "1x300",
    'watchdog_membership_lease_valid{pod="weeder-0",service="weeder"}': "1x300",
    'watchdog_membership_members{pod="probe-0",service="lease-probe"}': "2x300",
    'watchdog_membership_members{pod="probe-1",service="lease-probe"}': "2x300",
    'watchdog_leader{pod="coordinator-0",service="scaling-coordinator"}': "1x300",
    'watchdog_leader{pod="coordinator-1",service="scaling-coordinator"}': "0x300",
    'watchdog_watched_objects{pod="probe-0",watch="clusters"}': "50x300",
    'watchdog_watched_objects{pod="probe-1",watch="clusters"}': "50x300",
    'watchdog_active_probes{pod="probe-0"}': "24x300",
    'watchdog_active_probes{pod="probe-1"}': "24x300",
    'watchdog_shoots{pod="probe-0",outcome="healthy"}': "24x300",
    'watchdog_shoots{pod="probe-1",outcome="healthy"}': "23x300",
    'watchdog_shoots{pod="probe-1",outcome="api_server_unreachable"}': "1x300",
    'watchdog_shoots{pod="probe-1",outcome="skipped"}': "2x300",
    'watchdog_shoots_skipped{pod="probe-1",reason="hibernating"}': "2x300",
    'watchdog_shoots_without_current_verdict{pod="probe-0"}': "0x300",
    'watchdog_probe_schedule_lag_seconds_bucket{pod="probe-0",le="0.1"}': "0+20x300",
    'watchdog_probe_schedule_lag_seconds_bucket{pod="probe-0",le="5"}': "0+20x300",
    'watchdog_probe_schedule_lag_seconds_bucket{pod="probe-0",le="+Inf"}': "0+20x300",
    'watchdog_shoot_expired_lease_fraction{pod="probe-0",shoot="a"}': "0x300",
    'watchdog_scaling_failed_levels{pod="coordinator-0"}': "0x300",
    'watchdog_scaling_shoots{pod="coordinator-0",direction="up",state="settled"}': "47x300",
    'watchdog_scaling_held_down_resources{pod="coordinator-0"}': "0x300",
    'watchdog_scaling_resources_to_restore{pod="coordinator-0"}': "0x300",
    'watchdog_scaling_lease_probe_replicas{pod="coordinator-0",state="known"}': "2x300",
    'watchdog_scaling_lease_probe_replicas{pod="coordinator-0",state="synced"}': "2x300",
    'watchdog_weeder_pending_deletions{pod="weeder-0"}': "0x300",
    'watchdog_weeder_deletions_total{pod="weeder-0",result="deleted"}': "0+3x300",
    'watchdog_weeder_deletions_total{pod="weeder-0",result="failed"}': "0x20 1x279",
}

GONE = "_x300"
CERTIFICATE = 'watchdog_certificate_expiry_timestamp_seconds{pod="%s",certificate="%s",source="%s"}'
UNREADY = 'watchdog_ready{pod="probe-0"}'
HELD = 'watchdog_scaling_held_down_resources{pod="coordinator-0"}'
HELD_OF = 'watchdog_scaling_shoot_held_down_resources{pod="coordinator-0",shoot="a"}'
TO_RESTORE = 'watchdog_scaling_shoot_resources_to_restore{pod="coordinator-0",shoot="a"}'
ZONES = 'watchdog_shoot_zones_expired{pod="probe-0",shoot="a"}'
FRACTION = 'watchdog_shoot_expired_lease_fraction{pod="probe-0",shoot="a"}'
ELIGIBLE = 'watchdog_shoot_eligible_lease_fraction{pod="probe-0",shoot="a"}'
UNPROTECTED = 'watchdog_shoot_unprotected{pod="probe-0",shoot="a",outcome="api_server_unreachable"}'
CHANGED = 'watchdog_shoot_outcome_changed_timestamp_seconds{pod="probe-0",shoot="a"}'
HEALTHY_0 = 'watchdog_shoots{pod="probe-0",outcome="healthy"}'
UNREACHABLE_0 = 'watchdog_shoots{pod="probe-0",outcome="api_server_unreachable"}'
# One replica with three shoots.
SMALL = {
    'watchdog_watched_objects{pod="probe-0",watch="clusters"}': "3x300",
    'watchdog_watched_objects{pod="probe-1",watch="clusters"}': GONE,
    'watchdog_membership_members{pod="probe-0",service="lease-probe"}': "1x300",
    'watchdog_membership_members{pod="probe-1",service="lease-probe"}': GONE,
    'watchdog_active_probes{pod="probe-0"}': "3x300",
    'watchdog_active_probes{pod="probe-1"}': GONE,
    'watchdog_shoots{pod="probe-1",outcome="healthy"}': GONE,
    'watchdog_shoots{pod="probe-1",outcome="api_server_unreachable"}': GONE,
    'watchdog_shoots{pod="probe-1",outcome="skipped"}': GONE,
    HEALTHY_0: "3x300",
}


def outcome(name: str, count: int, healthy: int) -> dict:
    """As many of the shoots of one replica have that outcome, from the tenth minute on."""
    series = f'watchdog_shoots{{pod="probe-0",outcome="{name}"}}'
    return {series: f"_x21 {count}x279", HEALTHY_0: f"24x20 {healthy}x279"}


def held(series: str, shoot: str, first: int, last: int) -> dict:
    """That gauge has a sample for a shoot from one sample to another; it is not exposed before and after."""
    before, after = f"_x{first} " if first else "", f" stale _x{298 - last}" if last < 299 else ""
    return {series.replace('"a"', f'"{shoot}"'): f"{before}3x{last - first}{after}"}


def failures(shoot: str, reason: str, first: int, last: int) -> dict:
    """Every probe of a shoot fails, from one sample to another."""
    series = (
        f'watchdog_shoot_probe_failures_total{{pod="probe-0",shoot="{shoot}",endpoint="internal",reason="{reason}"}}'
    )
    more = last - first
    return {series: f"{f'_x{first} ' if first else ''}1+1x{more} {1 + more}x{299 - last}"}


def clocks(**skews: int | None) -> dict:
    """The clocks of the nodes of these shoots are off by that many seconds, from the tenth minute on; None is right."""
    fraction = 'watchdog_shoot_expired_lease_fraction{pod="probe-0",shoot="%s"}'
    skew = 'watchdog_shoot_clock_skew_seconds{pod="probe-0",shoot="%s"}'
    off = {skew % shoot: f"_x21 {seconds}x279" for shoot, seconds in skews.items() if seconds is not None}
    return off | {fraction % shoot: "0x300" for shoot in skews}


def after_the_other(series, what: str) -> dict:
    """One shoot after the other has it for four minutes, two hours long, and never none."""
    found = {}
    for n in range(35):
        shoot, first, last = f"shoot-{n}", 8 * n, 8 * n + 8
        found |= held(what, shoot, first, last) if series is held else failures(shoot, what, first, last)
    return found


# What happens in the tenth minute (20 samples), then when nothing is raised yet, and what is raised when.
CASES = {
    "nothing": ({}, "2h", "2h29m", []),
    "lease-probe-goes": (
        {
            'watchdog_active_probes{pod="probe-0"}': "24x20 _x279",
            'watchdog_active_probes{pod="probe-1"}': "24x20 _x279",
        },
        # Prometheus looks back for 5 minutes.
        "19m",
        "21m",
        ["WatchdogLeaseProbeAbsent"],
    ),
    "coordinator-goes": ({HELD: "0x20 _x279"}, "19m", "21m", ["WatchdogScalingCoordinatorAbsent"]),
    "weeder-was-never-there": (
        {'watchdog_weeder_pending_deletions{pod="weeder-0"}': GONE},
        "4m30s",
        "6m",
        ["WatchdogWeederAbsent"],
    ),
    "a-rollout": ({UNREADY: "1x20 0x8 1x271"}, "14m", "30m", []),
    "never-ready": ({UNREADY: "1x20 0x279"}, "15m", "16m", ["WatchdogNotReady"]),
    "no-lease-probe-is-ready": (
        {UNREADY: "1x20 0x279", 'watchdog_ready{pod="probe-1"}': "1x20 0x279"},
        "15m",
        "16m",
        # A warning for each replica.
        ["WatchdogNotReady", "WatchdogNotReady", "WatchdogNoReplicaReady"],
    ),
    "no-coordinator-is-ready": (
        {'watchdog_ready{pod="coordinator-0"}': "1x20 0x279"},
        "15m",
        "16m",
        ["WatchdogNotReady", "WatchdogNoReplicaReady"],
    ),
    "no-weeder-is-ready": ({'watchdog_ready{pod="weeder-0"}': "1x20 0x279"}, "15m", "16m", ["WatchdogNotReady"]),
    "now-one-is-ready-and-now-the-other": (
        {UNREADY: "1x20 0x8 1x8 0x263", 'watchdog_ready{pod="probe-1"}': "1x27 0x8 1x265"},
        "14m",
        "40m",
        ["WatchdogNotReady"],
    ),
    "a-permission": (
        {'watchdog_permission_missing{pod="probe-0",verb="list",resource="secrets"}': "0x20 1x279"},
        "12m",
        "13m",
        ["WatchdogPermissionMissing"],
    ),
    "a-bad-file": ({'watchdog_config_valid{pod="probe-0"}': "1x20 0x279"}, "12m", "13m", ["WatchdogConfigRefused"]),
    "a-bad-certificate": (
        {'watchdog_tls_files_valid{pod="probe-0"}': "1x20 0x279"},
        "12m",
        "13m",
        ["WatchdogConfigRefused"],
    ),
    "a-certificate-that-nobody-renews": (
        {CERTIFICATE % ("probe-1", "own", "files"): "1200000x300"},
        "14m",
        "17m",
        ["WatchdogCertificateExpires"],
    ),
    "a-certificate-that-the-program-does-not-replace": (
        {CERTIFICATE % ("probe-0", "own", "issued"): "28000x300"},
        "14m",
        "17m",
        ["WatchdogCertificateExpires"],
    ),
    "an-authority-that-is-not-followed": (
        {CERTIFICATE % ("probe-0", "authority", "issued"): "1200000x300"},
        "14m",
        "17m",
        ["WatchdogCertificateExpires"],
    ),
    "an-authority-that-cannot-be-read": (
        {'watchdog_retry_loop_failing{pod="probe-0",loop="certificate",reason="forbidden"}': "_x21 1x279"},
        "25m",
        "26m",
        ["WatchdogCertificateAuthorityFails"],
    ),
    "an-authority-that-cannot-be-read-for-a-while": (
        {'watchdog_retry_loop_failing{pod="probe-0",loop="certificate",reason="timeout"}': "_x21 1x20 stale _x258"},
        "25m",
        "2h",
        [],
    ),
    "a-lost-lease": (
        {'watchdog_membership_lease_valid{pod="probe-0",service="lease-probe"}': "1x20 0x279"},
        "12m",
        "13m",
        ["WatchdogMembershipLost"],
    ),
    "nobody-leads": (
        {'watchdog_leader{pod="coordinator-0",service="scaling-coordinator"}': "1x20 0x279"},
        "11m",
        "12m",
        ["WatchdogNoLeader"],
    ),
    "two-views": (
        {'watchdog_membership_members{pod="probe-1",service="lease-probe"}': "2x20 1x279"},
        "15m",
        "16m",
        ["WatchdogMembersDisagree"],
    ),
    "shoots-of-nobody": ({HEALTHY_0: "24x20 20x279"}, "15m", "16m", ["WatchdogShootsNotProbed"]),
    "all-shoots-of-nobody": (
        {
            series: f"{values.split('x')[0]}x20 _x279"
            for series, values in HEALTHY.items()
            if "watchdog_shoots{" in series
        },
        "19m",
        "21m",
        ["WatchdogShootsNotProbed"],
    ),
    "a-malformed-cluster": (
        {'watchdog_shoots_skipped{pod="probe-1",reason="malformed"}': "_x21 1x279"},
        "20m",
        "21m",
        ["WatchdogShootsMalformed"],
    ),
    "no-result": (failures("a", "forbidden", 20, 299), "25m", "28m", ["WatchdogProbesInconclusive"]),
    "no-result-of-one-shoot-after-the-other": (after_the_other(failures, "machines"), "28m", "2h", []),
    "not-reached": (failures("a", "connect", 20, 299), "25m", "2h", []),
    "a-host-clock": (clocks(a=-58, b=-52, c=-55), "20m", "21m", ["WatchdogHostClockOff"]),
    "the-clock-of-one-shoot-in-ten-is-right": (
        clocks(j=None, **dict.fromkeys("abcdefghi", 60)),
        "20m",
        "21m",
        ["WatchdogHostClockOff"],
    ),
    "the-clocks-of-two-shoots": (clocks(a=-58, b=-52), "20m", "2h", []),
    "the-clocks-of-two-shoots-in-three": (clocks(a=-58, b=-52, c=None), "20m", "2h", []),
    "clocks-that-disagree": (clocks(a=-58, b=40, c=-55), "20m", "2h", []),
    "stale": (
        {'watchdog_shoots_without_current_verdict{pod="probe-0"}': "0x20 3x279"},
        "12m",
        "13m",
        ["WatchdogVerdictsStale"],
    ),
    "late": (
        {'watchdog_probe_schedule_lag_seconds_bucket{pod="probe-0",le="0.1"}': "0+20x20 400+10x279"},
        "18m",
        "30m",
        ["WatchdogProbesLate"],
    ),
    "throttled": (failures("a", "throttled", 20, 299), "20m", "23m", ["WatchdogThrottled"]),
    "one-shoot-after-the-other-is-throttled": (after_the_other(failures, "throttled"), "28m", "2h", []),
    "one-shoot-is-unprotected": (held(UNPROTECTED, "a", 20, 299), "19m", "22m", ["WatchdogShootUnprotected"]),
    "two-shoots-are-unprotected": (
        held(UNPROTECTED, "a", 20, 299) | held(UNPROTECTED, "b", 20, 299),
        "19m",
        "22m",
        ["WatchdogShootUnprotected", "WatchdogShootUnprotected"],
    ),
    "one-shoot-is-unprotected-for-one-reason-and-then-another": (
        held(UNPROTECTED, "a", 20, 30) | held(UNPROTECTED.replace("api_server_unreachable", "pending"), "a", 31, 299),
        "19m",
        "22m",
        ["WatchdogShootUnprotected"],
    ),
    "one-shoot-is-unprotected-for-a-while": (held(UNPROTECTED, "a", 20, 38), "20m", "2h", []),
    "one-shoot-after-the-other-is-unprotected": (after_the_other(held, UNPROTECTED), "28m", "2h", []),
    "conditions-hide-most-nodes": ({ELIGIBLE: "_x19 0.17x279"}, "19m", "21m", ["WatchdogLeasesNotEligible"]),
    "conditions-hide-half-of-the-nodes": ({ELIGIBLE: "_x19 0.5x279"}, "31m", "2h", []),
    "one-shoot-flaps": ({CHANGED: "60x20 660+30x279"}, "14m", "22m", ["WatchdogShootFlapping"]),
    "one-shoot-flaps-more-slowly-than-it-is-scraped": (
        {CHANGED: "60x20 " + " ".join(f"{660 + 120 * n}x3" for n in range(70))},
        "18m",
        "40m",
        ["WatchdogShootFlapping"],
    ),
    "one-shoot-changes-four-times": ({CHANGED: "60x20 660x3 780x3 840x3 960x267"}, "16m", "20m", []),
    "one-shoot-changes-every-hour": ({CHANGED: "60x119 3600x119 7200x59"}, "61m", "121m", []),
    "one-shoot-is-cut-off": (outcome("leases_expired", 1, 23), "12m", "2h", []),
    "many-shoots-are-cut-off": (outcome("leases_expired", 12, 12), "11m", "12m", ["WatchdogManyShootsCutOff"]),
    "a-few-of-many": (outcome("external_unreachable", 6, 18), "12m", "2h", []),
    "one-shoot-is-unreachable": (outcome("api_server_unreachable", 1, 23), "30m", "2h", []),
    "many-shoots-are-unreachable": (
        outcome("api_server_unreachable", 12, 12),
        "20m",
        "21m",
        ["WatchdogManyShootsUnreachable"],
    ),
    "all-shoots-are-unreachable": (
        {
            HEALTHY_0: "24x20 _x279",
            'watchdog_shoots{pod="probe-1",outcome="healthy"}': "23x20 _x279",
            UNREACHABLE_0: "_x21 24x279",
            'watchdog_shoots{pod="probe-1",outcome="api_server_unreachable"}': "1x20 24x279",
        },
        "20m",
        "21m",
        ["WatchdogManyShootsUnreachable"],
    ),
    "all-of-a-small-seed-are-unreachable": (
        SMALL | {HEALTHY_0: "3x20 0x279", UNREACHABLE_0: "_x21 3x279"},
        "20m",
        "21m",
        ["WatchdogManyShootsUnreachable"],
    ),
    "some-of-a-small-seed-are-unreachable": (
        SMALL | {HEALTHY_0: "3x20 1x279", UNREACHABLE_0: "_x21 2x279"},
        "30m",
        "2h",
        [],
    ),
    "many-shoots-are-unreachable-for-a-while": (
        {HEALTHY_0: "24x20 12x18 24x261", UNREACHABLE_0: "_x21 12x18 _x261"},
        "18m",
        "2h",
        [],
    ),
    "one-zone": ({ZONES: "_x21 1x279", FRACTION: "0x20 0.33x279"}, "15m", "16m", ["WatchdogZoneGone"]),
    "all-zones": ({ZONES: "_x21 3x279", FRACTION: "0x20 1x279"}, "15m", "2h", []),
    "scaling-fails": (
        {'watchdog_scaling_failed_levels{pod="coordinator-0"}': "0x20 1x279"},
        "12m",
        "13m",
        ["WatchdogScalingFailed"],
    ),
    "scaling-hangs": (
        {'watchdog_scaling_shoots{pod="coordinator-0",direction="down",state="running"}': "_x21 1x279"},
        "30m",
        "31m",
        ["WatchdogScalingStuck"],
    ),
    "no-stream-to-an-observer": (
        {'watchdog_scaling_lease_probe_replicas{pod="coordinator-0",state="synced"}': "2x20 1x279"},
        "10m30s",
        "11m30s",
        ["WatchdogVerdictsNotReceived"],
    ),
    "no-lease-probe-is-known": (
        {
            'watchdog_scaling_lease_probe_replicas{pod="coordinator-0",state="known"}': "2x20 0x279",
            'watchdog_scaling_lease_probe_replicas{pod="coordinator-0",state="synced"}': "2x20 0x279",
        },
        "10m30s",
        "11m30s",
        ["WatchdogVerdictsNotReceived"],
    ),
    "witnesses-disagree": (
        {'watchdog_scaling_shoots{pod="coordinator-0",direction="hold",held="disagreement"}': "0x20 1x279"},
        "12m",
        "13m",
        ["WatchdogWitnessesDisagree"],
    ),
    "down-for-long": (held(HELD_OF, "a", 20, 299), "65m", "75m", ["WatchdogScaledDownTooLong"]),
    "a-short-loss": (held(HELD_OF, "a", 20, 100), "49m", "2h", []),
    "one-shoot-after-the-other-is-cut-off": (after_the_other(held, HELD_OF), "60m", "2h", []),
    "not-restored": (
        held(HELD_OF, "a", 20, 299) | held(TO_RESTORE, "a", 40, 299),
        "34m",
        "36m",
        ["WatchdogNotRestored"],
    ),
    # In mode observe the coordinator counts only what it must restore itself.
    "another-watchdog-does-not-restore": (
        held(HELD_OF, "a", 20, 120)
        | {'watchdog_scaling_shoots_by_mode{pod="coordinator-0",mode="observe",source="seed",end="never"}': "1x300"}
        | {'watchdog_scaling_resources_to_restore{pod="coordinator-0"}': "0x300"},
        "36m",
        "59m",
        [],
    ),
    "not-restored-by-one-replica-and-then-another": (
        held(TO_RESTORE, "a", 40, 58) | held(TO_RESTORE.replace("coordinator-0", "coordinator-1"), "a", 60, 299),
        "34m",
        "37m",
        ["WatchdogNotRestored"],
    ),
    "one-shoot-after-the-other-is-restored": (after_the_other(held, TO_RESTORE), "37m", "2h", []),
    "one-shoot-is-cut-off-and-restored-time-and-again": (
        {TO_RESTORE: " ".join(["3x6", "stale", "_x6"] * 21)},
        "37m",
        "2h",
        [],
    ),
    "pods-that-cannot-be-deleted": (
        {'watchdog_weeder_deletions_total{pod="weeder-0",result="forbidden"}': "0x20 0+2x279"},
        "14m",
        "25m",
        ["WatchdogWeedingFails"],
    ),
}


def test_promtool_finds_nothing_wrong():
    checked = promtool("check", "rules", "--lint=all", "--lint-fatal", str(RULES))
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_raised_when_it_should_be(tmp_path, case):
    changes, quiet, loud, raised = case
    firing = 'count by (alertname) (ALERTS{alertstate="firing"})'
    samples = [{"labels": f'{{alertname="{name}"}}', "value": n} for name, n in Counter(raised).items()]
    run(
        tmp_path,
        changes,
        promql_expr_test=[
            {"expr": firing, "eval_time": quiet, "exp_samples": []},
            {"expr": firing, "eval_time": loud, "exp_samples": samples},
        ],
    )


NOT_PROTECTED = 'watchdog_scaling_shoots_by_mode{pod="coordinator-0",mode="%s",source="shoot",end="%s"}'


@pytest.mark.parametrize(
    ("series", "raised"),
    [
        ({NOT_PROTECTED % ("off", "never"): "3x180"}, "off"),
        ({NOT_PROTECTED % ("observe", "never"): "3x60 _x2 3x118"}, "observe"),
        ({NOT_PROTECTED % ("off", "set"): "3x180"}, None),
        ({NOT_PROTECTED % ("protect", "never"): "3x180"}, None),
        ({NOT_PROTECTED % ("off", "never"): "3x60 stale _x30 3x89"}, None),
    ],
    ids=["off", "observe-with-lost-scrapes", "with-an-end", "protected", "protected-for-a-while"],
)
def test_shoots_that_are_not_protected_for_a_day(tmp_path, series, raised):
    rule = ALERTS["WatchdogShootsNotProtected"]
    expected = []
    if raised:
        texts = {
            "summary": f"The mode of shoots has been {raised} for a day and does not end within 31 days; "
            "they are not protected.",
            "description": "At least 3 shoots. Source of the mode: shoot. watchdogctl status lists them.",
        }
        labels = rule["labels"] | {"mode": raised, "source": "shoot"}
        expected = [{"exp_labels": labels, "exp_annotations": rule["annotations"] | texts}]
    name = {"alertname": "WatchdogShootsNotProtected"}
    run(
        tmp_path,
        series,
        interval="10m",
        alert_rule_test=[
            name | {"eval_time": "22h", "exp_alerts": []},
            name | {"eval_time": "25h", "exp_alerts": expected},
        ],
    )


def test_texts_name_who_and_what(tmp_path):
    rule = ALERTS["WatchdogPermissionMissing"]
    pod = {"pod": "probe-0", "verb": "list", "resource": "secrets"}
    annotations = rule["annotations"] | {"description": "probe-0 may not list secrets."}
    run(
        tmp_path,
        CASES["a-permission"][0],
        alert_rule_test=[
            {
                "alertname": "WatchdogPermissionMissing",
                "eval_time": "13m",
                "exp_alerts": [{"exp_labels": rule["labels"] | pod, "exp_annotations": annotations}],
            }
        ],
    )


# The labels that a scraper adds: the chart's PodMonitor and ServiceMonitor, annotations, a plain list of targets, and a
# replica that is scraped by two.
SCRAPERS = {
    "pod-monitor": ['job="garden/dependency-watchdog",instance="10.0.0.{n}:9643",pod="{pod}",container="x"'],
    "service-monitor": ['job="{job}-headless",instance="10.0.0.{n}:9643",pod="{pod}",endpoint="metrics"'],
    "annotations": ['job="pods",namespace="garden",pod="{pod}"'],
    "targets": ['job="watchdog",instance="10.0.0.{n}:9643"'],
    "both": ['job="pods",pod="{pod}"', 'job="garden/dependency-watchdog",instance="10.0.0.{n}:9643",pod="{pod}"'],
}


@pytest.mark.parametrize("labels", SCRAPERS.values(), ids=SCRAPERS.keys())
def test_no_replica_is_ready_whoever_scrapes(tmp_path, labels):
    rule = ALERTS["WatchdogNoReplicaReady"]
    series = {}
    for n, (service, ready) in enumerate(
        [
            ("lease-probe", "0x60"),
            ("lease-probe", "1x60"),
            ("scaling-coordinator", "0x60"),
            ("scaling-coordinator", "0x60"),
        ]
    ):
        for label in labels:
            label = label.format(n=n, pod=f"{service}-{n}", job=service)
            # A ServiceMonitor gives every series the name of its Service, except those with a label "service".
            foreign = ',service="x-headless"' if "-headless" in label else ""
            series[f"watchdog_ready{{{label}{foreign}}}"] = ready
            series[f'watchdog_membership_lease_valid{{{label},service="{service}"}}'] = "0x60"
    fires = {
        "exp_labels": {"severity": "critical", "service": "scaling-coordinator"},
        "exp_annotations": rule["annotations"]
        | {
            "summary": "No replica of scaling-coordinator has been ready for 5 minutes; "
            "no shoot of this seed is protected.",
            "description": f"All {2 * len(labels)} replicas run, but none is ready. "
            "watchdog_readiness_blocked and /readyz say why.",
        },
    }
    run(
        tmp_path,
        series,
        {},
        alert_rule_test=[{"alertname": "WatchdogNoReplicaReady", "eval_time": "10m", "exp_alerts": [fires]}],
    )


def test_no_alert_is_left_out():
    after_a_day = {"WatchdogShootsNotProtected"}
    assert {name for case in CASES.values() for name in case[3]} | after_a_day == set(ALERTS)


def test_the_runbook_has_one_heading_for_each_alert_and_no_other():
    assert re.findall(r"^##+ (.*)", RUNBOOK, re.MULTILINE) == list(ALERTS)


@pytest.mark.parametrize("name", ALERTS)
def test_every_alert_leads_to_its_section_of_the_runbook(name):
    rule = ALERTS[name]
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    assert rule["annotations"]["runbook_url"] == f"docs/how-to/runbook.md#{name.lower()}"
    section = re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", RUNBOOK, re.MULTILINE | re.DOTALL)[1]
    assert re.findall(r"^\*\*(\w+)\.\*\*", section, re.MULTILINE) == ["Meaning", "Impact", "Diagnosis", "Mitigation"]


def run(folder, changes, healthy=HEALTHY, interval="30s", **tests):
    """Has promtool run tests on a healthy seed with changes. The samples are that far apart, and the evaluations."""
    series = [{"series": name, "values": values} for name, values in (healthy | changes).items()]
    file = folder / "test.yaml"
    file.write_text(
        yaml.safe_dump(
            {
                "rule_files": [str(RULES)],
                "evaluation_interval": interval,
                "tests": [{"interval": interval, "input_series": series, **tests}],
            }
        )
    )
    result = promtool("test", "rules", str(file))
    assert result.returncode == 0, result.stdout + result.stderr


def promtool(*arguments: str):
    return subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=60)
