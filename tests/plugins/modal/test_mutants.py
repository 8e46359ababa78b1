"""The tests see it when the plugin leaves something out: each mutant lacks one thing, and one check must catch it."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import agent_env_modal
import pytest
from modal_double import ModalDouble

from agent_env_core.testing.checks import CHECKS
from agent_env_core.testing.checks.base import Skipped, Target, Trial, perform
from agent_env_core.testing.running import prepare_base

CHECK = {check.name: check for check in CHECKS}
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
def mutant(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The plugin under another name, with one text replaced."""
    file, old, new = request.param
    name = f"modal_mutant_{abs(hash((file, old))):x}"
    folder = tmp_path / name
    shutil.copytree(Path(agent_env_modal.__file__).parent, folder, ignore=shutil.ignore_patterns("__pycache__"))
    for source in folder.glob("*.py"):
        text = source.read_text(encoding="utf-8")
        if source.name == file and old:
            assert text.count(old) == 1, f"{file} must have {old!r} once"
            text = text.replace(old, new)
        source.write_text(text.replace("agent_env_modal", name), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module(f"{name}.provider").ModalProvider()
    for module in [each for each in sys.modules if each.partition(".")[0] == name]:
        del sys.modules[module]


async def outcome(
    provider: Any, check: str, folder: Path, double: ModalDouble, limit: float = LIMIT
) -> Exception | None:
    """What a check says of a provider."""
    (base := folder / "base").mkdir()
    (kit := folder / "kit").mkdir()
    image = await prepare_base(provider, "python:3.11-slim", base)

    def evicted() -> Any:
        from contextlib import asynccontextmanager

        @asynccontextmanager
        async def evict() -> Any:
            for box in double.world.running():
                double.do(box.finish(3))
            yield provider

        return evict()

    tested = Target(provider, image, "python:3.11-slim", faults={"evicted": evicted})
    try:
        await perform(CHECK[check], Trial(tested, kit, CHECK[check].boxes), limit)
    except Skipped as exc:
        pytest.fail(f"the check didn't apply: {exc}")
    except Exception as exc:
        return exc
    finally:
        for box in double.world.running():
            double.do(box.finish(3))
        await provider.aclose()
    return None


@pytest.mark.parametrize(
    ("mutant", "check"),
    [pytest.param((file, old, new), check, id=name) for name, (file, old, new, check) in MUTANTS.items()],
    indirect=["mutant"],
)
async def test_a_mutant_is_caught(mutant: Any, check: str, tmp_path: Path, double: ModalDouble) -> None:
    assert await outcome(mutant, check, tmp_path, double) is not None


@pytest.mark.parametrize("mutant", [("provider.py", "", "")], indirect=True)
async def test_a_mutant_without_a_mutation_is_not(mutant: Any, tmp_path: Path, double: ModalDouble) -> None:
    assert await outcome(mutant, "exec_feeds_bytes_that_are_no_text", tmp_path, double, 60) is None
