"""The scripts of documents, run as they stand there."""

import os
import subprocess
import sys
from pathlib import Path

from chart import CHART, ROOT, SERVICES
from programs import binary


def on_desk(server, chart, folder):
    """A function that runs a script as a user who may do everything, in a folder with the repository's chart and
    documents and the tools that the documents use."""
    (folder / "charts").mkdir()
    (folder / "charts" / CHART.name).symlink_to(chart)
    (folder / "docs").symlink_to(ROOT / "docs")
    tools = folder / "tools"
    tools.mkdir()
    command = Path(__file__).with_name("helm_command.py")
    (tools / "helm").write_text(f'#!/bin/sh\nexec "{sys.executable}" "{command}" "$@"\n')
    (tools / "helm").chmod(0o755)
    for program in *SERVICES, "watchdogctl":
        (tools / program).symlink_to(binary(program))
    kubeconfig = folder / "admin.kubeconfig"
    kubeconfig.write_text(server.kubeconfig())
    path = f"{tools}:{os.environ['PATH']}"

    def run(script: str) -> str:
        environment = os.environ | {"PATH": path, "KUBECONFIG": str(kubeconfig)}
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
        return done.stdout

    return run
