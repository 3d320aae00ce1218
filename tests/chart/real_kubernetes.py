"""A real kube-apiserver on an etcd of its own, for as long as a test run takes."""

import base64
import http.client
import json
import os
import socket
import ssl
import subprocess
import threading
import time
from pathlib import Path

from chart import NAMESPACE

NAMESPACED = {
    "Job": "jobs",
    "Pod": "pods",
    "Certificate": "certificates",
    "ConfigMap": "configmaps",
    "Deployment": "deployments",
    "HorizontalPodAutoscaler": "horizontalpodautoscalers",
    "NetworkPolicy": "networkpolicies",
    "PodDisruptionBudget": "poddisruptionbudgets",
    "PodMonitor": "podmonitors",
    "PrometheusRule": "prometheusrules",
    "Role": "roles",
    "RoleBinding": "rolebindings",
    "Secret": "secrets",
    "Service": "services",
    "ServiceAccount": "serviceaccounts",
    "ServiceMonitor": "servicemonitors",
    "VerticalPodAutoscaler": "verticalpodautoscalers",
}
CLUSTER_SCOPED = {
    "ClusterFilter": "clusterfilters",
    "ClusterParser": "clusterparsers",
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
    "CustomResourceDefinition": "customresourcedefinitions",
    "Namespace": "namespaces",
}

# About ten seconds on two idle cores; other tests may run beside.
READY_BOUND_SECONDS = 90
# Tries with other ports, should somebody take one between the choice and the start.
ATTEMPTS = 3
TOKEN = "chart-tests"


class Kubernetes:
    """Starts both; `close` ends them. `folder` takes their data, keys and logs."""

    def __init__(self, assets: Path, folder: Path):
        self._folder = folder
        self._processes = []
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return self._start(assets)
            except BaseException as error:
                self.close()
                if attempt == ATTEMPTS or "address already in use" not in str(error):
                    raise

    def _start(self, assets: Path) -> None:
        # One connection per thread: a TLS handshake costs more than most requests.
        self._kept = threading.local()
        etcd, self.port = free_port(), free_port()
        certs = self._folder / "certs"
        self.ca = certs / "apiserver.crt"
        tokens = self._folder / "tokens.csv"
        tokens.write_text(f'{TOKEN},admin,admin,"system:masters"\n')
        self._run(
            "etcd",
            assets / "etcd",
            f"--data-dir={self._folder / 'etcd'}",
            f"--listen-client-urls=http://127.0.0.1:{etcd}",
            f"--advertise-client-urls=http://127.0.0.1:{etcd}",
            "--listen-peer-urls=http://127.0.0.1:0",
            "--unsafe-no-fsync",
            "--log-level=warn",
        )
        self._run(
            "kube-apiserver",
            assets / "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{etcd}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={self.port}",
            # It makes its own certificate there, before it looks for the key of the tokens.
            f"--cert-dir={certs}",
            "--service-account-issuer=https://chart.test",
            f"--service-account-signing-key-file={certs / 'apiserver.key'}",
            f"--service-account-key-file={certs / 'apiserver.key'}",
            f"--token-auth-file={tokens}",
            "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.0.0.0/24",
            # A loopback address is refused in the Endpoints of the service "kubernetes", which nobody here uses.
            "--endpoint-reconciler-type=none",
            # No controller makes the default service accounts that this plugin asks of every Pod.
            "--disable-admission-plugins=ServiceAccount",
        )
        deadline = time.monotonic() + READY_BOUND_SECONDS
        while not self._is_ready():
            self._check_alive()
            if time.monotonic() > deadline:
                raise TimeoutError(f"kube-apiserver is not ready after {READY_BOUND_SECONDS} s\n{self._log_tail()}")
            time.sleep(0.2)

    def _run(self, name: str, *command) -> None:
        with open(self._folder / f"{name}.log", "wb") as log:
            process = subprocess.Popen([str(part) for part in command], stdout=log, stderr=log, cwd=self._folder)
        self._processes.append((name, process))

    def _check_alive(self) -> None:
        for name, process in self._processes:
            if process.poll() is not None:
                raise RuntimeError(f"{name} ended with {process.returncode}\n{self._log_tail()}")

    def _log_tail(self) -> str:
        lines = []
        for name, _ in self._processes:
            lines.append(f"--- {name}")
            lines += (self._folder / f"{name}.log").read_text(errors="replace").splitlines()[-15:]
        return "\n".join(lines)

    def end_namespace(self, name: str) -> None:
        """Removes a namespace with its Leases and Secrets, as the controller does that runs nowhere here."""
        where = f"/api/v1/namespaces/{name}"
        status, found = self.request("GET", where)
        if status == 404:
            return
        for kind in f"/apis/coordination.k8s.io/v1/namespaces/{name}/leases", f"{where}/secrets":
            assert self.request("DELETE", kind)[0] == 200
        self.request("DELETE", where)
        found = self.request("GET", where)[1] | {"spec": {"finalizers": []}}
        status, got = self.request("PUT", f"{where}/finalize", found)
        assert status == 200, got

    def _is_ready(self) -> bool:
        if not self.ca.exists():
            return False
        try:
            return self.request("GET", "/readyz")[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def request(self, method: str, path: str, body=None, content_type="application/json", user=None):
        """Gives the status code and the answer, decoded where it is JSON. `user`: a service account of the release."""
        headers = {"Authorization": f"Bearer {TOKEN}", "Accept": "application/json", "Content-Type": content_type}
        if user:
            headers["Impersonate-User"] = f"system:serviceaccount:{NAMESPACE}:{user}"
        data = None if body is None else json.dumps(body)
        is_kept = hasattr(self._kept, "connection")
        connection = self._connection()
        try:
            try:
                connection.request(method, path, data, headers)
                answer = connection.getresponse()
            except ConnectionError:
                if not is_kept:
                    raise
                # The server has closed it because nothing was asked for long.
                connection.close()
                connection.request(method, path, data, headers)
                answer = connection.getresponse()
            return answer.status, _decode(answer.read())
        except BaseException:
            # The next request opens another.
            connection.close()
            raise

    def _connection(self) -> http.client.HTTPSConnection:
        if not hasattr(self._kept, "connection"):
            context = ssl.create_default_context(cafile=str(self.ca))
            self._kept.connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=30, context=context)
        return self._kept.connection

    def serve(self, group: str, version: str, kind: str, scope: str = "Namespaced") -> None:
        """Adds a kind of somebody else's, with any fields."""
        plural = f"{kind.lower()}s"
        schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        served = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
        definition = {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            # An API server asks for this in groups of Kubernetes' own.
            "metadata": {
                "name": f"{plural}.{group}",
                "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
            },
            "spec": {
                "group": group,
                "scope": scope,
                "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
                "versions": [served],
            },
        }
        assert self.request("POST", path(definition).rsplit("/", 1)[0], definition)[0] == 201
        deadline = time.monotonic() + READY_BOUND_SECONDS
        while self.request("GET", f"/apis/{group}/{version}/{plural}")[0] != 200:
            assert time.monotonic() < deadline, f"{plural}.{group} is never served"
            time.sleep(0.05)

    def token(self, namespace: str, account: str) -> str:
        """Of a service account."""
        where = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        status, got = self.request("POST", where, request)
        assert status == 201, got
        return got["status"]["token"]

    def create(self, where: str, body: dict) -> dict:
        """Adds an object to the collection at that path."""
        status, got = self.request("POST", where, body)
        assert status == 201, got
        return got

    def merge(self, where: str, change: dict) -> dict:
        """Changes an object."""
        status, got = self.request("PATCH", where, change, "application/merge-patch+json")
        assert status == 200, got
        return got

    def kubeconfig(self, token: str = TOKEN) -> str:
        """For the administrator, or for whom the token is."""
        return json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [
                    {
                        "name": "seed",
                        "cluster": {
                            "server": f"https://127.0.0.1:{self.port}",
                            # In line: a kubeconfig from a Secret may refer to no files.
                            "certificate-authority-data": base64.b64encode(self.ca.read_bytes()).decode(),
                        },
                    }
                ],
                "users": [{"name": "admin", "user": {"token": token}}],
                "contexts": [{"name": "seed", "context": {"cluster": "seed", "user": "admin"}}],
                "current-context": "seed",
            }
        )

    def close(self) -> None:
        for _, process in reversed(self._processes):
            process.terminate()
        for _, process in reversed(self._processes):
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()


def assets() -> Path:
    """The folder with etcd and kube-apiserver."""
    return Path(os.environ["KUBEBUILDER_ASSETS"])


def path(found: dict) -> str:
    """Where the API server has an object."""
    version, kind, name = found["apiVersion"], found["kind"], found["metadata"]["name"]
    prefix = f"/apis/{version}" if "/" in version else f"/api/{version}"
    if kind in CLUSTER_SCOPED:
        return f"{prefix}/{CLUSTER_SCOPED[kind]}/{name}"
    return f"{prefix}/namespaces/{found['metadata']['namespace']}/{NAMESPACED[kind]}/{name}"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _decode(body: bytes):
    try:
        return json.loads(body)
    except ValueError:
        return body.decode(errors="replace")
