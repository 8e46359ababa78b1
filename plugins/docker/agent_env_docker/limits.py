"""Limits that an engine takes and doesn't keep, without a word: on control groups that it has not, or not all of."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from agent_env_core.sandbox.contract import Limit

_FLAGS: Final = {
    "memory": ("MemoryLimit",),
    "swap": ("SwapLimit",),
    "cores": ("CpuCfsQuota", "CPUCfsQuota"),
    "processes": ("PidsLimit",),
}
_FIELDS: Final[Mapping[str, Limit]] = {"memory": "memory_mb", "cores": "cpu"}
_FIX = "an engine with root keeps them, and so does one without where cgroup v2 is delegated to its user"


def unkept(info: Mapping[str, Any]) -> tuple[str, ...]:
    """What an engine does not limit, by its own account (``GET /info``); what it does not speak of, it limits."""
    return tuple(what for what, flags in _FLAGS.items() if any(info.get(flag) is False for flag in flags))


def claimed(lost: Collection[str]) -> frozenset[Limit]:
    """The limits of a spec that an engine keeps which does not limit ``lost``."""
    return frozenset(field for what, field in _FIELDS.items() if what not in lost)


def told(lost: Collection[str]) -> str:
    """In words, for the log and the doctor."""
    if not lost:
        return f"limits {', '.join(_FLAGS)}"
    return f"does not limit the {', '.join(lost)} of sandboxes; {_FIX}"
