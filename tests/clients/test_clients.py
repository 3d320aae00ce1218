"""Clients follow an incident: the example in Python, with generated code, and the one in Go, with proto/go."""

import contextlib
import os
import socket
import subprocess
import threading
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


def test_go_code_is_up_to_date():
    subprocess.run([ROOT / "proto" / "go" / "generate", "--check"], timeout=GENERATE_BOUND_SECONDS, check=True)


@pytest.fixture(scope="module")
def incident(tmp_path_factory):
    with Incident(tmp_path_factory.mktemp("incident")) as started:
        started.see('sum(watchdog_shoots{outcome="healthy"}) == 3')
        yield started


@pytest.mark.parametrize("language", ["python", "go"])
def test_example_follows_verdicts(clients, incident, tmp_path, language):
    shoot = incident.shoots[0]
    with following(clients[language], incident.programs[0].grpc, tmp_path) as output:
        wait(output, "complete: 3 shoots", 1)
        wait(output, f"{shoot} OUTCOME_HEALTHY (valid for ", 1)
        incident.steer(f"/shoots/{shoot}/cut", "all")
        wait(output, f"{shoot} OUTCOME_LEASES_EXPIRED (valid for ", 1)
        incident.steer(f"/shoots/{shoot}/heal")
        wait(output, f"{shoot} OUTCOME_HEALTHY (valid for ", 2)
        assert "is gone" not in output.read_text()


def test_go_client_outlives_a_program_that_is_killed(clients, incident, tmp_path):
    shoot, program = incident.shoots[1], incident.programs[0]
    with following(clients["go"], program.grpc, tmp_path) as output:
        wait(output, "complete: 3 shoots", 1)
        program.kill()
        # What is known is still there, and valid.
        wait(output, "lost with 3 valid verdicts: ", 1)
        program.start()
        wait(output, "complete: 3 shoots", 2)
        incident.steer(f"/shoots/{shoot}/cut", "all")
        wait(output, f"{shoot} OUTCOME_LEASES_EXPIRED (valid for ", 1)
        incident.steer(f"/shoots/{shoot}/heal")
        wait(output, f"{shoot} OUTCOME_HEALTHY (valid for ", 2)
        assert "is gone" not in output.read_text()


def test_go_client_gives_up_a_silent_stream(clients, incident, tmp_path):
    with Relay(incident.programs[0].grpc) as relay, following(clients["go"], relay.port, tmp_path) as output:
        wait(output, "complete: 3 shoots", 1)
        relay.silence()
        wait(output, "no message for 15s", 1)
        wait(output, "complete: 3 shoots", 2)
        assert "is gone" not in output.read_text()


@contextlib.contextmanager
def following(command, port: int, folder: Path):
    """What the client prints while it runs."""
    output = folder / "output"
    environment = os.environ | {"PYTHONPATH": str(GENERATED / "python")}
    with open(output, "wb") as out:
        process = subprocess.Popen([*command, f"127.0.0.1:{port}"], stdout=out, stderr=out, env=environment)
    try:
        yield output
    finally:
        process.terminate()
        process.wait(timeout=10)


class Relay:
    """Relays connections to a port, until they fall silent. A context."""

    def __init__(self, port: int):
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open = []

    def __enter__(self):
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._listener.close()
        for connection, _ in self._open:
            connection.close()

    def silence(self):
        """From now on, the connections that are open carry nothing. New ones do."""
        for _, silent in self._open:
            silent.set()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far, silent = socket.create_connection(self._target), threading.Event()
                self._open += [(near, silent), (far, silent)]
                for ends in (near, far), (far, near):
                    threading.Thread(target=self._copy, args=(*ends, silent), daemon=True).start()

    @staticmethod
    def _copy(source, target, silent):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if not silent.is_set():
                    target.sendall(data)
            # The end of a silent connection is not noticed either.
            if not silent.is_set():
                target.shutdown(socket.SHUT_WR)


def wait(output: Path, text: str, times: int):
    """Waits until that has been printed so often."""
    deadline = time.monotonic() + SEEN_BOUND_SECONDS
    while output.read_text().count(text) < times:
        assert time.monotonic() < deadline, f"never printed: {text}\n{output.read_text()}"
        time.sleep(0.1)
