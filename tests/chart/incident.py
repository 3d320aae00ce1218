"""An incident in the sandbox, and a real Prometheus that scrapes the programs."""

import contextlib
import json
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path

from chart import CHART, SERVICES
from programs import STOP_BOUND_SECONDS, Program, binary
from real_kubernetes import free_port

# Each step takes a few seconds on an idle machine.
STEP_BOUND_SECONDS = 90
# Gardener's configuration; intervals fit the sandbox, in which time runs ten times faster.
PROBER = """
kubeConfigSecretName: shoot-access-dependency-watchdog-probe
probeInterval: 2s
initialDelay: 1s
dependentResourceInfos:
- ref: {apiVersion: apps/v1, kind: Deployment, name: kube-controller-manager}
  scaleUp: {level: 0}
  scaleDown: {level: 1}
- ref: {apiVersion: apps/v1, kind: Deployment, name: machine-controller-manager}
  scaleUp: {level: 1, initialDelay: 1s}
  scaleDown: {level: 0}
- ref: {apiVersion: apps/v1, kind: Deployment, name: cluster-autoscaler}
  optional: true
  scaleUp: {level: 2}
  scaleDown: {level: 0}
"""
WEEDER = """
watchDuration: 20s
servicesAndDependantSelectors:
  kube-apiserver:
    podSelectors:
    - matchExpressions:
      - {key: gardener.cloud/role, operator: In, values: [controlplane]}
      - {key: role, operator: NotIn, values: [main, apiserver]}
"""


class Incident:
    """A seed with some shoots, the programs, and a Prometheus that scrapes them every second. A context."""

    SHOOTS = 3
    # The value of the label of the seed, as in a Prometheus of many seeds.
    SEED = "aws-eu1"

    def __init__(self, folder: Path):
        self._folder = folder
        self._stack = contextlib.ExitStack()
        self.programs: list[Program] = []

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            self._stack = stack
            self._start()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_):
        self._stack.close()

    def _start(self):
        sandbox = self._folder / "sandbox"
        options = [f"--shoots={self.SHOOTS}", "--nodes=6", "--time-scale=10", f"--dir={sandbox}"]
        self._run(binary("watchdog-sandbox"), *options)
        addresses = sandbox / "addresses.json"
        self.wait("the sandbox is up", addresses.exists)
        known = json.loads(addresses.read_text())
        self._control = known["control"]
        self.shoots = sorted(known["shoots"])
        kubeconfig = self.kubeconfig()
        for service in SERVICES:
            # Two of lease-probe, so that there are streams between replicas.
            for replica in range(2 if service == "lease-probe" else 1):
                config = WEEDER if service == "weeder" else PROBER
                program = Program(self._folder, service, config, kubeconfig, replica)
                self.programs.append(self._stack.enter_context(program))
        for program in self.programs:
            program.wait_until_readyz_says("ready\n")
        self._start_prometheus()

    def _start_prometheus(self):
        targets = [
            {"targets": [f"127.0.0.1:{program.admin}"], "labels": {"pod": program.replica, "seed": self.SEED}}
            for program in self.programs
        ]
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(CHART / "rules" / "dependency-watchdog.yaml")],
            "scrape_configs": [{"job_name": "watchdog", "static_configs": targets}],
        }
        file = self._folder / "prometheus.json"
        file.write_text(json.dumps(config))
        self._port = free_port()
        # It comes in the same package as promtool.
        beside = Path(shutil.which("promtool")).resolve().parent / "prometheus"
        self._run(
            beside,
            f"--config.file={file}",
            f"--storage.tsdb.path={self._folder / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{self._port}",
            "--log.level=warn",
        )
        self.began = time.time()
        self.wait("Prometheus has seen all", lambda: self.value("sum(up)") == len(self.programs))

    def kubeconfig(self) -> str:
        """Of somebody who may do everything on the seed."""
        return (self._folder / "sandbox" / "seed.kubeconfig").read_text()

    def _run(self, *command):
        with open(self._folder / f"{Path(command[0]).name}.log", "wb") as log:
            process = subprocess.Popen([str(part) for part in command], stdout=log, stderr=log)
        self._stack.callback(end, process)

    def steer(self, path: str, body=None, method="POST"):
        """Tells the sandbox to do something."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self._control + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.read()

    def ask(self, path: str, **parameters):
        """Prometheus' HTTP API."""
        url = f"http://127.0.0.1:{self._port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.loads(answer.read())["data"]

    def series(self, query: str) -> list[dict]:
        """The labels of what a query gives at any time since the beginning."""
        # The last step must not lie before the latest sample.
        span = {"start": self.began, "end": time.time() + 1, "step": "1s"}
        return [found["metric"] for found in self.ask("query_range", query=query, **span)["result"]]

    def value(self, query: str) -> float:
        """Of a query with one result; 0 without one."""
        try:
            result = self.ask("query", query=query)["result"]
        except OSError:
            return 0
        return float(result[0]["value"][1]) if result else 0

    def wait(self, what: str, condition):
        """Waits until the condition holds."""
        deadline = time.monotonic() + STEP_BOUND_SECONDS
        while not condition():
            assert time.monotonic() < deadline, f"never: {what}"
            time.sleep(0.1)

    def see(self, query: str):
        """Waits until Prometheus finds that true."""
        self.wait(query, lambda: self.value(f"count({query})") > 0)

    def happen(self):
        """All that operators should be able to see."""
        one, other, third = self.shoots
        # Each shoot has two witnesses.
        self.see("sum(watchdog_active_probes) == 6")
        self.see('sum(watchdog_shoots{outcome="healthy"}) == 3')

        self.steer(f"/shoots/{third}/hibernation", {"enabled": True})
        self.see('sum(watchdog_shoots{outcome="skipped"}) == 1')

        # A zone, then all of it: down, with a resource that cannot be scaled for a while, and up again.
        self.steer(f"/shoots/{one}/cut", {"zone": "zone-1"})
        self.see("max(watchdog_shoot_zones_expired) == 1")
        writes = {"pathPrefix": f"/apis/apps/v1/namespaces/{one}/", "verbs": ["update", "patch"]}
        self.steer("/faults", {"when": writes, "action": {"type": "internalError"}})
        self.steer(f"/shoots/{one}/cut", "all")
        self.see('watchdog_scaling_failed_levels > 0 and on (pod) watchdog_scaling_shoot_state{state="failed"}')
        self.steer("/faults", method="DELETE")
        self.see("watchdog_scaling_held_down_resources == 3")
        self.see("watchdog_scaling_shoot_held_down_resources == 3")
        # Writes fail again, so that what is to be restored is seen at any pace.
        self.steer("/faults", {"when": writes, "action": {"type": "internalError"}})
        self.steer(f"/shoots/{one}/heal")
        self.see("watchdog_scaling_shoot_resources_to_restore == 3")
        self.steer("/faults", method="DELETE")
        self.see("watchdog_scaling_held_down_resources == 0")

        # Pods that need the API server crash, and it comes back.
        self.steer(f"/shoots/{other}/services/kube-apiserver/down")
        self.see('watchdog_weeder_services{readiness="not_ready"} > 0')
        self.steer(f"/shoots/{other}/services/kube-apiserver/up")
        self.see('watchdog_weeder_deletions_total{result="deleted"} > 0')

        self.steer(f"/shoots/{one}/faults", {"action": {"type": "tooManyRequests", "retryAfter": 1}})
        self.see('sum(watchdog_shoots{outcome="throttled"}) == 1')

        # Watches and Leases break, and heal.
        self.steer("/api-server/stop")
        self.see("watchdog_watch_errors_total > 0")
        self.see('watchdog_membership_renewals_total{result!="ok"} > 0')
        self.steer("/api-server/start")

        # A replica of lease-probe goes for good.
        self.programs.pop(1).stop()
        self.see("watchdog_stream_client_reconnects_total > 0")
        # Its streams from the others have ended.
        self.see("watchdog_grpc_server_handling_seconds_count > 0")


def end(process):
    """Ends what this started."""
    process.terminate()
    try:
        process.wait(timeout=STOP_BOUND_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
