"""The images in target/images."""

import datetime
import json
import os
import shutil
import stat
import struct
import subprocess
import tarfile
import tomllib
from pathlib import Path

import pytest
from chart import ROOT, SERVICES
from incident import PROBER, WEEDER, Incident
from names import ADDRESS, NAME, NameServer
from programs import Program

IMAGES = ROOT / "target" / "images"
MOST_BYTES = 25_000_000
# The drop-in has all three services in it.
MOST_BYTES_OF_ALL = 40_000_000
PT_INTERP = 3
COMMAND_LINE = "watchdogctl"
DROP_IN = "dependency-watchdog"
# Gardener's Deployment names the path of the program.
PATHS = {DROP_IN: f"usr/local/bin/{DROP_IN}"}
PORTS = {COMMAND_LINE: [], DROP_IN: ["9643", "9644"]}


@pytest.fixture(scope="module")
def buildah(tmp_path_factory):
    """Runs buildah on a storage of its own."""
    if not (IMAGES / "digests.txt").exists():
        pytest.fail("there are no images: run make image")
    storage = tmp_path_factory.mktemp("storage")
    base = ["buildah", "--root", storage / "root", "--runroot", storage / "run", "--storage-driver", "vfs"]

    def run(*arguments):
        result = subprocess.run([*base, *arguments], capture_output=True, text=True, timeout=120)
        assert result.returncode == 0, result.stderr
        return result.stdout.strip()

    yield run
    run("umount", "--all")


@pytest.fixture(scope="module", params=[*SERVICES, COMMAND_LINE, DROP_IN])
def image(request, buildah):
    """Of one program: its name, its configuration, and a folder that has its files and may be written to."""
    pulled = buildah("pull", "--quiet", f"oci-archive:{IMAGES / request.param}.oci.tar")
    container = buildah("from", pulled)
    inspected = json.loads(buildah("inspect", "--type", "image", pulled))
    return request.param, inspected, Path(buildah("mount", container))


def test_small_and_nothing_but_what_is_needed(image):
    service, _, root = image
    files = {str(path.relative_to(root)): path.stat().st_size for path in root.rglob("*") if path.is_file()}
    program = PATHS.get(service, service)
    assert set(files) == {program, "etc/ssl/certs/ca-certificates.crt", f"usr/share/sbom/{service}.cdx.json"}
    assert sum(files.values()) < (MOST_BYTES_OF_ALL if service == "dependency-watchdog" else MOST_BYTES)
    assert (root / program).stat().st_mode & 0o7777 == 0o555


def test_runs_as_nobody_what_the_chart_expects(image):
    service, inspected, _ = image
    config = inspected["OCIv1"]["config"]
    assert config["User"] == "65532:65532"
    assert config["Entrypoint"] == [f"/{PATHS.get(service, service)}"]
    assert sorted(config.get("ExposedPorts") or []) == PORTS.get(service, ["9643", "9645"])
    assert ("MIMALLOC_PURGE_DELAY=1000" in (config.get("Env") or [])) == (service != COMMAND_LINE)
    labels = {name.removeprefix("org.opencontainers.image."): value for name, value in config["Labels"].items()}
    assert labels["licenses"] == "Apache-2.0" and labels["title"] == f"dependency-watchdog/{service}"
    assert len(labels["revision"]) == 40
    # Of the builder nothing is named, so that its version changes no digest.
    assert set(labels) <= {"licenses", "title", "version", "revision", "source"}


def test_program_is_static_and_tells_nothing_of_the_machine(image):
    service, _, root = image
    program = (root / PATHS.get(service, service)).read_bytes()
    offset, size, count = struct.unpack_from("<Q", program, 32) + struct.unpack_from("<HH", program, 54)
    kinds = {struct.unpack_from("<I", program, offset + size * i)[0] for i in range(count)}
    assert PT_INTERP not in kinds
    for path in str(ROOT), str(Path.home()):
        assert path.encode() + b"/" not in program


def test_bill_of_materials_is_that_of_the_lock_file(image):
    service, _, root = image
    text = (root / f"usr/share/sbom/{service}.cdx.json").read_text()
    bill = json.loads(text)
    assert bill["bomFormat"] == "CycloneDX" and bill["metadata"]["component"]["name"] == service
    locked = {(p["name"], p["version"]) for p in tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]}
    parts = {(part["name"], part["version"]) for part in bill["components"]}
    assert parts <= locked
    own = "watchdog-client" if service == COMMAND_LINE else "watchdog-runtime"
    assert {"tokio", "tonic", "rustls", "kube-client", own} <= {name for name, _ in parts}
    # What only tests need is not in the image.
    assert not {"proptest", "turmoil", "insta"} & {name for name, _ in parts}
    assert all(part.get("licenses") for part in bill["components"])
    assert str(ROOT) not in text


def test_the_same_when_put_together_again(tmp_path, image):
    for file in IMAGES.iterdir():
        if file.suffix != ".tar":
            shutil.copy2(file, tmp_path)
    digests = (IMAGES / "digests.txt").read_text()
    tag = digests.split()[1].rsplit(":", 1)[1]
    with tarfile.open(IMAGES / f"{SERVICES[0]}.oci.tar") as archive:
        created = created_at(archive)
    _, inspected, _ = image
    labels = inspected["OCIv1"]["config"]["Labels"]
    environment = os.environ | {"SOURCE_DATE_EPOCH": str(created)}
    environment["REVISION"] = labels["org.opencontainers.image.revision"]
    environment["SOURCE_URL"] = labels.get("org.opencontainers.image.source", "")
    assembled = [ROOT / "images" / "assemble", tmp_path, tag]
    result = subprocess.run(assembled, env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "digests.txt").read_text() == digests


@pytest.fixture(scope="module")
def seed(tmp_path_factory):
    with Incident(tmp_path_factory.mktemp("incident")) as started:
        yield started


@pytest.mark.parametrize("image", SERVICES, indirect=True)
@pytest.mark.parametrize("resolved", ["by-hosts-file", "by-name-server"])
def test_starts_from_the_image_and_finds_the_seed_by_name(image, seed, resolved):
    service, _, root = image
    # What a container runtime brings, and what the kubelet mounts.
    (root / "dev").mkdir(exist_ok=True)
    for device, minor in ("null", 3), ("random", 8), ("urandom", 9):
        if not (root / "dev" / device).exists():
            os.mknod(root / "dev" / device, 0o666 | stat.S_IFCHR, os.makedev(1, minor))
            (root / "dev" / device).chmod(0o666)
    hosts, resolv = root / "etc/hosts", root / "etc/resolv.conf"
    hosts.write_text(f"127.0.0.1 {NAME}\n" if resolved == "by-hosts-file" else "127.0.0.1 localhost\n")
    resolv.write_text(f"nameserver {ADDRESS}\noptions timeout:2 attempts:2\n")
    folder = root / "etc/dependency-watchdog"
    folder.mkdir(exist_ok=True)
    kubeconfig = seed.kubeconfig().replace("//127.0.0.1:", f"//{NAME}:")
    assert NAME in kubeconfig
    # Its certificate is for the address.
    authority = "certificate-authority-data:"
    kubeconfig = kubeconfig.replace(authority, f"tls-server-name: 127.0.0.1\n    {authority}")
    config = WEEDER if service == "weeder" else PROBER
    with NameServer() as names:
        with Program(folder, service, config, kubeconfig, replica=9, image=root) as program:
            program.wait_until_readyz_says("ready\n")
            assert "watchdog_membership_lease_valid{" in program.metrics()
            status = Path(f"/proc/{program.pid}/status").read_text()
            assert "Uid:\t65532\t65532" in status and "CapEff:\t0000000000000000" in status
        assert (names.asked > 0) == (resolved == "by-name-server")


def test_command_line_starts_from_the_image(buildah):
    pulled = buildah("pull", "--quiet", f"oci-archive:{IMAGES / COMMAND_LINE}.oci.tar")
    root = Path(buildah("mount", buildah("from", pulled)))
    result = subprocess.run(["chroot", root, f"/{COMMAND_LINE}", "--help"], capture_output=True, text=True, timeout=20)
    assert result.returncode == 0 and "Exit codes:" in result.stdout, result.stderr


def test_drop_in_reads_the_file_of_gardenlet(buildah):
    pulled = buildah("pull", "--quiet", f"oci-archive:{IMAGES / DROP_IN}.oci.tar")
    root = Path(buildah("mount", buildah("from", pulled)))
    (root / "dep-config.yaml").write_text(PROBER)
    command = ["chroot", root, f"/{PATHS[DROP_IN]}", "prober", "--config-file=/dep-config.yaml", "--check-config"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert result.returncode == 0, result.stderr


def created_at(archive: tarfile.TarFile) -> int:
    """When the image in an archive was made, by its own account."""

    def blob(digest):
        return json.load(archive.extractfile(f"blobs/{digest.replace(':', '/')}"))

    index = json.load(archive.extractfile("index.json"))
    config = blob(blob(index["manifests"][0]["digest"])["config"]["digest"])
    return int(datetime.datetime.fromisoformat(config["created"].replace("Z", "+00:00")).timestamp())
