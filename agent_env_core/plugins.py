"""Finding plugins, loading them by name, and saying what happened to each.

Loading is lazy: a name loads the one entry point that bears it, so a broken or slow plugin that nobody asked for costs
nothing. What fails is recorded with its traceback and never disturbs another plugin.

``AGENT_ENV_PLUGINS=a,b`` allows only the entry points of those names, or all of a distribution where an item names one;
empty allows none. Built-ins, the entry points of our own core distribution, are always allowed and can't be replaced.
"""

from __future__ import annotations

import difflib
import os
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING, Any, Literal

import pluggy

from agent_env_core import hookspecs
from agent_env_core.errors import PluginError

if TYPE_CHECKING:
    from agent_env_core.adapters import Combiner, TrainerAdapter
    from agent_env_core.sandbox.contract import SandboxProvider
    from agent_env_core.steps.base import TaskStep

NAMED_GROUP = "agent_env"
EXTEND_GROUP = "agent_env.extend"
CORE = "agentenv-framework"
ALLOW_VARIABLE = "AGENT_ENV_PLUGINS"

#: Names of ours that may not be installed yet, and the extra that brings each.
OUR_EXTRAS: Mapping[str, str] = {
    "docker": "docker", "process": "process", "modal": "modal", "e2b": "e2b", "grpo": "trl", "async_grpo": "trl-async",
}  # fmt: skip

LISTED = 12
"""How many names a message lists at most."""

Status = Literal["unloaded", "loaded", "failed", "conflict", "blocked"]

KINDS: Mapping[str, str] = {
    "sandbox provider": "agent_env_sandbox_providers",
    "reward combiner": "agent_env_reward_combiners",
    "trainer adapter": "agent_env_trainer_adapters",
    "step type": "agent_env_task_steps",
}


@dataclass
class Entry:
    """One entry point and what became of it.

    Attributes:
        name: The entry point's name.
        group: One of the two groups.
        distribution: Who brings it.
        version: That distribution's version.
        value: The object it names, as ``module`` or ``module:attribute``.
        status: What became of it.
        detail: Why it isn't usable, or empty; for a failed one the last line of its traceback.
        trace: The whole traceback of a failed one.
        provides: What it registered, as keys of :data:`KINDS`; of one in ``agent_env.extend``, the hooks it implements.
            Known once everything was loaded for the report.
    """

    name: str
    group: str
    distribution: str
    version: str
    value: str
    point: metadata.EntryPoint
    status: Status = "unloaded"
    detail: str = ""
    trace: str = ""
    provides: tuple[str, ...] = ()

    @property
    def builtin(self) -> bool:
        """Whether it belongs to the core distribution."""
        return self.distribution == CORE

    @property
    def key(self) -> tuple[str, str]:
        """What names it: group and name."""
        return self.group, self.name


def _canonical(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def installed_entries() -> list[Entry]:
    """Every entry point of the two groups on this Python's path, each distribution once."""
    found: dict[tuple[str, str, str], Entry] = {}
    for group in (NAMED_GROUP, EXTEND_GROUP):
        for point in metadata.entry_points(group=group):
            dist = point.dist
            owner = _canonical(dist.metadata["Name"]) if dist else "unknown"
            entry = Entry(point.name, group, owner, dist.version if dist else "", point.value, point)
            found.setdefault((group, point.name, owner), entry)
    return sorted(found.values(), key=lambda entry: (entry.group, entry.name, entry.distribution))


class Plugins:
    """The plugins of one process.

    Args:
        entries: The entry points to choose from; by default what is installed.
        allow: Names of the entry points or distributions that may load besides the built-ins; by default
            ``AGENT_ENV_PLUGINS``, and all without it.
    """

    def __init__(self, entries: Iterable[Entry] | None = None, allow: Iterable[str] | None = None) -> None:
        self.manager = pluggy.PluginManager(hookspecs.PROJECT)
        self.manager.add_hookspecs(hookspecs)
        self.entries = list(installed_entries() if entries is None else entries)
        self._registered: dict[str, Any] = {}  # entry value -> plugin object; one object may stand behind many names
        self._things: dict[tuple[str, str], Any] = {}
        self._extended = False
        if allow is None and (setting := os.environ.get(ALLOW_VARIABLE)) is not None:
            allow = [name.strip() for name in setting.split(",") if name.strip()]
        self._refuse(None if allow is None else frozenset(allow))

    def _refuse(self, allow: frozenset[str] | None) -> None:
        """Marks what may not load: names that aren't allowed, and names that two distributions claim."""
        for entry in self.entries:
            if allow is not None and not entry.builtin and not {entry.name, entry.distribution} & allow:
                entry.status = "blocked"
                entry.detail = f"{ALLOW_VARIABLE} doesn't list it"
        for entry in self.entries:
            rivals = [e for e in self.entries if e.key == entry.key and e is not entry and e.status != "blocked"]
            if entry.group != NAMED_GROUP or entry.builtin or entry.status == "blocked" or not rivals:
                continue
            entry.status = "conflict"
            if any(rival.builtin for rival in rivals):
                entry.detail = f"{entry.name!r} is built in and can't be replaced; rename the entry point"
            else:
                claimants = ", ".join(sorted({rival.distribution for rival in rivals} | {entry.distribution}))
                entry.detail = (
                    f"{entry.name!r} is claimed by {claimants}: uninstall all but one of them, or list the "
                    f"distributions that may load in {ALLOW_VARIABLE}"
                )

    # -- loading

    def _load(self, entry: Entry) -> Any:
        """Imports and registers one entry point; raises ``PluginError`` and records why when that fails."""
        if entry.status in ("failed", "conflict", "blocked"):
            raise PluginError(f"plugin {entry.name!r} of {entry.distribution} can't be used: {entry.detail}")
        if entry.value not in self._registered:
            try:
                self._registered[entry.value] = self._register(entry)
            except KeyboardInterrupt:
                raise
            except BaseException as exc:  # a plugin that calls sys.exit while it is imported is a broken plugin
                raise self._failed(entry, exc) from exc
        entry.status = "loaded"
        return self._registered[entry.value]

    def _register(self, entry: Entry) -> Any:
        """Imports one plugin and registers its hooks, all of them or none."""
        plugin = entry.point.load()
        hash(plugin)  # pluggy keeps plugins in sets: one that can't be hashed would break the calls of all others
        if self.manager.is_registered(plugin):  # one object under two spellings
            return plugin
        try:
            self.manager.register(plugin, name=entry.value)
            self.manager.check_pending()
            if not self.manager.get_hookcallers(plugin):
                raise TypeError(
                    f"{entry.value} is a {type(plugin).__name__} that implements no hook: name a module or an object "
                    "whose functions bear the names of hooks and are decorated with agent_env_core.hookimpl"
                )
        except BaseException:
            if self.manager.is_registered(plugin):
                self.manager.unregister(plugin)
            raise
        return plugin

    def _failed(self, entry: Entry, exc: BaseException) -> PluginError:
        entry.status = "failed"
        entry.trace = "".join(traceback.format_exception(exc))
        entry.detail = " ".join(traceback.format_exception_only(exc)[-1].split())
        return PluginError(f"plugin {entry.name!r} of {entry.distribution} can't be loaded: {entry.detail}")

    def record_failure(self, plugin_name: str, exc: BaseException) -> None:
        """Notes in the report that a loaded plugin failed in a hook.

        Args:
            plugin_name: The plugin's name as a ``pluggy.HookImpl`` has it.
            exc: What it raised.
        """
        for entry in self.entries:
            if entry.value == plugin_name and entry.status == "loaded":
                self._failed(entry, exc)

    def _collect(self, entry: Entry, plugin: Any, hook: str) -> dict[str, Any]:
        """What one plugin registers through one ``register`` hook."""
        things: dict[str, Any] = {}

        def register(name: str, thing: Any) -> None:
            if not isinstance(name, str) or not name or not callable(thing):
                raise TypeError(f"register(name, thing) needs a name and a callable, got {name!r} and {thing!r}")
            if name in things:
                raise ValueError(f"{name!r} is registered twice")
            things[name] = thing

        others = [p for p in self.manager.get_plugins() if p is not plugin]
        try:
            self.manager.subset_hook_caller(hook, remove_plugins=others)(register=register)
        except Exception as exc:
            raise self._failed(entry, exc) from exc
        return things

    def named(self, kind: str, name: str) -> Any:
        """The thing of ``kind`` (a key of :data:`KINDS`) that is registered under ``name``.

        Raises:
            PluginError: There is none, or its plugin is broken or in conflict; the message holds the fix.
        """
        if (kind, name) in self._things:
            return self._things[kind, name]
        claims = [entry for entry in self.entries if entry.group == NAMED_GROUP and entry.name == name]
        usable = [entry for entry in claims if entry.status in ("unloaded", "loaded")]
        if not usable:
            raise self._absent(kind, name, claims)
        entry = usable[0]
        things = self._collect(entry, self._load(entry), KINDS[kind])
        if name not in things:
            raise PluginError(
                f"the entry point {name!r} of {entry.distribution} registers no {kind} of that name"
                + (f" (it registers {', '.join(map(repr, things))})" if things else "")
            )
        self._things[kind, name] = things[name]
        return things[name]

    def owner(self, name: str) -> str | None:
        """The distribution whose entry point bears the name, usable or not; None where there is none."""
        claims = [entry.distribution for entry in self.entries if entry.group == NAMED_GROUP and entry.name == name]
        return CORE if CORE in claims else next(iter(claims), None)

    def _absent(self, kind: str, name: str, claims: list[Entry]) -> PluginError:
        if claims:
            details = "; ".join(sorted({entry.detail for entry in claims}))
            return PluginError(f"the {kind} {name!r} can't be used: {details}")
        if name in OUR_EXTRAS:
            extra = f"pip install 'agentenv-framework[{OUR_EXTRAS[name]}]'"
            return PluginError(f"the {kind} {name!r} isn't installed: {extra}")
        known = self.known(kind)
        close = difflib.get_close_matches(name[:200], known, n=1, cutoff=0.6)
        if close:
            fix = f"did you mean {close[0]!r}?"
        elif len(known) <= LISTED:
            fix = f"known: {', '.join(known) or 'none'}"
        else:
            fix = "correct it, or install the plugin that brings it; `agent-env plugins` lists what is here"
        return PluginError(f"there is no {kind} {name!r}", fix)

    def known(self, kind: str) -> list[str]:
        """Names of ``kind`` that can be loaded. Loads every named plugin to find out: for messages and lists."""
        names = set()
        for entry in self.entries:
            if entry.group == NAMED_GROUP and entry.status in ("unloaded", "loaded"):
                try:
                    if entry.name in self._collect(entry, self._load(entry), KINDS[kind]):
                        names.add(entry.name)
                except PluginError:
                    continue  # recorded in the report
        return sorted(names)

    # -- what the rest of the project asks for

    def sandbox_provider(self, name: str) -> Callable[[Mapping[str, Any]], SandboxProvider]:
        """The factory of a sandbox provider."""
        factory: Callable[[Mapping[str, Any]], SandboxProvider] = self.named("sandbox provider", name)
        return factory

    def reward_combiner(self, text: str) -> Combiner:
        """The combiner that ``reward=text`` names, e.g. ``weighted:grade=0.8,style=0.2``.

        Raises:
            ValueError: The text after the colon can't be read.
        """
        name, _, rest = text.partition(":")
        combiner: Combiner = self.named("reward combiner", name)(rest)
        return combiner

    def trainer_adapter(self, name: str) -> TrainerAdapter:
        """The adapter of a trainer."""
        adapter: TrainerAdapter = self.named("trainer adapter", name)()
        return adapter

    def step_type(self, type_name: str) -> type[TaskStep]:
        """The class of a step type."""
        step: type[TaskStep] = self.named("step type", type_name)
        return step

    def extend(self) -> None:
        """Loads the group ``agent_env.extend``, once. A plugin that fails is recorded and skipped."""
        if self._extended:
            return
        self._extended = True
        for entry in self.entries:
            if entry.group == EXTEND_GROUP and entry.status == "unloaded":
                try:
                    self._load(entry)
                except PluginError:
                    continue  # recorded in the report

    @property
    def hook(self) -> Any:
        """The hooks of every plugin loaded so far, for those that are asked of all: key, event, commands."""
        self.extend()
        return self.manager.hook

    def load_all(self) -> list[Entry]:
        """Loads everything that may load, and returns the report: each entry point and what became of it."""
        self.extend()
        for entry in self.entries:
            if entry.status in ("unloaded", "loaded"):
                try:
                    entry.provides = self._provides(entry)
                except PluginError:
                    continue  # recorded in the entry
        return self.entries

    def _provides(self, entry: Entry) -> tuple[str, ...]:
        plugin = self._load(entry)
        if entry.group == EXTEND_GROUP:
            return tuple(sorted(caller.name for caller in self.manager.get_hookcallers(plugin) or ()))
        kinds = tuple(kind for kind, hook in KINDS.items() if entry.name in self._collect(entry, plugin, hook))
        if not kinds:
            raise self._failed(entry, LookupError(f"it registers nothing named {entry.name!r}"))
        return kinds


@cache
def plugins() -> Plugins:
    """The plugins of this process, found once."""
    return Plugins()
