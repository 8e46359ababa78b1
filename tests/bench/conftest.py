"""The benchmark is no installed package: it's imported from the repository's root, as ``python -m bench`` does."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def bench_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """State and temporary files of what a test starts, where it can look for leftovers; images stay cached."""
    for variable, name in (("XDG_STATE_HOME", "state"), ("TMPDIR", "tmp")):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(variable, str(tmp_path / name))
