"""The images in target/images."""

import dataclasses
import datetime
import json
import os
import shutil
import stat
import struct
import subprocess
import tarfile
import time
import tomllib
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from chart import ROOT, SERVICES
from incident import PROBER, WEEDER, Incident
from names import ADDRESS, NAME, NameServer
from programs import Program
from real_kubernetes import free_port

IMAGES = ROOT / "target" / "images"
MOST_BYTES = 25_000_000
# The drop-in has all three services in it.
MOST_BYTES_OF_ALL = 40_000_000
PT_INTERP = 3
# As images/build takes them; with the number that ELF and the name that Rust has for each.
ARCHS = sorted(os.environ.get("ARCHS", "amd64 arm64").split())
MACHINES = {"amd64": 62, "arm64": 183}
CPUS = {"amd64": "x86_64", "arm64": "aarch64"}
INDEX = "application/vnd.oci.image.index.v1+json"
# Below a second on an idle machine.
REGISTRY_BOUND_SECONDS = 30
COMMAND_LINE = "watchdogctl"
DROP_IN = "dependency-watchdog"
PROGRAMS = [*SERVICES, COMMAND_LINE, DROP_IN]
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


@dataclasses.dataclass(frozen=True)
class Image:
    """The image of a program for one architecture; `root` is a folder that has its files and may be written to."""

    program: str
    arch: str
    config: dict
    root: Path

    @property
    def path(self) -> str:
        """Of the program, below the root."""
        return PATHS.get(self.program, self.program)

    def emulator(self) -> list[str]:
        """What runs the program on this machine, in the root."""
        if self.arch != "arm64":
            return []
        name = "emulator"
        shutil.copy(os.environ["QEMU_ARM64"], self.root / name)
        # The oldest processor that arm64 stands for: without the atomic instructions of later ones.
        return [f"/{name}", "-cpu", "cortex-a53"]

    def run(self, *arguments):
        """Runs the program as in a container."""
        command = ["chroot", self.root, *self.emulator(), f"/{self.path}", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)


def of_every_architecture(programs):
    """Parameters of the fixture `image`."""
    return [pytest.param((program, arch), id=f"{program}-{arch}") for program in programs for arch in ARCHS]


@pytest.fixture(scope="module", params=of_every_architecture(PROGRAMS))
def image(request, buildah):
    program, arch = request.param
    pulled = buildah("pull", "--quiet", "--arch", arch, f"oci-archive:{IMAGES / program}.oci.tar")
    container = buildah("from", pulled)
    inspected = json.loads(buildah("inspect", "--type", "image", pulled))["OCIv1"]
    assert (inspected["os"], inspected["architecture"]) == ("linux", arch)
    return Image(program, arch, inspected["config"], Path(buildah("mount", container)))


@pytest.mark.parametrize("program", PROGRAMS)
def test_archive_has_one_index_with_an_image_for_every_architecture(program):
    with tarfile.open(IMAGES / f"{program}.oci.tar") as archive:
        (index,) = json.load(archive.extractfile("index.json"))["manifests"]
        platforms = [manifest["platform"] for manifest in blob(archive, index)["manifests"]]
    assert index["mediaType"] == INDEX and index["digest"] == published()[program]
    assert platforms == [{"os": "linux", "architecture": arch} for arch in ARCHS]


def test_small_and_nothing_but_what_is_needed(image):
    files = {str(path.relative_to(image.root)): path.stat().st_size for path in image.root.rglob("*") if path.is_file()}
    bill = f"usr/share/sbom/{image.program}.cdx.json"
    assert set(files) == {image.path, "etc/ssl/certs/ca-certificates.crt", bill}
    assert sum(files.values()) < (MOST_BYTES_OF_ALL if image.program == DROP_IN else MOST_BYTES)
    assert (image.root / image.path).stat().st_mode & 0o7777 == 0o555


def test_runs_as_nobody_what_the_chart_expects(image):
    assert image.config["User"] == "65532:65532"
    assert image.config["Entrypoint"] == [f"/{image.path}"]
    assert sorted(image.config.get("ExposedPorts") or []) == PORTS.get(image.program, ["9643", "9645"])
    assert ("MIMALLOC_PURGE_DELAY=1000" in (image.config.get("Env") or [])) == (image.program != COMMAND_LINE)
    labels = {name.removeprefix("org.opencontainers.image."): value for name, value in image.config["Labels"].items()}
    assert labels["licenses"] == "Apache-2.0" and labels["title"] == f"dependency-watchdog/{image.program}"
    assert len(labels["revision"]) == 40
    # Of the builder nothing is named, so that its version changes no digest.
    assert set(labels) <= {"licenses", "title", "version", "revision", "source"}


def test_program_is_static_and_tells_nothing_of_the_machine(image):
    program = (image.root / image.path).read_bytes()
    assert program.startswith(b"\x7fELF") and struct.unpack_from("<H", program, 18) == (MACHINES[image.arch],)
    offset, size, count = struct.unpack_from("<Q", program, 32) + struct.unpack_from("<HH", program, 54)
    kinds = {struct.unpack_from("<I", program, offset + size * i)[0] for i in range(count)}
    assert PT_INTERP not in kinds
    for path in str(ROOT), str(Path.home()):
        assert path.encode() + b"/" not in program


def test_bill_of_materials_is_that_of_the_lock_file(image):
    text = (image.root / f"usr/share/sbom/{image.program}.cdx.json").read_text()
    assert text == (IMAGES / image.arch / f"{image.program}.cdx.json").read_text()
    bill = json.loads(text)
    assert bill["bomFormat"] == "CycloneDX" and bill["metadata"]["component"]["name"] == image.program
    locked = {(p["name"], p["version"]) for p in tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]}
    parts = {(part["name"], part["version"]) for part in bill["components"]}
    assert parts <= locked
    names = {name for name, _ in parts}
    own = "watchdog-client" if image.program == COMMAND_LINE else "watchdog-runtime"
    assert {"tokio", "tonic", "rustls", "kube-client", own} <= names
    # What only tests need is not in the image.
    assert not {"proptest", "turmoil", "insta"} & names
    target = {"name": "cdx:rustc:sbom:target:triple", "value": f"{CPUS[image.arch]}-unknown-linux-gnu"}
    assert target in bill["metadata"]["properties"]
    assert all(part.get("licenses") for part in bill["components"])
    assert str(ROOT) not in text


def test_the_same_when_put_together_again(tmp_path):
    shutil.copytree(IMAGES, tmp_path, ignore=shutil.ignore_patterns("*.tar"), dirs_exist_ok=True)
    (first, *_) = (IMAGES / "digests.txt").read_text().splitlines()
    tag = first.rsplit(":", 1)[1]
    with tarfile.open(IMAGES / f"{SERVICES[0]}.oci.tar") as archive:
        (index,) = json.load(archive.extractfile("index.json"))["manifests"]
        made = blob(archive, blob(archive, blob(archive, index)["manifests"][0])["config"])
    labels = made["config"]["Labels"]
    created = datetime.datetime.fromisoformat(made["created"].replace("Z", "+00:00"))
    environment = os.environ | {"SOURCE_DATE_EPOCH": str(int(created.timestamp()))}
    environment["REVISION"] = labels["org.opencontainers.image.revision"]
    environment["SOURCE_URL"] = labels.get("org.opencontainers.image.source", "")
    assembled = [ROOT / "images" / "assemble", tmp_path, tag]
    result = subprocess.run(assembled, env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    for file in [*IMAGES.glob("*.tar"), IMAGES / "digests.txt"]:
        assert (tmp_path / file.name).read_bytes() == file.read_bytes(), file.name


def test_toolchain_is_named_for_every_architecture():
    tools = [line.split() for line in (IMAGES / "toolchain.txt").read_text().splitlines()]
    parts = "rust", "gcc", "binutils", "libgcc", "libc", "linux"
    assert sorted(name for name, *_ in tools) == sorted(f"{arch}/{part}" for arch in ARCHS for part in parts)
    pinned = tomllib.loads((ROOT / "rust-toolchain.toml").read_text())["toolchain"]["channel"]
    for name, uri, *digest in tools:
        if name.endswith("/rust"):
            assert uri.endswith(f"@refs/tags/{pinned}") and digest[0].startswith("gitCommit:")
        else:
            assert uri.startswith("pkg:deb/debian/") and "@" in uri
        # The C library of the cross compiler gets no security fixes.
        assert not name.endswith("/libc") or uri.endswith(f"?arch={name.removesuffix('/libc')}")


@pytest.fixture
def registry(tmp_path):
    """An empty registry, Debian's."""
    port = free_port()
    stored = {"filesystem": {"rootdirectory": str(tmp_path / "registry")}}
    config = {"version": 0.1, "storage": stored, "http": {"addr": f"127.0.0.1:{port}"}}
    (tmp_path / "registry.yml").write_text(json.dumps(config))
    with open(tmp_path / "registry.log", "wb") as log:
        process = subprocess.Popen([os.environ["REGISTRY"], "serve", tmp_path / "registry.yml"], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + REGISTRY_BOUND_SECONDS
        while not answers(f"http://127.0.0.1:{port}/v2/"):
            assert process.poll() is None and time.monotonic() < deadline, (tmp_path / "registry.log").read_text()
            time.sleep(0.1)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=REGISTRY_BOUND_SECONDS)


def answers(url: str) -> bool:
    """Whether somebody is there."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status == 200
    except urllib.error.URLError:
        return False


@pytest.mark.parametrize("program", PROGRAMS)
def test_registry_has_the_published_digest_and_every_architecture(registry, program):
    name = f"dependency-watchdog/{program}"
    # As docs/how-to/install.md has it.
    command = ["skopeo", "copy", "--all", f"oci-archive:{IMAGES / program}.oci.tar", f"docker://{registry}/{name}:test"]
    result = subprocess.run([*command, "--dest-tls-verify=false"], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr

    def manifest(reference: str, kind: str) -> dict:
        request = urllib.request.Request(f"http://{registry}/v2/{name}/manifests/{reference}", headers={"Accept": kind})
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert answer.headers["Content-Type"] == kind
            return json.load(answer)

    images = manifest(published()[program], INDEX)["manifests"]
    assert [image["platform"]["architecture"] for image in images] == ARCHS
    for image in images:
        assert manifest(image["digest"], image["mediaType"])["layers"]


@pytest.fixture(scope="module")
def seed(tmp_path_factory):
    with Incident(tmp_path_factory.mktemp("incident")) as started:
        yield started


@pytest.mark.parametrize("image", of_every_architecture(SERVICES), indirect=True)
@pytest.mark.parametrize("resolved", ["by-hosts-file", "by-name-server"])
def test_starts_from_the_image_and_finds_the_seed_by_name(image, seed, resolved):
    service, root = image.program, image.root
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
        started = Program(folder, service, config, kubeconfig, replica=9, image=root, emulator=image.emulator())
        with started as program:
            program.wait_until_readyz_says("ready\n")
            assert "watchdog_membership_lease_valid{" in program.metrics()
            status = Path(f"/proc/{program.pid}/status").read_text()
            assert "Uid:\t65532\t65532" in status and "CapEff:\t0000000000000000" in status
        assert (names.asked > 0) == (resolved == "by-name-server")


def test_says_its_version_and_its_options(image):
    version = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    said = image.run("--version")
    assert (said.returncode, said.stdout) == (0, f"{image.program} {version}\n"), said.stderr
    said = image.run("--help")
    assert said.returncode == 0 and "--help" in said.stdout, said.stderr


@pytest.mark.parametrize("image", of_every_architecture([DROP_IN]), indirect=True)
def test_drop_in_reads_the_file_of_gardenlet(image):
    (image.root / "dep-config.yaml").write_text(PROBER)
    result = image.run("prober", "--config-file=/dep-config.yaml", "--check-config")
    assert result.returncode == 0, result.stderr


def blob(archive: tarfile.TarFile, descriptor: dict) -> dict:
    """What a descriptor of an archive names."""
    return json.load(archive.extractfile(f"blobs/{descriptor['digest'].replace(':', '/')}"))


def published() -> dict[str, str]:
    """The digest of every program, which people pin."""
    lines = (line.split() for line in (IMAGES / "digests.txt").read_text().splitlines())
    return {name.removeprefix("dependency-watchdog/").rsplit(":", 1)[0]: digest for digest, name in lines}
