"""Strict reading of JSON and TOML, and of tables whose keys are known."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from agent_env_core.bundle.names import nearest, quote
from agent_env_core.errors import Problem

MAX_BYTES = 8 * 1024 * 1024
_BOM = b"\xef\xbb\xbf"
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")


class ConfigFault(ValueError):
    """Text that can't be read; the message says where and why."""


class Problems:
    """Collects what is wrong while reading goes on.

    Attributes:
        found: What is to be mended.
        follows: What is wrong only because something else is, which is told of where it lies.
    """

    def __init__(self) -> None:
        self.found: list[Problem] = []
        self.follows: list[Problem] = []

    def __bool__(self) -> bool:
        return bool(self.found or self.follows)

    def add(self, place: str, message: str, fix: str = "") -> None:
        """Notes one problem."""
        self.found.append(Problem(place, message, fix))

    def follow(self, place: str, message: str, fix: str = "") -> None:
        """Notes that something can't be used because of a problem elsewhere."""
        self.follows.append(Problem(place, message, fix))


def _text(data: bytes) -> str:
    try:
        return data.removeprefix(_BOM).decode("utf-8")
    except UnicodeDecodeError as exc:
        line = data.count(b"\n", 0, exc.start) + 1
        raise ConfigFault(f"is not UTF-8 text (line {line})") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        twice = next(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
        raise ConfigFault(f"has the key {quote(twice)} twice in one object")
    return made


def _no_constant(text: str) -> Any:
    raise ConfigFault(f"has the number {text}, which JSON doesn't know")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ConfigFault(f"has the number {quote(text)}, which is too large")
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_no_constant, parse_float=_finite)


def parse_json(data: bytes) -> Any:
    """Reads JSON, refusing duplicate keys, ``NaN`` and ``Infinity``, and text that is not Unicode.

    Raises:
        ConfigFault: It can't be read; the message follows on from the file's name.
    """
    text = _text(data)
    try:
        value = _DECODER.decode(text)
        if _SURROGATE_ESCAPE.search(data):
            json.dumps(value, ensure_ascii=False).encode()
    except ConfigFault:
        raise
    except json.JSONDecodeError as exc:
        raise ConfigFault(f"is not JSON: line {exc.lineno}, column {exc.colno}: {exc.msg}") from None
    except RecursionError:
        raise ConfigFault("is nested too deeply") from None
    except UnicodeEncodeError:
        raise ConfigFault(r"has half of a surrogate pair (an escape \ud800 to \udfff that stands alone)") from None
    except ValueError:
        raise ConfigFault("has a whole number with too many digits") from None
    return value


def parse_toml(data: bytes) -> dict[str, Any]:
    """Reads TOML.

    Raises:
        ConfigFault: It can't be read; the message follows on from the file's name.
    """
    text = _text(data)
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ConfigFault("is nested too deeply") from None
    except tomllib.TOMLDecodeError as exc:
        raise ConfigFault(f"is not TOML: {exc}") from None
    except ValueError:
        raise ConfigFault("has a number or a date that is out of range") from None


class Table:
    """A TOML table with known keys: each getter checks its key's type and notes a problem where it doesn't fit.

    Args:
        place: How problems name the table's file.
        data: The table.
        problems: Where to note them.
        at: The key the table stands under, for a table within the file.
    """

    def __init__(self, place: str, data: Mapping[str, Any], problems: Problems, at: str = "") -> None:
        self.place = place
        self.data = data
        self.problems = problems
        self._at = f"{at}." if at else ""

    def at(self, key: str) -> str:
        """A key's full name, with the tables it stands in."""
        return self._at + key

    def fault(self, key: str, message: str, fix: str = "") -> None:
        """Notes a problem with one key."""
        self.problems.add(self.place, f"{self.at(key)} {message}", fix)

    def known(self, keys: Iterable[str]) -> None:
        """Notes each key that isn't one of ``keys``."""
        known = sorted(keys)
        for key in self.data:
            if key not in known:
                meant = nearest(key, known)
                fix = f"did you mean {meant!r}?" if meant else "known keys: " + ", ".join(self.at(k) for k in known)
                self.problems.add(self.place, f"unknown key {quote(self.at(key))}", fix)

    def text(self, key: str, *, required: bool = False) -> str | None:
        """A non-empty text."""
        value = self.data.get(key)
        if value is None:
            if required:
                self.fault(key, "is missing", f'add {key} = "…"')
            return None
        if not isinstance(value, str) or not value.strip():
            self.fault(key, f"must be a non-empty text, not {quote(value)}")
            return None
        return value

    def flag(self, key: str) -> bool | None:
        """True or false."""
        value = self.data.get(key)
        if value is None or isinstance(value, bool):
            return value
        self.fault(key, f"must be true or false, not {quote(value)}")
        return None

    def number(self, key: str) -> float | int | None:
        """A finite number above 0."""
        value = self.data.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            self.fault(key, f"must be a number above 0, not {quote(value)}")
            return None
        return value

    def table(self, key: str) -> Table | None:
        """A table."""
        value = self.data.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.fault(key, f"must be a table, not {quote(value)}")
            return None
        return Table(self.place, value, self.problems, self.at(key))
