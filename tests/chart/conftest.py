"""What the tests on a real kube-apiserver share."""

import datetime
import shutil
import threading

import helm_python as helm
import pytest
import real_kubernetes
from chart import CHART, LEASES, NAMESPACE, OTHER_LEASES, RELEASE, SERVICES, merged, objects, of_kind
from desk import on_desk
from programs import ISSUED, with_rights


@pytest.fixture(scope="session")
def seed(tmp_path_factory):
    """A seed with its namespace garden, and the kinds of the Prometheus operator and of cert-manager."""
    server = real_kubernetes.Kubernetes(real_kubernetes.assets(), tmp_path_factory.mktemp("seed"))
    try:
        for name in NAMESPACE, OTHER_LEASES:
            server.create("/api/v1/namespaces", {"metadata": {"name": name}})
        # Their own schemas are not at hand.
        for kind in "PodMonitor", "ServiceMonitor", "PrometheusRule":
            server.serve("monitoring.coreos.com", "v1", kind)
        server.serve("cert-manager.io", "v1", "Certificate")
        for kind in "ClusterFilter", "ClusterParser":
            server.serve("fluentbit.fluent.io", "v1alpha2", kind, "Cluster")
        server.serve("autoscaling.k8s.io", "v1", "VerticalPodAutoscaler")
        yield server
    finally:
        server.close()


# What an API server that is older than the chart supports serves instead; the fields that the chart uses are the same.
OLDER = {"policy/v1": "policy/v1beta1", "autoscaling/v2": "autoscaling/v2beta2"}


@pytest.fixture(scope="session")
def fitting(seed, tmp_path_factory):
    """The chart for that seed. It is as it is, unless the API server is older than the chart supports, as the one that
    tests/tools builds: then a copy that lets the server judge all but the versions in OLDER."""
    older = {new: old for new, old in OLDER.items() if seed.request("GET", f"/apis/{new}")[0] != 200}
    if not older:
        return CHART
    copy = tmp_path_factory.mktemp("older") / CHART.name
    shutil.copytree(CHART, copy)
    metadata = copy / "Chart.yaml"
    assert "kubeVersion" in metadata.read_text()
    metadata.write_text(metadata.read_text().replace('kubeVersion: ">=1.25.0-0"', 'kubeVersion: ">=1.20.0-0"'))
    for template in copy.glob("templates/*.yaml"):
        text = template.read_text()
        for new, old in older.items():
            text = text.replace(f"apiVersion: {new}\n", f"apiVersion: {old}\n")
        template.write_text(text)
    return copy


@pytest.fixture
def releases(seed, fitting):
    """Helm on that seed; nothing is left of the release afterwards."""
    with helm.Config(kubeconfig_content=seed.kubeconfig(), namespace=NAMESPACE) as config:
        releases = Releases(config, seed, fitting)
        yield releases
        releases.uninstall(RELEASE, ignore_not_found=True)


class Releases:
    """Helm on a seed where no controllers run: a Job counts as done as soon as it is there, and the namespace of the
    Leases is gone after an uninstallation."""

    def __init__(self, config, seed, chart):
        self._config, self._seed, self.chart = config, seed, chart
        self.jobs = []

    def install(self, values=None, chart=None, **options):
        return self._config.install(chart or self.chart, RELEASE, merged(values), **options)

    def upgrade(self, values=None, **options):
        return self._config.upgrade(self.chart, RELEASE, merged(values), **options)

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
            self._seed.end_namespace(LEASES)

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
        rendered = objects(releases.install(values))
        maps, deployments = of_kind(rendered, "ConfigMap"), of_kind(rendered, "Deployment")

        def start(service, ip=None, tls=None):
            config = maps[f"watchdog-{'weeder' if service == 'weeder' else 'prober'}-config"]
            (container,) = deployments[f"watchdog-{service}"]["spec"]["template"]["spec"]["containers"]
            # The others are those of a Pod.
            kept = "--tls-"
            options = [option for option in container["args"] if option.startswith(kept) and tls is ISSUED]
            return with_rights(seed, tmp_path, service, config["data"]["config.yaml"], options, tls, ip)

        return start

    return installed


@pytest.fixture
def desk(seed, fitting, tmp_path):
    """A folder, and a function that runs a script of a document there, on that seed."""
    yield tmp_path, on_desk(seed, fitting, tmp_path)
    for service in SERVICES:
        seed.request("DELETE", f"/api/v1/namespaces/{NAMESPACE}/secrets/watchdog-{service}-tls")
