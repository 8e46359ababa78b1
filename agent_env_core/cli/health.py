"""What ``agent-env doctor`` looks at. Versions come from package metadata: nothing heavy is imported to learn one."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from agent_env_core import integrity
from agent_env_core.errors import describe
from agent_env_core.plugins import ALLOW_VARIABLE, CORE, plugins
from agent_env_core.sandbox.probe import look

Level = Literal["ok", "absent", "note", "problem"]
Versions = Mapping[str, str]

PROVIDERS_AND_TRAINERS = ("docker", "process", "modal", "e2b", "trl", "trl-async")
STACK = {
    "openenv": "pip install 'agentenv-framework[server]' to serve bundles on this machine",
    "mcp": "", "agentenv-framework-protocol": "", "fastapi": "", "uvicorn": "",
    "trl": "pip install 'trl>=1.15' to train on this machine",
    "transformers": "", "datasets": "", "torch": "", "vllm": "",
}  # fmt: skip
"""Packages whose versions have to go together, and how to get one that is missing and may be wanted."""

SECRET = re.compile(r"TOKEN|SECRET|KEY|PASSWORD")
GIB = 1024**3
LITTLE_SPACE, NO_SPACE = 5 * GIB, GIB // 2


@dataclass(frozen=True)
class Finding:
    """One thing the doctor looked at.

    Attributes:
        topic: The section it stands in.
        subject: What was looked at.
        value: What was found.
        level: ``problem`` keeps agent-env from working here; ``note`` may, depending on what is run; ``absent`` is
            something optional that isn't there.
        fix: What to do about a note or a problem.
    """

    topic: str
    subject: str
    value: str
    level: Level = "ok"
    fix: str = ""


def examine() -> list[Finding]:
    """Everything, section by section."""
    versions = {name: version for name in (*our_distributions(), *STACK) if (version := installed(name))}
    sections: list[Callable[[], Iterator[Finding]]] = [
        lambda: base(versions),
        broken_plugins,
        lambda: sandboxes(serves="openenv" in versions),
        disks,
        lambda: stack(versions),
        lambda: settings(os.environ),
    ]
    return [finding for section in sections for finding in section()]


def our_distributions() -> list[str]:
    """The core and the plugins that its extras name."""
    extras = metadata.metadata(CORE).get_all("Provides-Extra") or []
    return [CORE, *(f"{CORE}-{name}" for name in PROVIDERS_AND_TRAINERS if name in extras)]


def installed(name: str) -> str | None:
    """The version of an installed distribution."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def release(version: str) -> tuple[int, ...]:
    """The numbers of a version that order it: ``1!2.13.0rc1+cpu`` gives (2, 13, 0)."""
    numbers = re.match(r"\d+(?:\.\d+)*", version.rpartition("!")[2])
    return tuple(int(number) for number in numbers.group().split(".")) if numbers else ()


def base(versions: Versions, python: tuple[int, int] = sys.version_info[:2]) -> Iterator[Finding]:
    """Python, our distributions, and whether another package stands in our place."""
    topic = "agent-env"
    value = f"{platform.python_version()} at {sys.executable}"
    if (3, 11) <= python <= (3, 13):
        yield Finding(topic, "Python", value)
    else:
        yield Finding(topic, "Python", value, "problem", "use Python 3.11, 3.12 or 3.13")
    for name in our_distributions():
        version = versions.get(name)
        if version is None:
            extra = name.removeprefix(f"{CORE}-")
            yield Finding(
                topic, name, "not installed", "absent", f"pip install 'agentenv-framework[{extra}]' to have it"
            )
        elif version != versions.get(CORE):
            fix = f"install all of agent-env in one version; {CORE} is {versions.get(CORE)}"
            yield Finding(topic, name, version, "problem", fix)
        else:
            yield Finding(topic, name, version)
    for problem in integrity.problems():
        yield Finding(topic, problem.place, problem.message, "problem", problem.fix)


def broken_plugins() -> Iterator[Finding]:
    """Plugins that can't be used. Each is a note: it keeps only its own users from working."""
    fixes = {
        "failed": "update or uninstall it; `agent-env plugins --json` has the traceback",
        "conflict": f"`agent-env plugins` shows who claims it; {ALLOW_VARIABLE} chooses",
        "blocked": f"add its name to {ALLOW_VARIABLE}, or unset that",
    }
    for entry in plugins().load_all():
        if entry.status in fixes:
            yield Finding("plugins", f"{entry.name} of {entry.distribution}", entry.detail, "note", fixes[entry.status])


def sandboxes(*, serves: bool) -> Iterator[Finding]:
    """The sandbox providers: whether each works here, and what it keeps apart.

    Args:
        serves: Whether this installation has what an env host needs, so that no usable provider is a problem.
    """
    topic = "sandboxes"
    usable = False
    for name in plugins().known("sandbox provider"):
        found = look(name)
        can = found.capabilities
        if found.problem or can is None:
            yield Finding(topic, name, found.problem, "note")
            continue
        usable = True
        private = "files private to each sandbox" if can.private_files else "FILES SHARED between sandboxes"
        kept = "the provider" if can.ttl_enforced else "our reaper"
        told = f" ({found.told})" if found.told else ""
        yield Finding(topic, name, f"isolation: {can.isolation}{told}; {private}; TTL kept by {kept}")
    if serves and not usable:
        fix = "start Docker, or use sandboxes without it: pip install 'agentenv-framework[process]'"
        if any(entry.status == "blocked" for entry in plugins().entries):
            fix = f"list a provider in {ALLOW_VARIABLE}, or unset that"
        yield Finding(topic, "providers", "none can be used here, so no bundle can be served", "problem", fix)


def disks() -> Iterator[Finding]:
    """Free space where images, caches and temporary files go."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    places = {"temporary files": Path(tempfile.gettempdir()), "caches": cache, "Docker images": Path("/var/lib/docker")}
    for subject, place in places.items():
        if subject == "Docker images" and not os.path.lexists(place):
            continue
        while not os.path.lexists(place):
            place = place.parent
        try:
            free = shutil.disk_usage(place).free
        except OSError as exc:
            yield Finding("disk", subject, f"{place}: {describe(exc)}", "note")
            continue
        level: Level = "problem" if free < NO_SPACE else "note" if free < LITTLE_SPACE else "ok"
        fix = "" if level == "ok" else f"free some space at {place}; images take hundreds of MB each"
        yield Finding("disk", subject, f"{free / GIB:.1f} GiB free at {place}", level, fix)


def stack(versions: Versions) -> Iterator[Finding]:
    """The packages around us, and whether their versions go together."""
    topic = "packages"
    trouble = dict(_trouble(versions))
    for name in STACK:
        if name not in versions:
            yield Finding(topic, name, "not installed", "absent", STACK[name])
        elif name in trouble:
            reason, fix = trouble[name]
            yield Finding(topic, name, f"{versions[name]}: {reason}", "problem", fix)
        else:
            yield Finding(topic, name, versions[name])


def _trouble(versions: Versions) -> Iterator[tuple[str, tuple[str, str]]]:
    """Package names with what is wrong with their versions and the fix."""
    have = {name: release(version) for name, version in versions.items()}
    serves = "openenv" in have
    if serves and not (0, 9) <= have["openenv"] < (0, 11):
        yield "openenv", ("agent-env speaks OpenEnv 0.9 and 0.10", "pip install 'openenv>=0.9,<0.11'")
    if serves and "mcp" in have and not (1, 25) <= have["mcp"] < (2,):
        yield "mcp", ("OpenEnv needs mcp 1, from 1.25", "pip install 'mcp>=1.25,<2'")
    if "trl" in have and have["trl"] < (1, 15):
        yield "trl", ("before 1.15 an environment can't own its reward", "pip install 'trl>=1.15'")
    if "trl" in have and have.get("transformers", (5, 2)) < (5, 2):
        yield "transformers", ("TRL's environments need 5.2", "pip install 'transformers>=5.2'")
    if have.get("vllm", ()) >= (0, 30):
        if serves:
            fix = (
                "pip install 'vllm<0.30', or serve the bundle from an environment of its own and keep only "
                "agentenv-framework-trl beside vLLM, which needs no mcp"
            )
            yield "vllm", ("0.30 and later need mcp 2, and OpenEnv needs mcp 1", fix)
        elif have.get("mcp", (2,)) < (2,):
            yield "mcp", (f"vLLM {versions['vllm']} needs mcp 2", "pip install 'mcp>=2,<3'")


def settings(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Our environment variables that are set; a secret's value is never shown."""
    for name in sorted(environ):
        if name == ALLOW_VARIABLE and (strangers := _not_installed(environ[name])):
            fix = f"no plugin or distribution here has the name {strangers}; `agent-env plugins` lists them"
            yield Finding("settings", name, repr(environ[name]), "note", fix)
        elif name.startswith("AGENT_ENV_") or name == "MAX_CONCURRENT_ENVS":
            yield Finding("settings", name, "(set, not shown)" if SECRET.search(name) else repr(environ[name]))


def _not_installed(allowed: str) -> str:
    here = {name for entry in plugins().entries for name in (entry.name, entry.distribution)}
    return ", ".join(name for part in allowed.split(",") if (name := part.strip()) and name not in here)
