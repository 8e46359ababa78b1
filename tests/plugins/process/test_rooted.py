"""Files below a root, whatever links there say."""

from __future__ import annotations

import os

import pytest
from agent_env_process.rooted import MOST_FOLDERS, Rooted


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "root"
    (root / "app/deep").mkdir(parents=True)
    (root / "app/file").write_bytes(b"inside")
    (tmp_path / "file").write_bytes(b"outside")
    return root


@pytest.mark.parametrize("target", ["/app/file", "file", "../app/file", "../../../../app/file", "/../../app/./file"])
def test_links_are_followed_inside(root, target):
    (root / "app/link").symlink_to(target)
    assert Rooted(root).read("/app/link") == b"inside"
    Rooted(root).write("/app/link", b"changed")
    assert (root / "app/file").read_bytes() == b"changed"
    assert (root / "app/link").is_symlink()


def test_no_path_leads_out(root, tmp_path):
    files = Rooted(root)
    (root / "out").symlink_to(tmp_path)
    (root / "up").symlink_to("../..")
    for path in ("/../file", f"/{tmp_path}/file", "/out/file", "/up/file", "/app/../../file"):
        with pytest.raises(FileNotFoundError) as caught:
            files.read(path)
        assert caught.value.filename == path
    files.write("/out/made", b"x")
    assert (root / str(tmp_path)[1:] / "made").read_bytes() == b"x", "a link is followed as the sandbox would"
    assert not (tmp_path / "made").exists()


def test_errors_are_those_of_local_files(root):
    files = Rooted(root)
    (root / "loop").symlink_to("loop")
    os.mkfifo(root / "pipe")
    for path, error in {
        "/none": FileNotFoundError,
        "/": IsADirectoryError,
        "/app": IsADirectoryError,
        "/app/..": IsADirectoryError,
        "/app/file/x": NotADirectoryError,
        "/loop": PermissionError,
        "/pipe": PermissionError,
    }.items():
        with pytest.raises(error):
            files.read(path)
        if error is not FileNotFoundError:
            with pytest.raises(error):
                files.write(path, b"")
    with pytest.raises(ValueError, match="not an absolute path"):
        files.read("app/file")


def test_a_write_makes_folders_and_replaces(root):
    files = Rooted(root)
    files.write("/new/folder//x", b"long content")
    files.write("/new/folder/x", b"short")
    assert files.read("/new/./folder/x") == b"short"
    assert files.is_folder("/new/folder/")
    assert files.is_folder("/")
    assert not files.is_folder("/new/folder/x")
    assert not files.is_program("/new/folder/x")
    (root / "new/folder/x").chmod(0o755)
    assert files.is_program("/new/folder/x")
    assert files.status("/none") is None


def test_descriptors_are_given_back(root):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        test_files = Rooted(root)
        test_files.read("/app/file")
        with pytest.raises(FileNotFoundError):
            test_files.read("/app/deep/../none/x")
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_path_of_any_depth_takes_few_descriptors(root):
    files = Rooted(root)
    deep = "/".join(["app"] + ["d"] * MOST_FOLDERS)
    with pytest.raises(PermissionError, match="too long") as caught:
        files.write(f"/{deep}/file", b"x")
    assert caught.value.filename == f"/{deep}/file"
    (root / "short").symlink_to("/".join(["app"] + ["d"] * (MOST_FOLDERS - 1)))
    with pytest.raises(PermissionError, match="too long"):
        files.read("/short/d/file")
    files.write("/app/" + "../app/" * MOST_FOLDERS + "file", b"y")
    assert files.read("/app/file") == b"y"


def test_a_file_larger_than_memory_is_refused(root):
    with open(root / "app/sparse", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(PermissionError, match="more than 512 MiB"):
        Rooted(root).read("/app/sparse")
