"""References: how a step type declares them, and how a value becomes an entity's id.

A reference is resolved in this order, once, when the bundle is read:

1. an *output* that another step of the same task writes;
2. a *bundle* entity of the right kind, by name or id;
3. a *near miss*: another spelling of either, or a file that was ignored: always a problem;
4. something *elsewhere*: an id of the store map, or an id or an alias of an installed bundle. What is known nowhere is
   a problem for all kinds but agents.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from agent_env_core.bundle.config import Problems
from agent_env_core.bundle.ids import PREFIX
from agent_env_core.bundle.names import fold, listed, nearest, nfc, quote, show


@dataclass(frozen=True)
class Reference:
    """A field of a step that names something.

    Attributes:
        field: Where the value stands; dots lead into objects, and a list on the way is walked
            (``snapshot_config.env_id``, ``artifacts.id``).
        kind: What it names: ``env``, ``agent``, ``artifact``, ``skill`` or ``task``. Names of other kinds, such as
            ``sandbox``, are no entities of a bundle and stay as written.
        pin: The field beside it that picks a version, allowed for a store id only.
        many: The value is a list of references.
        output: The step *writes* an entity of this name, and later steps may read it.
        artifact_type: The type an artifact must have, e.g. ``file``.
    """

    field: str
    kind: str
    pin: str | None = None
    many: bool = False
    output: bool = False
    artifact_type: str | None = None


@dataclass(frozen=True)
class StepDeclaration:
    """What the reader is told of a step type.

    Attributes:
        type: The name a task file writes.
        references: Its reference fields. None means that the type doesn't say: its steps then pass through, and a text
            field that names an entity of the bundle is a problem, since it can't be rewritten.
        check: Looks at a step whose references are ids and returns one line a problem.
        unsupported: Why no step of this type can be run here, for a type that the format knows; empty for all others.
    """

    type: str
    references: tuple[Reference, ...] | None = ()
    check: Callable[[dict[str, Any]], list[str]] | None = None
    unsupported: str = ""


@dataclass(frozen=True)
class Target:
    """An entity as references see it.

    Attributes:
        id: Its id.
        name: Its name.
        type: Its type, for an artifact and for a ``multi`` env.
        home: Where it is from.
        pinned: Whether a reference may pick a version of it.
    """

    id: str
    name: str
    type: str = ""
    home: str = "this bundle"
    pinned: bool = False


class Lost(NamedTuple):
    """Why something that is known can't be had, and what to do about it."""

    message: str
    fix: str


class OtherPlaces(Protocol):
    """Knows entities that are not the bundle's own."""

    def find(self, kind: str, value: str) -> Target | Lost | None:
        """The entity of that id or alias, or why it can't be had; None where nobody knows it."""

    def hint(self, kind: str, value: str) -> str:
        """How a user makes an id known, or an empty text."""


#: Which folders of a bundle hold each kind; skills and artifacts share one namespace.
FOLDERS: Mapping[str, tuple[str, ...]] = {
    "env": ("envs",),
    "agent": ("agents",),
    "artifact": ("artifacts", "skills"),
    "skill": ("skills", "artifacts"),
    "task": ("tasks",),
}
#: An agent of a store needs no folder here: a played episode puts the trainer's model in its place.
FROM_STORE = frozenset({"agent"})
#: How many wrong names are compared with all right ones; past that a bundle is wrong in bulk, and a guess is no help.
MAX_GUESSES = 20


_PLACEHOLDER = re.compile(r"<[^<>]+>")


def waits(value: object) -> bool:
    """Whether a value is a text with a ``<key>`` in it, which the seed of a run may replace."""
    return isinstance(value, str) and _PLACEHOLDER.search(value) is not None


def slots(step: Mapping[str, Any], reference: Reference) -> Iterator[tuple[Any, Any]]:
    """Where a reference's texts stand: each an object or list, and a key into it. Other values are the check's."""
    *path, last = reference.field.split(".")
    holders: list[Any] = [step]
    for part in path:
        inner = [holder.get(part) for holder in holders if isinstance(holder, Mapping)]
        holders = [item for value in inner for item in (value if isinstance(value, list) else [value])]
    for holder in holders:
        if not isinstance(holder, Mapping):
            continue
        value = holder.get(last)
        if reference.many and isinstance(value, list):
            yield from ((value, i) for i, item in enumerate(value) if isinstance(item, str))
        elif not reference.many and isinstance(value, str):
            yield holder, last


def an(kind: str) -> str:
    """The kind with its article."""
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"


@dataclass
class Names:
    """Everything a reference can name, by kind.

    Attributes:
        targets: Kind to what bears that kind's names; skills stand among artifacts.
        ignored: Root-relative paths of what was left out of the bundle.
        elsewhere: Asked for what the bundle doesn't have.
    """

    targets: Mapping[str, Collection[Target]]
    ignored: tuple[str, ...] = ()
    elsewhere: OtherPlaces | None = None
    _exact: dict[str, dict[str, Target]] = field(init=False, repr=False)
    _folded: dict[str, dict[str, Target]] = field(init=False, repr=False)
    _lost: dict[str, str] = field(init=False, repr=False)
    _guesses: int = field(init=False, repr=False, default=MAX_GUESSES)
    _others: dict[tuple[str, str], Target | Lost] = field(init=False, repr=False, default_factory=dict)
    _refused: dict[tuple[str, str], Lost] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._exact, self._folded, self._lost = {}, {}, {}
        for kind, targets in self.targets.items():
            exact: dict[str, Target] = {}
            for target in targets:  # the first one keeps a name that two have, which is noted elsewhere
                exact.setdefault(target.name, target)
                exact.setdefault(target.id, target)
            self._exact[kind] = exact
            self._folded[kind] = {fold(key): target for key, target in exact.items()}
        for path in self.ignored:
            folder, _, name = path.rpartition("/")
            for key in (name, name.rpartition(".")[0] or name):
                self._lost.setdefault(f"{folder}/{fold(key)}", path)

    def find(self, kind: str, value: str) -> Target | None:
        """The bundle's entity of that name or id."""
        return self._exact.get(kind, {}).get(nfc(value))

    def any_named(self, value: str) -> str:
        """The kind of the first entity of that name, or an empty text; an id is no name."""
        return next((kind for kind, exact in self._exact.items() if value in exact and exact[value].id != value), "")

    def refuse(self, kind: str, entity_id: str, why: Lost) -> None:
        """Has everyone who names an entity be told why it can't be used; what was said first stands.

        Args:
            kind: Its kind.
            entity_id: Its id.
            why: The message follows the entity's name.
        """
        self._refused.setdefault((kind, entity_id), why)

    def refusal(self, kind: str, entity_id: str) -> Lost | None:
        """Why an entity can't be used."""
        return self._refused.get((kind, entity_id))

    def resolve(self, kind: str, value: str, place: str, problems: Problems, label: str) -> Target | None:
        """Finds what a reference names, or notes why it can't; None with no problem noted means that it may stay.

        Args:
            kind: What it should name.
            value: What it says.
            place: Where it stands, for the problem.
            problems: Where to note it.
            label: The field's name, for the problem.
        """
        if kind not in self._exact:  # a sandbox or the like, which only the run itself knows
            return None
        own = self.find(kind, value)
        if own and (why := self.refusal(kind, own.id)):
            problems.follow(place, f"{label}: the {kind} {own.name!r} {why.message}", why.fix)
            return None
        found = self._other(kind, value) if own is None else own
        if isinstance(found, Target):
            return found
        if found.message:
            problems.add(place, f"{label}: {found.message}", found.fix)
        return None

    def _other(self, kind: str, value: str) -> Target | Lost:
        """What a value that names nothing here stands for; a reason without words where it may stay as it is."""
        key = kind, value
        if key not in self._others:  # one wrong name is often in all of a bundle's tasks
            near = self._near(kind, value)
            self._others[key] = near or (self.elsewhere and self.elsewhere.find(kind, value)) or self._unknown(*key)
        return self._others[key]

    def _near(self, kind: str, value: str) -> Lost | None:
        """What is here and can't be meant as it is written: another spelling, or a file that was ignored."""
        said = quote(value)
        if target := self._folded.get(kind, {}).get(fold(value)):
            right = target.id if value.startswith("@") else target.name
            return Lost(f"{an(kind)} {said} isn't here, but {right!r} is", f"write {right!r}")
        for folder in ("", *FOLDERS[kind]):
            if lost := self._lost.get(f"{folder}/{fold(value)}"):
                home = FOLDERS[kind][0]
                fix = f"{an(kind)} is a " + (f"file {home}/<name>.json" if kind == "task" else f"folder {home}/<name>/")
                return Lost(f"{said} names {show(lost)}, which is no part of the bundle", fix)
        return None

    def _unknown(self, kind: str, value: str) -> Lost:
        if kind in FROM_STORE:
            return Lost("", "")
        folder = FOLDERS[kind][0]
        here = [
            one.name
            for one in self.targets[kind]
            if "__" not in one.name and (one.type != "skill" or folder == "skills")
        ]
        self._guesses -= 1
        if meant := nearest(value, here) if self._guesses >= 0 else "":
            fix = f"did you mean {meant!r}?"
        elif value.startswith(PREFIX):  # no name of a folder here, and nothing that a store of its author's holds
            fix = f"install the distribution that brings it, or name {an(kind)} of this bundle: {listed(here)}"
        else:
            fix = f"add it under {FOLDERS[kind][0]}/" + (f", which has: {listed(here)}" if here else "")
            if hint := self.elsewhere.hint(kind, value) if self.elsewhere else "":
                fix += f"; or {hint}"
        return Lost(f"{kind} {quote(value)} is not in this bundle", fix)
