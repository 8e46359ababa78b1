"""The front matter of a ``SKILL.md``: the part of YAML that such files use, with no YAML library in the core.

Texts are read in every form YAML has for them (plain, quoted, ``|`` and ``>`` blocks, continued lines). Nested values
are taken as they stand and not looked into.
"""

from __future__ import annotations

import json
import re

_KEY = re.compile(r"([A-Za-z_][\w-]*)[ \t]*:(?:[ \t]+(.*)|)$", re.ASCII)
_FENCE = re.compile(r"---[ \t]*$")
_BLOCK = re.compile(r"([|>])(?:[+-]?[1-9]?|[1-9][+-])(?:[ \t]+#.*)?$")
_PLAIN_COMMENT = re.compile(r"[ \t]#.*$")


class FrontMatterFault(ValueError):
    """Front matter that can't be read; the message follows on from the file's name."""


def split(text: str) -> tuple[list[str], str]:
    """Front matter's lines and the text after it.

    Raises:
        FrontMatterFault: There is none, or it has no end.
    """
    lines = text.removeprefix("\ufeff").splitlines()
    if not lines or not _FENCE.match(lines[0]):
        raise FrontMatterFault("doesn't begin with front matter, a block between two lines of ---")
    for number, line in enumerate(lines[1:], start=1):
        if _FENCE.match(line):
            return lines[1:number], "\n".join(lines[number + 1 :])
    raise FrontMatterFault("has front matter without an end, a second line of ---")


def parse(lines: list[str]) -> dict[str, str]:
    """Keys and texts of front matter; a nested value is its source lines.

    Raises:
        FrontMatterFault: A line is no ``key: value``, a key stands twice, or a quote has no end.
    """
    found: dict[str, str] = {}
    at = 0
    while at < len(lines):
        line = lines[at]
        at += 1
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _KEY.match(line.rstrip())
        if not match:
            raise FrontMatterFault(f"has front matter that isn't 'key: value' in line {at + 1}")
        key, first = match.group(1), match.group(2) or ""
        if key in found:
            raise FrontMatterFault(f"has {key} twice in its front matter")
        start = at
        while at < len(lines) and (not lines[at].strip() or lines[at][0] in " \t" or lines[at].startswith("- ")):
            at += 1
        found[key] = _value(key, first.strip(), lines[start:at])
    return found


def _value(key: str, first: str, more: list[str]) -> str:
    """The text of one key: what stands beside it and the indented lines below."""
    if block := _BLOCK.match(first):
        return _block(more, folded=block.group(1) == ">")
    if not first or first.startswith("#"):
        return "\n".join(more).strip()
    if first[0] in "'\"":
        return _quoted(key, " ".join((first, *(line.strip() for line in more))))
    plain = [_PLAIN_COMMENT.sub("", line.strip()) for line in (first, *more)]
    return " ".join(part for part in plain if part and not part.startswith("#"))


def _block(lines: list[str], *, folded: bool) -> str:
    indent = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    text = "\n".join(line[indent:].rstrip() for line in lines).strip("\n")
    return re.sub(r"\n(\n*)", lambda gap: gap.group(1) or " ", text) if folded else text


def _quoted(key: str, text: str) -> str:
    if text[0] == "'":
        match = re.match(r"'((?:[^']|'')*)'[ \t]*(?:#.*)?$", text)
        if match:
            return match.group(1).replace("''", "'")
    elif match := re.match(r'("(?:[^"\\]|\\.)*")[ \t]*(?:#.*)?$', text):
        try:
            return str(json.loads(match.group(1), strict=False))
        except ValueError:
            raise FrontMatterFault(f"has an escape in {key} that can't be read") from None
    raise FrontMatterFault(f"has a quote in {key} that doesn't end")
