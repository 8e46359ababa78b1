"""The entities of one bundle's folder, or some of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from agent_env_core.bundle.model import Agent, Artifact, Env, Skill
from agent_env_core.bundle.references import Names

T = TypeVar("T")


@dataclass
class Shelf:
    """Entities by kind and id.

    Attributes:
        names: What references can name.
        envs: By id, as all of them.
        agents: Those that are agents.
        artifacts: Those that are artifacts.
        skills: Those that are skills.
        aliases: Kind to alias to the id of what bears it.
    """

    names: Names = field(default_factory=lambda: Names({}))
    envs: dict[str, Env] = field(default_factory=dict)
    agents: dict[str, Agent] = field(default_factory=dict)
    artifacts: dict[str, Artifact] = field(default_factory=dict)
    skills: dict[str, Skill] = field(default_factory=dict)
    aliases: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def take(self, kind: str, entity_id: str, other: Shelf) -> None:
        """Takes an entity over from another shelf, with the artifacts that it is made of."""
        if kind == "env":
            _take(self.envs, other.envs, entity_id)
        elif kind == "agent":
            _take(self.agents, other.agents, entity_id)
        else:
            _take(self.skills, other.skills, entity_id)
            _take(self.artifacts, other.artifacts, entity_id)
            artifact = other.artifacts.get(entity_id)
            for part in artifact.parts if artifact else ():
                self.take(kind, part, other)


def _take(mine: dict[str, T], theirs: Mapping[str, T], entity_id: str) -> None:
    if entity_id in theirs:
        mine[entity_id] = theirs[entity_id]
