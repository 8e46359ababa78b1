"""What a sandbox with namespaces of its own sees of this machine: a list of what is let in, and nothing else.

The sandbox's own folder is ``/``, writable. Over it lie, read-only, the machine's programs and libraries, a few files
of ``/etc`` that programs need (names, certificates, time zones), the Python that the image uses, and its packages.
Homes, other sandboxes, sockets of daemons, keys and everything that no list here names isn't there.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agent_env_process.images import PreparedImage

PROGRAMS = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store",
)  # fmt: skip
"""Where machines keep programs and libraries, and no secrets."""

ETC = (
    "alternatives", "ca-certificates", "crypto-policies", "debian_version", "fonts", "gai.conf", "host.conf", "hosts",
    "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "mime.types", "nsswitch.conf", "os-release",
    "pki/ca-trust", "pki/tls/cert.pem", "pki/tls/certs", "protocols", "resolv.conf", "services", "ssl/cert.pem",
    "ssl/certs", "ssl/openssl.cnf", "terminfo", "timezone",
)  # fmt: skip
"""Parts of ``/etc`` that programs expect. Private keys lie beside some of them, so no folder is let in as a whole."""

PREFIX_PARTS = ("bin", "include", "lib", "lib32", "lib64", "share", "ssl")
"""The parts of a Python's prefix that are let in: the prefix may be a home folder."""

ACCOUNTS = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
}
"""The sandbox's own accounts; the machine's are nobody's business."""


@dataclass(frozen=True)
class Mount:
    """Something to put in place.

    Attributes:
        kind: ``readonly`` shows a file or folder of this machine with all below it; ``symlink`` makes a link to
            ``source``; ``proc`` and ``dev`` make what their names say.
        target: Absolute path in the sandbox.
        source: Absolute path on this machine, or where the link points.
    """

    kind: Literal["readonly", "symlink", "proc", "dev"]
    target: str
    source: str = ""


SYSTEM = (Mount("proc", "/proc"), Mount("dev", "/dev"))
"""What every sandbox has. Root of the machine may steer it by ``/proc`` even without a single capability, so all of
that is read-only."""


def visible(image: PreparedImage, libraries: Iterable[str] = ()) -> tuple[Mount, ...]:
    """The mounts of a sandbox of ``image``, in order.

    Args:
        image: Its own files win over the machine's.
        libraries: More folders that its programs load libraries from.
    """
    mounts = [mount for path in PROGRAMS for mount in _shown(path, image.owned)]
    for name in ETC:
        path = f"/etc/{name}"
        if os.path.exists(path) and not _touched(path, image.owned):
            mounts.append(Mount("readonly", path, os.path.realpath(path)))
    folders = [os.path.join(image.prefix, part) for part in PREFIX_PARTS] if image.prefix else []
    for folder in dict.fromkeys([*folders, *libraries, str(image.venv)]):
        if os.path.isdir(folder) and not _below(folder, PROGRAMS):
            mounts.append(Mount("readonly", folder, os.path.realpath(folder)))
    return (*mounts, *SYSTEM)


def accounts(root: Path) -> None:
    """Writes the sandbox's own account files, where the image brings none."""
    for name, text in ACCOUNTS.items():
        place = root / name
        if not os.path.lexists(place):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, encoding="utf-8")


def _shown(path: str, owned: Iterable[str]) -> Iterator[Mount]:
    """A folder of this machine; where the image has files in it, what lies beside those, one by one."""
    if path in owned or not os.path.exists(path):
        return
    if not any(own.startswith(path + "/") for own in owned):
        yield Mount("readonly", path, os.path.realpath(path))
        return
    for name in sorted(os.listdir(path)):
        inner = f"{path}/{name}"
        if os.path.islink(inner) and not _touched(inner, owned):
            yield Mount("symlink", inner, os.readlink(inner))
        else:
            yield from _shown(inner, owned)


def _touched(path: str, owned: Iterable[str]) -> bool:
    return any(own == path or own.startswith(path + "/") for own in owned)


def _below(path: str, folders: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(folder + "/") for folder in folders)
