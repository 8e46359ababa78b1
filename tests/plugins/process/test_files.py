"""Removing folders that a sandbox has made."""

from __future__ import annotations

import os
import sys

from agent_env_process.files import remove_tree


def test_a_tree_of_any_depth_is_removed(tmp_path, monkeypatch):
    top = tmp_path / "top"
    top.mkdir()
    monkeypatch.chdir(top)
    for _ in range(2 * sys.getrecursionlimit()):
        os.mkdir("d")
        os.chdir("d")
    os.chdir(tmp_path)
    (top / "link").symlink_to(tmp_path / "kept")
    (tmp_path / "kept").mkdir(mode=0o500)
    assert remove_tree(top)
    assert os.listdir(tmp_path) == ["kept"]
    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o500
