"""Which builder makes images: BuildKit by the ``docker`` command, where both are here, else the engine's own."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache

from agent_env_core.errors import ConfigError
from agent_env_docker import prereqs

BUILDKIT, CLASSIC = "buildkit", "classic"
_LAST_BUILT_IN = 22
"""The last version of the ``docker`` command that brought BuildKit along; later ones have a plugin for it."""
_SECONDS = 10


@dataclass(frozen=True)
class Builder:
    """A way to build.

    Attributes:
        name: For people.
        command: What to run, without the options of one build; empty for a call to the engine.
    """

    name: str
    command: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name


@cache
def choose(wanted: str) -> Builder:
    """The builder that the setting ``builder`` means here.

    Raises:
        ConfigError: There is no BuildKit.
    """
    found = None if wanted == CLASSIC else _buildkit()
    if found is None and wanted == BUILDKIT:
        raise ConfigError(
            "docker: builder='buildkit' needs the `docker` command with its buildx plugin (apt install docker-buildx); "
            "builder='auto' takes the classic builder without it"
        )
    return found or Builder("the classic builder")


def _buildkit() -> Builder | None:
    program = shutil.which("docker")
    if program is None:
        return None
    if plugin := _said(program, "buildx", "version"):
        # The builder that works on the engine's own images: others wouldn't find those that are only there.
        named = os.environ.get("DOCKER_HOST") or prereqs.engine_tunnel()
        context = "default" if named else os.environ.get("DOCKER_CONTEXT") or "default"
        command = (program, "buildx", "build", "--builder", context, "--load")
        return Builder(f"BuildKit ({' '.join(plugin.split()[:2])})", command)
    version = _said(program, "version", "--format", "{{.Client.Version}}")
    major = version.partition(".")[0]
    if major.isdigit() and int(major) <= _LAST_BUILT_IN:
        return Builder(f"BuildKit (docker {version})", (program, "build"))
    return None


def _said(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
