"""What steps do before they judge an agent's work in a sandbox, so that the agent can't have a hand in it.

An agent may leave processes behind that go on while it is judged: they would change tests that are loaded for it, or
write results of their own. They are ended first, and what was loaded after the agent's turn is put there again, in case
one of them had touched it. Everything runs in an environment that the image and the task set and the agent has no part
in. What it can still do is change the sandbox itself, programs and libraries, as far as the rights of its user go.
"""

from __future__ import annotations

from agent_env_core.steps.context import RunContext
from agent_env_core.steps.files import put_again
from agent_env_core.steps.placed import PlacedSandbox
from agent_env_core.steps.shell import end_processes, probe

ENVIRONMENT = {"PYTHONNOUSERSITE": "1"}
"""Python leaves alone what an agent may have installed for its own user, and with it code that runs at every start."""


async def settle(run: RunContext, placed: PlacedSandbox, step_id: str) -> int:
    """Ends what an agent left running, and puts back what it may have touched; returns how many processes there were.

    Raises:
        EpisodeError: They would not end.
        SandboxError: The sandbox is gone.
    """
    await probe(placed)
    ended = await end_processes(placed)
    if ended:
        run.note("ended_processes", {"step_id": step_id, "sandbox": placed.name, "count": ended})
        await put_again(placed, filter(placed.late, placed.loads))
    return ended


def judged_late(placed: PlacedSandbox) -> bool:
    """Whether files were loaded after an agent's last turn: those are what its work is judged by."""
    return any(map(placed.late, placed.loads))
