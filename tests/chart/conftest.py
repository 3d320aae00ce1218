"""What the tests on a real kube-apiserver share."""

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
        yield config
        config.uninstall(RELEASE, ignore_not_found=True)


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
