"""Files into a sandbox of a run, and out of it."""

from __future__ import annotations

import asyncio
import base64
import binascii
import io
import json
import os
import posixpath
import tarfile
import time
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from agent_env_core.errors import EpisodeError
from agent_env_core.steps.placed import File, Load, PlacedSandbox
from agent_env_core.steps.shell import as_seen_inside, said

if TYPE_CHECKING:
    from agent_env_core.bundle import Artifact, Bundle

COPY_SECONDS = 600.0
"""Seconds that packing or unpacking files inside a sandbox may take."""
MAX_BYTES = 512 * 1024 * 1024
"""Bytes of files that one step moves at most."""
MAX_FILES = 100_000
"""Files that one step takes at most."""
UNPACK_SECONDS = 60.0
MAX_HEADER = 16 * 1024
"""Bytes of a header that says more about the entry after it: a path has up to 4096."""
FEW = 2
"""Up to so many files are written one by one; more travel as one archive."""
NO_FOLDER = 64
ZIP_ROOT = "root/"
"""What stands before the paths in an archive of an environment's files."""

# Arguments: the archive, the folder to unpack it in.
_UNPACK = 'tar -xof "$1" -C "$2"; code=$?; rm -f "$1"; exit $code'
# Arguments: the folder, then the files to come, by their whole paths. An agent may have put something in their way.
_CLEAR = r"""
folder=$1
shift
if [ -e "$folder" ] && [ ! -d "$folder" ]; then rm -f -- "$folder"; fi
chmod u+rwx -- "$folder"
for path do
  if [ -d "$path" ] || [ -L "$path" ]; then rm -rf -- "$path"; fi
done
:
"""
# Arguments: the folder, then paths in it; those that don't exist are left out.
_PACK = r"""
cd "$1" 2>/dev/null || exit 64
shift
for path do
  shift
  if [ -e "./$path" ]; then set -- "$@" "./$path"; fi
done
[ $# -gt 0 ] || exit 64
exec tar -czf - "$@"
"""


# -- what there is to put


def read_folder(folder: Path, names: Iterable[str]) -> tuple[File, ...]:
    """Files of a folder of the bundle, by their POSIX paths in it.

    Raises:
        EpisodeError: One can't be read any more, or they are too many bytes.
    """
    files = []
    size = 0
    for name in names:
        path = folder / name
        try:
            size += path.stat().st_size
            if size > MAX_BYTES:
                raise EpisodeError("setup", f"the files of {folder.name} are more than {MAX_BYTES >> 20} MiB")
            files.append(File(name, path.read_bytes(), os.access(path, os.X_OK)))
        except OSError as exc:
            raise EpisodeError("setup", f"{name} of {folder.name} can't be read: {exc.strerror or exc}") from exc
    return tuple(files)


def entity_files(bundle: Bundle, entity_id: str) -> tuple[File, ...]:
    """The files that an artifact or a skill is for a sandbox. Seeds of envs are unpacked into the files they hold.

    Raises:
        EpisodeError: There is no such artifact, or its type has no files for a sandbox.
    """
    entity = bundle.artifacts.get(entity_id) or bundle.skills.get(entity_id)
    if entity is None:
        raise EpisodeError("setup", f"there is no artifact {entity_id!r} in the bundle {bundle.name!r}")
    kind = getattr(entity, "type", "skill")
    if kind in ("docker_image", "cli"):
        fix = "a file or file_artifact_universe can be loaded"
        raise EpisodeError("setup", f"the artifact {entity.name!r} is a {kind}, which is no files for a sandbox: {fix}")
    if kind in ("environment", "environment_universe"):
        return tuple(file for seed in _seeds(bundle, bundle.artifacts[entity_id]) for file in unpack(seed))
    return read_folder(entity.path, entity.files)


def _seeds(bundle: Bundle, artifact: Artifact) -> tuple[File, ...]:
    """The seeds of an env that an artifact holds, itself or in the artifacts that it is made of."""
    parts = [bundle.artifacts[part] for part in artifact.parts if part in bundle.artifacts]
    found = [seed for part in parts for seed in _seeds(bundle, part)]
    return tuple(found) if parts else read_folder(artifact.path, artifact.files)


def unpack(seed: File) -> tuple[File, ...]:
    """The files in an env's seed: those of an object's ``files``, or below ``root/`` of a zip; else the seed itself."""
    if zipfile.is_zipfile(io.BytesIO(seed.data)):
        with zipfile.ZipFile(io.BytesIO(seed.data)) as archive:
            members = [member for member in archive.infolist() if not member.is_dir()]
            if sum(member.file_size for member in members) > MAX_BYTES:
                raise EpisodeError("setup", f"{seed.path} unpacks to more than {MAX_BYTES >> 20} MiB")
            found = [(m.filename.removeprefix(ZIP_ROOT), m) for m in members if m.filename.startswith(ZIP_ROOT)]
            return tuple(File(inner(name, seed.path), archive.read(member)) for name, member in found) or (seed,)
    try:
        listed = json.loads(seed.data)["files"]
        return tuple(File(inner(entry["path"], seed.path), _content(entry)) for entry in listed)
    except (ValueError, TypeError, KeyError, RecursionError):
        return (seed,)


def _content(entry: dict[str, Any]) -> bytes:
    content = entry["content"]
    if entry.get("encoding") in ("base64", "b64"):
        try:
            return base64.b64decode(content, validate=True)
        except binascii.Error as exc:
            raise EpisodeError("setup", f"{entry['path']!r} of a seed is no base64: {exc}") from exc
    return content.encode() if isinstance(content, str) else json.dumps(content).encode()


def inner(path: str, owner: str) -> str:
    """A relative path that stays in its folder.

    Raises:
        EpisodeError: It leads out.
    """
    clean = posixpath.normpath(path.lstrip("/"))
    if clean in (".", "..") or clean.startswith("../") or "\0" in clean:
        raise EpisodeError("setup", f"the path {path!r} in {owner} leads out of its folder")
    return clean


# -- moving


async def put_files(placed: PlacedSandbox, destination: str, files: Sequence[File], step_id: str) -> None:
    """Puts files below a folder of a sandbox, in place of what is there under their names.

    They are remembered in :attr:`PlacedSandbox.loads`, so that they can be put there once more: into a fresh sandbox,
    or over what an agent's process did to them.

    Args:
        placed: The sandbox.
        destination: An absolute path; made where it doesn't exist.
        files: What to put there.
        step_id: The step that does.

    Raises:
        EpisodeError: They can't be put there.
        SandboxError: The sandbox is gone.
    """
    if not destination.startswith("/"):
        raise EpisodeError("setup", f"destination_path={destination!r} must be an absolute path")
    placed.loads.append(Load(destination, tuple(files), placed.turns, step_id))
    await write_files(placed, destination, files)


async def write_files(placed: PlacedSandbox, destination: str, files: Sequence[File]) -> None:
    """Does what :func:`put_files` does, and remembers nothing."""
    await as_seen_inside(placed, destination)
    if placed.turns:
        paths = [posixpath.join(destination, file.path) for file in files]
        await placed.sandbox.exec(["sh", "-c", _CLEAR, "sh", destination, *paths], timeout=COPY_SECONDS)
    try:
        if len(files) > FEW or any(file.link for file in files):
            await _put_archive(placed, destination, files)
        else:
            await _put_each(placed, destination, files)
    except OSError as exc:
        raise EpisodeError("setup", f"{destination} in the sandbox {placed.name!r} can't be written: {exc}") from exc


async def put_again(placed: PlacedSandbox, loads: Iterable[Load]) -> None:
    """Puts what was loaded there again, or into another sandbox."""
    for load in loads:
        await write_files(placed, load.destination, load.files)


async def _put_archive(placed: PlacedSandbox, destination: str, files: Sequence[File]) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for file in files:
            member = tarfile.TarInfo(file.path)
            member.size, member.mode, member.mtime = len(file.data), 0o755 if file.executable else 0o644, time.time()
            if file.link:
                member.type, member.linkname = tarfile.SYMTYPE, file.link
            archive.addfile(member, io.BytesIO(file.data))
    packed = posixpath.join(destination, f".agent-env-{placed.mark[:8]}.tar")
    await placed.sandbox.write(packed, buffer.getvalue())
    done = await placed.sandbox.exec(["sh", "-c", _UNPACK, "sh", packed, destination], timeout=COPY_SECONDS)
    if done.exit_code == 127:
        await _put_each(placed, destination, [file for file in files if not file.link])
    elif done.exit_code != 0:
        raise EpisodeError("setup", f"files can't be put into {destination} of {placed.name!r}: {said(done)}")


async def _put_each(placed: PlacedSandbox, destination: str, files: Sequence[File]) -> None:
    for file in files:
        await placed.sandbox.write(posixpath.join(destination, file.path), file.data)
    runnable = [posixpath.join(destination, file.path) for file in files if file.executable]
    if runnable:
        done = await placed.sandbox.exec(["chmod", "755", *runnable], timeout=COPY_SECONDS)
        if done.exit_code != 0:
            raise EpisodeError("setup", f"{runnable[0]} in {placed.name!r} can't be made executable: {said(done)}")


async def take_files(
    placed: PlacedSandbox,
    base: str,
    paths: Sequence[str] = (".",),
    *,
    links: bool = False,
    timeout: float = COPY_SECONDS,
) -> tuple[File, ...]:
    """The files below a folder of a sandbox. What doesn't exist is left out, and so is all that is no regular file.

    Args:
        placed: The sandbox.
        base: The folder, an absolute path.
        paths: Files and folders in it.
        links: Whether symbolic links come too, as links.
        timeout: Seconds that packing them may take.

    Returns:
        Each by its path relative to ``base``, sorted. None lies behind a link.

    Raises:
        EpisodeError: They can't be taken, or are too many bytes.
        SandboxError: The sandbox is gone.
    """
    await as_seen_inside(placed, base)
    done = await placed.sandbox.exec(["sh", "-c", _PACK, "sh", base, *paths], timeout=timeout)
    if done.exit_code == NO_FOLDER:
        return ()
    try:
        if done.exit_code not in (0, 1):  # 1: a file changed while it was read
            raise tarfile.TarError(said(done))
        files = await asyncio.to_thread(_unpacked, done.stdout, base, links)
    except EpisodeError:
        raise
    except Exception as exc:  # whatever an archive may bring about that an agent's own `tar` has made
        limit = "a provider hands over only so much of a command's output"
        raise EpisodeError(
            "setup", f"{base} of {placed.name!r} can't be taken ({len(done.stdout)} bytes came; {limit}): {exc}"
        ) from exc
    pointing = {file.path for file in files.values() if file.link}
    behind = {path for path in files if any(str(parent) in pointing for parent in PurePosixPath(path).parents)}
    return tuple(files[path] for path in sorted(files.keys() - behind))


_MORE_HEADERS = (
    tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE,
)  # fmt: skip


class _Header(tarfile.TarInfo):
    """A header of an archive that an agent may have made, to keep the server busy with it."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        """Refuses long headers, before they are read: some versions of Python search them in quadratic time."""
        if self.type in _MORE_HEADERS and self.size > MAX_HEADER:
            raise tarfile.TarError(f"it has a header of {self.size} bytes")
        return super()._proc_member(archive)  # type: ignore[misc,no-any-return]  # nothing public comes before that


def _unpacked(packed: bytes, base: str, links: bool) -> dict[str, File]:
    ends = time.monotonic() + UNPACK_SECONDS
    too_many = EpisodeError("setup", f"the files in {base} are more than {MAX_BYTES >> 20} MiB, or {MAX_FILES} files")
    unzip = zlib.decompressobj(wbits=31)  # gzip's
    plain = unzip.decompress(packed, MAX_BYTES)
    if unzip.unconsumed_tail:
        raise too_many
    if not unzip.eof:
        raise EOFError("its end is missing")
    files: dict[str, File] = {}
    left = MAX_BYTES
    with tarfile.open(fileobj=io.BytesIO(plain), mode="r:", tarinfo=_Header) as archive:
        for count, member in enumerate(archive):
            if count >= MAX_FILES:
                raise too_many
            if time.monotonic() > ends:
                raise TimeoutError(f"unpacking takes longer than {UNPACK_SECONDS:g}s")
            if not (member.isreg() or member.islnk() or (member.issym() and links)):
                continue
            path = inner(member.name, base)
            if member.issym():
                files[path] = File(path, b"", link=member.linkname)
                continue
            opened = archive.extractfile(member)
            data = opened.read(left + 1) if opened is not None else b""  # a sparse file's, or a hard link's, any number
            left -= len(data)
            if left < 0:
                raise too_many
            files[path] = File(path, data, bool(member.mode & 0o100))
    return files
