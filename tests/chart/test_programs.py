"""The programs with the chart's configuration and rights, against a real kube-apiserver as the seed."""

import contextlib
import re
import shlex
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from chart import CHART, NAMESPACE, RELEASE, ROOT, SERVICES, objects, of_kind
from permissions import allowed, granted, role
from programs import with_rights

SHOOT = "shoot--core--crazy"
# The API server sees a changed role within milliseconds.
SEEN_BOUND_SECONDS = 20
CLUSTER = {
    "apiVersion": "extensions.gardener.cloud/v1alpha1",
    "kind": "Cluster",
    "metadata": {"name": SHOOT},
    "spec": {
        "shoot": {
            "spec": {"provider": {"workers": [{"name": "pool"}]}},
            "status": {"lastOperation": {"type": "Reconcile", "state": "Succeeded"}},
        }
    },
}


@pytest.fixture(scope="module")
def kinds(seed):
    """Gardener's kinds, and a Cluster."""
    seed.serve("extensions.gardener.cloud", "v1alpha1", "Cluster", "Cluster")
    seed.serve("machine.sapcloud.io", "v1alpha1", "Machine")
    clusters = "/apis/extensions.gardener.cloud/v1alpha1/clusters"
    wait(lambda: seed.request("POST", clusters, CLUSTER)[0] in (201, 409))


@pytest.fixture
def start(seed, releases, kinds, tmp_path):
    """Installs the chart; gives a function that starts a service with the configuration that the chart has for it."""
    rendered = objects(releases.install(CHART, RELEASE))
    maps = of_kind(rendered, "ConfigMap")

    def start_one(service):
        role = "weeder" if service == "weeder" else "prober"
        return with_rights(seed, tmp_path, service, maps[f"dependency-watchdog-{role}-config"]["data"]["config.yaml"])

    return start_one


def test_what_the_chart_grants_is_enough_and_the_documented_calls_work(start):
    with contextlib.ExitStack() as stack:
        programs = {service: stack.enter_context(start(service)) for service in SERVICES}
        for program in programs.values():
            assert program.wait_until_readyz_says("ready\n") == "ready\n"
        # Both know the shoot once it has been looked at.
        for program, call in (
            (programs["lease-probe"], "gardener.watchdog.probe.v1.LeaseProbeService/GetVerdict"),
            (programs["scaling-coordinator"], "gardener.watchdog.scaling.v1.ScalingService/GetScaling"),
        ):
            address = f"127.0.0.1:{program.grpc}"
            wait(lambda a=address, c=call: grpcurl("-d", f'{{"shoot": "{SHOOT}"}}', a, c).returncode == 0)
        owners = {"probe": "lease-probe", "scaling": "scaling-coordinator", "weeder": "weeder"}
        with ThreadPoolExecutor() as pool:
            results = list(pool.map(lambda call: run_documented(call, owners, programs), documented_calls()))
        assert len(results) > 10
        assert [problem for problem in results if problem] == []


def test_without_any_one_rule_a_program_is_not_ready_and_names_the_permission(seed, start):
    with ThreadPoolExecutor() as pool:
        checks = [pool.submit(take_rules_away_in_turn, seed, start, service) for service in SERVICES]
        assert all(check.result() > 3 for check in checks)


def take_rules_away_in_turn(seed, start, service) -> int:
    """Gives the number of rules."""
    slices = seed.request("GET", "/apis/discovery.k8s.io/v1")[0] == 200
    unused = "endpoints" if slices else "endpointslices"
    taken = 0
    for where in (
        f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{role(service)}",
        f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/roles/dependency-watchdog-{service}",
    ):
        whole = seed.request("GET", where)[1]["rules"]
        for index, rule in enumerate(whole):
            if unused in rule["resources"]:
                continue
            set_rules(seed, where, whole[:index] + whole[index + 1 :])
            gone = granted({"rules": [rule]})
            sample = (*min(gone), NAMESPACE)
            wait(lambda sample=sample: not allowed(seed, service, *sample))
            with start(service) as program:
                program.wait_until_readyz_says("permissions: grant this service on the seed: ")
                said = program.readyz()
                for verb, group, resource, name in gone:
                    assert f"{verb} {written(group, resource)}{f' named {name}' if name else ''} in " in said
            set_rules(seed, where, whole)
            wait(lambda sample=sample: allowed(seed, service, *sample))
            taken += 1
    return taken


def set_rules(seed, where, rules):
    """Replaces the rules of a role."""
    status, got = seed.request("PATCH", where, {"rules": rules}, "application/merge-patch+json")
    assert status == 200, got


def written(group: str, resource: str) -> str:
    """A resource as the programs write it: deployments.apps/scale."""
    resource, slash, subresource = resource.partition("/")
    return f"{resource}.{group}{slash}{subresource}" if group else f"{resource}{slash}{subresource}"


def documented_calls() -> list[list[str]]:
    """The arguments of the calls in docs/api.md that need no certificates."""
    text = (ROOT / "docs" / "api.md").read_text()
    blocks = "".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL)).replace("\\\n", " ")
    lines = [line for line in blocks.splitlines() if line.startswith("grpcurl ") and "$flags" not in line]
    return [[a for a in shlex.split(line)[1:] if a != "-plaintext"] for line in lines]


def run_documented(arguments, owners, programs) -> str:
    """What is wrong with a call; empty when nothing is."""
    package = re.search(r"gardener\.watchdog\.(\w+)\.v1\.\w+/", arguments[-1])
    program = programs[owners[package.group(1)] if package else "lease-probe"]
    result = grpcurl(*[f"127.0.0.1:{program.grpc}" if a == "localhost:9645" else a for a in arguments])
    if "/Watch" in arguments[-1]:
        # It ends only because the time is up.
        good = "snapshotComplete" in result.stdout and "DeadlineExceeded" in result.stderr
    else:
        good = result.returncode == 0 and result.stdout.strip() != ""
    return "" if good else f"{' '.join(arguments)}: {result.stdout}{result.stderr}"


def grpcurl(*arguments: str):
    """Runs grpcurl; a stream is listened to for two seconds."""
    command = ["grpcurl", "-plaintext", "-max-time", "2", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30)


def wait(condition):
    """Waits until the condition holds."""
    deadline = time.monotonic() + SEEN_BOUND_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.05)
