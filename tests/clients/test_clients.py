"""Clients that were generated from the protos follow an incident: the examples in Python and in Go."""

import os
import subprocess
import time
from pathlib import Path

import pytest
from chart import ROOT
from incident import Incident

HERE = Path(__file__).resolve().parent
GENERATED = ROOT / "target" / "clients"
# Fetches packages the first time.
GENERATE_BOUND_SECONDS = 600
SEEN_BOUND_SECONDS = 60


@pytest.fixture(scope="module")
def clients():
    """The commands of the examples."""
    made = subprocess.run(
        [HERE / "generate"], stdout=subprocess.PIPE, text=True, timeout=GENERATE_BOUND_SECONDS, check=True
    )
    environment = Path(made.stdout.strip())
    return {
        "python": [environment / "bin" / "python", HERE / "watch_verdicts.py"],
        "go": [GENERATED / "go" / "watch-verdicts"],
    }


@pytest.fixture(scope="module")
def incident(tmp_path_factory):
    with Incident(tmp_path_factory.mktemp("incident")) as started:
        started.see('sum(watchdog_shoots{outcome="healthy"}) == 3')
        yield started


@pytest.mark.parametrize("language", ["python", "go"])
def test_example_follows_verdicts(clients, incident, tmp_path, language):
    shoot = incident.shoots[0]
    output = tmp_path / "output"
    environment = os.environ | {"PYTHONPATH": str(GENERATED / "python")}
    with open(output, "wb") as out:
        command = [*clients[language], f"127.0.0.1:{incident.programs[0].grpc}"]
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment)
    try:
        wait(output, "complete: 3 shoots", 1)
        wait(output, f"{shoot} OUTCOME_HEALTHY (valid for ", 1)
        incident.steer(f"/shoots/{shoot}/cut", "all")
        wait(output, f"{shoot} OUTCOME_LEASES_EXPIRED (valid for ", 1)
        incident.steer(f"/shoots/{shoot}/heal")
        wait(output, f"{shoot} OUTCOME_HEALTHY (valid for ", 2)
        assert "is gone" not in output.read_text()
    finally:
        process.terminate()
        process.wait(timeout=10)


def wait(output: Path, text: str, times: int):
    """Waits until that has been printed so often."""
    deadline = time.monotonic() + SEEN_BOUND_SECONDS
    while output.read_text().count(text) < times:
        assert time.monotonic() < deadline, f"never printed: {text}\n{output.read_text()}"
        time.sleep(0.1)
