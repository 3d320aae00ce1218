"""Follows docs/tutorial/quickstart.md word for word, on a kube-apiserver of its own, whose nodes are made here."""

import base64
import contextlib
import re

import pytest
from chart import ROOT, SERVICES
from desk import on_desk
from programs import at_addresses, wait
from real_kubernetes import Kubernetes, assets
from shoot import DEPENDANTS, LEASE_SECONDS, SECRET, moment
from test_newcomer import as_deployed

PAGE = (ROOT / "docs" / "tutorial" / "quickstart.md").read_text()
BLOCKS = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
CONTROL_PLANE, *WORKERS = "control-plane", "worker", "worker2", "worker3"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
SHOOT = "shoot--demo--own"
DEPLOYMENTS = f"/apis/apps/v1/namespaces/{SHOOT}/deployments"


@pytest.fixture
def cluster(tmp_path_factory):
    """With three workers, of which two have been away for ten minutes."""
    server = Kubernetes(assets(), tmp_path_factory.mktemp("cluster"))
    try:
        wait(lambda: server.request("GET", "/api/v1/namespaces/kube-node-lease")[0] == 200)
        wait(lambda: server.request("GET", "/api/v1/namespaces/kube-system")[0] == 200)
        for node in CONTROL_PLANE, *WORKERS:
            labels = {"node-role.kubernetes.io/control-plane": ""} if node == CONTROL_PLANE else {}
            server.create("/api/v1/nodes", {"metadata": {"name": node, "labels": labels}})
            spec = {"holderIdentity": node, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": moment(-600)}
            server.create(LEASES, {"metadata": {"name": node}, "spec": spec})
        renew(server, CONTROL_PLANE, WORKERS[0])
        yield server
    finally:
        server.close()


def test_the_document_leads_to_a_meltdown_that_is_prevented(cluster, fitting, tmp_path):
    run = on_desk(cluster, fitting, tmp_path)
    _build, seed, nodes, release, look, meltdown, _end = BLOCKS
    run(seed)
    run(nodes)
    to_this_machine(cluster)
    run(release)
    with contextlib.ExitStack() as stack:
        programs = [stack.enter_context(as_deployed(cluster, tmp_path, service)) for service in SERVICES]
        for program in programs:
            program.wait_until_readyz_says("ready\n")
        # Nobody runs Pods here, so no Deployment becomes available.
        look = re.sub(r"kubectl -n garden wait deployment .*\n", "", look)
        assert SHOOT in run(at_addresses(look, cluster, programs))
        wait(lambda: kept(cluster, lambda: set(settled(cluster).values()) == {0}, WORKERS[0]))
        assert "LEASES_EXPIRED" in run(at_addresses(meltdown, cluster, programs))
        wait(lambda: kept(cluster, lambda: set(settled(cluster).values()) == {1}, *WORKERS))


def renew(server, *nodes) -> None:
    """What the kubelets of these nodes do."""
    for node in nodes:
        server.merge(f"{LEASES}/{node}", {"spec": {"renewTime": moment(0)}})


def kept(server, condition, *nodes):
    """Whether it holds, while these nodes are there."""
    renew(server, *nodes)
    return condition()


def settled(server) -> dict[str, int]:
    """What is asked for of each dependant, after it was brought about."""
    found = {}
    for name in DEPENDANTS:
        count = found[name] = server.request("GET", f"{DEPLOYMENTS}/{name}")[1]["spec"]["replicas"]
        status = {"replicas": count, "readyReplicas": count, "availableReplicas": count}
        server.merge(f"{DEPLOYMENTS}/{name}/status", {"status": status})
    return found


def to_this_machine(server) -> None:
    """The Service of the API server is not reached from here; it is called by its address instead."""
    secret = f"/api/v1/namespaces/{SHOOT}/secrets/{SECRET}"
    kubeconfig = base64.b64decode(server.request("GET", secret)[1]["data"]["kubeconfig"]).decode()
    assert "https://kubernetes.default.svc" in kubeconfig
    kubeconfig = kubeconfig.replace("https://kubernetes.default.svc", f"https://127.0.0.1:{server.port}")
    server.merge(secret, {"data": {"kubeconfig": base64.b64encode(kubeconfig.encode()).decode()}})
