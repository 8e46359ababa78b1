"""The environment of a sandbox's processes: built from nothing, so that no secret of this process gets in."""

from __future__ import annotations

import os
from collections.abc import Mapping

from agent_env_core.bundle.dockerfile import BASE_ENV
from agent_env_core.sandbox.contract import SandboxSpec
from agent_env_process.images import PreparedImage
from agent_env_process.views import View

MARK = "AGENT_ENV_SANDBOX"
"""Holds the sandbox's id in every process of it; that is how strays are found."""

#: The little that programs need of the machine.
INHERITED = ("LANG", "LC_ALL", "LC_CTYPE", "TZ", "LD_LIBRARY_PATH")

ALL_INTERFACES = "0.0.0.0"
LOOPBACK = "127.0.0.1"


def main_environment(
    sandbox_id: str, spec: SandboxSpec, image: PreparedImage, view: View, ports: Mapping[int, int]
) -> dict[str, str]:
    """The variables that the main process and every command see.

    Args:
        sandbox_id: Goes into the mark.
        spec: Its ``env`` wins over the image's; its ``port_env`` gets this machine's port numbers.
        image: Whose own environment comes first.
        view: What its processes see.
        ports: The sandbox's ports to this machine's.
    """
    asked = {**image.env, **spec.env}
    env = {name: os.environ[name] for name in INHERITED if name in os.environ}
    env.setdefault("LANG", "C.UTF-8")
    env |= {"HOME": view.home, "TMPDIR": view.temporary}
    env |= {name: loopback(view.text(value)) for name, value in asked.items()}
    env["PATH"] = view.search_path(asked.get("PATH", BASE_ENV["PATH"]))
    env |= {name: str(ports[port]) for name, port in spec.port_env.items()}
    env[MARK] = sandbox_id
    return env


def loopback(text: str) -> str:
    """A value that says "all interfaces" says loopback here: they would be the machine's, open to its network."""
    return LOOPBACK if text == ALL_INTERFACES else text
