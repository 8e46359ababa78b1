#!/usr/bin/env python3
"""Writes the root file system of a small Debian with CPython to standard output, as a tar made of this host's files.

    hostclone.py PREFIX > rootfs.tar     the CPython whose sys.base_prefix is PREFIX goes to /usr/local
    hostclone.py debian > rootfs.tar     Debian's own python3; this host must have python3-pip and python3-venv

Test machines reach no image registry, so the base images of the Docker tests come from the host itself: the files of
the packages below with all they depend on (from dpkg's lists), the host's CA bundle and package-index settings, and
CPython with its compiled bytecode. Standard library only, no network; takes a few seconds.
"""

from __future__ import annotations

import io
import os
import re
import stat
import sys
import tarfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

PACKAGES = [
    "apt", "ca-certificates", "debian-archive-keyring", "libc-bin", "netbase", "passwd", "tzdata",
    # what CPython's extension modules link against
    "libbz2-1.0", "libcrypt1", "libexpat1", "libffi8", "libgcc-s1", "libgdbm6", "liblzma5", "libncursesw6", "libnsl2",
    "libreadline8", "libsqlite3-0", "libssl3", "libstdc++6", "libtirpc3", "libuuid1", "zlib1g",
]  # fmt: skip
DEBIAN_PYTHON = ["python3", "python3-pip", "python3-venv"]
DPKG = Path("/var/lib/dpkg")

#: Not worth their bytes in a test image.
UNWANTED = re.compile(
    r"^/usr/share/(doc|man|info|locale|lintian|bug|bash-completion|zsh|linda|doc-base)/|/EXTERNALLY-MANAGED$"
)
UNWANTED_IN_PYTHON = re.compile(
    r"^lib/python[^/]*/(test|idlelib|tkinter|turtledemo|turtle\.py|config-[^/]*|site-packages|__phello__|.*/tests?)(/|$)"
    r"|\.opt-[12]\.pyc$|_tkinter|/_test|/xxlimited"
)
#: What maintainer scripts or the installer made, which no package lists.
HOST_FILES = [
    "/etc/debian_version", "/etc/os-release", "/etc/ld.so.conf", "/etc/nsswitch.conf", "/etc/login.defs",
    "/etc/localtime", "/etc/pam.d/common-auth", "/etc/pam.d/common-account", "/etc/pam.d/common-password",
    "/etc/pam.d/common-session", "/etc/pam.d/common-session-noninteractive", "/etc/alternatives/awk",
    "/etc/alternatives/which", "/usr/bin/awk", "/usr/bin/which", "/etc/default/useradd", "/etc/apt/sources.list",
    "/etc/pip.conf", "/var/lib/dpkg/arch",
]  # fmt: skip
HOST_FOLDERS = [
    "/etc/ssl/certs", "/etc/apt/sources.list.d", "/etc/apt/apt.conf.d", "/etc/apt/trusted.gpg.d", "/etc/ld.so.conf.d",
    "/usr/local/share/ca-certificates",
]  # fmt: skip
EMPTY_FOLDERS = [
    "etc", "home", "proc", "root", "run/lock", "sys", "dev", "usr/bin", "usr/lib", "usr/lib64", "usr/sbin", "opt",
    "srv", "mnt", "media", "var/cache/apt/archives/partial", "var/lib/apt/lists/partial", "var/lib/dpkg/updates",
    "var/log/apt",
]  # fmt: skip


class Packages:
    """The installed packages, as dpkg's status file has them."""

    def __init__(self) -> None:
        self.fields: dict[str, dict[str, str]] = {}
        self.paragraphs: dict[str, str] = {}
        self._provided: dict[str, str] = {}
        for paragraph in (DPKG / "status").read_text(encoding="utf-8").split("\n\n"):
            lines = [line for line in paragraph.splitlines() if line[:1] not in ("", " ", "\t") and ":" in line]
            fields = {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}
            if fields.get("Status", "").endswith(" installed"):
                self.fields[fields["Package"]] = fields
                self.paragraphs[fields["Package"]] = paragraph.strip()
                for provided in re.split(r",\s*", fields.get("Provides", "")):
                    self._provided.setdefault(_package_name(provided), fields["Package"])

    def _installed(self, name: str) -> str | None:
        return name if name in self.fields else self._provided.get(name)

    def closure(self, names: Iterable[str]) -> list[str]:
        """``names``, the essential packages, and all that these depend on."""
        wanted: set[str] = set()
        todo = [*names, *(name for name, fields in self.fields.items() if fields.get("Essential") == "yes")]
        while todo:
            name = self._installed(todo.pop())
            if name is None or name in wanted:
                continue
            wanted.add(name)
            fields = self.fields[name]
            for clause in re.split(r",\s*", fields.get("Depends", "") + ", " + fields.get("Pre-Depends", "")):
                alternatives = [_package_name(text) for text in clause.split("|")]
                todo += [text for text in alternatives if self._installed(text)][:1]
        return sorted(wanted)


def _package_name(text: str) -> str:
    return re.split(r"[ (:]", text.strip())[0]


class RootFs:
    """A tar of a root file system, written as it grows; each path once, its parents first."""

    def __init__(self, stream: BinaryIO) -> None:
        # One long-lived tar, ended by close().
        self._tar = tarfile.open(fileobj=stream, mode="w|", format=tarfile.GNU_FORMAT, bufsize=1 << 20)  # noqa: SIM115
        self._seen: set[str] = set()

    def _new(self, path: str) -> str | None:
        name = path.strip("/")
        if not name or name in self._seen:
            return None
        parent = os.path.dirname(name)
        if parent and parent not in self._seen:
            self.folder(parent)
        self._seen.add(name)
        return name

    def _entry(self, name: str, kind: bytes, mode: int) -> tarfile.TarInfo:
        entry = tarfile.TarInfo(name)
        entry.type, entry.mode, entry.mtime = kind, mode, int(time.time())
        return entry

    def folder(self, path: str, mode: int = 0o755) -> None:
        """Adds an empty folder."""
        if name := self._new(path):
            self._tar.addfile(self._entry(name, tarfile.DIRTYPE, mode))

    def link(self, path: str, target: str) -> None:
        """Adds a symbolic link."""
        if name := self._new(path):
            entry = self._entry(name, tarfile.SYMTYPE, 0o777)
            entry.linkname = target
            self._tar.addfile(entry)

    def text(self, path: str, content: str, mode: int = 0o644) -> None:
        """Adds a file with this content."""
        if name := self._new(path):
            data = content.encode()
            entry = self._entry(name, tarfile.REGTYPE, mode)
            entry.size = len(data)
            self._tar.addfile(entry, io.BytesIO(data))

    def copy(self, source: str, path: str | None = None) -> None:
        """Adds one of the host's files, links or folders (without what is in it); one that is missing is left out."""
        try:
            status = os.lstat(source)
        except FileNotFoundError:
            return
        name = self._new(path or source)
        if name is None:
            return
        entry = self._entry(name, tarfile.REGTYPE, stat.S_IMODE(status.st_mode))
        entry.mtime, entry.uid, entry.gid = int(status.st_mtime), status.st_uid, status.st_gid
        if stat.S_ISLNK(status.st_mode):
            entry.type, entry.linkname = tarfile.SYMTYPE, os.readlink(source)
            self._tar.addfile(entry)
        elif stat.S_ISDIR(status.st_mode):
            entry.type = tarfile.DIRTYPE
            self._tar.addfile(entry)
        elif stat.S_ISREG(status.st_mode):
            entry.size = status.st_size
            with open(source, "rb") as file:
                self._tar.addfile(entry, file)

    def close(self) -> None:
        """Ends the tar."""
        self._tar.close()


def files_below(folder: str, unwanted: re.Pattern[str] | None = None) -> Iterator[str]:
    """The files below a folder, as paths relative to it; ``unwanted`` is matched against those."""
    for base, folders, files in os.walk(folder):
        relative = os.path.relpath(base, folder)
        names = {name: os.path.normpath(os.path.join(relative, name)) for name in (*folders, *files)}
        folders[:] = [name for name in folders if not (unwanted and unwanted.search(names[name]))]
        yield from (names[name] for name in files if not (unwanted and unwanted.search(names[name])))


def add_skeleton(root: RootFs) -> None:
    """Adds the merged-/usr links and the folders that no package owns."""
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        if os.path.islink(f"/{name}"):
            root.copy(f"/{name}")
    for name in EMPTY_FOLDERS:
        root.folder(name)
    root.folder("tmp", 0o1777)
    root.folder("var/tmp", 0o1777)
    root.link("var/run", "/run")
    root.link("var/lock", "/run/lock")


def add_packages(root: RootFs, packages: Packages, names: list[str]) -> None:
    """Adds the packages' files, and a dpkg database that holds just them, so that apt works in the image."""
    database = os.listdir(DPKG / "info")
    for name in names:
        qualified = f"{name}:{packages.fields[name]['Architecture']}"
        owner = name if (DPKG / "info" / f"{name}.list").exists() else qualified
        for line in (DPKG / "info" / f"{owner}.list").read_text(encoding="utf-8").splitlines():
            if line in ("", "/.") or UNWANTED.search(line):
                continue
            # Lists name /bin/x where the file lies in /usr/bin: written under the real folder, the links stay links.
            root.copy(os.path.join(os.path.realpath(os.path.dirname(line)), os.path.basename(line)))
        for file in database:
            if file.startswith(f"{owner}."):
                root.copy(f"{DPKG}/info/{file}")
    root.copy(f"{DPKG}/info/format")
    root.text(f"{DPKG}/status", "\n\n".join(packages.paragraphs[name] for name in names) + "\n")
    root.text(f"{DPKG}/available", "")
    root.text(f"{DPKG}/diversions", "")


def add_settings(root: RootFs) -> None:
    """Adds users and groups as base-passwd ships them, and the host's certificates and package-index settings."""
    masters = Path("/usr/share/base-passwd")
    passwd = (masters / "passwd.master").read_text(encoding="utf-8").replace(":*:", ":x:")
    passwd += "_apt:x:42:65534::/nonexistent:/usr/sbin/nologin\n"
    root.text("etc/passwd", passwd)
    root.text("etc/group", (masters / "group.master").read_text(encoding="utf-8").replace(":*:", ":x:"))
    users = [line.partition(":")[0] for line in passwd.splitlines()]
    root.text("etc/shadow", "".join(f"{user}:*:19000:0:99999:7:::\n" for user in users), 0o640)
    root.text("etc/hostname", "localhost\n")
    for path in HOST_FILES:
        root.copy(path)
    for folder in HOST_FOLDERS:
        for file in files_below(folder):
            root.copy(f"{folder}/{file}")


def add_debian_python(root: RootFs) -> None:
    """Gives Debian's Python the names that the official images have."""
    for name, target in (("python3", "/usr/bin/python3"), ("python", "/usr/bin/python3"), ("pip", "/usr/bin/pip3")):
        root.link(f"usr/local/bin/{name}", target)


def add_python(root: RootFs, prefix: str) -> None:
    """Adds the CPython installed at ``prefix`` as /usr/local, of its site-packages only pip and setuptools."""
    libraries = sorted(Path(prefix, "lib").glob("python3.*/os.py"))
    if not libraries:
        sys.exit(f"there is no CPython at {prefix}: no lib/python3.*/os.py in it")
    name = libraries[-1].parent.name  # python3.12
    for file in files_below(prefix, UNWANTED_IN_PYTHON):
        if file.startswith(f"lib/{name}/"):
            root.copy(f"{prefix}/{file}", f"usr/local/{file}")
    site = f"lib/{name}/site-packages"
    kept = re.compile(r"^(pip|setuptools|_distutils_hack|pkg_resources|distutils-precedence\.pth)")
    for file in files_below(f"{prefix}/{site}", re.compile(r"\.opt-[12]\.pyc$")):
        if kept.match(file):
            root.copy(f"{prefix}/{site}/{file}", f"usr/local/{site}/{file}")
    root.copy(f"{prefix}/bin/{name}", f"usr/local/bin/{name}")
    for alias in ("python3", "python"):
        root.link(f"usr/local/bin/{alias}", name)
    pip = f"#!/usr/local/bin/{name}\nimport sys\nfrom pip._internal.cli.main import main\nsys.exit(main())\n"
    for alias in ("pip", "pip3"):
        root.text(f"usr/local/bin/{alias}", pip, 0o755)
    for library in (f"lib{name}.so.1.0", "libpython3.so"):
        if os.path.exists(f"{prefix}/lib/{library}"):
            root.copy(f"{prefix}/lib/{library}", f"usr/local/lib/{library}")
            # In the loader's default path, so that no ldconfig has to run in the image.
            root.link(f"usr/lib/{os.uname().machine}-linux-gnu/{library}", f"/usr/local/lib/{library}")


def main(prefix: str) -> None:
    """Writes the tar."""
    packages = Packages()
    names = packages.closure(PACKAGES + (DEBIAN_PYTHON if prefix == "debian" else []))
    root = RootFs(sys.stdout.buffer)
    add_skeleton(root)
    add_packages(root, packages, names)
    add_settings(root)
    if prefix == "debian":
        add_debian_python(root)
    else:
        add_python(root, prefix)
    root.close()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
