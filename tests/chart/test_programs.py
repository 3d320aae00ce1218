"""The programs with the chart's configuration and rights, against a real kube-apiserver as the seed."""

import contextlib
import re
import shlex
from concurrent.futures import ThreadPoolExecutor

import pytest
from chart import ROOT, SERVICES
from programs import grpcurl, wait
from shoot import cluster

# Nothing of it is there but the Cluster.
SHOOT = "shoot--core--crazy"


@pytest.fixture
def start(seed, install):
    clusters = "/apis/extensions.gardener.cloud/v1alpha1/clusters"
    assert seed.request("POST", clusters, cluster(SHOOT))[0] == 201
    yield install()
    seed.request("DELETE", f"{clusters}/{SHOOT}")


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


def documented_calls() -> list[list[str]]:
    """The arguments of the calls in docs/reference/api.md that need no certificates."""
    text = (ROOT / "docs" / "reference" / "api.md").read_text()
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
    elif arguments[-1].endswith("/GetWeeder"):
        # No service becomes ready here, so there is no weeder; the answer says so in a stable way.
        good = "WEEDER_NOT_FOUND" in result.stderr
    else:
        good = result.returncode == 0 and result.stdout.strip() != ""
    return "" if good else f"{' '.join(arguments)}: {result.stdout}{result.stderr}"
