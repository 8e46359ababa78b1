"""An evaluation on disk: ``run.json``, ``episodes.jsonl`` and ``summary.json`` in a folder of its own.

A row is written and synced as its episode ends, so a run that is killed loses the episodes under way and nothing else.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from agent_env_core.errors import AgentEnvError, fix_for
from agent_env_core.evaluate.record import FORMAT_VERSION, Row

RUN, EPISODES, SUMMARY = "run.json", "episodes.jsonl", "summary.json"
BOUND = ("bundle_id", "model", "base_url", "params", "max_answers", "end_turn", "seed", "reward", "sandbox")
"""What must be the same for two parts of a run to be one."""


class ResultsError(AgentEnvError):
    """A results folder that can't be used; the message says why, and what to do."""


class Results:
    """Writes the rows of one evaluation. Use it as a context manager.

    Args:
        folder: Where; made if it isn't there.
        settings: What is run, for ``run.json``.
        resume: Whether to go on with what is there. Without it a folder that holds an evaluation is refused.

    Attributes:
        folder: Where.
        rows: The rows found there, as JSON has them, the last of each episode; empty unless resumed.

    Raises:
        ResultsError: The folder holds an evaluation, another one, or is in use.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], *, resume: bool = False) -> None:
        self.folder = folder
        self.rows: dict[tuple[str, int], dict[str, Any]] = {}
        self._ours = False
        path = folder / EPISODES
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "a+b")  # noqa: SIM115 - closed by close()
        except OSError as exc:
            raise _unwritable(folder, exc) from exc
        try:
            self._lock()
            self._begin(settings, resume)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Results:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file. A folder in which nothing was recorded is cleared, so that it can be used again."""
        if not self._file.closed:
            if self._ours and os.fstat(self._file.fileno()).st_size == 0:
                for name in (RUN, EPISODES, SUMMARY):
                    (self.folder / name).unlink(missing_ok=True)
                with contextlib.suppress(OSError):  # it holds other things
                    self.folder.rmdir()
            self._file.close()

    def add(self, row: Row) -> None:
        """Writes a row; when this returns it is on disk."""
        line = json.dumps(row.to_json(), separators=(",", ":"), allow_nan=False) + "\n"
        try:
            _append(self._file.fileno(), line.encode())
        except OSError as exc:
            raise _unwritable(self.folder / EPISODES, exc) from exc

    def summarize(self, summary: Mapping[str, Any]) -> None:
        """Writes the summary, in one piece."""
        _write(self.folder / SUMMARY, summary)

    # -- beginning

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            raise ResultsError(f"another run writes to {self.folder}; choose another --out") from exc

    def _begin(self, settings: Mapping[str, Any], resume: bool) -> None:
        before = self._settings()
        if before is None or not resume:
            if before is not None or self._file.tell():
                fix = "go on with it by --resume, or choose another --out"
                raise ResultsError(f"{self.folder} holds an evaluation already: {fix}")
            self._ours = True
            _write(self.folder / RUN, {"format_version": FORMAT_VERSION, **settings})
            return
        others = [
            f"{key} {before.get(key)!r}, now {settings.get(key)!r}"
            for key in BOUND
            if before.get(key) != settings.get(key)
        ]
        if others:
            raise ResultsError(f"{self.folder} holds another evaluation: it was made with {'; '.join(others)}")
        self.rows = {(row["task_id"], row["repeat"]): row for row in self._whole_rows()}

    def _settings(self) -> dict[str, Any] | None:
        try:
            found = json.loads((self.folder / RUN).read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as exc:
            raise ResultsError(f"{self.folder / RUN} can't be read: {exc}; choose another --out") from exc
        return found if isinstance(found, dict) else {}

    def _whole_rows(self) -> Iterator[dict[str, Any]]:
        """The rows; a last line that was cut off by a crash is removed."""
        self._file.seek(0)
        end = 0
        for number, line in enumerate(self._file, 1):
            if not line.endswith(b"\n"):
                break
            end += len(line)
            try:
                row = json.loads(line)
                known = isinstance(row["task_id"], str) and isinstance(row["repeat"], int)
            except (ValueError, KeyError, TypeError):
                known = False
            if not known:
                raise ResultsError(f"{self.folder / EPISODES}, line {number}, is no row of an evaluation")
            yield row
        self._file.truncate(end)


def _append(descriptor: int, data: bytes) -> None:
    """Writes to a file's end and onto the disk, all of it or nothing: a full disk leaves no half of a row."""
    size = os.fstat(descriptor).st_size
    try:
        while data:
            data = data[os.write(descriptor, data) :]
        os.fsync(descriptor)
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, size)
        raise


def _write(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a JSON file so that at no time there is half of one.

    Raises:
        ResultsError: It can't be written.
    """
    part = path.with_suffix(".part")
    try:
        part.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        part.replace(path)
    except OSError as exc:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise _unwritable(path, exc) from exc


def _unwritable(path: Path, exc: OSError) -> ResultsError:
    fix = fix_for(exc, "choose another --out")
    return ResultsError(f"results can't be written to {path}: {exc.strerror}; {fix}")
