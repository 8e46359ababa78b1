"""The tests see it when the plugin leaves something out: each mutant lacks one thing, and one check must catch it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import agent_env_modal
import pytest
from modal_double import ModalDouble
from mutants import mutated, outcome

LIMIT = 2.0
"""Seconds a check has: those named below take a fraction of it where nothing is missing."""

MUTANTS = {
    "an image keeps its entry point": (
        "images.py", ".entrypoint([])", "", "an_images_own_command_is_never_relied_on",
    ),
    "no tags": ("provider.py", "tags=tags,", "", "list_finds_by_all_labels_and_gives_all"),
    "no variables": ("provider.py", "env=env,", "", "exec_sees_the_env_of_the_spec_and_of_the_call"),
    "no folder": ("provider.py", "workdir=spec.workdir,", "", "exec_runs_in_the_specs_folder"),
    "memory is a wish": (
        "provider.py", "(memory, memory) if memory", "memory if memory", "memory_is_kept_or_refused",
    ),
    "a kill that only looks": (
        "provider.py", "await found.terminate.aio(wait=True)", "pass", "kill_is_final_and_may_be_repeated",
    ),
    "no token": (
        "sandbox.py", '{"Authorization": f"Bearer {given.token}"}', "{}", "an_endpoint_reaches_the_main_process",
    ),
    "the ports aren't kept": (
        "provider.py", 'tags[PORTS_TAG] = " ".join(map(str, spec.ports))', "pass",
        "an_attached_sandbox_has_the_same_endpoint",
    ),
    "input stays open": (
        "execs.py", '[ -n "$input" ] || exec </dev/null', "", "exec_without_input_is_at_its_end_at_once",
    ),
    "input has no end": ("execs.py", "process.stdin.write_eof()", "pass", "exec_feeds_bytes_that_are_no_text"),
    "a deadline kills nothing": (
        "execs.py", "await self._kill()", "pass", "a_deadline_keeps_the_output_and_ends_the_whole_tree",
    ),
    "an exec waits for its streams": (
        "execs.py", "printf '%s %s\\n' \"$AGENT_ENV_EXEC\" \"$code\"\n", 'exit "$code"\n',
        "exec_ends_with_its_command_whoever_holds_the_output",
    ),
    "nobody asks whether it lives": (
        "sandbox.py", "code = await self._sandbox.poll.aio()", "code = None",
        "an_evicted_sandbox_is_gone_and_can_be_cleared_away",
    ),
}  # fmt: skip


@pytest.fixture
def mutant(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """The provider of the plugin with one text replaced."""
    with mutated(agent_env_modal, *request.param, tmp_path) as provider:
        yield provider.ModalProvider()


def ending(double: ModalDouble) -> Callable[[], None]:
    """Ends all sandboxes of the double."""

    def end_all() -> None:
        for box in double.world.running():
            double.do(box.finish(3))

    return end_all


@pytest.mark.parametrize(
    ("mutant", "check"),
    [pytest.param((file, old, new), check, id=name) for name, (file, old, new, check) in MUTANTS.items()],
    indirect=["mutant"],
)
async def test_a_mutant_is_caught(mutant: Any, check: str, tmp_path: Path, double: ModalDouble) -> None:
    assert await outcome(mutant, check, tmp_path, ending(double), LIMIT) is not None


@pytest.mark.parametrize("mutant", [("provider.py", "", "")], indirect=True)
async def test_a_mutant_without_a_mutation_is_not(mutant: Any, tmp_path: Path, double: ModalDouble) -> None:
    assert await outcome(mutant, "exec_feeds_bytes_that_are_no_text", tmp_path, ending(double), 60) is None
