"""The environment of a sandbox's processes: built from nothing, so that no secret of this process gets in."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from agent_env_core.bundle.dockerfile import BASE_ENV
from agent_env_core.sandbox.contract import SandboxSpec
from agent_env_process.images import PreparedImage
from agent_env_process.paths import PathMap

MARK = "AGENT_ENV_SANDBOX"
"""Holds the sandbox's id in every process of it; that is how strays are found."""

#: The little that programs need of the machine.
INHERITED = ("LANG", "LC_ALL", "LC_CTYPE", "TZ", "LD_LIBRARY_PATH")

ALL_INTERFACES = "0.0.0.0"
LOOPBACK = "127.0.0.1"


def main_environment(
    sandbox_id: str, spec: SandboxSpec, image: PreparedImage, paths: PathMap, ports: Mapping[int, int]
) -> dict[str, str]:
    """The variables that the main process and every command see.

    Args:
        sandbox_id: Goes into the mark.
        spec: Its ``env`` wins over the image's; its ``port_env`` gets this machine's port numbers.
        image: Whose own environment comes first.
        paths: Where the sandbox has the image's files.
        ports: The sandbox's ports to this machine's.
    """
    asked = {**image.env, **spec.env}
    env = {name: os.environ[name] for name in INHERITED if name in os.environ}
    env.setdefault("LANG", "C.UTF-8")
    env |= {"HOME": str(paths.host("/root")), "TMPDIR": str(paths.host("/tmp"))}  # noqa: S108 - the sandbox's own
    env |= {name: loopback(paths.text(value)) for name, value in asked.items()}
    env["PATH"] = search_path(asked.get("PATH", BASE_ENV["PATH"]), image, paths)
    env |= {name: str(ports[port]) for name, port in spec.port_env.items()}
    env[MARK] = sandbox_id
    return env


def loopback(text: str) -> str:
    """A value that says "all interfaces" says loopback here: they would be the machine's, open to its network."""
    return LOOPBACK if text == ALL_INTERFACES else text


def search_path(container: str, image: PreparedImage, paths: PathMap) -> str:
    """A container's search path on this machine: the image's own folders, its Python, then the machine's programs.

    The folder of the Python that runs this stays out, so that its packages' commands don't stand in for missing ones.
    """
    ours = {Path(sys.prefix) / "bin", Path(sys.executable).parent}
    found: list[str] = []
    for part in container.split(":"):
        if part.startswith("/") and (image.tree / part[1:]).is_dir():
            found.append(str(paths.host(part)))
        if part == "/usr/local/bin":
            found.append(str(image.bin))
    if str(image.bin) not in found:
        found.insert(0, str(image.bin))
    machine = [part for part in os.environ.get("PATH", os.defpath).split(os.pathsep) if part]
    found += [part for part in machine if Path(part) not in ours]
    return ":".join(dict.fromkeys(found))
