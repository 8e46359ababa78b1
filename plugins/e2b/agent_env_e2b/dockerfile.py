"""From a Dockerfile to what E2B builds of it: without what E2B would run at the wrong time, or leave out silently."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from agent_env_core.bundle.dockerfile import Dockerfile, Instruction, read_dockerfile
from agent_env_core.errors import ImageError

LEFT_OUT = frozenset({"CMD", "ENTRYPOINT", "HEALTHCHECK", "ONBUILD", "STOPSIGNAL"})
"""What says nothing about an image's files. E2B would run the start command at the build, and keep it running."""

REFUSED_FLAGS = {
    "RUN": frozenset({"mount", "network", "security", "device"}),
    "COPY": frozenset({"exclude", "parents", "from"}),
    "ADD": frozenset({"exclude", "parents", "from", "keep-git-dir", "checksum", "unpack"}),
}
"""Flags that change what is built, and that E2B's SDK skips or can't do."""

_OTHERWISE = "build the image yourself, push it to a registry, and name it in the env's `image = { ref = … }`"
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class Plan:
    """What is built.

    Attributes:
        what: For messages.
        slug: For the template's name.
        ref: A registry reference, where there is no context.
        context: The folder that files are copied from.
        dockerfile: The Dockerfile's text, as E2B is given it.
        user: Whom commands run as.
        workdir: Where they start; None for the root folder.
    """

    what: str
    slug: str
    ref: str = ""
    context: Path | None = None
    dockerfile: str = ""
    user: str = "root"
    workdir: str | None = None


def plan_of_ref(ref: str) -> Plan:
    """A registry's image; it runs as root, from the root folder."""
    name = ref.rpartition("/")[2]
    return Plan(f"the image {ref}", _slug(name), ref=ref)


def plan_of_context(context: Path, dockerfile: str) -> Plan:
    """A folder with a Dockerfile.

    Raises:
        ImageError: It isn't there, can't be read, or asks for what E2B can't do; the message names the line.
    """
    root = context.resolve()
    path = (root / dockerfile).resolve()
    if not path.is_relative_to(root):
        raise ImageError(f"e2b: the Dockerfile {path} is outside its context {root}; move it into the context")
    if not path.is_file():
        raise ImageError(f"e2b: there is no Dockerfile {path}")
    read = read_dockerfile(path)
    _refuse(read, path)
    text = _without(read, path.read_text(encoding="utf-8"))
    user = (read.user or "root").partition(":")[0]
    if not _USER.fullmatch(user):
        raise ImageError(f"e2b: {path}: USER {read.user} must be a user's name, since E2B knows users by name only")
    return Plan(f"{path}", _slug(root.name), context=root, dockerfile=text, user=user, workdir=read.workdir)


def _refuse(read: Dockerfile, path: Path) -> None:
    if len(read.stages) > 1:
        line = read.final.instructions[0].line
        raise ImageError(f"e2b: {path}:{line}: E2B builds no Dockerfile of several stages; {_OTHERWISE}")
    for instruction in read.instructions:
        if instruction.keyword == "SHELL":
            raise ImageError(f"e2b: {path}:{instruction.line}: E2B knows no SHELL; {_OTHERWISE}")
        flags = {name for name, _ in instruction.flags} & REFUSED_FLAGS.get(instruction.keyword, frozenset())
        if flags:
            flag = sorted(flags)[0]
            raise ImageError(
                f"e2b: {path}:{instruction.line}: E2B can't do {instruction.keyword} --{flag}; {_OTHERWISE}"
            )


def _without(read: Dockerfile, text: str) -> str:
    """The text without the instructions that are :data:`LEFT_OUT`."""
    lines = text.splitlines(keepends=True)
    starts = [instruction.line - 1 for instruction in read.instructions] + [len(lines)]
    head = "".join(lines[: starts[0]])
    return head + "".join(
        "".join(lines[start:end])
        for instruction, start, end in zip(read.instructions, starts, starts[1:], strict=False)
        if _kept(instruction)
    )


def _kept(instruction: Instruction) -> bool:
    return instruction.keyword not in LEFT_OUT


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower())[:30].strip("-") or "image"
