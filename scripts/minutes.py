"""Prints how long each stage of the build took, and the tests by folder: minutes.py STAGES [JUNIT_XML]."""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path, PurePosixPath
from xml.etree import ElementTree


def stages(path: Path) -> list[tuple[str, float, str]]:
    """The rows that ``stage.sh`` wrote: name, seconds, and a word where it failed."""
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    return [(name, float(seconds), "" if status == "0" else "failed") for name, seconds, status in rows]


def folders(path: Path) -> list[tuple[str, float, str]]:
    """The time of the tests in each folder, from pytest's JUnit report, slowest first."""
    seconds: dict[str, float] = defaultdict(float)
    tests: dict[str, int] = defaultdict(int)
    failed: dict[str, int] = defaultdict(int)
    for case in ElementTree.parse(path).iter("testcase"):  # noqa: S314  (our own test run wrote it)
        folder = str(PurePosixPath(case.get("file", "?")).parent)
        seconds[folder] += float(case.get("time", "0"))
        tests[folder] += 1
        failed[folder] += any(child.tag in ("failure", "error") for child in case)
    rows = sorted(seconds, key=lambda folder: -seconds[folder])
    return [(f"  {f}", seconds[f], f"{tests[f]} tests" + (f", {failed[f]} failed" if failed[f] else "")) for f in rows]


def main(arguments: list[str]) -> None:
    """Prints the table; files that a failed build never wrote are left out."""
    paths = [Path(argument) for argument in arguments]
    rows = stages(paths[0]) if paths[0].exists() else []
    total = sum(seconds for _, seconds, _ in rows)
    if len(paths) > 1 and paths[1].exists():
        rows += folders(paths[1])
    width = max((len(name) for name, _, _ in rows), default=5)
    print(f"\n{'stage':<{width}}  minutes")
    for name, seconds, note in rows:
        print(f"{name:<{width}}  {seconds / 60:7.1f}  {note}".rstrip())
    print(f"{'all stages':<{width}}  {total / 60:7.1f}")


if __name__ == "__main__":
    main(sys.argv[1:])
