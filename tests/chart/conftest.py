"""What the tests on a real kube-apiserver share."""

import helm_python as helm
import pytest
import real_kubernetes
from chart import NAMESPACE, RELEASE


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
