"""The programs on clusters with one IP family, with the options of the chart, each in a network of its own."""

import json
import subprocess

import pytest
from chart import of_kind, render
from programs import binary

# The families of the loopback interface, and how a caller reaches it. A network that has just been made has both.
ONLY = {"IPv6": ("-4", "[::1]"), "IPv4": ("-6", "127.0.0.1")}
SCRIPT = """
ip link set lo up && ip "$1" address flush dev lo
host="$2"; shift 2
"$@" & program=$!
trap 'kill $program' EXIT
curl --silent --show-error --fail --retry 50 --retry-delay 1 --retry-connrefused --max-time 5 "http://$host:9643/healthz"
grpcurl -plaintext -max-time 5 "$host:9645" list
"""


def options():
    deployment = of_kind(render({"insecurePlaintext": True}), "Deployment")["watchdog-weeder"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return [option for option in container["args"] if not option.startswith("--config-file")]


@pytest.mark.parametrize("family", ONLY)
def test_each_family_is_served_by_default(family, tmp_path):
    assert not any(option.startswith(("--grpc-addr", "--admin-addr")) for option in options())
    config, kubeconfig = tmp_path / "weeder.yaml", tmp_path / "kubeconfig"
    config.write_text("servicesAndDependantSelectors: {x: {podSelectors: [{matchLabels: {a: b}}]}}")
    # Nobody listens there: it is alive, and not ready.
    named = {
        "clusters": [{"name": "seed", "cluster": {"server": f"https://{ONLY[family][1]}:1"}}],
        "users": [{"name": "weeder", "user": {"token": "none"}}],
        "contexts": [{"name": "seed", "context": {"cluster": "seed", "user": "weeder"}}],
        "current-context": "seed",
    }
    kubeconfig.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **named}))
    program = [binary("weeder"), f"--config-file={config}", f"--kubeconfig={kubeconfig}", *options()]
    isolated = ["unshare", "--map-root-user", "--net", "bash", "-euo", "pipefail", "-c", SCRIPT, "bash", *ONLY[family]]
    done = subprocess.run([*isolated, *program], capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "gardener.watchdog.weeder.v1.WeederService" in done.stdout
