"""The programs, run with what the chart gives them."""

import os
import re
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from chart import LEASES, NAMESPACE, ROOT
from real_kubernetes import free_port

# Below a second on an idle machine.
READY_BOUND_SECONDS = 60
# A drain takes at most 20 s; without work it takes none.
STOP_BOUND_SECONDS = 30
# What the tests wait for takes from milliseconds, such as a changed role, to some seconds, such as a scale-down.
SEEN_BOUND_SECONDS = 60


# For a program that issues its own certificate: its options say from what.
ISSUED = "issued"


class Program:
    """One replica of a service. To be used as a context. With `image`, that folder is its root, and it runs as nobody,
    in the `emulator` that the folder has. With `tls`, that folder has its certificate. With `ip`, it has the admin port
    of a Pod there. `namespace` is that of its Leases."""

    def __init__(
        self,
        folder: Path,
        service: str,
        config: str,
        kubeconfig: str,
        replica=0,
        image=None,
        emulator=(),
        options=(),
        tls=None,
        ip=None,
        namespace=NAMESPACE,
    ):
        self.service, self.replica = service, f"{service}-{replica}"
        self.log = folder / f"{self.replica}.log"
        rights, file = folder / f"{self.replica}.kubeconfig", folder / f"{self.replica}.yaml"
        rights.write_text(kubeconfig)
        file.write_text(config)
        self.grpc, self.admin = free_port(), 9643 if ip else free_port()
        self._host = ip or "127.0.0.1"
        inside = (lambda path: f"/{path.relative_to(image)}") if image else str
        contained = ["chroot", "--userspec=65532:65532", image, *emulator, f"/{service}"]
        start = contained if image else [binary(service)]
        # The shoots are on this machine.
        local = ["--allow-local-addresses"] if service == "lease-probe" else []
        command = [
            *start,
            *local,
            f"--config-file={inside(file)}",
            f"--kubeconfig={inside(rights)}",
            f"--namespace={namespace}",
            f"--identity={self.replica}",
            f"--grpc-addr=127.0.0.1:{self.grpc}",
            f"--admin-addr={self._host}:{self.admin}",
            "--log-format=text",
            *options,
            *_transport(tls),
        ]
        self._command = command
        self.start()

    def start(self) -> None:
        """Starts it, also once more with the same name and addresses."""
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def kill(self) -> None:
        """Ends it without a drain."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Ends it; nothing happens when it has ended."""
        self._process.terminate()
        try:
            self._process.wait(timeout=STOP_BOUND_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise

    def readyz(self) -> str:
        """What /readyz says; empty as long as nobody answers."""
        try:
            with urllib.request.urlopen(f"http://{self._host}:{self.admin}/readyz", timeout=5) as answer:
                return answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.read().decode()
        except OSError:
            return ""

    def metrics(self) -> str:
        """What /metrics says."""
        with urllib.request.urlopen(f"http://{self._host}:{self.admin}/metrics", timeout=5) as answer:
            return answer.read().decode()

    def set_log_level(self, level: str) -> None:
        """Until the next start."""
        url = f"http://{self._host}:{self.admin}/log-level"
        with urllib.request.urlopen(urllib.request.Request(url, level.encode(), method="PUT"), timeout=5) as answer:
            assert answer.status == 200

    def wait_until_readyz_says(self, text: str) -> str:
        """Waits until /readyz says that."""
        deadline = time.monotonic() + READY_BOUND_SECONDS
        while text not in (shown := self.readyz()):
            tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])
            assert self._process.poll() is None, f"{self.service} ended:\n{tail}"
            assert time.monotonic() < deadline, f"{self.service} never answered {text!r} but {shown!r}:\n{tail}"
            time.sleep(0.1)
        return shown


def _transport(tls) -> list[str]:
    if tls is None:
        return ["--insecure-plaintext"]
    if tls is ISSUED:
        return []
    files = {"cert": "tls.crt", "key": "tls.key", "client-ca": "ca.crt"}
    return [f"--tls-{option}={tls / file}" for option, file in files.items()]


def with_rights(seed, folder: Path, service: str, config: str, options=(), tls=None, ip=None) -> Program:
    """One replica with the rights of its ServiceAccount."""
    kubeconfig = seed.kubeconfig(seed.token(NAMESPACE, f"watchdog-{service}"))
    return Program(folder, service, config, kubeconfig, options=options, tls=tls, ip=ip, namespace=LEASES)


def binary(name: str) -> str:
    """A program that was built before."""
    target = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target")
    path = target / "debug" / name
    if not path.exists():
        pytest.fail(f"{path} is not there: build the programs first, with cargo build --workspace --bins")
    return str(path)


def at_addresses(script: str, seed, programs: list[Program]) -> str:
    """The script, in which watchdogctl calls these programs. Where they run as Pods, it finds them by itself."""
    namespace, name = LEASES, "watchdog-observer"
    wait(lambda: "data" in seed.request("GET", f"/api/v1/namespaces/{namespace}/secrets/{name}")[1])
    options = [f"--{program.service} 127.0.0.1:{program.grpc}" for program in programs]
    options.append(f"--tls-secret {namespace}/{name}")
    return re.sub(r"^watchdogctl .*", lambda command: " ".join([command[0], *options]), script, flags=re.MULTILINE)


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
