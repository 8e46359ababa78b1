"""The table of faults in the documentation names tests that there are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "sandboxes.md"


def test_every_fault_names_its_test(missing_tests: Callable[[str], list[str]]) -> None:
    assert missing_tests(PAGE.read_text(encoding="utf-8")) == []
