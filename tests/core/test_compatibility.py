"""``docs/compatibility.md``: what the format says is held by tests that there are."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "compatibility.md").read_text(encoding="utf-8")


def test_every_test_on_the_page_is_there(missing_tests: Callable[[str], list[str]]) -> None:
    assert missing_tests(PAGE) == []


def test_every_line_of_the_format_is_held() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| what the format")]
    assert len(rows) > 60
    assert [row for row in rows if not re.search(r"`tests/[^`]+::test_", row)] == []
