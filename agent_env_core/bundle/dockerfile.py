"""What a Dockerfile says, without building it: its instructions, and what its containers run, where and as whom.

All of Docker's syntax is read: directives, continuation lines, comments, here-documents, JSON and shell forms, flags,
``ARG`` and ``ENV`` with substitution, and several stages, of which the last counts. What a base image brings from its
registry is not known here.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agent_env_core.bundle.config import MAX_BYTES
from agent_env_core.bundle.dockerfile_text import (
    DockerfileFault,
    Heredoc,
    LineFault,
    Logical,
    Substitution,
    logical_lines,
    split_words,
)
from agent_env_core.errors import ImageError

#: What nearly every base image sets, so that ``ENV PATH=/app/bin:$PATH`` keeps its meaning.
BASE_ENV: Mapping[str, str] = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
_SHELL = ("/bin/sh", "-c")
_JSON_FORMS = frozenset({"ADD", "CMD", "COPY", "ENTRYPOINT", "RUN", "SHELL", "VOLUME"})
_VERBATIM = frozenset({"CMD", "ENTRYPOINT", "RUN", "SHELL", "HEALTHCHECK", "ONBUILD", "MAINTAINER"})
_ONE_WORD = frozenset({"WORKDIR", "USER", "STOPSIGNAL"})
_PORTS = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?(?:/(?:tcp|udp|sctp))?", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True)
class Instruction:
    """One instruction.

    Attributes:
        keyword: In upper case, e.g. ``COPY``.
        raw: What follows the keyword and its flags, continuation lines joined, nothing substituted.
        line: The number of its first line, from 1.
        flags: ``--name=value`` in order, with the value empty where there is none; substituted.
        arguments: Its words after substitution; ``KEY=value`` for ENV, ARG and LABEL. ``RUN``, ``CMD``, ``ENTRYPOINT``
            and ``SHELL`` are never substituted; in shell form they have one argument, the whole text.
        exec_form: Whether it is written as a JSON array.
        heredocs: Its here-documents. An interpreter that can't handle them must refuse an instruction that has any.
        variables: ARG and ENV values in force before it (ENV wins), without those of the base image.
    """

    keyword: str
    raw: str
    line: int
    flags: tuple[tuple[str, str], ...] = ()
    arguments: tuple[str, ...] = ()
    exec_form: bool = False
    heredocs: tuple[Heredoc, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)

    def flag(self, name: str) -> str | None:
        """The value of a flag; the last one where it stands several times, None where it doesn't."""
        return dict(self.flags).get(name)


@dataclass(frozen=True)
class Stage:
    """What one ``FROM`` begins.

    Attributes:
        base: The image or the earlier stage it starts from, substituted.
        name: Its ``AS`` name in lower case, or empty.
        from_stage: Whether ``base`` is an earlier stage; that stage's settings are then included below.
        instructions: Its instructions, ``FROM`` first.
        env: What its ENV instructions set.
        workdir: Absolute; None where no WORKDIR sets it.
        user: None where no USER sets it.
        exposed: Ports, in order.
        shell: What shell forms run in.
        entrypoint: As an argv; None where the file doesn't set it.
        cmd: As an argv; None where the file doesn't set it.
    """

    base: str
    name: str
    from_stage: bool
    instructions: tuple[Instruction, ...]
    env: Mapping[str, str] = field(default_factory=dict, hash=False)
    workdir: str | None = None
    user: str | None = None
    exposed: tuple[int, ...] = ()
    shell: tuple[str, ...] = _SHELL
    entrypoint: tuple[str, ...] | None = None
    cmd: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Dockerfile:
    """A Dockerfile that was read.

    Attributes:
        stages: In order; the last is the image.
        instructions: All of them in order, the ARGs before the first FROM among them.
    """

    stages: tuple[Stage, ...]
    instructions: tuple[Instruction, ...]

    @property
    def final(self) -> Stage:
        """The stage that becomes the image."""
        return self.stages[-1]

    @property
    def workdir(self) -> str | None:
        """The working folder, or None where it is the base image's."""
        return self.final.workdir

    @property
    def env(self) -> Mapping[str, str]:
        """What ENV sets."""
        return self.final.env

    @property
    def user(self) -> str | None:
        """The user, or None where it is the base image's."""
        return self.final.user

    @property
    def exposed(self) -> tuple[int, ...]:
        """The ports it exposes."""
        return self.final.exposed

    def start_command(self) -> tuple[str, ...]:
        """ENTRYPOINT and CMD as one argv; empty where the file sets neither, so that the base image decides."""
        return (self.final.entrypoint or ()) + (self.final.cmd or ())


def read_dockerfile(path: Path, *, base_env: Mapping[str, str] = BASE_ENV) -> Dockerfile:
    """Reads a Dockerfile.

    Args:
        path: The file.
        base_env: Variables of the base image, for substitution only.

    Raises:
        ImageError: It can't be read; the message names the file and the line.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ImageError(f"{path}: is more than {MAX_BYTES // (1024 * 1024)} MiB long")
        text = data.decode("utf-8")
    except OSError as exc:
        raise ImageError(f"{path}: can't be read: {exc.strerror or exc}") from exc
    except UnicodeDecodeError as exc:
        raise ImageError(f"{path}: is not UTF-8 text") from exc
    return parse_dockerfile(text, str(path), base_env=base_env)


def parse_dockerfile(text: str, name: str = "Dockerfile", *, base_env: Mapping[str, str] = BASE_ENV) -> Dockerfile:
    """Reads a Dockerfile's text; see :func:`read_dockerfile`. ``name`` is what errors call it."""
    try:
        lines, escape = logical_lines(text)
        return _Interpreter(escape, base_env).run(lines)
    except LineFault as exc:
        raise ImageError(f"{name}:{exc.line}: {exc}") from None
    except RecursionError:
        raise ImageError(f"{name}: is nested too deeply") from None


class _Interpreter:
    """Goes through the instructions once and keeps what is in force."""

    def __init__(self, escape: str, base_env: Mapping[str, str]) -> None:
        self._escape = escape
        self._base_env = base_env
        self._global_args: dict[str, str] = {}
        self._args: dict[str, str] = {}
        self._variables: Mapping[str, str] = {}
        self._all: list[Instruction] = []
        self._stages: list[_Draft] = []

    def run(self, lines: list[Logical]) -> Dockerfile:
        for logical in lines:
            try:
                self._step(logical)
            except LineFault:
                raise
            except DockerfileFault as exc:
                raise LineFault(logical.line, f"{logical.keyword} {exc}") from None
        if not self._stages:
            raise LineFault(1, "has no FROM, so there is no image to start from")
        return Dockerfile(tuple(draft.stage() for draft in self._stages), tuple(self._all))

    def _step(self, logical: Logical) -> None:
        if not self._stages and logical.keyword not in ("FROM", "ARG"):
            raise DockerfileFault("stands before the first FROM")
        instruction = self._instruction(logical)
        self._all.append(instruction)
        if logical.keyword == "FROM":
            self._from(instruction)
        if self._stages:
            draft = self._stages[-1]
            draft.instructions.append(instruction)
            draft.apply(instruction)
        if logical.keyword == "ARG":
            self._arg(instruction)
        if logical.keyword in ("FROM", "ARG", "ENV"):
            env = self._stages[-1].env if self._stages else {}
            self._variables = {**(self._args if self._stages else self._global_args), **env}

    def _instruction(self, logical: Logical) -> Instruction:
        variables = self._global_args if logical.keyword == "FROM" else self._variables
        substitution = Substitution({**self._base_env, **variables}, self._escape)
        words = _json_words(logical.rest) if logical.keyword in _JSON_FORMS else None
        arguments = self._arguments(logical, words, substitution)
        if not arguments and not (words is not None and logical.keyword in ("CMD", "ENTRYPOINT")):
            raise DockerfileFault("has no arguments")
        flags = tuple((name, substitution.word(value)) for name, value in logical.flags)
        return Instruction(
            logical.keyword,
            logical.rest,
            logical.line,
            flags,
            arguments,
            words is not None,
            logical.heredocs,
            variables,
        )

    def _arguments(self, logical: Logical, words: list[str] | None, substitution: Substitution) -> tuple[str, ...]:
        keyword, rest = logical.keyword, logical.rest
        if keyword in _VERBATIM:
            return tuple(words) if words is not None else (rest,) if rest else ()
        if words is not None:
            return tuple(substitution.word(word) for word in words)
        if keyword in _ONE_WORD:
            return (substitution.word(rest),) if rest else ()
        parts = list(split_words(rest, self._escape))
        if keyword in ("ENV", "LABEL"):
            return tuple(self._pairs(parts, rest, substitution))
        values = (substitution.word(part) for part in parts)
        return tuple(port for value in values for port in value.split()) if keyword == "EXPOSE" else tuple(values)

    def _pairs(self, parts: list[str], rest: str, substitution: Substitution) -> list[str]:
        """``KEY=value`` words; the old form ``KEY value`` has one pair."""
        if parts and "=" not in parts[0]:
            key, *value = rest.split(None, 1)
            if not value:
                raise DockerfileFault(f"has {key} without a value")
            return [f"{key}={substitution.word(value[0].strip())}"]
        for part in parts:
            if part.find("=") < 1:
                raise DockerfileFault(f"has {part!r}, which is not KEY=value")
        return [substitution.word(part) for part in parts]

    def _from(self, instruction: Instruction) -> None:
        words = instruction.arguments
        if len(words) not in (1, 3) or (len(words) == 3 and words[1].lower() != "as"):
            raise DockerfileFault("must be FROM <image> or FROM <image> AS <name>")
        if not words[0]:
            raise DockerfileFault(f"{instruction.raw} names no image: a variable in it has no value")
        base = next((draft for draft in reversed(self._stages) if draft.name == words[0].lower()), None)
        self._args = {}
        self._stages.append(_Draft(words[0], words[2].lower() if len(words) == 3 else "", base))

    def _arg(self, instruction: Instruction) -> None:
        target = self._args if self._stages else self._global_args
        for word in instruction.arguments:
            name, has_default, value = word.partition("=")
            if has_default:
                target[name] = value
            elif self._stages and name in self._global_args:
                target[name] = self._global_args[name]


class _Draft:
    """A stage while it grows."""

    def __init__(self, base: str, name: str, parent: _Draft | None) -> None:
        self.base = base
        self.name = name
        self.parent = parent
        self.instructions: list[Instruction] = []
        self.env: dict[str, str] = dict(parent.env) if parent else {}
        self.workdir: str | None = parent.workdir if parent else None
        self.user: str | None = parent.user if parent else None
        self.exposed: list[int] = list(parent.exposed) if parent else []
        self.shell: tuple[str, ...] = parent.shell if parent else _SHELL
        self.entrypoint: tuple[str, ...] | None = parent.entrypoint if parent else None
        self.cmd: tuple[str, ...] | None = parent.cmd if parent else None
        self._own_cmd = False

    def apply(self, instruction: Instruction) -> None:
        """Takes over what an instruction sets for containers of the image."""
        words = instruction.arguments
        match instruction.keyword:
            case "ENV":
                self.env.update(word.partition("=")[::2] for word in words)
            case "WORKDIR":
                self.workdir = posixpath.normpath(posixpath.join(self.workdir or "/", words[0]))
            case "USER":
                self.user = words[0]
            case "EXPOSE":
                self.exposed.extend(port for word in words for port in _ports(word) if port not in self.exposed)
            case "SHELL":
                if not instruction.exec_form:
                    raise DockerfileFault("must be a JSON array")
                self.shell = words
            case "CMD":
                self.cmd = words if instruction.exec_form else (*self.shell, words[0])
                self._own_cmd = True
            case "ENTRYPOINT":
                self.entrypoint = words if instruction.exec_form else (*self.shell, words[0])
                if not self._own_cmd:
                    self.cmd = None  # an inherited CMD was meant for another entrypoint

    def stage(self) -> Stage:
        """The finished stage."""
        return Stage(
            self.base,
            self.name,
            self.parent is not None,
            tuple(self.instructions),
            self.env,
            self.workdir,
            self.user,
            tuple(self.exposed),
            self.shell,
            self.entrypoint,
            self.cmd,
        )


def _json_words(text: str) -> list[str] | None:
    """The words of an exec form, or None where the text is none; Docker then takes it for a shell form."""
    if not text.startswith("["):
        return None
    try:
        words = json.loads(text)
    except ValueError:
        return None
    return words if isinstance(words, list) and all(isinstance(word, str) for word in words) else None


def _ports(word: str) -> range:
    match = _PORTS.fullmatch(word)
    first, last = (int(match.group(1)), int(match.group(2) or match.group(1))) if match else (0, 0)
    if not 1 <= first <= last <= 65535:
        raise DockerfileFault(f"has {word!r}, which is no port or range of ports")
    return range(first, last + 1)
