"""Which tasks share one environment class, and what that class is called."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent_env_core.bundle import Task


def toolset_key(task: Task) -> Hashable: ...  # asks the hook agent_env_toolset_key
def toolset_names(tasks: Iterable[Task]) -> Mapping[Hashable, str]: ...  # key -> "gridsim", "email+bash"; unique
