"""Copying and removing folders, the parts that ``shutil`` does slower or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path


def copy_tree(source: Path, target: Path, link: Callable[[str], str] = str) -> None:
    """Copies what is in ``source`` into ``target``, over what is there; both are folders.

    Modes and modification times are kept: compiled Python is valid only beside a source of the same age. Sockets,
    devices and pipes are left out.

    Args:
        source: An existing folder.
        target: Made if it doesn't exist.
        link: Applied to where each symbolic link points.
    """
    target.mkdir(exist_ok=True)
    with os.scandir(source) as entries:
        for entry in entries:
            place = target / entry.name
            if entry.is_symlink():
                place.unlink(missing_ok=True)
                place.symlink_to(link(os.readlink(entry.path)))
            elif entry.is_dir():
                copy_tree(Path(entry.path), place, link)
            elif entry.is_file():
                copy_file(Path(entry.path), place)


def copy_file(source: Path, target: Path) -> None:
    """Copies one file with its mode and age, replacing what is there."""
    if target.is_symlink():
        target.unlink()
    shutil.copyfile(source, target)
    facts = source.stat()
    os.chmod(target, facts.st_mode & 0o777 | 0o200)
    os.utime(target, ns=(facts.st_atime_ns, facts.st_mtime_ns))


def remove_tree(path: Path) -> bool:
    """Removes a folder with everything in it, whatever a sandbox made of it.

    Returns:
        Whether nothing is left.
    """
    with contextlib.suppress(RecursionError):  # folders in folders, by the thousand
        shutil.rmtree(path, ignore_errors=True)
    if path.exists():  # those, or folders without the permission to write: these programs take any depth
        for command in (["chmod", "-R", "u+rwx"], ["rm", "-rf"]):
            subprocess.run([*command, "--", path], stderr=subprocess.DEVNULL, check=False)
    return not path.exists()


def folder_size(path: Path) -> int:
    """Bytes that a folder takes on disk; what can't be looked at counts nothing."""
    total, folders = 0, [os.fspath(path)]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
        except OSError:
            continue
    return total
