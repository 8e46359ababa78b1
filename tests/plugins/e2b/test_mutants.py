"""The kit sees it when the plugin leaves something out: each mutant lacks one thing, and one check must catch it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import agent_env_e2b
import pytest
from agent_env_e2b.settings import Settings
from e2b_double import E2BDouble
from mutants import mutated, outcome

LIMIT = 3.0
"""Seconds a check has; those named below take a fraction of it where nothing is missing."""

MUTANTS = {
    "no labels": ("provider.py", "**spec.labels}", "}", "list_finds_by_all_labels_and_gives_all"),
    "no variables": ("provider.py", "envs=_variables(spec),", "", "exec_sees_the_env_of_the_spec_and_of_the_call"),
    "no folder": ("provider.py", "{WORKDIR_VARIABLE: spec.workdir}", "{}", "exec_runs_in_the_specs_folder"),
    "the ports aren't kept": (
        "provider.py", 'PORTS_LABEL: " ".join(map(str, spec.ports)),', "",
        "an_attached_sandbox_has_the_same_endpoint",
    ),
    "a kill that only looks": (
        "provider.py", "killed = await AsyncSandbox.kill(id, **self._account())", "killed = True",
        "kill_is_final_and_may_be_repeated",
    ),
    "time isn't extended": (
        "sandbox.py", "await self._sandbox.set_timeout(math.ceil(ttl))", "pass",
        "extend_moves_the_lease_where_that_is_claimed",
    ),
    "no token": (
        "sandbox.py", 'headers["e2b-traffic-access-token"] = token', "pass", "an_endpoint_reaches_the_main_process",
    ),
    "nobody asks whether it lives": (
        "sandbox.py", "running = await self._sandbox.is_running()", "running = True",
        "an_evicted_sandbox_is_gone_and_can_be_cleared_away",
    ),
    "nobody listens to the main process": (
        "mains.py", "self._watching = asyncio.create_task(self._watch())", "pass",
        "the_end_of_the_main_process_is_the_end",
    ),
    "input isn't sent": (
        "commands.py", "await self._put(input_path(self._token), stdin)", "pass", "exec_feeds_bytes_that_are_no_text",
    ),
    "a cancelled command runs on": (
        "commands.py", "        await stream.close()\n        await self._sweep()", "        await stream.close()",
        "a_cancelled_exec_ends_its_command",
    ),
    "a deadline ends one process": (
        "supervisor.pl", "if (!sweep($pid))", "if (!kill 'KILL', $pid)",
        "a_deadline_keeps_the_output_and_ends_the_whole_tree",
    ),
    "an exec waits for its streams": (
        "supervisor.pl", "($ready <= 0 || !%from || $left <= 0)", "!%from",
        "exec_ends_with_its_command_whoever_holds_the_output",
    ),
    "bytes are text": (
        "supervisor.pl", "$kind . base64($part)", "$kind . $part", "exec_gives_bytes_that_are_no_text",
    ),
    "what the image sets is lost": (
        "templates.py", ".run_cmd(_CAPTURE)", "", "an_image_holds_what_its_dockerfile_says",
    ),
    "the start command runs at the build": (
        "dockerfile.py", "if _kept(instruction)", "", "an_images_own_command_is_never_relied_on",
    ),
}  # fmt: skip


@pytest.fixture
def mutant(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """The provider of the plugin with one text replaced."""
    with mutated(agent_env_e2b, *request.param, tmp_path) as provider:
        yield provider.E2BProvider(Settings(plan="pro"))


def ending(double: E2BDouble) -> Callable[[], None]:
    """Ends all sandboxes of the double."""

    async def end_each() -> None:
        for sandbox in list(double.world.sandboxes.values()):
            await double.world.end(sandbox)

    return lambda: double.do(end_each())


@pytest.mark.parametrize(
    ("mutant", "check"),
    [pytest.param((file, old, new), check, id=name) for name, (file, old, new, check) in MUTANTS.items()],
    indirect=["mutant"],
)
async def test_a_mutant_is_caught(mutant: Any, check: str, tmp_path: Path, double: E2BDouble) -> None:
    assert await outcome(mutant, check, tmp_path, ending(double), LIMIT) is not None


@pytest.mark.parametrize("mutant", [("provider.py", "", "")], indirect=True)
async def test_a_mutant_without_a_mutation_is_not(mutant: Any, tmp_path: Path, double: E2BDouble) -> None:
    assert await outcome(mutant, "exec_feeds_bytes_that_are_no_text", tmp_path, ending(double), 60) is None
