"""A release: what it is made from, and that its signatures hold, without a network."""

import base64
import hashlib
import json
import shutil
import subprocess
import tarfile
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader

import pytest
from chart import ROOT

ATTEST = ROOT / "images" / "attest"
REVISION, SOURCE = "0123456789abcdef0123456789abcdef01234567", "https://git.example.org/watchdog"
IMAGE, PACKAGE = "ab" * 32, "cd" * 32


@pytest.fixture
def keys(tmp_path):
    """A private and a public key, and another public one."""
    for name in "own", "other":
        private = tmp_path / f"{name}.pem"
        subprocess.run(["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", private], check=True)
        subprocess.run(["openssl", "pkey", "-in", private, "-pubout", "-out", tmp_path / f"{name}.pub"], check=True)
    return tmp_path / "own.pem", tmp_path / "own.pub", tmp_path / "other.pub"


@pytest.fixture
def release(tmp_path, keys):
    """A folder with a few files, signed."""
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "weeder.oci.tar").write_bytes(b"an image")
    (folder / "weeder.cdx.json").write_text("{}")
    (folder / "digests.txt").write_text(f"sha256:{IMAGE}  dependency-watchdog/weeder:0.1.0\n")
    (folder / "toolchain.txt").write_text(
        f"arm64/rust git+https://git.example.org/rust@refs/tags/1.0.0 gitCommit:{REVISION}\n"
        f"arm64/libc pkg:deb/debian/libc6-dev@2.36?arch=arm64 sha256:{PACKAGE}\n"
        "amd64/libc pkg:deb/debian/libc6-dev@2.35?arch=amd64\n"
    )
    subprocess.run([ATTEST, "state", folder, "0.1.0", REVISION, SOURCE], check=True)
    # Nothing but the folder, the key and the script.
    alone = tmp_path / "attest"
    shutil.copy(ATTEST, alone)
    subprocess.run([alone, "sign", folder, keys[0]], check=True, cwd=tmp_path)
    return folder


def refusal(folder, key, version="0.1.0") -> str:
    """Why it is refused; empty when it is not."""
    done = subprocess.run([ATTEST, "verify", folder, key, version], capture_output=True, text=True)
    assert bool(done.returncode) == bool(done.stderr), done
    return done.stderr.strip()


def test_what_was_signed_is_accepted_and_nothing_else(release, keys):
    _, public, other = keys
    assert refusal(release, public) == ""
    assert refusal(release, other).startswith("SHA256SUMS is not signed by this key: do not install")
    assert refusal(release, public, "0.2.0").startswith("provenance.json is that of version 0.1.0, not 0.2.0: do not")
    (release / "weeder.oci.tar").write_bytes(b"another image")
    assert refusal(release, public).startswith("weeder.oci.tar is not the file that SHA256SUMS lists: ")
    (release / "weeder.oci.tar").write_bytes(b"an image")
    (release / "added").write_text("")
    assert refusal(release, public).startswith("added is not the file that SHA256SUMS lists: ")
    (release / "added").unlink()
    provenance = json.loads((release / "provenance.json").read_text())
    payload = base64.b64decode(provenance["payload"]).replace(REVISION.encode(), b"f" * 40)
    provenance["payload"] = base64.b64encode(payload).decode()
    (release / "provenance.json").write_text(json.dumps(provenance))
    assert refusal(release, public).startswith("provenance.json is not signed by this key: ")


def test_what_changed_after_the_statement_is_not_signed(release, keys):
    (release / "weeder.cdx.json").write_text("{ }")
    done = subprocess.run([ATTEST, "sign", release, keys[0]], capture_output=True, text=True)
    assert done.returncode and "weeder.cdx.json is not the file that SHA256SUMS lists" in done.stderr


def test_the_provenance_has_the_form_of_slsa(release):
    """https://slsa.dev/spec/v1.0/provenance and https://github.com/in-toto/attestation, v1."""
    envelope = json.loads((release / "provenance.json").read_text())
    assert envelope["payloadType"] == "application/vnd.in-toto+json"
    found = json.loads(base64.b64decode(envelope["payload"]))
    assert found["_type"] == "https://in-toto.io/Statement/v1"
    assert found["predicateType"] == "https://slsa.dev/provenance/v1"
    subjects = {subject["name"]: subject["digest"]["sha256"] for subject in found["subject"]}
    assert subjects["weeder.oci.tar"] == hashlib.sha256(b"an image").hexdigest()
    assert subjects["dependency-watchdog/weeder"] == IMAGE, "what a registry has"
    build, run = found["predicate"]["buildDefinition"], found["predicate"]["runDetails"]
    assert set(build) == {"buildType", "externalParameters", "internalParameters", "resolvedDependencies"}
    source, *pinned, rust, libc, old_libc = build["resolvedDependencies"]
    assert source == {"uri": f"git+{SOURCE}@refs/tags/v0.1.0", "digest": {"gitCommit": REVISION}}
    lock = hashlib.sha256((ROOT / "Cargo.lock").read_bytes()).hexdigest()
    assert {"name": "Cargo.lock", "digest": {"sha256": lock}} in pinned
    compiler = {"name": "arm64/rust", "uri": "git+https://git.example.org/rust@refs/tags/1.0.0"}
    assert rust == compiler | {"digest": {"gitCommit": REVISION}}
    library = {"name": "arm64/libc", "uri": "pkg:deb/debian/libc6-dev@2.36?arch=arm64"}
    assert libc == library | {"digest": {"sha256": PACKAGE}}
    assert old_libc == {"name": "amd64/libc", "uri": "pkg:deb/debian/libc6-dev@2.35?arch=amd64"}
    assert run["builder"]["id"].startswith(SOURCE) and build["buildType"].startswith(SOURCE)


def test_the_signature_is_one_over_the_encoding_of_dsse(release, keys, tmp_path):
    """https://github.com/secure-systems-lab/dsse, spelt out here once more."""
    envelope = json.loads((release / "provenance.json").read_text())
    payload = base64.b64decode(envelope["payload"])
    head = f"DSSEv1 28 application/vnd.in-toto+json {len(payload)} ".encode()
    (signature,) = envelope["signatures"]
    (tmp_path / "sig").write_bytes(base64.b64decode(signature["sig"]))
    check = ["openssl", "dgst", "-sha256", "-verify", keys[1], "-signature", tmp_path / "sig"]
    assert subprocess.run(check, input=head + payload, capture_output=True).returncode == 0


def test_a_release_is_made_of_a_tag_alone(tmp_path, monkeypatch):
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", "--shared", ROOT, clone], check=True)
    for script in "release", "attest":
        shutil.copy(ROOT / "images" / script, clone / "images" / script)
    git = ["git", "-C", clone, "-c", "user.name=a", "-c", "user.email=a@b.test"]
    subprocess.run([*git, "add", "--all"], check=True)
    subprocess.run([*git, "commit", "--quiet", "--allow-empty", "--message", "the scripts as they are"], check=True)

    def refused() -> str:
        done = subprocess.run([clone / "images" / "release"], capture_output=True, text=True, timeout=60)
        assert done.returncode == 1 and "what to do: " in done.stderr
        return done.stderr

    assert "no tag is checked out" in refused()
    subprocess.run([*git, "tag", "v9.9.9"], check=True)
    assert "the tag is v9.9.9, and Cargo.toml has version 0.1.0" in refused()
    subprocess.run([*git, "tag", "--delete", "v9.9.9"], check=True, capture_output=True)
    subprocess.run([*git, "tag", "v0.1.0"], check=True)
    assert "SOURCE_URL is not set" in refused()
    monkeypatch.setenv("SIGNING_KEY", "key.pem")
    assert "SIGNING_KEY is set, where packages are installed" in refused()
    (clone / "added").write_text("")
    assert "not committed" in refused()


def test_krew_installs_watchdogctl_from_the_archives_of_the_release(tmp_path):
    loader = SourceFileLoader("publish", str(ROOT / ".github" / "publish"))
    publish = module_from_spec(spec_from_loader("publish", loader))
    loader.exec_module(publish)
    program = tmp_path / "program"
    program.write_bytes(b"a program")
    for triple in publish.PLATFORMS:
        publish.pack(program, triple, tmp_path)
    manifest = json.loads(publish.krew_manifest(tmp_path, SOURCE))
    assert (manifest["kind"], manifest["metadata"]["name"]) == ("Plugin", "watchdog")
    spec, version = manifest["spec"], publish.version()
    assert spec["version"] == f"v{version}" and len(spec["shortDescription"]) <= 60
    assert len(spec["platforms"]) == 4
    for platform in spec["platforms"]:
        labels = platform["selector"]["matchLabels"]
        name = f"watchdogctl-{labels['os']}-{labels['arch']}.tar.gz"
        assert platform["uri"] == f"{SOURCE}/releases/download/v{version}/{name}"
        assert platform["sha256"] == hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()
        with tarfile.open(tmp_path / name) as archive:
            assert archive.getnames() == [platform["bin"], "LICENSE"]
            assert archive.getmember(platform["bin"]).mode == 0o755
