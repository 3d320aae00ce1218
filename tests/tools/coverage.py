"""Turns the report of cargo-tarpaulin into docs/contributing/coverage.md, and says what is not covered."""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

HEAD = """\
# Coverage

Lines of `services/` and `proto/` that unit and in-process tests execute. `make coverage` writes this page, prints the
uncovered places, and fails below {least} %. End-to-end tests, which run the programs as processes, do not count.

**{share:.1f} %** of {coverable:,} lines.

| crate | lines | covered |
| --- | --- | --- |
"""

# Up to this many uncovered lines in a file are error branches and the like.
MOST = 12
# Ranges named for a file at most; more say only that much is missing.
RANGES = 8


def ranges(lines: list[int]) -> str:
    """[1, 2, 3, 7] -> "1-3, 7". Lines between which there is no code are one range."""
    found: list[list[int]] = []
    for line in lines:
        if found and line - found[-1][1] <= 2:
            found[-1][1] = line
        else:
            found.append([line, line])
    found.sort(key=lambda pair: pair[0] - pair[1])
    shown = sorted(found[:RANGES])
    text = ", ".join(f"{first}-{last}" if first != last else str(first) for first, last in shown)
    return text + (", ..." if len(found) > RANGES else "")


def crate_of(path: Path) -> str:
    parts = path.parts
    return "/".join(parts[: parts.index("src")]) if "src" in parts else str(path.parent)


def main() -> int:
    report, least = json.loads(Path(sys.argv[1]).read_text()), float(sys.argv[2])
    crates: dict[str, list[int]] = {}
    places = []
    for file in report["files"]:
        path = Path(*file["path"])
        path = path.relative_to(ROOT) if path.is_absolute() else path
        if path.parts[0] not in ("services", "proto") or "src" not in path.parts:
            continue
        traces = file["traces"]
        hit = [trace["line"] for trace in traces if trace["stats"]["Line"] > 0]
        missed = sorted(trace["line"] for trace in traces if trace["stats"]["Line"] == 0)
        counts = crates.setdefault(crate_of(path), [0, 0])
        counts[0] += len(hit)
        counts[1] += len(traces)
        if len(missed) > MOST:
            places.append((path, len(hit), len(traces), missed))
    covered, coverable = (sum(counts[i] for counts in crates.values()) for i in (0, 1))
    share = 100 * covered / coverable
    page = HEAD.format(least=sys.argv[2], share=share, coverable=coverable)
    for crate, (hit, all_lines) in sorted(crates.items()):
        of_it = f"{100 * hit / all_lines:.1f} %" if all_lines else "all of it is generated"
        page += f"| {crate} | {all_lines:,} | {of_it} |\n"
    (ROOT / "docs" / "contributing" / "coverage.md").write_text(page)
    for path, hit, all_lines, missed in sorted(places):
        print(f"{path}: {100 * hit / all_lines:.0f} %, without lines {ranges(missed)}")
    print(f"{share:.1f} % of {coverable} lines are covered")
    return 0 if share >= least else 1


if __name__ == "__main__":
    sys.exit(main())
