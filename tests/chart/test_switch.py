"""Follows docs/how-to/switch.md word for word, on a real kube-apiserver with what gardenlet writes."""

import contextlib
import re

from chart import NAMESPACE, ROOT, SERVICES, of_kind, render
from programs import at_addresses
from test_newcomer import as_deployed

PAGE = (ROOT / "docs" / "how-to" / "switch.md").read_text()
LANDSCAPE = (ROOT / "docs" / "how-to" / "landscape.md").read_text()
BLOCKS, LANDSCAPE_BLOCKS = (
    re.findall(r"^ *```sh\n(.*?)^ *```$", page, re.DOTALL | re.MULTILINE) for page in (PAGE, LANDSCAPE)
)
# pkg/component/nodemanagement/dependencywatchdog, as files of the ConfigMaps dependency-watchdog-…-config-….
FIXTURES = ROOT / "services/common/api/tests/fixtures"
LEASE = {
    "apiVersion": "coordination.k8s.io/v1",
    "kind": "Lease",
    "metadata": {"name": "dwd-prober-leader-election", "namespace": NAMESPACE},
    "spec": {
        "holderIdentity": "dependency-watchdog-prober-5d8f_7c1e",
        "leaseDurationSeconds": 15,
        "leaseTransitions": 3,
        "acquireTime": "2026-11-23T06:00:00.000000Z",
        "renewTime": "2026-11-23T07:00:00.000000Z",
    },
}
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"


def test_the_document_leads_to_the_switch_and_back(seed, releases, kinds, desk):
    folder, desk_run = desk
    check, held, observe, gardeners_weeder, weeder, stop, protect, back, weeder_back, gardeners_weeder_back, _ = BLOCKS
    for program in "prober", "weeder":
        (folder / f"{program}.yaml").symlink_to(FIXTURES / f"{program}-gardener.yaml")
    seed.create(LEASES, LEASE)
    seed.serve("core.gardener.cloud", "v1beta1", "Seed", "Cluster")
    theirs = {"apiVersion": "core.gardener.cloud/v1beta1", "kind": "Seed", "metadata": {"name": "aws-eu1"}}
    seed.create("/apis/core.gardener.cloud/v1beta1/seeds", theirs)

    def run(script: str) -> str:
        # Nobody runs Pods here, so no rollout ends; and nobody else wants the Lease.
        lines = [line for line in script.splitlines() if "rollout status" not in line and not line.startswith("sleep")]
        return desk_run("\n".join(lines).replace("seed SEED", "seed aws-eu1"))

    try:
        run(check)
        assert run(held) == "", "nothing is held down"
        run(observe)
        assert modes(seed) == {"scaling-coordinator": "observe", "weeder": "observe"}
        ask("1. Observe", desk_run, seed, folder)
        run(gardeners_weeder)
        assert gardeners_weeder_is_enabled(seed) is False
        run(weeder)
        assert modes(seed) == {"scaling-coordinator": "observe", "weeder": "protect"}
        ask("2. Weeder", desk_run, seed, folder)
        assert run(stop).splitlines()[-1] == "watchdog"
        lease = seed.request("GET", f"{LEASES}/{LEASE['metadata']['name']}")[1]["spec"]
        assert lease["leaseDurationSeconds"] > 60 * 365 * 86400, "longer than any seed lives"
        run(protect)
        assert modes(seed) == {"scaling-coordinator": "protect", "weeder": "protect"}
        ask("4. Protect", desk_run, seed, folder)

        # The prober gets its Lease when nothing else scales any more.
        assert back.index("mode=observe") < back.index("rollout status") < back.index("patch lease")
        run(back)
        assert modes(seed) == {"scaling-coordinator": "observe", "weeder": "protect"}
        lease = seed.request("GET", f"{LEASES}/{LEASE['metadata']['name']}")[1]["spec"]
        assert (lease.get("holderIdentity", ""), lease["leaseDurationSeconds"]) == ("", 1)
        run(weeder_back)
        assert modes(seed) == {"scaling-coordinator": "observe", "weeder": "observe"}
        run(gardeners_weeder_back)
        assert gardeners_weeder_is_enabled(seed) is True
    finally:
        seed.request("DELETE", f"{LEASES}/{LEASE['metadata']['name']}")
        seed.request("DELETE", "/apis/core.gardener.cloud/v1beta1/seeds/aws-eu1")


def test_on_a_landscape_the_annotation_of_a_seed_switches_both_programs_and_back():
    (annotation,) = re.findall(r"annotate seed SEED --overwrite (\S+)=protect$", LANDSCAPE_BLOCKS[-1], re.MULTILINE)
    for mode in "protect", "observe":
        gardener = {"seed": {"annotations": {annotation: mode}}}
        deployments = of_kind(render({"mode": "observe", "gardener": gardener}), "Deployment")
        assert modes_of(deployments.values()) == {"scaling-coordinator": mode, "weeder": mode}


def test_nothing_that_gardenlet_manages_is_changed_by_hand():
    """Its ManagedResources and what is in them: a change by hand is reverted, or reported as an unhealthy Seed."""
    scripts = "".join(BLOCKS + LANDSCAPE_BLOCKS)
    changes = re.findall(r"kubectl (?:-n \S+ )?((?:patch|scale|annotate|label|edit|apply|delete) \S+)", scripts)
    assert changes == ["patch seed", "patch lease", "patch lease", "patch seed", "apply -f", "annotate seed"]


def ask(section: str, run, seed, folder) -> None:
    """Runs what a section has people look at, while the programs run as they are deployed."""
    text = PAGE.split(f"### {section}\n")[1].split("\n##")[0]
    # Without the report of an incident: there is none here.
    commands = [command for command in re.findall(r"`(watchdogctl [^`]+)`", text) if "SHOOT" not in command]
    assert commands
    with contextlib.ExitStack() as stack:
        programs = [stack.enter_context(as_deployed(seed, folder, service)) for service in SERVICES]
        for program in programs:
            program.wait_until_readyz_says("ready\n")
        for command in commands:
            run(at_addresses(command, seed, programs))


def modes(seed) -> dict:
    """Of the Deployments of the release, by program."""
    return modes_of(seed.request("GET", f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments")[1]["items"])


def modes_of(deployments) -> dict:
    found = {}
    for deployment in deployments:
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        for option in container["args"]:
            if option.startswith("--mode="):
                found[container["name"]] = option.removeprefix("--mode=")
    return found


def gardeners_weeder_is_enabled(seed) -> bool:
    settings = seed.request("GET", "/apis/core.gardener.cloud/v1beta1/seeds/aws-eu1")[1]["spec"]["settings"]
    return settings["dependencyWatchdog"]["weeder"]["enabled"]
