"""What a Dockerfile asks for, as the few things this provider can do; anything else is refused by its line."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agent_env_core.bundle.dockerfile import Instruction, read_dockerfile
from agent_env_core.errors import ImageError
from agent_env_process.context import Context, CopyFault
from agent_env_process.paths import absolute
from agent_env_process.pythons import Interpreter, choose

FORMAT = 2
"""Part of every image's name: raised when the same Dockerfile is to be built in another way."""

_BASE = re.compile(r"(?:[\w.-]+(?::\d+)?/)?(?:[\w.-]+/)*python(?::(?P<tag>[\w.-]+))?(?:@sha256:[0-9a-f]+)?")
_PYTHON = re.compile(r"python(?:3(?:\.\d+)?)?")
_PIP = re.compile(r"pip(?:3(?:\.\d+)?)?")
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_PLAIN = re.compile(r"[\w.,:/@%+=~\[\]-]*")
_ACCOUNTS = frozenset({"useradd", "adduser", "groupadd", "addgroup", "chown"})
_NOTED = frozenset({"FROM", "ARG", "ENV", "EXPOSE", "LABEL", "CMD", "ENTRYPOINT", "HEALTHCHECK", "MAINTAINER"})


@dataclass(frozen=True)
class Folder:
    """Make a folder."""

    line: int
    path: str


@dataclass(frozen=True)
class Copy:
    """Copy from the context; ``sources`` relative to it, ``target`` absolute, with a slash behind it for a folder."""

    line: int
    sources: tuple[str, ...]
    target: str
    mode: int | None = None


@dataclass(frozen=True)
class Pip:
    """Run ``pip`` with these arguments in the folder ``workdir``."""

    line: int
    arguments: tuple[str, ...]
    workdir: str
    env: Mapping[str, str] = field(default_factory=dict, hash=False)


Step = Folder | Copy | Pip


@dataclass(frozen=True)
class Plan:
    """How an image is made.

    Attributes:
        dockerfile: The file it comes from.
        context: Where it copies from.
        python: The Python it uses.
        steps: In order.
        env: What ENV sets.
        workdir: The working folder.
        command: The start command; empty without one.
        notes: What is left out on purpose, for the log.
        ref: Names the result: equal for equal content.
    """

    dockerfile: Path
    context: Context
    python: Interpreter
    steps: tuple[Step, ...]
    env: Mapping[str, str]
    workdir: str
    command: tuple[str, ...]
    notes: tuple[str, ...]
    ref: str


class Refused(ImageError):
    """An instruction that this provider can't carry out."""


def read_plan(folder: Path, dockerfile: str) -> Plan:
    """Reads a Dockerfile and looks at everything it copies.

    Raises:
        ImageError: It can't be read, or asks for what this provider can't do; the message names file and line.
    """
    folder = folder.absolute()
    file = folder / dockerfile
    read = read_dockerfile(file)
    if len(read.stages) > 1:
        raise _refusal(file, read.stages[1].instructions[0], "a second stage can't be built")
    planner = _Planner(file, Context(folder))
    for instruction in read.instructions:
        planner.take(instruction)
    python = choose(planner.tag)
    return Plan(
        file,
        planner.context,
        python,
        tuple(planner.steps),
        read.env,
        absolute(read.workdir or "/"),
        read.start_command(),
        tuple(planner.notes),
        _ref(file, planner, python),
    )


def _ref(file: Path, planner: _Planner, python: Interpreter) -> str:
    content = [planner.context.digest(source) for source in planner.copied]
    facts = [FORMAT, python.version, str(python.path), file.read_text(encoding="utf-8"), content]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]


def _refusal(file: Path, instruction: Instruction, why: str) -> Refused:
    text = " ".join(f"{instruction.keyword} {instruction.raw}".split())
    return Refused(
        f"{file}:{instruction.line}: {text}: the process provider can't do this: {why}. "
        "The docker provider can (sandbox='docker')"
    )


class _Planner:
    """Goes through the instructions once."""

    def __init__(self, file: Path, context: Context) -> None:
        self.file, self.context = file, context
        self.tag = ""
        self.workdir = "/"
        self.steps: list[Step] = []
        self.notes: list[str] = []
        self.copied: list[str] = []

    def take(self, instruction: Instruction) -> None:
        """Turns one instruction into steps.

        Raises:
            Refused: There are none for it.
        """
        try:
            if instruction.heredocs:
                raise CopyFault("a here-document needs a shell")
            match instruction.keyword:
                case "FROM":
                    self._from(instruction)
                case "WORKDIR":
                    self.workdir = absolute(instruction.arguments[0], self.workdir)
                    self.steps.append(Folder(instruction.line, self.workdir))
                case "COPY":
                    self._copy(instruction)
                case "RUN":
                    self._run(instruction)
                case "USER":
                    self.notes.append(f"line {instruction.line}: USER is not kept; everything runs as you")
                case keyword if keyword not in _NOTED:
                    raise CopyFault(f"{keyword} is not among what it knows")
        except CopyFault as exc:
            raise _refusal(self.file, instruction, str(exc)) from None

    def _from(self, instruction: Instruction) -> None:
        match = _BASE.fullmatch(instruction.arguments[0])
        if match is None:
            raise CopyFault(
                "only a python image, such as python:3.12-slim, can be stood for by a Python of this machine"
            )
        self.tag = match["tag"] or ""

    def _copy(self, instruction: Instruction) -> None:
        mode = None
        for name, value in instruction.flags:
            if name == "chmod" and re.fullmatch(r"[0-7]{3,4}", value):
                mode = int(value, 8)
            elif name == "chown":
                self.notes.append(f"line {instruction.line}: --chown is not kept; all files are yours")
            elif name != "link":
                raise CopyFault(f"--{name} is not among what it knows")
        *sources, target = instruction.arguments
        if not sources:
            raise CopyFault("it needs a source and a target")
        found = [path for source in sources for path in self.context.matches(source)]
        path = absolute(target, self.workdir)
        folder = target.endswith(("/", "/.")) or target == "." or path == self.workdir
        if len(found) > 1 and not folder:
            raise CopyFault("several sources need a target with a slash behind it")
        self.copied += found
        self.steps.append(Copy(instruction.line, tuple(found), path.rstrip("/") + "/" if folder else path, mode))

    def _run(self, instruction: Instruction) -> None:
        for name, value in instruction.flags:
            if name != "mount" or "type=cache" not in value.split(","):  # a cache may be left out by its meaning
                raise CopyFault(f"--{name} is not among what it knows")
        if instruction.exec_form:
            commands = [list(instruction.arguments)]
        else:
            commands = _commands(instruction.arguments[0], instruction.variables)
        for command in commands:
            self._command(instruction, command)

    def _command(self, instruction: Instruction, argv: list[str]) -> None:
        program = argv[0].removeprefix("/usr/local/bin/").removeprefix("/usr/bin/")
        if _PYTHON.fullmatch(program) and argv[1:3] == ["-m", "pip"]:
            program, argv = "pip", argv[2:]
        if _PIP.fullmatch(program) and argv[1:2] == ["install"]:
            if any(part in ("-e", "--editable") or part.startswith("--editable=") for part in argv):
                raise CopyFault(
                    "an editable install points at files that every sandbox has a copy of; install without -e"
                )
            self.steps.append(Pip(instruction.line, tuple(argv[1:]), self.workdir, instruction.variables))
        elif _PYTHON.fullmatch(program) and argv[1:3] == ["-m", "compileall"]:
            return  # everything is compiled at the end in any case
        elif program == "mkdir" and argv[1:2] == ["-p"] and len(argv) > 2:
            self.steps += [Folder(instruction.line, absolute(path, self.workdir)) for path in argv[2:]]
        elif program in _ACCOUNTS:
            self.notes.append(f"line {instruction.line}: {program} is left out; everything runs as you")
        else:
            known = "pip install, python -m compileall and mkdir -p"
            raise CopyFault(f"the commands it knows are {known}, and {shlex.join(argv)[:80]!r} is none of them")


def _commands(text: str, variables: Mapping[str, str]) -> list[list[str]]:
    """The commands of a shell line that are joined by ``&&``; nothing else of a shell is there.

    Raises:
        CopyFault: The line needs a shell.
    """
    if "`" in text or re.search(r"'[^']*\$[^']*'", text):
        raise CopyFault("it needs a shell")

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if name not in variables or not _PLAIN.fullmatch(variables[name]):
            raise CopyFault(f"the value of ${name} needs a shell")
        return variables[name]

    text = _VARIABLE.sub(value, text)
    if "$" in text:
        raise CopyFault("it needs a shell")
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.commenters = ""
    lexer.whitespace_split = True
    commands: list[list[str]] = [[]]
    try:
        for word in lexer:
            if word == "&&":
                commands.append([])
            elif word and not word.strip("();<>|&"):
                raise CopyFault(f"{word!r} needs a shell")
            else:
                commands[-1].append(word)
    except ValueError as exc:
        raise CopyFault(f"it can't be read: {exc}") from None
    if not all(commands):
        raise CopyFault("a command is missing beside &&")
    return commands
