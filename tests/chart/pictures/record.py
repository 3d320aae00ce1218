"""Plays an incident and writes down what Prometheus answers to the queries of every panel.

record.py FILE
"""

import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from chart import CHART  # noqa: E402
from incident import Incident  # noqa: E402

# Prometheus scrapes every second here and every 15 to 30 s on a seed, and time runs ten times faster than there.
STEP_SECONDS = 1
VARIABLES = {"$__rate_interval": "10s", "$__interval": "1s", "$seeds": ".*"}
# How long something is to be seen on a panel.
WHILE_SECONDS = 12


class Recording(Incident):
    """A longer story than that of the tests, on a larger seed: it ends in the middle of a loss."""

    SHOOTS = 12

    def happen(self):
        one, other, third, fourth, fifth = self.shoots[:5]
        self.see(f'sum(watchdog_shoots{{outcome="healthy"}}) == {self.SHOOTS}')
        self.began = time.time()
        self.pass_time()
        self.steer(f"/shoots/{third}/hibernation", {"enabled": True})
        self.see('sum(watchdog_shoots{outcome="skipped"}) == 1')

        # A zone, then all of it: down, with writes that fail for a while, and up again.
        self.steer(f"/shoots/{one}/cut", {"zone": "zone-1"})
        self.see("watchdog_shoot_zones_expired == 1")
        self.pass_time()
        writes = {"pathPrefix": f"/apis/apps/v1/namespaces/{one}/", "verbs": ["update", "patch"]}
        self.steer("/faults", {"when": writes, "action": {"type": "internalError"}})
        self.steer(f"/shoots/{one}/cut", "all")
        self.see("watchdog_scaling_failed_levels > 0")
        self.steer("/faults", method="DELETE")
        self.see("watchdog_scaling_held_down_resources == 3")
        self.pass_time()
        self.steer(f"/shoots/{one}/heal")
        self.see("watchdog_scaling_held_down_resources == 0")
        self.pass_time()

        throttled = {"action": {"type": "tooManyRequests", "retryAfter": 1}}
        self.steer(f"/shoots/{one}/faults", throttled | {"times": 12})
        self.see('sum(watchdog_shoots{outcome="throttled"}) == 1')
        self.see('absent(watchdog_shoots{outcome="throttled"} > 0)')

        # A control plane that was down.
        for shoot in other, fourth:
            self.steer(f"/shoots/{shoot}/services/kube-apiserver/down")
        self.see('watchdog_weeder_services{readiness="not_ready"} == 2')
        self.pass_time()
        for shoot in other, fourth:
            self.steer(f"/shoots/{shoot}/services/kube-apiserver/up")
        self.see('watchdog_weeder_deletions_total{result="deleted"} > 1')

        self.steer(f"/shoots/{fifth}/faults", throttled)
        self.see('sum(watchdog_shoots{outcome="throttled"}) == 1')
        self.steer("/api-server/stop")
        self.see("watchdog_watch_errors_total > 0")
        self.steer("/api-server/start")
        self.pass_time()
        self.programs.pop(1).stop()
        self.see("watchdog_stream_client_reconnects_total > 0")
        self.pass_time()

        # Two at once; here it is looked at the dashboards.
        for shoot in one, self.shoots[-1]:
            self.steer(f"/shoots/{shoot}/cut", "all")
        self.see("count(watchdog_scaling_shoot_held_down_resources) == 2")
        self.pass_time()

    def pass_time(self):
        """Lets something be seen."""
        time.sleep(WHILE_SECONDS)

    def answers(self, target: dict, end: float) -> list:
        """To the query of a panel, over all the time or at the end of it."""
        query = target["expr"]
        for name, value in (VARIABLES | {"$shoot": self.shoots[0]}).items():
            query = query.replace(name, value)
        if target.get("instant"):
            return self.ask("query", query=query, time=end)["result"]
        return self.ask("query_range", query=query, start=self.began, end=end, step=STEP_SECONDS)["result"]

    def marks(self, annotation: dict, end: float) -> list[float]:
        """Seconds since the beginning at which an annotation marks something for the first time."""
        series = self.answers({"expr": annotation["expr"].replace("[2m]", "[2s]")}, end)
        if annotation["useValueForTime"]:
            moments = {float(value) / 1000 for one in series for _, value in one["values"]}
        else:
            moments = {float(moment) for one in series for moment, _ in one["values"]}
        return [moment - self.began for moment in sorted(moments) if moment >= self.began]


def main(file: Path) -> None:
    with tempfile.TemporaryDirectory() as folder, Recording(Path(folder)) as recording:
        recording.happen()
        end = time.time()
        dashboards = {}
        for path in sorted((CHART / "dashboards" / "grafana").glob("*.json")):
            dashboard = json.loads(path.read_text())
            found = {p["id"]: [recording.answers(t, end) for t in p.get("targets", [])] for p in dashboard["panels"]}
            marks = [
                mark for annotation in dashboard["annotations"]["list"] for mark in recording.marks(annotation, end)
            ]
            dashboards[path.stem] = found | {"marks": sorted(set(marks))}
        whole = {"began": recording.began, "end": end, "shoot": recording.shoots[0], "dashboards": dashboards}
    file.write_text(json.dumps(whole))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
