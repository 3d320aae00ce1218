"""A shoot: an API server of its own with nodes and their Leases, and its control plane on the seed."""

import base64
import datetime
import http.client
import threading
import time

from programs import wait
from real_kubernetes import Kubernetes

SHOOT = "shoot--core--reachable"
NODES = "node-0", "node-1", "node-2"
DEPENDANTS = "kube-controller-manager", "machine-controller-manager", "cluster-autoscaler"
SECRET = "shoot-access-dependency-watchdog-probe"
PROTECTION = "dependency-watchdog.gardener.cloud/meltdown-protection-active"
# gardenlet's ManagedResource shoot-core-dependency-watchdog: this account and these rules, no others.
ACCOUNT = "dependency-watchdog-probe"
GRANTED = "gardener.cloud:target:dependency-watchdog"
ROLES = {
    "nodes": f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{GRANTED}",
    "leases": f"/apis/rbac.authorization.k8s.io/v1/namespaces/kube-node-lease/roles/{GRANTED}",
}
RULES = {
    "nodes": {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list"]},
    "leases": {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "list"]},
}
# A quarter of it passes before a Lease that is old when it is first seen counts.
LEASE_SECONDS = 4
# As often as the components of a control plane renew the Leases of their elections.
ELECTION_SECONDS = 2


class Shoot:
    """In the shoot: nodes and old Leases. On the seed: the Cluster, the Secret, Machines and Deployments."""

    def __init__(self, api: Kubernetes, seed: Kubernetes):
        self.api, self._seed = api, seed
        self._grant()
        for node in NODES:
            api.create("/api/v1/nodes", {"metadata": {"name": node, "labels": {"worker.gardener.cloud/pool": "pool"}}})
            spec = {"holderIdentity": node, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": moment(-600)}
            api.create(_leases(), {"metadata": {"name": node}, "spec": spec})
        self._plant()
        threading.Thread(target=self._elect, daemon=True).start()

    def _elect(self) -> None:
        """What kube-controller-manager writes for its election. Without writes of anybody, silence proves nothing."""
        leases = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
        lease = {"metadata": {"name": "kube-controller-manager"}, "spec": {"holderIdentity": "one"}}
        self.api.create(leases, lease)
        try:
            while True:
                self.api.merge(f"{leases}/kube-controller-manager", {"spec": {"renewTime": moment(0)}})
                time.sleep(ELECTION_SECONDS)
        except (OSError, http.client.HTTPException):
            # The API server has ended, and the tests with it.
            return

    def _grant(self) -> None:
        # The API server makes the namespace by itself, soon.
        wait(lambda: self.api.request("GET", "/api/v1/namespaces/kube-node-lease")[0] == 200)
        wait(lambda: self.api.request("GET", "/api/v1/namespaces/kube-system")[0] == 200)
        accounts = "/api/v1/namespaces/kube-system/serviceaccounts"
        self.api.create(accounts, {"metadata": {"name": ACCOUNT}})
        subjects = [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": "kube-system"}]
        for resource, role in ROLES.items():
            folder = role.rsplit("/", 1)[0]
            self.api.create(folder, {"metadata": {"name": GRANTED}, "rules": [RULES[resource]]})
            kind = "ClusterRole" if resource == "nodes" else "Role"
            reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": GRANTED}
            binding = {"metadata": {"name": GRANTED}, "roleRef": reference, "subjects": subjects}
            self.api.create(folder.replace("roles", "rolebindings"), binding)

    def _plant(self) -> None:
        seed = self._seed
        seed.create("/api/v1/namespaces", {"metadata": {"name": SHOOT}})
        kubeconfig = self.api.kubeconfig(self.api.token("kube-system", ACCOUNT))
        data = {"kubeconfig": base64.b64encode(kubeconfig.encode()).decode()}
        seed.create(f"/api/v1/namespaces/{SHOOT}/secrets", {"metadata": {"name": SECRET}, "data": data})
        for node in NODES:
            machine = {
                "apiVersion": "machine.sapcloud.io/v1alpha1",
                "kind": "Machine",
                "metadata": {"name": f"machine-of-{node}", "labels": {"node": node}},
                "status": {"currentStatus": {"phase": "Running"}},
            }
            seed.create(f"/apis/machine.sapcloud.io/v1alpha1/namespaces/{SHOOT}/machines", machine)
        for name in DEPENDANTS:
            labels = {"app": name}
            template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "none"}]}}
            spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
            seed.create(_deployments(), {"metadata": {"name": name}, "spec": spec})
        self.settle()
        seed.create("/apis/extensions.gardener.cloud/v1alpha1/clusters", cluster(SHOOT))

    def settle(self) -> None:
        """What the deployment controller would do: Pods become as many as asked for, and ready at once."""
        for name in DEPENDANTS:
            count = self.deployment(name)["spec"]["replicas"]
            status = {"replicas": count, "readyReplicas": count, "availableReplicas": count}
            self._seed.merge(f"{_deployments()}/{name}/status", {"status": status})

    def release(self) -> None:
        """What an operator would do by hand: nothing is held down any more."""
        for name in DEPENDANTS:
            released = {"metadata": {"annotations": {PROTECTION: None}}, "spec": {"replicas": 1}}
            self._seed.merge(f"{_deployments()}/{name}", released)

    def replicas(self) -> dict[str, int]:
        """What is asked for of each dependant, after it was brought about."""
        self.settle()
        return {name: self.deployment(name)["spec"]["replicas"] for name in DEPENDANTS}

    def deployment(self, name: str) -> dict:
        """One of the dependants."""
        return self._seed.request("GET", f"{_deployments()}/{name}")[1]

    def renew(self) -> None:
        """What the kubelets would do."""
        for node in NODES:
            self.api.merge(f"{_leases()}/{node}", {"spec": {"renewTime": moment(0)}})

    def expire(self) -> None:
        """As if they had stopped ten minutes ago. For a prober that is started after this: to one that has seen them
        renewed before, it looks like clocks that run behind."""
        for node in NODES:
            self.api.merge(f"{_leases()}/{node}", {"spec": {"renewTime": moment(-600)}})

    def grant(self, resource: str, *verbs: str) -> None:
        """Changes a rule in the shoot; without verbs it goes."""
        rules = [RULES[resource] | {"verbs": list(verbs)}] if verbs else []
        self.api.merge(ROLES[resource], {"rules": rules})


def cluster(name: str) -> dict:
    """A Cluster that is to be probed."""
    return {
        "apiVersion": "extensions.gardener.cloud/v1alpha1",
        "kind": "Cluster",
        "metadata": {"name": name},
        "spec": {
            "shoot": {
                "spec": {"provider": {"workers": [{"name": "pool"}]}},
                "status": {"lastOperation": {"type": "Reconcile", "state": "Succeeded"}},
            }
        },
    }


def moment(seconds: int) -> str:
    """So many seconds from now, as renewTime has it."""
    then = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=seconds)
    return then.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _leases() -> str:
    return "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


def _deployments() -> str:
    return f"/apis/apps/v1/namespaces/{SHOOT}/deployments"
