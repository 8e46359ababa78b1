"""Which distributions are installed, and whether their versions go together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from typing import Any

from packaging.requirements import Requirement

from agent_env_core.errors import Problem

TRL = "trl"


def problems(requires: Iterable[str], arguments: Mapping[str, Any], *, peft: bool, local: bool) -> list[Problem]:
    """What is missing, or doesn't fit.

    Args:
        requires: The trainer adapter's requirements.
        arguments: The trainer's arguments.
        peft: Whether PEFT is asked for.
        local: Whether the bundle is served on this machine, by this installation.
    """
    extras = {""} | ({"vllm"} if arguments.get("use_vllm") else set()) | ({"peft"} if peft else set())
    wanted = [Requirement(text) for text in requires]
    asked = {requirement.name for requirement in wanted}
    if TRL in asked and _version(TRL) is not None:
        wanted += _of_trl(extras)
    told = {requirement.name for requirement in wanted}
    wanted += [Requirement(name) for name in ("vllm", "peft") if name in extras - told]
    found = list(dict.fromkeys(problem for requirement in wanted if (problem := _unmet(requirement))))
    return [*found, *(_serving() if local else ()), *_parsing(asked), *_kernels(asked)]


def _of_trl(extras: Iterable[str]) -> Iterator[Requirement]:
    """What the installed TRL needs for these of its extras: it knows which versions it was made for."""
    for text in metadata.requires(TRL) or ():
        requirement = Requirement(text)
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in extras):
            requirement.marker = None
            yield requirement


def _unmet(requirement: Requirement) -> Problem | None:
    here = _version(requirement.name)
    wanted = f"{requirement.name}{requirement.specifier}"
    fix = f"pip install '{wanted}'"
    if here is None:
        return Problem(requirement.name, "isn't installed", fix)
    if not requirement.specifier.contains(here, prereleases=True):
        return Problem(requirement.name, f"{here} is installed, and {wanted} is needed", fix)
    return None


def _serving() -> Iterator[Problem]:
    for name in ("openenv", "mcp"):
        here = _version(name)
        if here is None:
            yield Problem(
                "bundle", f"is served here, and {name} isn't installed", "pip install 'agentenv-framework[server]'"
            )
        elif name == "mcp" and not here.startswith("1."):
            yield Problem(
                "bundle",
                f"is served here, which needs mcp 1, and mcp {here} is installed",
                "serve it where mcp 1 is, with agent-env serve, and train with url instead of bundle",
            )


def _parsing(asked: Iterable[str]) -> Iterator[Problem]:
    here = _version("transformers")
    if "transformers" not in asked or here is None or not Requirement("transformers<5.13").specifier.contains(here):
        return
    if _version("jmespath") is None:
        yield Problem(
            "jmespath",
            f"isn't installed, and transformers {here} needs it to read tool calls",
            "pip install jmespath, or 'transformers>=5.13'",
        )


def _kernels(asked: Iterable[str]) -> Iterator[Problem]:
    """TRL 1.15 computes GRPO's loss with Triton alone; 1.16 does without it where there is no GPU."""
    here = _version("trl")
    if "trl" in asked and here is not None and here.startswith("1.15.") and _version("triton") is None:
        yield Problem("triton", f"isn't installed, and TRL {here} trains with nothing else", "pip install 'trl>=1.16'")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
