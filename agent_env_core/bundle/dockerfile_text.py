"""The text of a Dockerfile: lines into instructions, words, and ``$VARIABLE`` substitution.

What the words mean is :mod:`agent_env_core.bundle.dockerfile`'s matter.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

KEYWORDS = frozenset({
    "ADD", "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL", "MAINTAINER", "ONBUILD",
    "RUN", "SHELL", "STOPSIGNAL", "USER", "VOLUME", "WORKDIR",
})  # fmt: skip
_HEREDOC_KEYWORDS = frozenset({"ADD", "COPY", "RUN"})
_DIRECTIVE = re.compile(r"#\s*([A-Za-z][A-Za-z0-9]*)\s*=\s*(.+?)\s*$")
_DIRECTIVES = frozenset({"syntax", "escape", "check"})
_HEREDOC = re.compile(r"\d*<<(-?)([^<]+)$")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*#?$!-]")


class DockerfileFault(ValueError):
    """Text that can't be read, without its line; the caller knows that."""


@dataclass(frozen=True)
class Heredoc:
    """A here-document of an instruction: its name and its text, lines kept."""

    name: str
    text: str


@dataclass(frozen=True)
class Logical:
    """One instruction with its continuation lines joined and its comments gone.

    Attributes:
        line: The number of its first line, from 1.
        keyword: In upper case.
        flags: ``--name=value`` words in front of the arguments; an empty value where there is no ``=``.
        rest: What follows them, as written.
        heredocs: Here-documents that follow it.
    """

    line: int
    keyword: str
    flags: tuple[tuple[str, str], ...]
    rest: str
    heredocs: tuple[Heredoc, ...] = ()


class LineFault(DockerfileFault):
    """A fault with its line."""

    def __init__(self, line: int, message: str) -> None:
        self.line = line
        super().__init__(message)


def directives(lines: list[str]) -> tuple[dict[str, str], int]:
    """Parser directives at the top of a file, and how many lines they take."""
    found: dict[str, str] = {}
    for number, line in enumerate(lines):
        match = _DIRECTIVE.match(line.strip())
        key = match.group(1).lower() if match else ""
        if not match or key not in _DIRECTIVES:
            return found, number
        if key in found:
            raise LineFault(number + 1, f"sets the directive {key} twice")
        if key == "escape" and match.group(2) not in ("\\", "`"):
            raise LineFault(number + 1, f"sets escape to {match.group(2)!r}, which must be \\ or `")
        found[key] = match.group(2)
    return found, len(lines)


def logical_lines(text: str) -> tuple[list[Logical], str]:
    """The instructions of a Dockerfile's text, and its escape character.

    Raises:
        LineFault: A line is no instruction, or a here-document has no end.
    """
    lines = [line.removesuffix("\r") for line in text.removeprefix("\ufeff").split("\n")]
    head, at = directives(lines)
    escape = head.get("escape", "\\")
    continued = re.compile(r"(^|[^{0}]){0}[ \t]*$".format(re.escape(escape)))
    found: list[Logical] = []
    while at < len(lines):
        start, line = at, lines[at].lstrip()
        at += 1
        if not line or line.startswith("#"):
            continue
        joined, more = continued.subn(r"\1", line)
        while more and at < len(lines):
            line = lines[at]
            at += 1
            if line.strip() and not line.lstrip().startswith("#"):
                line, more = continued.subn(r"\1", line)
                joined += line
        if not joined.strip():
            continue
        keyword, rest = [*joined.split(None, 1), ""][:2]
        if keyword.upper() not in KEYWORDS:
            raise LineFault(start + 1, f"has the unknown instruction {keyword!r}")
        heredocs, at = _heredocs(keyword.upper(), rest, lines, at, escape)
        flags, rest = _flags(rest.strip(), escape)
        found.append(Logical(start + 1, keyword.upper(), flags, rest, heredocs))
    return found, escape


def _heredocs(keyword: str, rest: str, lines: list[str], at: int, escape: str) -> tuple[tuple[Heredoc, ...], int]:
    """The here-documents that an instruction opens, and the line after them."""
    found = []
    for word in split_words(rest, escape) if keyword in _HEREDOC_KEYWORDS and "<<" in rest else ():
        match = _HEREDOC.match(word)
        if not match:
            continue
        name = match.group(2).strip("'\"")
        start, body = at, []
        while True:
            if at >= len(lines):
                raise LineFault(start, f"opens the here-document {name!r}, which has no end")
            line = lines[at].lstrip("\t") if match.group(1) else lines[at]
            at += 1
            if line == name:
                break
            body.append(line + "\n")
        found.append(Heredoc(name, "".join(body)))
    return tuple(found), at


def _flags(rest: str, escape: str) -> tuple[tuple[tuple[str, str], ...], str]:
    flags = []
    while rest.startswith("--"):
        word = next(split_words(rest, escape))
        rest = rest[len(word) :].lstrip()
        if word == "--":
            break
        name, _, value = word[2:].partition("=")
        flags.append((name, value))
    return tuple(flags), rest


def split_words(text: str, escape: str) -> Iterator[str]:
    """Words divided by blanks; quotes and escaped blanks keep a word together, and stay in it."""
    word, quote, at = "", "", 0
    while at < len(text):
        char = text[at]
        at += 1
        if char == escape and quote != "'" and at < len(text):
            char += text[at]
            at += 1
        elif quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in " \t":
            if word:
                yield word
            word = ""
            continue
        word += char
    if word:
        yield word


class Substitution:
    """Takes quotes and escapes from a word and puts variables in.

    Args:
        variables: Their values.
        escape: The file's escape character.
    """

    def __init__(self, variables: Mapping[str, str], escape: str) -> None:
        self._variables = variables
        self._escape = escape

    def word(self, text: str) -> str:
        """The word as the builder sees it.

        Raises:
            DockerfileFault: A quote or brace has no end, or ``${…}`` has a form that isn't known.
        """
        value, _ = self._until(text, 0, "")
        return value

    def _until(self, text: str, at: int, stop: str) -> tuple[str, int]:
        """Reads up to ``stop`` (or the end); returns the value and the place after it."""
        parts: list[str] = []
        while at < len(text):
            char = text[at]
            at += 1
            if stop and char == stop:
                return "".join(parts), at
            if char == "'":
                end = text.find("'", at)
                if end < 0:
                    raise DockerfileFault("has a ' without its end")
                parts.append(text[at:end])
                at = end + 1
            elif char == '"':
                value, at = self._double(text, at)
                parts.append(value)
            elif char == "$":
                value, at = self._dollar(text, at)
                parts.append(value)
            elif char == self._escape and at < len(text):
                parts.append(text[at])
                at += 1
            else:
                parts.append(char)
        if stop:
            raise DockerfileFault("has a ${ without its }")
        return "".join(parts), at

    def _double(self, text: str, at: int) -> tuple[str, int]:
        parts: list[str] = []
        while at < len(text):
            char = text[at]
            at += 1
            if char == '"':
                return "".join(parts), at
            if char == "$":
                char, at = self._dollar(text, at)
            elif char == self._escape and text[at : at + 1] in ('"', "$", self._escape):
                char = text[at : at + 1]
                at += 1
            parts.append(char)
        raise DockerfileFault('has a " without its end')

    def _dollar(self, text: str, at: int) -> tuple[str, int]:
        """The value of what follows a ``$``, and the place after it."""
        braces = text[at : at + 1] == "{"
        match = _NAME.match(text, at + braces)
        if not match:
            if braces:
                raise DockerfileFault("has a ${ that no name follows")
            return "$", at
        name, at = match.group(), match.end()
        value = self._variables.get(name)
        if not braces:
            return value or "", at
        if text[at : at + 1] == "}":
            return value or "", at + 1
        colon = text[at : at + 1] == ":"
        operator = text[at + colon : at + colon + 1]
        if not operator:
            raise DockerfileFault("has a ${ without its }")
        if operator not in ("-", "+", "?"):
            raise DockerfileFault(f"has ${{{name}{text[at : at + 2]}…}}, a form that isn't known here")
        word, at = self._until(text, at + colon + 1, "}")
        there = bool(value) if colon else value is not None
        if operator == "?" and not there:
            raise DockerfileFault(f"needs the variable {name}: {word or 'it is not set'}")
        if operator == "+":
            return (word if there else ""), at
        return (value or "" if there else word), at
