"""``bash``, on every provider."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from agent_env_core.bundle import Bundle, load_bundle
from agent_env_core.errors import EpisodeError, Gone
from agent_env_core.play.bash import HEAD, TAIL, clipped
from agent_env_core.play.episode import Episode
from agent_env_core.play.runner import Runner
from agent_env_core.play.turn import ToolResult, Turn
from agent_env_core.steps.base import declaration

pytestmark = pytest.mark.asyncio(loop_scope="module")

Begin = Callable[[Runner, str], Awaitable[Episode]]
Steps = list[dict[str, Any]]
WORKSHOP = Path(__file__).resolve().parents[2] / "bundles" / "workshop"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def workshop(sandbox: str) -> AsyncIterator[Runner]:
    bundle = load_bundle(WORKSHOP, declaration)
    async with Runner(bundle, sandbox=sandbox) as runner:
        yield runner
    assert runner.host.live == 0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def turn(workshop: Runner, begin: Begin) -> AsyncIterator[Turn]:
    """The turn of an agent that works in a sandbox, shared by tests that don't mind one another."""
    episode = await begin(workshop, "fix")
    turn = await episode.next_turn()
    assert turn is not None
    yield turn
    await episode.abandon("the tests are over")


async def bash(turn: Turn, command: Any, timeout: float = 30, **more: Any) -> ToolResult:
    async with turn.tools() as tools:
        return await tools.call("bash", {"command": command, **more}, timeout=timeout)


async def test_its_schema_is_the_formats(turn: Turn):
    async with turn.tools() as tools:
        (tool,) = await tools.list()
        unknown = await tools.call("zsh", {"command": "true"})
    assert (tool.name, tool.server) == ("bash", "")
    assert tool.input_schema == {
        "type": "object",
        "properties": {"command": {"type": "string"}},
        "required": ["command"],
    }
    assert tool.description
    assert (unknown.failure, unknown.text) == ("unknown", "there is no tool 'zsh'; this turn offers: bash")


@pytest.mark.parametrize(
    ("command", "failure", "text"),
    [
        ("echo out; echo err >&2; echo again", "", "out\nagain\nerr\n"),
        ("printf half; exit 7", "tool", "half\nexit code 7"),
        ("exit 1", "tool", "exit code 1"),
        ("echo whole; false", "tool", "whole\nexit code 1"),
        ("kill -9 $$", "tool", "exit code 137"),
        ("printf '\\377\\001ok'", "", "\ufffd\x01ok"),
        ("cat", "", ""),
        ("[[ a == a ]] && echo ${BASH_VERSION:+bash}", "", "bash\n"),
        ("cd repo && ls", "", "README.md\nadder.py\nrun-me.sh\n"),
    ],
)
async def test_what_a_command_comes_to(turn: Turn, command: str, failure: str, text: str):
    result = await bash(turn, command)
    assert (result.failure, result.text) == (failure, text)


async def test_extra_arguments_are_left_alone(turn: Turn):
    assert (await bash(turn, "echo a", timeout_seconds="soon")).text == "a\n"


@pytest.mark.parametrize("command", [None, 3, ["echo"], "a\0b", "\ud800", "x" * 120_001])
async def test_what_is_no_command_is_refused(turn: Turn, command: Any):
    assert (await bash(turn, command)).failure == "refused"


async def test_much_output_is_cut_in_the_middle(turn: Turn):
    result = await bash(turn, "echo begin; head -c 3000000 /dev/zero | tr '\\0' x; echo; echo end")
    assert result.text.startswith("begin\nxxx")
    assert result.text.endswith("xxx\nend\n")
    assert re.search(r"\n\[… 29\d+ bytes left out; .*\]\n", result.text)
    assert len(result.text) < 60_000


async def test_a_command_that_takes_too_long_is_ended_with_all_it_started(turn: Turn):
    result = await bash(turn, "echo before; sleep 4321 & sleep 4321", timeout=1)
    assert result.failure == "tool"
    assert result.text == "before\ntimed out after 1s; it was ended, with what it started"
    left = await bash(turn, "grep -lz '^4321$' /proc/[0-9]*/cmdline 2>/dev/null | grep -v /$$/ | wc -l")
    assert left.text.strip() == "0"


async def test_what_runs_in_the_background_stays_and_holds_nothing_up(turn: Turn):
    began = time.monotonic()
    started = await bash(turn, "(while sleep 0.05; do echo tick >>ticks; done) & echo $!", timeout=20)
    assert started.failure == ""
    assert time.monotonic() - began < 15
    seen = await bash(turn, "until [ -s ticks ]; do sleep 0.02; done; echo it ticks")
    assert seen.text == "it ticks\n"
    await bash(turn, f"kill {started.text.split()[0]}")


async def test_files_stay_and_variables_dont(turn: Turn):
    await bash(turn, "cd /; X=1; export X; echo kept >/app/kept")
    assert (await bash(turn, "echo ${X:-gone}; cat kept")).text == "gone\nkept\n"


async def test_nothing_of_the_host_is_in_its_environment(turn: Turn, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-host-secret")
    assert "sk-host-secret" not in (await bash(turn, "env; cat /proc/self/environ | tr '\\0' '\\n'")).text


async def test_a_long_script_arrives_whole(turn: Turn):
    text = "ü'\"$`\\" * 5000
    result = await bash(turn, f"printf %s {shlex.quote(text)} | wc -c")
    assert result.text.strip() == str(len(text.encode()))


async def test_a_sandbox_that_is_gone_ends_the_episode_unscored(workshop: Runner, begin: Begin):
    episode = await begin(workshop, "fix")
    turn = await episode.next_turn()
    assert turn is not None
    placed = episode.run.agents["default-agent"].sandbox
    assert placed is not None
    async with turn.tools():
        pass
    await workshop.host.provider.kill(placed.sandbox.id)
    with pytest.raises(EpisodeError, match="tool: bash: the sandbox ended during the command") as caught:
        await bash(turn, "echo hello")
    assert (caught.value.retryable, isinstance(caught.value.__cause__, Gone)) == (True, True)
    with pytest.raises(EpisodeError, match="the sandbox ended"):
        await episode.result()
    await episode.wait_finished()


async def test_its_output_is_cut_by_bytes():
    whole = b"a" * (HEAD + TAIL)
    assert clipped(whole) == whole.decode()
    cut = clipped(b"\xffb" * HEAD + b"tail" * TAIL)
    assert cut.startswith("\ufffdb")
    assert f"[… {2 * HEAD + 4 * TAIL - HEAD - TAIL} bytes left out" in cut


@pytest.mark.asyncio
async def test_a_tool_of_an_env_with_its_name_is_refused(
    make_bundle: Callable[..., Bundle], steps: Callable[..., Steps], open_runner: Callable[..., Awaitable[Runner]],
    begin: Begin,
):  # fmt: skip
    look = {"id": "look", "type": "verify_sandbox", "criteria": [{"type": "probe_dir_exists", "paths": ["/app"]}]}
    made = make_bundle(
        {"t": steps(more=[look])},
        edits=[("envs/counter/server.py", '"peek": (peek', '"bash": (peek')],
    )
    episode = await begin(await open_runner(made), "t")
    turn = await episode.next_turn()
    assert turn is not None
    with pytest.raises(EpisodeError, match="the env 'counter' offers a tool 'bash', and so does the agent's sandbox"):
        async with turn.tools():
            pass


@pytest.mark.asyncio
async def test_it_stands_before_the_tools_of_envs(
    make_bundle: Callable[..., Bundle], steps: Callable[..., Steps], open_runner: Callable[..., Awaitable[Runner]],
    begin: Begin,
):  # fmt: skip
    look = {"id": "look", "type": "verify_sandbox", "criteria": [{"type": "probe_file_exists", "paths": ["made"]}]}
    episode = await begin(await open_runner(make_bundle({"t": steps(more=[look])})), "t")
    turn = await episode.next_turn()
    assert turn is not None
    async with turn.tools() as tools:
        names = [tool.name for tool in await tools.list()]
        assert (names[0], "add" in names) == ("bash", True)
        await tools.call("bash", {"command": "touch made"})
        await tools.call("add", {"amount": 3})
    await turn.end("done")
    assert await episode.result() == {"grade": 1.0, "look": 1.0}
