"""What the fault suite has found, as small as it was made."""

from __future__ import annotations

from pathlib import Path

from agent_env_core.testing.fake import FakeProvider
from chaos.envs import Counter
from chaos.judge import violations
from chaos.play import Limits, run
from chaos.schedule import Fault, Plan, Schedule


async def test_a_provider_that_fails_while_a_death_is_looked_into(tmp_path: Path) -> None:
    """The provider's own exception reached the player in place of the episode's error."""
    faults = (Fault("env", "dies"), Fault("endpoint", "bug", nth=1))
    schedule = Schedule(100, (Plan(0, 0, 3, faults),))
    aftermath = await run(schedule, FakeProvider(app=Counter), Limits(), tmp_path)
    assert violations(schedule, aftermath, Limits()) == []
    (outcome,) = aftermath.outcomes
    assert outcome.error is not None
    assert outcome.error.phase == "tool"
