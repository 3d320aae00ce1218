"""Stands in for the helm command where there is none: as much of it as the documents use to install, by Helm's own
library.

    helm_command.py upgrade [--install] [--reset-then-reuse-values] -n NAMESPACE RELEASE CHART [-f FILE]
        [--set KEY=VALUE]...
"""

import argparse
import os
from pathlib import Path

import helm_python as helm
import yaml


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["upgrade"])
    parser.add_argument("--install", action="store_true")
    parser.add_argument("--reset-then-reuse-values", action="store_true")
    parser.add_argument("-n", "--namespace", required=True)
    parser.add_argument("release")
    parser.add_argument("chart", type=Path)
    parser.add_argument("-f", "--values", type=Path)
    parser.add_argument("--set", action="append", default=[])
    asked = parser.parse_args()
    kubeconfig = Path(os.environ["KUBECONFIG"]).read_text()
    with helm.Config(kubeconfig_content=kubeconfig, namespace=asked.namespace) as config:
        try:
            known = bool(config.history(asked.release))
        except helm.HelmError:
            known = False
        values = config.get_values(asked.release) or {} if known and asked.reset_then_reuse_values else {}
        set_values(values, asked)
        if known or not asked.install:
            release = config.upgrade(asked.chart, asked.release, values, reset_values=True)
        else:
            release = config.install(asked.chart, asked.release, values)
        print(release.get("notes", ""))


def set_values(values: dict, asked: argparse.Namespace) -> None:
    """Adds those of the command line."""
    values |= yaml.safe_load(asked.values.read_text()) if asked.values else {}
    for assignment in asked.set:
        key, _, value = assignment.partition("=")
        *folders, name = key.split(".")
        place = values
        for folder in folders:
            place = place.setdefault(folder, {})
        place[name] = {"true": True, "false": False}.get(value, int(value) if value.isdigit() else value)


if __name__ == "__main__":
    main()
