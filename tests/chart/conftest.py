"""What the tests on a real kube-apiserver share."""

import datetime
import threading

import helm_python as helm
import pytest
import real_kubernetes
from chart import CHART, NAMESPACE, RELEASE, objects, of_kind
from programs import with_rights


@pytest.fixture(scope="session")
def seed(tmp_path_factory):
    """A seed with its namespace garden, and the kinds of the Prometheus operator and of cert-manager."""
    server = real_kubernetes.Kubernetes(real_kubernetes.assets(), tmp_path_factory.mktemp("seed"))
    try:
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        assert server.request("POST", "/api/v1/namespaces", namespace)[0] == 201
        # Their own schemas are not at hand.
        for kind in "PodMonitor", "ServiceMonitor", "PrometheusRule":
            server.serve("monitoring.coreos.com", "v1", kind)
        server.serve("cert-manager.io", "v1", "Certificate")
        yield server
    finally:
        server.close()


@pytest.fixture
def releases(seed):
    """Helm on that seed; nothing is left of the release afterwards."""
    with helm.Config(kubeconfig_content=seed.kubeconfig(), namespace=NAMESPACE) as config:
        releases = Releases(config, seed)
        yield releases
        releases.uninstall(RELEASE, ignore_not_found=True)


class Releases:
    """Helm on a seed where nobody runs Jobs: one counts as done as soon as it is there."""

    def __init__(self, config, seed):
        self._config, self._seed = config, seed
        self.jobs = []

    def __getattr__(self, name):
        return getattr(self._config, name)

    def uninstall(self, *arguments, **options):
        ended = threading.Event()
        finisher = threading.Thread(target=self._finish_jobs, args=(ended,))
        finisher.start()
        try:
            return self._config.uninstall(*arguments, **options)
        finally:
            ended.set()
            finisher.join()

    def _finish_jobs(self, ended):
        jobs = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        conditions = [
            {"type": kind, "status": "True", "lastProbeTime": now, "lastTransitionTime": now}
            for kind in ("SuccessCriteriaMet", "Complete")
        ]
        done = {"status": {"startTime": now, "completionTime": now, "succeeded": 1, "conditions": conditions}}
        while not ended.wait(0.05):
            for job in self._seed.request("GET", jobs)[1]["items"]:
                if not job.get("status", {}).get("succeeded"):
                    path = f"{jobs}/{job['metadata']['name']}/status"
                    status, got = self._seed.request("PATCH", path, done, "application/merge-patch+json")
                    assert status == 200, got
                    self.jobs.append(job)


@pytest.fixture(scope="session")
def kinds(seed):
    """Gardener's kinds."""
    seed.serve("extensions.gardener.cloud", "v1alpha1", "Cluster", "Cluster")
    seed.serve("machine.sapcloud.io", "v1alpha1", "Machine")


@pytest.fixture
def install(seed, releases, kinds, tmp_path):
    """Installs the chart with values, and gives a function that starts a service with the configuration, the options
    and the rights that it gets from that."""

    def installed(values=None):
        rendered = objects(releases.install(CHART, RELEASE, values))
        maps, deployments = of_kind(rendered, "ConfigMap"), of_kind(rendered, "Deployment")

        def start(service):
            config = maps[f"dependency-watchdog-{'weeder' if service == 'weeder' else 'prober'}-config"]
            (container,) = deployments[f"dependency-watchdog-{service}"]["spec"]["template"]["spec"]["containers"]
            # The others are those of a Pod.
            options = [option for option in container["args"] if option == "--dependants-annotation"]
            return with_rights(seed, tmp_path, service, config["data"]["config.yaml"], options)

        return start

    return installed
