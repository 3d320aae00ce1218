"""The permissions, proven on two real API servers, a seed and a shoot: with what the chart grants on the one and
Gardener on the other the work is done, and without any one rule the program that needs it says which permission is
missing."""

import contextlib
import json
import re
import subprocess
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from chart import LEASES, NAMESPACE, SERVICES, hooks, render
from permissions import allowed, granted, role
from programs import ISSUED, binary, grpcurl, wait
from real_kubernetes import Kubernetes, assets, path
from shoot import DEPENDANTS, PROTECTION, SHOOT, Shoot

VALUES = {
    # The programs speak plaintext here; test_newcomer.py has them issue certificates with what the chart grants.
    "certificates": {"source": "secrets"},
    "config": {
        "prober": {
            "probeInterval": "1s",
            "initialDelay": "0s",
            "dependentResourceInfos": [
                {
                    "ref": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
                    "optional": name == "cluster-autoscaler",
                    "scaleUp": {"level": level},
                    "scaleDown": {"level": int(level == 0)},
                }
                for level, name in enumerate(DEPENDANTS)
            ],
        }
    },
}
# The seed keeps one or the other, see Source in services/weeder/src/cluster.
SLICES = "/apis/discovery.k8s.io/v1"


@pytest.fixture(scope="module")
def shoot(seed, kinds, tmp_path_factory):
    server = Kubernetes(assets(), tmp_path_factory.mktemp("shoot"))
    try:
        planted = Shoot(server, seed)
        yield planted
        # Other tests look at the same seed.
        planted.release()
    finally:
        # It cannot be reached any more, so nothing follows for what is left of it on the seed.
        server.close()


def test_the_whole_job_with_these_rights_and_no_others(seed, shoot, install):
    shoot.expire()
    start = install(VALUES)
    with contextlib.ExitStack() as stack:
        programs = {service: stack.enter_context(start(service)) for service in SERVICES}
        for program in programs.values():
            program.wait_until_readyz_says("ready\n")

        wait(lambda: set(shoot.replicas().values()) == {0})
        assert all(PROTECTION in shoot.deployment(name)["metadata"]["annotations"] for name in DEPENDANTS)
        wait(lambda: kept(shoot, lambda: set(shoot.replicas().values()) == {1}))
        wait(lambda: kept(shoot, lambda: not any(protected(shoot, name) for name in DEPENDANTS)))
        reasons = {"MeltdownProtectionStarted", "MeltdownProtectionEnded"}
        wait(lambda: reasons <= {event["reason"] for event in events(seed)})

        endpoints(seed, ready=False)
        crash_looping_pod(seed)
        wait(lambda: 'watchdog_weeder_services{readiness="not_ready"} 1' in programs["weeder"].metrics())
        endpoints(seed, ready=True)
        wait(lambda: seed.request("GET", f"/api/v1/namespaces/{SHOOT}/pods/crashing")[0] == 404)
        wait(lambda: "WeededCrashLoopingPod" in {event["reason"] for event in events(seed)})


def test_the_job_before_an_uninstallation_restores_with_these_rights(seed, shoot, install, tmp_path):
    shoot.expire()
    start = install(VALUES)
    with contextlib.ExitStack() as stack:
        coordinator = stack.enter_context(start("scaling-coordinator"))
        # It has all that it needs of the seed, and waits for the verdicts.
        coordinator.wait_until_readyz_says("verdicts: ")
        stack.enter_context(start("lease-probe"))
        coordinator.wait_until_readyz_says("ready\n")
        wait(lambda: set(shoot.replicas().values()) == {0})
        wait(lambda: all(protected(shoot, name) for name in DEPENDANTS))
        coordinator.stop()
        # What Helm makes of the hooks; nobody runs the Job here.
        name = "watchdog-scaling-coordinator"
        made = {found["kind"]: found for found in hooks(render(VALUES))}
        for kind in "Role", "RoleBinding":
            folder, _, called = path(made[kind]).rpartition("/")
            seed.create(folder, made[kind])
            stack.callback(seed.request, "DELETE", f"{folder}/{called}")
        (container,) = made["Job"]["spec"]["template"]["spec"]["containers"]
        options = [option for option in container["args"] if not option.startswith("--config-file")]
        kubeconfig = tmp_path / "release.kubeconfig"
        kubeconfig.write_text(seed.kubeconfig(seed.token(NAMESPACE, name)))
        config = tmp_path / "scaling-coordinator-0.yaml"
        command = [binary("scaling-coordinator"), *options, f"--config-file={config}", f"--kubeconfig={kubeconfig}"]
        job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        stack.callback(job.kill)
        # The deployment controller goes on, and so does lease-probe.
        wait(lambda: shoot.replicas() and job.poll() is not None)
        shown = job.communicate()[0]
        assert job.returncode == 0, shown
        # The log of the end of the incident counts the failed writes.
        assert "nothing is held down" in shown and "failed" not in shown.replace('"failed_writes":0', ""), shown
        assert set(shoot.replicas().values()) == {1}
        assert not any(protected(shoot, name) for name in DEPENDANTS)
        stopped = seed.request("GET", f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{name}")[1]
        assert stopped["spec"]["replicas"] == 0


def test_without_a_rule_in_the_shoot_the_verdict_names_the_permission(shoot, install):
    shoot.expire()
    with install(VALUES)("lease-probe") as program:
        program.wait_until_readyz_says("ready\n")
        wait(lambda: verdict(program)["outcome"] == "OUTCOME_LEASES_EXPIRED")
        for resource, permission in (
            ("leases", "list leases in namespace kube-node-lease"),
            # They are listed only when something is wrong.
            ("nodes", "list nodes"),
        ):
            shown = f"The kubeconfig's user lacks a permission (403): {permission}."
            shoot.grant(resource)
            wait(lambda shown=shown: verdict(program).get("message") == shown)
            assert verdict(program)["outcome"] == "OUTCOME_INCONCLUSIVE"
            wait(lambda shown=shown: shown in program.log.read_text())
            wait(lambda: forbidden(program.metrics()))
            # Gardener grants to get as well; that is not needed.
            shoot.grant(resource, "list")
            wait(lambda: verdict(program)["outcome"] == "OUTCOME_LEASES_EXPIRED")
            shoot.grant(resource, "get", "list")


def test_a_permission_that_is_withdrawn_from_a_running_program_is_named(seed, shoot, install):
    shoot.expire()
    start = install(VALUES)
    coordinator_role, probe_role, weeder_role = (role_path(s) for s in ("scaling-coordinator", "lease-probe", "weeder"))
    with contextlib.ExitStack() as stack:
        coordinator = stack.enter_context(start("scaling-coordinator"))
        # It has all that it needs of the seed, and no verdict asks it to scale yet.
        coordinator.wait_until_readyz_says("verdicts: ")
        with without(seed, coordinator_role, "deployments", "patch"):
            probe = stack.enter_context(start("lease-probe"))
            missing = f"the request to patch deployments.apps in namespace {SHOOT} is forbidden"
            wait(lambda: missing in json.dumps(scaling(coordinator)))
            wait(lambda: missing in coordinator.log.read_text())
        wait(lambda: set(shoot.replicas().values()) == {0})

        with without(seed, probe_role, "machines", "list"):
            wait(lambda: verdict(probe)["outcome"] == "OUTCOME_INCONCLUSIVE")
            assert "machines" in verdict(probe)["message"] and "forbidden" in verdict(probe)["message"]
        wait(lambda: verdict(probe)["outcome"] == "OUTCOME_LEASES_EXPIRED")

        endpoints(seed, ready=False)
        crash_looping_pod(seed)
        weeder = stack.enter_context(start("weeder"))
        weeder.wait_until_readyz_says("ready\n")
        wait(lambda: 'watchdog_weeder_services{readiness="not_ready"} 1' in weeder.metrics())
        with without(seed, weeder_role, "pods", "delete"):
            endpoints(seed, ready=True)
            forbidden = re.compile(r'watchdog_weeder_deletions_total{result="forbidden"} [1-9]')
            wait(lambda: forbidden.search(weeder.metrics()))
            wait(lambda: "cannot delete resource" in weeder.log.read_text())
        wait(lambda: seed.request("GET", f"/api/v1/namespaces/{SHOOT}/pods/crashing")[0] == 404)


def test_without_any_one_rule_a_program_is_not_ready_and_names_the_permission(seed, install):
    start = install()
    with ThreadPoolExecutor() as pool:
        checks = [pool.submit(take_rules_away_in_turn, seed, start, service) for service in SERVICES]
        assert all(check.result() > 3 for check in checks)


def take_rules_away_in_turn(seed, start, service) -> int:
    """Gives the number of rules."""
    unused = "endpoints" if seed.request("GET", SLICES)[0] == 200 else "endpointslices"
    taken = 0
    for where in (
        role_path(service),
        f"/apis/rbac.authorization.k8s.io/v1/namespaces/{LEASES}/roles/watchdog-{service}",
    ):
        whole = seed.request("GET", where)[1]["rules"]
        for index, rule in enumerate(whole):
            if unused in rule["resources"]:
                continue
            seed.merge(where, {"rules": whole[:index] + whole[index + 1 :]})
            gone = granted({"rules": [rule]})
            sample = (*min(gone), LEASES)
            wait(lambda sample=sample: not allowed(seed, service, *sample))
            with start(service, tls=ISSUED) as program:
                program.wait_until_readyz_says("permissions: grant this service on the seed: ")
                for verb, group, resource, name in gone:
                    missing = f"{verb} {written(group, resource)}{f' named {name}' if name else ''} in "
                    assert missing in program.readyz()
                    # The line comes right after.
                    wait(lambda missing=missing: missing in program.log.read_text())
                assert "watchdog_permission_missing{" in program.metrics()
            seed.merge(where, {"rules": whole})
            wait(lambda sample=sample: allowed(seed, service, *sample))
            taken += 1
    return taken


def role_path(service: str) -> str:
    """Where the ClusterRole of a service is."""
    return f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{role(service)}"


@contextlib.contextmanager
def without(seed, where: str, resource: str, verb: str):
    """For as long as it lasts, a role does not grant a verb on a resource."""
    whole = seed.request("GET", where)[1]["rules"]
    less = [r | {"verbs": [v for v in r["verbs"] if v != verb]} if resource in r["resources"] else r for r in whole]
    # A rule without verbs is none.
    seed.merge(where, {"rules": [rule for rule in less if rule["verbs"]]})
    try:
        yield
    finally:
        seed.merge(where, {"rules": whole})


def scaling(program) -> dict:
    """What the coordinator tells of the shoot; empty until it knows it."""
    call = "gardener.watchdog.scaling.v1.ScalingService/GetScaling"
    answer = grpcurl("-d", f'{{"shoot": "{SHOOT}"}}', f"127.0.0.1:{program.grpc}", call)
    return json.loads(answer.stdout) if answer.returncode == 0 else {}


def written(group: str, resource: str) -> str:
    """A resource as the programs write it: deployments.apps/scale."""
    resource, slash, subresource = resource.partition("/")
    return f"{resource}.{group}{slash}{subresource}" if group else f"{resource}{slash}{subresource}"


def verdict(program) -> dict:
    """On the shoot; empty until there is one."""
    call = "gardener.watchdog.probe.v1.LeaseProbeService/GetVerdict"
    answer = grpcurl("-d", f'{{"shoot": "{SHOOT}"}}', f"127.0.0.1:{program.grpc}", call)
    return json.loads(answer.stdout)["verdict"] if answer.returncode == 0 else {"outcome": None}


def forbidden(metrics: str) -> bool:
    """Whether probes of the shoot are counted that lacked a permission."""
    counted = re.findall(r"^watchdog_shoot_probe_failures_total{(.*)}", metrics, re.MULTILINE)
    return any(f'shoot="{SHOOT}"' in labels and 'reason="forbidden"' in labels for labels in counted)


def kept(shoot, condition) -> bool:
    """Whether it holds while the kubelets go on renewing and Pods become ready."""
    shoot.renew()
    shoot.settle()
    return condition()


def protected(shoot, name: str) -> bool:
    return PROTECTION in shoot.deployment(name)["metadata"].get("annotations", {})


def events(seed) -> list[dict]:
    """In the namespace of the shoot."""
    return seed.request("GET", f"/apis/events.k8s.io/v1/namespaces/{SHOOT}/events")[1]["items"]


def endpoints(seed, ready: bool) -> None:
    """Sets what is behind the Service kube-apiserver, in both forms where the seed has both."""
    key = "addresses" if ready else "notReadyAddresses"
    objects = {
        f"/api/v1/namespaces/{SHOOT}/endpoints/kube-apiserver": {
            "apiVersion": "v1",
            "kind": "Endpoints",
            "metadata": {"name": "kube-apiserver"},
            "subsets": [{key: [{"ip": "10.0.0.1"}], "ports": [{"port": 443}]}],
        }
    }
    if seed.request("GET", SLICES)[0] == 200:
        objects[f"{SLICES}/namespaces/{SHOOT}/endpointslices/kube-apiserver-1"] = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": "kube-apiserver-1", "labels": {"kubernetes.io/service-name": "kube-apiserver"}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": ready}}],
        }
    for where, body in objects.items():
        query = "?fieldManager=tests&force=true"
        status, got = seed.request("PATCH", where + query, body, "application/apply-patch+yaml")
        assert status in (200, 201), got


def crash_looping_pod(seed) -> None:
    """One that depends on kube-apiserver, by the default configuration."""
    pods = f"/api/v1/namespaces/{SHOOT}/pods"
    labels = {"gardener.cloud/role": "controlplane", "role": "scheduler"}
    container = {"name": "main", "image": "none"}
    owner = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": "scheduler",
        "uid": str(uuid.uuid4()),
        "controller": True,
    }
    metadata = {"name": "crashing", "labels": labels, "ownerReferences": [owner]}
    seed.create(pods, {"metadata": metadata, "spec": {"containers": [container]}})
    waiting = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "restartCount": 7, "ready": False, "imageID": ""}
    seed.merge(f"{pods}/crashing/status", {"status": {"containerStatuses": [container | waiting]}})
