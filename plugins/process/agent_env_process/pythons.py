"""Which Python of this machine stands for the one of a base image."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

log = logging.getLogger(__name__)

_ASK = """
import json, sys
print(json.dumps([sys.version.split()[0], getattr(sys, "_base_executable", sys.executable), sys.base_prefix]))
"""


@dataclass(frozen=True)
class Interpreter:
    """A Python: the program, its version such as ``3.12.1``, and the folder it is installed in."""

    path: Path
    version: str
    prefix: str

    @property
    def minor(self) -> str:
        """Major and minor version, such as ``3.12``."""
        return ".".join(self.version.split(".")[:2])


def choose(tag: str) -> Interpreter:
    """The Python for an image tag such as ``3.12-slim``.

    One of the same minor version if the search path has it, else the one that runs this; the log then says so.
    """
    asked = re.match(r"\d+\.\d+", tag)
    program = Path(getattr(sys, "_base_executable", sys.executable))
    current = Interpreter(program, sys.version.split()[0], sys.base_prefix)
    if asked is None or asked[0] == current.minor:
        return current
    found = _on_path(asked[0])
    if found is None:
        _say_once(f"no python{asked[0]} on this machine's PATH: python:{tag} is stood for by Python {current.version}")
    return found or current


@cache
def _on_path(minor: str) -> Interpreter | None:
    for folder in os.get_exec_path():
        program = os.path.join(folder, f"python{minor}")
        if not os.access(program, os.X_OK):
            continue
        try:
            done = subprocess.run([program, "-I", "-c", _ASK], capture_output=True, timeout=30, check=True)
            version, path, prefix = json.loads(done.stdout)
        except (OSError, subprocess.SubprocessError, ValueError):  # a version manager's stand-in for what isn't there
            continue
        found = Interpreter(Path(path), version, prefix)
        if found.minor == minor:
            return found
    return None


@cache
def _say_once(message: str) -> None:
    log.warning("%s", message)
