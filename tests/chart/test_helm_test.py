"""`helm test` on a real kube-apiserver. No kubelet runs there: a stand-in runs the Pod of the test."""

import base64
import contextlib
import subprocess
import threading

import helm_python as helm
import pytest
from chart import LEASES, NAMESPACE, RELEASE, SERVICES
from programs import ISSUED, binary

# Next to the Secret that they mount.
PODS = f"/api/v1/namespaces/{LEASES}/pods"


def test_helm_test_passes_while_all_replicas_answer_and_fails_when_one_does_not(seed, releases, install, tmp_path):
    start = install()
    with contextlib.ExitStack() as stack:
        programs = {service: stack.enter_context(start(service, tls=ISSUED)) for service in SERVICES}
        for program in programs.values():
            program.wait_until_readyz_says("ready\n")
        with Kubelet(seed, programs, tmp_path) as kubelet:
            releases.test(RELEASE)
            assert kubelet.ended == [0], kubelet.shown
            programs["weeder"].stop()
            with pytest.raises(helm.HelmError):
                releases.test(RELEASE)
            assert kubelet.ended == [0, 1], kubelet.shown
            assert "weeder" in kubelet.shown
    # A Pod that failed stays, for its log.
    for pod in seed.request("GET", PODS)[1]["items"]:
        assert seed.request("DELETE", f"{PODS}/{pod['metadata']['name']}?gracePeriodSeconds=0")[0] == 200


class Kubelet:
    """Runs the container of each new Pod of the release as a process, with the Secrets that the Pod mounts and the
    addresses of these programs for its Services. Use it as a context."""

    def __init__(self, seed, programs, folder):
        self._seed, self._programs, self._folder = seed, programs, folder
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        # Exit codes, and what the last one printed.
        self.ended, self.shown = [], ""

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()

    def _run(self):
        seen = set()
        while not self._over.wait(0.05):
            for pod in self._seed.request("GET", PODS)[1]["items"]:
                if pod["metadata"]["uid"] not in seen:
                    seen.add(pod["metadata"]["uid"])
                    self._start(pod)

    def _start(self, pod):
        (container,) = pod["spec"]["containers"]
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        places = {mounts[volume["name"]]: self._mounted(volume["secret"]) for volume in pod["spec"]["volumes"]}
        places |= {
            f"watchdog-{service}-headless.{NAMESPACE}.svc:9645": f"127.0.0.1:{program.grpc}"
            for service, program in self._programs.items()
        }
        arguments = container["args"]
        for inside, outside in places.items():
            arguments = [argument.replace(inside, outside) for argument in arguments]
        done = subprocess.run([binary("watchdogctl"), *arguments], capture_output=True, text=True, timeout=120)
        self.ended.append(done.returncode)
        self.shown = done.stdout + done.stderr
        phase = {"status": {"phase": "Failed" if done.returncode else "Succeeded"}}
        status, got = self._seed.request(
            "PATCH", f"{PODS}/{pod['metadata']['name']}/status", phase, "application/merge-patch+json"
        )
        assert status == 200, got

    def _mounted(self, source) -> str:
        secret = self._seed.request("GET", f"/api/v1/namespaces/{LEASES}/secrets/{source['secretName']}")[1]
        folder = self._folder / source["secretName"]
        folder.mkdir(exist_ok=True)
        for name, content in secret["data"].items():
            (folder / name).write_bytes(base64.b64decode(content))
        return str(folder)
