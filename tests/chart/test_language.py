"""The lint of names and sentences finds what it is for, and nothing else."""

import subprocess

import pytest
from chart import ROOT

LINT = "tests/tools/lint-language"
EXCEPTIONS = 'unread = ["docs/old.md"]\nlong_lines = ["*.json"]\n[names]\n"both are parsers" = ["Reader"]\n'
GOOD = {
    "docs/page.md": "So many shoots changed that the queue grew. A 429 cannot be told apart from a timeout.\n",
    "docs/old.md": "It waits for ever.\n",
    "docs/long.md": f"| {'x' * 120} |\n\nSee https://example.org/{'x' * 120}\n\n```\n{'x' * 121}\n```\n",
    "generated.json": f'"{"x" * 120}"\n',
    "a/src/lib.rs": "/// A reader. What it reads is small.\npub struct Reader;\nstruct Once;\n",
    "b/src/lib.rs": (
        "//! The other one.\nstruct Reader;\n" 'fn f() { info!(%shoot, "stopped the probe"); g("it is ready"); }\n'
    ),
    "b/src/lib/tests.rs": "struct Once;\n",
}


@pytest.mark.parametrize(
    ("file", "text", "problem"),
    [
        ("docs/page.md", "One line.\nIt waits for\never.\n", 'docs/page.md:2: "for ever"'),
        ("charts/x/values.yaml", "# Whoever reads this.\n", 'charts/x/values.yaml:1: "Whoever"'),
        ("proto/x.proto", "// At most so many shoots.\n", 'proto/x.proto:1: "so many"'),
        ("a/src/lib.rs", "struct Reader;\n// It was\n// told to stop.\n", 'a/src/lib.rs:3: "told"'),
        ("docs/page.md", "At first sight it works. In sight of all it fails.\n", 'docs/page.md:1: "sight"'),
        ("proto/x.proto", "// A shoot.\n\n// Whether it is.\n", 'proto/x.proto:3: a doc comment begins with "Whether"'),
        ("a/src/lib.rs", 'struct Reader;\nfn f() { g("gone for ever"); }\n', 'a/src/lib.rs:2: "for ever"'),
        (
            "a/src/lib.rs",
            "struct Reader;\n/// Whether it is.\nfn f() {}\n",
            'a/src/lib.rs:2: a doc comment begins with "Whether"',
        ),
        (
            "a/src/lib.rs",
            'struct Reader;\nfn f() {\n  warn!(\n  "it left");\n}\n',
            'a/src/lib.rs:4: a log message begins with "it"',
        ),
        (
            "a/src/lib.rs",
            "struct Reader;\nenum Twice {}\n",
            "a/src/lib.rs: the name Twice is also defined in c/src/twice.rs",
        ),
        ("docs/page.md", f"{'é' * 120}\n{'x' * 121}\n", "docs/page.md:2: 121 columns"),
        ("a/src/lib.rs", "", "lint-language.toml: the name Reader is defined once only"),
    ],
)
def test_finds_it(tmp_path, file, text, problem):
    assert lint(tmp_path, GOOD) == ""
    found = lint(tmp_path, {file: text, "c/src/twice.rs": "type Twice = u8;\n"})
    assert len(found.splitlines()) == 1 and problem in found


def lint(folder, files) -> str:
    subprocess.run(["git", "init", "-q", folder], check=True, timeout=60)
    for name, text in {f"{LINT}.toml": EXCEPTIONS, **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    done = subprocess.run([ROOT / LINT, folder], capture_output=True, text=True, timeout=60)
    assert done.returncode == (1 if done.stdout else 0), done.stderr
    return done.stdout
