"""What the processes of this machine know about each other's sandboxes: one small file for each.

A sandbox's file is written before anything else of it exists and removed after everything else is gone. So what a
killed process leaves is always found by ``list``, and removing the file is the one moment at which a sandbox ends.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from agent_env_core.errors import Unavailable, fix_for
from agent_env_core.sandbox.locks import locked
from agent_env_core.sandbox.machine import host_id
from agent_env_process.failure import creation_error, reading_error
from agent_env_process.files import remove_tree
from agent_env_process.procs import Known


@dataclass(frozen=True)
class Record:
    """A sandbox, as any process of this machine can take it up.

    Attributes:
        id: Its id.
        labels: Its labels, the lease's end as last set.
        image: The prepared image.
        env: The environment of its processes. May hold secrets, so the file is readable by its owner only.
        workdir: Working folder, as its processes know it.
        ports: The sandbox's ports to this machine's.
        has_main: Whether it has a main process.
        main: That process, once it was started.
        private: Whether it has namespaces of its own.
        holder: The process that holds them, once they are open.
        pids: How many processes and threads there may be in them; 0 is any number.
        groups: Its control groups.
    """

    id: str
    labels: Mapping[str, str]
    image: str
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str = "/"
    ports: Mapping[int, int] = field(default_factory=dict)
    has_main: bool = False
    main: Known | None = None
    private: bool = False
    holder: Known | None = None
    pids: int = 0
    groups: Sequence[str] = ()


class State:
    """The files of this machine's sandboxes.

    Args:
        folder: Where; every machine has its own folder in it, since home folders are shared on many clusters.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / host_id()
        self._leases = self.folder / "leases"
        self._boxes = self.folder / "boxes"
        self._lock = self.folder / "lock"

    def box(self, sandbox_id: str) -> Path:
        """The private folder of a sandbox."""
        return self._boxes / sandbox_id

    def root(self, sandbox_id: str) -> Path:
        """What stands for ``/`` in it."""
        return self.box(sandbox_id) / "root"

    def log(self, sandbox_id: str) -> Path:
        """The output of its main process."""
        return self.box(sandbox_id) / "main.log"

    def make(self) -> None:
        """Makes the folder, and the file that is locked for changes: who ends a sandbox on a full disk needs it.

        Raises:
            ConfigError: It can't be written.
            Busy: The machine has run out of something for now.
        """
        try:
            for folder in (self._leases, self._boxes):  # a sandbox can let others into its own folder
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock.touch(mode=0o600)
        except OSError as exc:
            raise creation_error(exc, self._trouble("write to", exc)) from exc

    def save(self, record: Record) -> None:
        """Writes a sandbox's file, in one step for its readers.

        Raises:
            ConfigError, Busy: See :meth:`make`.
        """
        data = asdict(record)
        self.make()
        try:
            descriptor, name = tempfile.mkstemp(dir=self._leases, prefix=".")  # readable by its owner only
            try:
                with open(descriptor, "w", encoding="utf-8") as file:
                    json.dump(data, file)
                os.replace(name, self._path(record.id))
            except BaseException:
                os.unlink(name)
                raise
        except OSError as exc:
            raise creation_error(exc, self._trouble("write to", exc)) from exc

    def load(self, sandbox_id: str) -> Record | None:
        """Reads a sandbox's file; None where there is none.

        Raises:
            ConfigError, Unavailable: The folder can't be read, which doesn't mean that there is none.
        """
        if not _is_id(sandbox_id):
            return None
        try:
            text = self._path(sandbox_id).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise reading_error(exc, self._trouble("read", exc)) from exc
        try:
            data: dict[str, Any] = json.loads(text)
            known = {name: Known(**data[name]) if data[name] else None for name in ("main", "holder")}
            ports = {int(port): number for port, number in data.pop("ports").items()}
            return Record(**{**data, **known}, ports=ports)
        except (ValueError, TypeError, KeyError):
            return None

    def update(self, sandbox_id: str, **changes: Any) -> Record | None:
        """Changes a sandbox's file; None where there is none any more."""
        with self._locked():
            record = self.load(sandbox_id)
            if record is None:
                return None
            record = replace(record, **changes)
            self.save(record)
        return record

    def records(self) -> Iterator[Record]:
        """All sandboxes of this machine that still hold anything.

        Raises:
            ConfigError, Unavailable: See :meth:`load`.
        """
        try:
            names = sorted(os.listdir(self._leases))
        except FileNotFoundError:
            return
        except OSError as exc:
            raise reading_error(exc, self._trouble("read", exc)) from exc
        for name in names:
            record = self.load(name.removesuffix(".json")) if name.endswith(".json") else None
            if record is not None:
                yield record

    def remove(self, sandbox_id: str) -> bool:
        """Removes the folder, then the file. Of several callers at once exactly one is told True.

        Raises:
            Unavailable: Something in the folder can't be removed.
        """
        if not _is_id(sandbox_id):
            return False
        if not remove_tree(self.box(sandbox_id)):
            raise Unavailable(f"process: {self.box(sandbox_id)} can't be removed; remove it by hand")
        try:
            with self._locked():
                self._path(sandbox_id).unlink()
        except FileNotFoundError:
            return False
        return True

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keeps a change of a file apart from its removal, so that no change brings a removed file back."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            stack = ExitStack()
            stack.enter_context(locked(self._lock))
        except OSError as exc:
            raise reading_error(exc, self._trouble("lock", exc)) from exc
        with stack:
            yield

    def _trouble(self, doing: str, exc: OSError) -> str:
        fix = fix_for(exc, "set XDG_STATE_HOME to a local folder")
        return f"can't {doing} {self.folder} ({exc.strerror}); {fix}"

    def _path(self, sandbox_id: str) -> Path:
        return self._leases / f"{sandbox_id}.json"


def _is_id(text: str) -> bool:
    """Whether ``text`` may be an id: what comes from outside must not name a file elsewhere."""
    return text.isascii() and text.replace("-", "").isalnum()
