"""Skills in an agent's sandbox: where they lie, and what the agent's turns say of them."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence

from agent_env_core.errors import EpisodeError
from agent_env_core.steps.context import PlayedAgent
from agent_env_core.steps.files import put_files
from agent_env_core.steps.placed import File, PlacedSandbox, PlacedSkill
from agent_env_core.steps.shell import as_seen_inside

FOLDER = "/skills"
"""Each skill has a folder of its name here."""
SKILL_FILE = "SKILL.md"
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}")
_FRONT = re.compile(r"\A---\s*\n(.*?)\n---\s*(?:\n|\Z)", re.DOTALL)
_DESCRIPTION = re.compile(r"^description:[ \t]*(.+?)[ \t]*$", re.MULTILINE)


def description_of(text: str) -> str:
    """What the front matter of a ``SKILL.md`` says the skill is for; empty where it says nothing on one line."""
    front = _FRONT.match(text)
    found = _DESCRIPTION.search(front[1]) if front else None
    return found[1].strip("\"'") if found else ""


async def give_skill(agent: PlayedAgent, name: str, description: str, files: Sequence[File], step_id: str) -> None:
    """Puts a skill into an agent's sandbox and tells of it in the agent's turns from then on.

    Args:
        agent: Who gets it.
        name: Its name, which is its folder's.
        description: What it is for.
        files: ``SKILL.md`` and what lies beside it.
        step_id: The step that gives it.

    Raises:
        EpisodeError: The agent has no sandbox, has a skill of that name, or the name can't be a folder's.
        SandboxError: The sandbox is gone.
    """
    placed = agent.sandbox
    if placed is None:
        raise EpisodeError("setup", f"the agent {agent.name!r} works in no sandbox, so it can't be given skills")
    if not _NAME.fullmatch(name):
        raise EpisodeError("setup", f"the skill name {name!r} must be letters, digits and . _ -, at most 64 of them")
    if any(skill.name == name for skill in agent.skills):
        raise EpisodeError("setup", f"the agent {agent.name!r} has a skill {name!r} already; rename one of them")
    agent.skills += (PlacedSkill(name, description, await _place(placed, name, files, step_id)),)


async def _place(placed: PlacedSandbox, name: str, files: Sequence[File], step_id: str) -> str:
    folder = posixpath.join(FOLDER, name)
    await put_files(placed, folder, files, step_id)
    return await as_seen_inside(placed, posixpath.join(folder, SKILL_FILE))
