from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from agent_env_process import cgroups

from agent_env_core.bundle import Bundle
from agent_env_core.errors import BundleError, EpisodeError, PluginError
from agent_env_core.play.episode import Episode
from agent_env_core.play.runner import Runner
from agent_env_core.sandbox.choose import open_host

Steps = list[dict[str, Any]]
Open = Callable[..., Awaitable[Runner]]
Begin = Callable[[Runner, str], Awaitable[Episode]]
Play = Callable[..., Awaitable[dict[str, float]]]

OTHER_ENV = {
    "envs/broken/env.toml": 'environment_name = "broken"\n',
    "envs/broken/Dockerfile": "FROM python:3.11-slim\nRUN exit 3\nCMD [\"python\"]\n",
}  # fmt: skip


@pytest.fixture
def without_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which sandboxes can't be limited."""
    monkeypatch.setattr(cgroups, "choose", lambda: cgroups.Groups(lacking="this is a test"))


async def test_images_are_prepared_at_the_start_and_progress_is_told(bundle: Bundle, open_runner: Open):
    lines: list[str] = []
    runner = await open_runner(bundle, on_progress=lines.append)
    assert list(runner.specs) == [task.id for task in bundle.tasks]
    assert runner.left_out == {}
    assert lines[0] == "preparing the image of env 'counter' with process (10 tasks)"
    assert lines[-1].startswith("prepared the image of env 'counter' in ")


@pytest.mark.usefixtures("without_limits")
async def test_a_task_that_cant_be_played_is_left_out(
    make_bundle: Callable[..., Bundle],
    steps: Callable[..., Steps],
    open_runner: Open,
    begin: Begin,
    play: Play,
    caplog: pytest.LogCaptureFixture,
):
    lines: list[str] = []
    made = make_bundle(
        {
            "good": steps(),
            "no-prompt": steps(play=None),
            "broken-env": steps(more=[{"id": "b", "type": "deploy_env", "env_id": "broken"}]),
            "too-much": steps(env={"cpu": 2.0}),
        },
        files=OTHER_ENV,
    )
    runner = await open_runner(made, on_progress=lines.append)
    assert [spec.task.name for spec in runner.specs.values()] == ["good"]
    reasons = {task_id.rpartition("/")[2]: reason for task_id, reason in runner.left_out.items()}
    assert reasons["no-prompt"].startswith("tasks/no-prompt.json: prompts no agent")
    assert reasons["broken-env"].startswith("the image of env 'broken' can't be prepared: ")
    assert reasons["too-much"].startswith("step 'env': process: cpu=2 can't be enforced")
    assert "left out 1 of 4 tasks (too-much): step 'env'" in caplog.text
    assert not any("left out" in line for line in lines)  # they would stand beside the log, and say it twice
    assert await play(await begin(runner, "good"), 3) == {"grade": 1.0}


@pytest.mark.usefixtures("without_limits")
async def test_a_bundle_of_which_nothing_can_be_played(
    make_bundle: Callable[..., Bundle],
    steps: Callable[..., Steps],
    caplog: pytest.LogCaptureFixture,
    no_processes_left: None,
):
    made = make_bundle({f"t{n}": steps(play=None, agent=None) for n in range(5)} | {"u": steps(env={"cpu": 1.0})})
    with pytest.raises(BundleError) as caught:
        await Runner(made, sandbox="process").start()
    assert "of which no task can be played" in str(caught.value)
    assert "left out" not in caplog.text  # the error says it already
    assert len(caught.value.problems) == 6


async def test_an_unknown_sandbox_is_refused(bundle: Bundle, no_processes_left: None):
    with pytest.raises(PluginError, match="there is no sandbox provider 'nowhere'"):
        await Runner(bundle, sandbox="nowhere").start()


async def test_closing_ends_what_is_played(bundle: Bundle, open_runner: Open, begin: Begin):
    runner = await open_runner(bundle)
    playing, deploying = await begin(runner, "one-turn"), await begin(runner, "one-turn")
    assert await playing.next_turn() is not None
    await runner.aclose()
    await runner.aclose()
    for episode in (playing, deploying):
        assert episode.finished
        with pytest.raises(EpisodeError, match="abandoned: the server is closing"):
            await episode.result()
    with pytest.raises(EpisodeError, match="the server is closing and starts no more episodes"):
        await begin(runner, "one-turn")


async def test_a_host_may_be_shared(bundle: Bundle, open_runner: Open, begin: Begin, play: Play):
    async with open_host("process") as host:
        for _ in range(2):
            runner = await open_runner(bundle, sandbox=host)
            assert await play(await begin(runner, "one-turn"), 3) == {"grade": 1.0}
            await runner.aclose()
