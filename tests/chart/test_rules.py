"""The alert rules, judged by promtool: each alert is raised by what it is for, not a moment too early, and alone, and
names the shoot that it is about."""

import bisect
import itertools
import json
import re
import subprocess
from collections import Counter

import pytest
import yaml
from chart import CHART, ROOT

RULES = CHART / "rules" / "dependency-watchdog.yaml"
ALERTS = {rule["alert"]: rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]}
PREFIX = "DependencyWatchdog"
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
UNREACHABLE = 'watchdog_shoot_outcome{pod="probe-0",shoot="a",outcome="api_server_unreachable"}'
MALFORMED = 'watchdog_shoot_malformed{pod="probe-1",shoot="a"}'
EXPIRED = 'watchdog_shoot_verdict_expired{pod="probe-0",shoot="a"}'
STATE = 'watchdog_scaling_shoot_state{pod="coordinator-0",shoot="a",direction="%s",state="%s",held="%s"}'
RUNNING, FAILED = STATE % ("down", "running", "no"), STATE % ("down", "failed", "no")
SYNCED = 'watchdog_scaling_lease_probe_replicas{pod="coordinator-0",state="synced"}'
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


# What happens in the tenth minute (20 samples), then when nothing is raised yet, and what is raised when. The names are
# without their prefix.
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
        ["LeaseProbeAbsent"],
    ),
    "coordinator-goes": ({HELD: "0x20 _x279"}, "19m", "21m", ["ScalingCoordinatorAbsent"]),
    "weeder-was-never-there": (
        {'watchdog_weeder_pending_deletions{pod="weeder-0"}': GONE},
        "4m30s",
        "6m",
        ["WeederAbsent"],
    ),
    "a-rollout": ({UNREADY: "1x20 0x8 1x271"}, "14m", "30m", []),
    "never-ready": ({UNREADY: "1x20 0x279"}, "15m", "16m", ["ReplicaNotReady"]),
    "no-lease-probe-is-ready": (
        {UNREADY: "1x20 0x279", 'watchdog_ready{pod="probe-1"}': "1x20 0x279"},
        "15m",
        "16m",
        # A warning for each replica.
        ["ReplicaNotReady", "ReplicaNotReady", "NoReplicaReady"],
    ),
    "no-coordinator-is-ready": (
        {'watchdog_ready{pod="coordinator-0"}': "1x20 0x279"},
        "15m",
        "16m",
        ["ReplicaNotReady", "NoReplicaReady"],
    ),
    "no-weeder-is-ready": ({'watchdog_ready{pod="weeder-0"}': "1x20 0x279"}, "15m", "16m", ["ReplicaNotReady"]),
    "now-one-is-ready-and-now-the-other": (
        {UNREADY: "1x20 0x8 1x8 0x263", 'watchdog_ready{pod="probe-1"}': "1x27 0x8 1x265"},
        "14m",
        "40m",
        ["ReplicaNotReady"],
    ),
    "a-permission": (
        {'watchdog_permission_missing{pod="probe-0",verb="list",resource="secrets"}': "0x20 1x279"},
        "12m",
        "13m",
        ["PermissionMissing"],
    ),
    "a-bad-file": ({'watchdog_config_valid{pod="probe-0"}': "1x20 0x279"}, "12m", "13m", ["ChangedFileInvalid"]),
    "a-bad-certificate": (
        {'watchdog_tls_files_valid{pod="probe-0"}': "1x20 0x279"},
        "12m",
        "13m",
        ["ChangedFileInvalid"],
    ),
    "a-certificate-that-nobody-renews": (
        {CERTIFICATE % ("probe-1", "own", "files"): "1200000x300"},
        "14m",
        "17m",
        ["CertificateExpiring"],
    ),
    "a-certificate-that-the-program-does-not-replace": (
        {CERTIFICATE % ("probe-0", "own", "issued"): "28000x300"},
        "14m",
        "17m",
        ["CertificateExpiring"],
    ),
    "an-authority-that-is-not-followed": (
        {CERTIFICATE % ("probe-0", "authority", "issued"): "1200000x300"},
        "14m",
        "17m",
        ["CertificateExpiring"],
    ),
    "an-authority-that-cannot-be-read": (
        {'watchdog_retry_loop_failing{pod="probe-0",loop="certificate",reason="forbidden"}': "_x21 1x279"},
        "25m",
        "26m",
        ["CertificateAuthorityFailing"],
    ),
    "a-certificate-for-people-that-cannot-be-written": (
        {'watchdog_retry_loop_failing{pod="probe-0",loop="observer-certificate",reason="forbidden"}': "_x21 1x279"},
        "25m",
        "26m",
        ["CertificateAuthorityFailing"],
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
        ["MembershipLost"],
    ),
    "nobody-leads": (
        {'watchdog_leader{pod="coordinator-0",service="scaling-coordinator"}': "1x20 0x279"},
        "11m",
        "12m",
        ["NoLeader"],
    ),
    "two-views": (
        {'watchdog_membership_members{pod="probe-1",service="lease-probe"}': "2x20 1x279"},
        "15m",
        "16m",
        ["MemberCountsDiffer"],
    ),
    "a-shoot-without-a-replica": (
        held(STATE % ("hold", "holding", "unreported"), "a", 20, 299),
        "14m30s",
        "16m",
        ["ShootUnassigned"],
    ),
    "every-shoot-without-a-replica": (
        held(STATE % ("hold", "holding", "unreported"), "a", 20, 299) | {SYNCED: "2x20 0x279"},
        "10m",
        "16m",
        ["VerdictStreamMissing"],
    ),
    "a-malformed-cluster": (
        held(MALFORMED, "a", 20, 299),
        "19m30s",
        "21m",
        ["ClusterMalformed"],
    ),
    "no-result": (failures("a", "forbidden", 20, 299), "25m", "28m", ["ProbesInconclusive"]),
    "no-result-of-one-shoot-after-the-other": (after_the_other(failures, "machines"), "28m", "2h", []),
    "not-reached": (failures("a", "connect", 20, 299), "25m", "2h", []),
    "a-host-clock": (clocks(a=-58, b=-52, c=-55), "20m", "21m", ["HostClockSkewed"]),
    "the-clock-of-one-shoot-in-ten-is-right": (
        clocks(j=None, **dict.fromkeys("abcdefghi", 60)),
        "20m",
        "21m",
        ["HostClockSkewed"],
    ),
    "the-clocks-of-two-shoots": (clocks(a=-58, b=-52), "20m", "2h", []),
    "the-clocks-of-two-shoots-in-three": (clocks(a=-58, b=-52, c=None), "20m", "2h", []),
    "clocks-that-disagree": (clocks(a=-58, b=40, c=-55), "20m", "2h", []),
    "a-verdict-expires": (held(EXPIRED, "a", 20, 299), "11m30s", "13m", ["VerdictExpired"]),
    "one-verdict-after-the-other-expires": (
        {EXPIRED: "_x20 1x3 stale _x276", EXPIRED.replace('"a"', '"b"'): "_x24 1x3 stale _x272"},
        "12m",
        "14m",
        [],
    ),
    "late": (
        {'watchdog_probe_schedule_lag_seconds_bucket{pod="probe-0",le="0.1"}': "0+20x20 400+10x279"},
        "18m",
        "30m",
        ["ProbesLate"],
    ),
    "throttled": (failures("a", "throttled", 20, 299), "20m", "23m", ["ProbesThrottled"]),
    "one-shoot-after-the-other-is-throttled": (after_the_other(failures, "throttled"), "28m", "2h", []),
    "one-shoot-is-unprotected": (held(UNREACHABLE, "a", 20, 299), "19m", "22m", ["NodesNotJudged"]),
    "two-shoots-are-unprotected": (
        held(UNREACHABLE, "a", 20, 299) | held(UNREACHABLE, "b", 20, 299),
        "19m",
        "22m",
        [("NodesNotJudged", "a"), ("NodesNotJudged", "b")],
    ),
    "one-shoot-is-unprotected-for-one-reason-and-then-another": (
        held(UNREACHABLE, "a", 20, 30) | held(UNREACHABLE.replace("api_server_unreachable", "pending"), "a", 31, 299),
        "19m",
        "22m",
        ["NodesNotJudged"],
    ),
    "one-shoot-is-lost-and-judged": (
        held(UNREACHABLE.replace("api_server_unreachable", "leases_expired"), "a", 20, 299),
        "22m",
        "2h",
        [],
    ),
    "one-shoot-is-unprotected-for-a-while": (held(UNREACHABLE, "a", 20, 38), "20m", "2h", []),
    "one-shoot-after-the-other-is-unprotected": (after_the_other(held, UNREACHABLE), "28m", "2h", []),
    "conditions-hide-most-nodes": ({ELIGIBLE: "_x19 0.17x279"}, "19m", "21m", ["LeasesNotEligible"]),
    "conditions-hide-half-of-the-nodes": ({ELIGIBLE: "_x19 0.5x279"}, "31m", "2h", []),
    "one-shoot-flaps": ({CHANGED: "60x20 660+30x279"}, "14m", "22m", ["VerdictFlapping"]),
    "one-shoot-flaps-more-slowly-than-it-is-scraped": (
        {CHANGED: "60x20 " + " ".join(f"{660 + 120 * n}x3" for n in range(70))},
        "18m",
        "40m",
        ["VerdictFlapping"],
    ),
    "one-shoot-changes-four-times": ({CHANGED: "60x20 660x3 780x3 840x3 960x267"}, "16m", "20m", []),
    "one-shoot-changes-every-hour": ({CHANGED: "60x119 3600x119 7200x59"}, "61m", "121m", []),
    "one-shoot-is-cut-off": (outcome("leases_expired", 1, 23), "12m", "2h", []),
    "many-shoots-are-cut-off": (outcome("leases_expired", 12, 12), "11m", "12m", ["ManyShootsCutOff"]),
    "a-few-of-many": (outcome("external_unreachable", 6, 18), "12m", "2h", []),
    "one-shoot-is-unreachable": (outcome("api_server_unreachable", 1, 23), "30m", "2h", []),
    "many-shoots-are-unreachable": (
        outcome("api_server_unreachable", 12, 12),
        "20m",
        "21m",
        ["ManyShootsUnreachable"],
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
        ["ManyShootsUnreachable"],
    ),
    "all-of-a-small-seed-are-unreachable": (
        SMALL | {HEALTHY_0: "3x20 0x279", UNREACHABLE_0: "_x21 3x279"},
        "20m",
        "21m",
        ["ManyShootsUnreachable"],
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
    "one-zone": ({ZONES: "_x21 1x279", FRACTION: "0x20 0.33x279"}, "15m", "16m", ["ZoneLost"]),
    "all-zones": ({ZONES: "_x21 3x279", FRACTION: "0x20 1x279"}, "15m", "2h", []),
    "scaling-fails": (held(FAILED, "a", 20, 299), "14m30s", "16m", ["ScalingFailed"]),
    "scaling-hangs": (held(RUNNING, "a", 20, 299), "29m30s", "31m", ["ScalingStuck"]),
    "one-shoot-after-the-other-is-being-scaled": (after_the_other(held, RUNNING), "31m", "2h", []),
    "no-stream-to-an-observer": (
        {'watchdog_scaling_lease_probe_replicas{pod="coordinator-0",state="synced"}': "2x20 1x279"},
        "10m30s",
        "11m30s",
        ["VerdictStreamMissing"],
    ),
    "no-lease-probe-is-known": (
        {
            'watchdog_scaling_lease_probe_replicas{pod="coordinator-0",state="known"}': "2x20 0x279",
            'watchdog_scaling_lease_probe_replicas{pod="coordinator-0",state="synced"}': "2x20 0x279",
        },
        "10m30s",
        "11m30s",
        ["VerdictStreamMissing"],
    ),
    "witnesses-disagree": (
        held(STATE % ("hold", "holding", "disagreement"), "a", 20, 299),
        "11m30s",
        "13m",
        ["WitnessesDisagree"],
    ),
    "down-for-long": (held(HELD_OF, "a", 20, 299), "65m", "75m", ["ScaledDownTooLong"]),
    "a-short-loss": (held(HELD_OF, "a", 20, 100), "49m", "2h", []),
    "one-shoot-after-the-other-is-cut-off": (after_the_other(held, HELD_OF), "60m", "2h", []),
    "not-restored": (
        held(HELD_OF, "a", 20, 299) | held(TO_RESTORE, "a", 40, 299),
        "34m",
        "36m",
        ["NotRestored"],
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
        ["NotRestored"],
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
        ["PodDeletionsFailing"],
    ),
}


def test_promtool_finds_nothing_wrong():
    checked = promtool("check", "rules", "--lint=all", "--lint-fatal", str(RULES))
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_raised_when_it_should_be(tmp_path, case):
    changes, quiet, loud, raised = case
    # What is only information has tests of its own.
    firing = 'count by (alertname, shoot) (ALERTS{alertstate="firing",severity!="info"})'
    named = [name if isinstance(name, tuple) else (name, "a" if is_about_a_shoot(name) else "") for name in raised]
    samples = [
        {"labels": f'{{alertname="{PREFIX}{name}"' + (f',shoot="{shoot}"}}' if shoot else "}"), "value": n}
        for (name, shoot), n in Counter(named).items()
    ]
    run(
        tmp_path,
        changes,
        promql_expr_test=[
            {"expr": firing, "eval_time": quiet, "exp_samples": []},
            {"expr": firing, "eval_time": loud, "exp_samples": samples},
        ],
    )


def is_about_a_shoot(name: str) -> bool:
    return "{{ $labels.shoot }}" in ALERTS[PREFIX + name.removeprefix(PREFIX)]["annotations"]["summary"]


# The seconds for which the state of a shoot is running, failed, running and so on, while a Pod hangs in Terminating and
# its level never goes down: three tries of 30 s, then a pause that grows up to 60 s.
RECURRING = [92, 5, 91, 11, 91, 20, 92, 40, 92, *[60, 92] * 12]
HEALED = RECURRING[:3]


def flow(phases: list[int], scrape_seconds: int, offset: int) -> dict:
    """The states of the shoot of that name, whose flow is so many seconds old at the scrape in the first minute."""
    ends = list(itertools.accumulate(phases))
    samples = {"running": [], "failed": []}
    for second in range(offset, ends[-1], scrape_seconds):
        now = ["running", "failed"][bisect.bisect_right(ends, second) % 2]
        for state, values in samples.items():
            values.append("1" if state == now else "stale")
    series = STATE.replace('"a"', f'"{offset}"')
    unknown = f"_x{60 // scrape_seconds}"
    return {
        series % ("down", state, "no"): " ".join([unknown, *values, "stale"]) for state, values in samples.items()
    }


def scraped_at_every_second(folder, scrape_seconds: int, phases: list[int], raised: dict[str, list[tuple]]):
    """Has a shoot for every second at which the scrape may see its flow. `raised` has for each alert the spans, in
    seconds after the first minute, in which it fires for all of these shoots, or for none. While the flow lasts, an
    alert that fires does not end."""
    series = {}
    for offset in range(scrape_seconds):
        series |= flow(phases, scrape_seconds, offset)
    tests = []
    for alert, spans in raised.items():
        firing = f'ALERTS{{alertname="{PREFIX}{alert}",alertstate="firing"}}'
        ended = f"count({firing} offset 30s unless {firing})"
        for second in range(0, sum(phases), 30):
            tests.append({"expr": ended, "eval_time": f"{60 + second}s", "exp_samples": []})
        for first, last, fires in spans:
            samples = [{"labels": "{}", "value": scrape_seconds}] if fires else []
            for second in range(first, last, 30):
                tests.append({"expr": f"count({firing})", "eval_time": f"{60 + second}s", "exp_samples": samples})
    run(folder, series, healthy={}, interval=f"{scrape_seconds}s", promql_expr_test=tests)


@pytest.mark.parametrize("scrape_seconds", [15, 30])
def test_a_level_that_fails_time_and_again(tmp_path, scrape_seconds):
    """A scrape sees few of the first failures, and none of them seems to last."""
    end, first_failure = sum(RECURRING), RECURRING[0]
    # When the level gets through, an alert ends within three minutes.
    after = (end + 180, end + 900, False)
    raised = {
        "ScalingFailed": [(0, 270, False), (first_failure + 330, end, True), after],
        "ScalingStuck": [(0, 1170, False), (1260, end, True), after],
    }
    scraped_at_every_second(tmp_path, scrape_seconds, RECURRING, raised)


@pytest.mark.parametrize("scrape_seconds", [15, 30])
def test_a_level_that_fails_once(tmp_path, scrape_seconds):
    never = [(0, sum(HEALED) + 900, False)]
    scraped_at_every_second(tmp_path, scrape_seconds, HEALED, {"ScalingFailed": never, "ScalingStuck": never})


ACTIVE = f"{PREFIX}ProtectionActive"


@pytest.mark.parametrize(
    ("series", "last"),
    [
        (held(HELD_OF, "a", 20, 100), 100),
        (held(RUNNING, "a", 20, 22), 22),
        (held(FAILED, "a", 20, 40), 40),
        # Another replica leads, a minute later.
        (held(HELD_OF, "a", 20, 40) | held(HELD_OF.replace("coordinator-0", "coordinator-1"), "a", 42, 60), 60),
    ],
    ids=["held-down", "being-scaled-down", "failing-to-scale-down", "a-new-leader"],
)
def test_protection_is_reported_at_once_and_as_long_as_it_lasts(tmp_path, series, last):
    """From the first sample, the twentieth, to two minutes after the last one. They are 30 s apart."""
    rule = ALERTS[ACTIVE]
    texts = {
        "summary": "Meltdown protection of a is active.",
        "dashboard": "/d/dependency-watchdog-shoot?var-shoot=a",
    }
    fires = [{"exp_labels": rule["labels"] | {"shoot": "a"}, "exp_annotations": rule["annotations"] | texts}]
    expected = {19: []} | dict.fromkeys(range(20, last + 1), fires) | {last + 6: []}
    tests = [
        {"alertname": ACTIVE, "eval_time": f"{30 * sample}s", "exp_alerts": alerts}
        for sample, alerts in expected.items()
    ]
    run(tmp_path, series, alert_rule_test=tests)


@pytest.mark.parametrize(
    "series",
    [STATE % ("down", "kept_back", "no"), STATE % ("up", "running", "no"), STATE % ("hold", "holding", "expired")],
    ids=["kept-back-in-mode-observe", "scaled-up", "held"],
)
def test_nothing_else_is_protection(tmp_path, series):
    moments = ("10m", "11m", "30m")
    tests = [{"alertname": ACTIVE, "eval_time": moment, "exp_alerts": []} for moment in moments]
    run(tmp_path, held(series, "a", 20, 299), alert_rule_test=tests)


@pytest.mark.parametrize(
    ("name", "of", "moment", "summary", "cause"),
    [
        (
            "ManyShootsCutOff",
            "leases_expired",
            "12m",
            "12 shoots are cut off from their nodes at the same time.",
            "More than a fifth of the probed shoots are cut off. Look for one cause on the seed.",
        ),
        (
            "ManyShootsUnreachable",
            "api_server_unreachable",
            "21m",
            "The API servers of 13 shoots have been unreachable for 10 minutes; these shoots are not protected.",
            "More than a fifth of the probed shoots, or all of them, are unreachable. Look for one cause on the path "
            "from lease-probe.",
        ),
    ],
)
def test_alerts_about_many_shoots_name_some(tmp_path, name, of, moment, summary, cause):
    series = outcome(of, 12, 12)
    for shoot, found in ("c", of), ("b", of), ("a", "pending"):
        series |= held(UNREACHABLE.replace("api_server_unreachable", found), shoot, 21, 299)
    rule = ALERTS[PREFIX + name]
    texts = {"summary": summary, "description": f"{cause} Among these shoots: b, c."}
    fires = {"exp_labels": rule["labels"], "exp_annotations": rule["annotations"] | texts}
    run(tmp_path, series, alert_rule_test=[{"alertname": PREFIX + name, "eval_time": moment, "exp_alerts": [fires]}])


SHOOT_MODE = 'watchdog_scaling_shoot_mode{pod="coordinator-0",shoot="a",mode="%s",source="shoot",end="%s"}'
SEED_MODE = 'watchdog_scaling_shoots_by_mode{pod="coordinator-0",mode="%s",source="seed",end="never"}'


@pytest.mark.parametrize(
    ("series", "raised"),
    [
        ({SHOOT_MODE % ("off", "never"): "1x180"}, ("Shoot", "off")),
        ({SHOOT_MODE % ("observe", "never"): "1x60 _x2 1x118"}, ("Shoot", "observe")),
        ({SHOOT_MODE % ("off", "set"): "1x180"}, None),
        ({SHOOT_MODE % ("off", "never"): "1x60 stale _x30 1x89"}, None),
        ({SEED_MODE % "observe": "3x180"}, ("Seed", "observe")),
        ({SEED_MODE % "off": "3x60 _x2 3x118"}, ("Seed", "off")),
        ({SEED_MODE % "protect": "3x180"}, None),
        ({SEED_MODE.replace('"seed"', '"shoot"') % "off": "3x180"}, None),
        ({SEED_MODE % "observe": "3x60 stale _x30 3x89"}, None),
    ],
    ids=[
        *("shoot-off", "shoot-in-observe-with-lost-scrapes", "shoot-with-an-end", "shoot-protected-for-a-while"),
        *("seed-in-observe", "seed-off-with-lost-scrapes", "seed-protected", "only-shoots"),
        "seed-protected-for-a-while",
    ],
)
def test_shoots_that_are_not_protected_for_a_day(tmp_path, series, raised):
    of, mode = raised or (None, None)
    texts = {
        "Shoot": {
            "summary": f"An annotation has kept a in mode {mode} for a day; this shoot is not protected.",
            "dashboard": "/d/dependency-watchdog-shoot?var-shoot=a",
        },
        "Seed": {"summary": f"The seed has been in mode {mode} for a day; 3 shoots are not protected."},
    }
    tests = []
    for scope, labels in ("Shoot", {"shoot": "a"}), ("Seed", {}):
        name = f"{PREFIX}ProtectionDisabledFor{scope}"
        rule = ALERTS[name]
        alert = {
            "exp_labels": rule["labels"] | labels | {"mode": mode},
            "exp_annotations": rule["annotations"] | texts[scope],
        }
        for moment, expected in ("22h", []), ("25h", [alert] if of == scope else []):
            tests.append({"alertname": name, "eval_time": moment, "exp_alerts": expected})
    run(tmp_path, series, interval="10m", alert_rule_test=tests)


def test_texts_name_who_and_what(tmp_path):
    rule = ALERTS["DependencyWatchdogPermissionMissing"]
    pod = {"pod": "probe-0", "verb": "list", "resource": "secrets"}
    annotations = rule["annotations"] | {"description": "probe-0 may not list secrets."}
    run(
        tmp_path,
        CASES["a-permission"][0],
        alert_rule_test=[
            {
                "alertname": "DependencyWatchdogPermissionMissing",
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
    rule = ALERTS["DependencyWatchdogNoReplicaReady"]
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
            "`watchdogctl check` and /readyz say why.",
        },
    }
    run(
        tmp_path,
        series,
        {},
        alert_rule_test=[{"alertname": "DependencyWatchdogNoReplicaReady", "eval_time": "10m", "exp_alerts": [fires]}],
    )


def test_no_alert_is_left_out():
    elsewhere = {ACTIVE, *(f"{PREFIX}ProtectionDisabledFor{scope}" for scope in ("Seed", "Shoot"))}
    raised = [name for case in CASES.values() for name in case[3]]
    named = {PREFIX + (name[0] if isinstance(name, tuple) else name) for name in raised}
    assert named | elsewhere == set(ALERTS)


def test_the_runbook_has_one_heading_for_each_alert_and_no_other():
    assert re.findall(r"^##+ (.*)", RUNBOOK, re.MULTILINE) == list(ALERTS)


@pytest.mark.parametrize("name", ALERTS)
def test_every_alert_leads_to_its_section_of_the_runbook(name):
    rule = ALERTS[name]
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert set(rule["annotations"]) == {"summary", "description", "runbook", "dashboard"}
    assert rule["annotations"]["runbook"] == f"docs/how-to/runbook.md#{name.lower()}"
    section = re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", RUNBOOK, re.MULTILINE | re.DOTALL)[1]
    assert re.findall(r"^\*\*(\w+)\.\*\*", section, re.MULTILINE) == ["Meaning", "Impact", "Diagnosis", "Mitigation"]


@pytest.mark.parametrize("name", ALERTS)
def test_texts_of_an_alert_name_the_time_that_the_rule_waits(name):
    rule = ALERTS[name]
    expression, minutes = rule["expr"], {"m": 1, "h": 60, "d": 24 * 60}
    spans = [rule.get("for", ""), *re.findall(r"\[(\d+[mhd])[\]:]", expression)]
    waited = {int(span[:-1]) * minutes[span[-1]] for span in spans if span}
    for step, count in re.findall(r":(\d+)m\]\)\s*>= (\d+)", expression):
        waited.add(int(step) * (int(count) - 1))
    meaning = re.search(rf"^## {name}\n\n\*\*Meaning\.\*\*(.*?)\n\n", RUNBOOK, re.MULTILINE | re.DOTALL)[1]
    texts = " ".join([rule["annotations"]["summary"], rule["annotations"]["description"]])
    assert minutes_in(meaning), "the runbook does not say how long"
    assert minutes_in(meaning) | minutes_in(texts) <= waited, f"{minutes_in(meaning)}, {minutes_in(texts)} and {waited}"


def minutes_in(text: str) -> set[int]:
    """The times that a text names."""
    words = {"a minute": 1, "an hour": 60, "a day": 24 * 60}
    named = {count for word, count in words.items() if re.search(rf"for {word}\b", text, re.IGNORECASE)}
    return named | {int(count) for count in re.findall(r"(\d+)\s+minutes", text)}


@pytest.mark.parametrize("name", ALERTS)
def test_every_alert_leads_to_a_dashboard(name):
    dashboard, _, variable = ALERTS[name]["annotations"]["dashboard"].removeprefix("/d/").partition("?")
    path = CHART / "dashboards" / "grafana" / f"{dashboard.removeprefix('dependency-watchdog-')}.json"
    assert json.loads(path.read_text())["uid"] == dashboard
    assert variable == ("var-shoot={{ $labels.shoot }}" if is_about_a_shoot(name) else "")
    assert name.startswith(PREFIX)


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
