"""Follows docs/how-to/install.md word for word, on a real kube-apiserver."""

import contextlib
import re
from pathlib import Path

from chart import NAMESPACE, ROOT, SERVICES
from programs import ISSUED, wait, with_rights

INSTALL = (ROOT / "docs" / "how-to" / "install.md").read_text()
BLOCKS = re.findall(r"^```sh\n(.*?)^```$", INSTALL, re.DOTALL | re.MULTILINE)


def test_the_document_leads_to_running_programs(seed, releases, kinds, desk):
    folder, run = desk
    images, certificates, release = BLOCKS
    # No registry is here; the rest is as it stands there.
    assert "skopeo" in images
    # For those who bring their certificates; the programs below issue their own.
    run(certificates)
    notes = run(release)
    with contextlib.ExitStack() as stack:
        programs = {s: stack.enter_context(as_deployed(seed, folder, s)) for s in SERVICES}
        for program in programs.values():
            program.wait_until_readyz_says("ready\n")
        synced = 'watchdog_scaling_lease_probe_replicas{state="synced"} 1'
        wait(lambda: synced in programs["scaling-coordinator"].metrics())
        (certificate,) = [line for line in notes.splitlines() if line.endswith(" certificate")]
        run(certificate)
        calls = [line.strip() for line in notes.splitlines() if line.strip().startswith("grpcurl")]
        assert len(calls) == len(SERVICES)
        for call, program in zip(calls, programs.values()):
            assert program.service.replace("-", "") in call.lower().replace("-", "")
            run(re.sub(r"localhost:\d+", f"127.0.0.1:{program.grpc}", call))


def as_deployed(seed, folder: Path, service: str):
    """The program with what the Deployment gives its Pod: options, configuration, rights."""
    name = f"watchdog-{service}"
    deployment = seed.request("GET", f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{name}")[1]
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    config = volumes["config"]["configMap"]["name"]
    text = seed.request("GET", f"/api/v1/namespaces/{NAMESPACE}/configmaps/{config}")[1]["data"]["config.yaml"]
    # Paths, addresses and the log are those of a Pod.
    kept = [o for o in container["args"] if o.startswith(("--tls-", "--mode="))]
    return with_rights(seed, folder, service, text, kept, ISSUED)
