"""The built-in step types: what they read, what they refuse, what they do to a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from agent_env_core.bundle import Artifact, Bundle, Env, EnvImage
from agent_env_core.envs.card import read_card
from agent_env_core.envs.deployment import Deployment, DeployOptions
from agent_env_core.errors import EpisodeError, PluginError
from agent_env_core.plugins import plugins
from agent_env_core.steps.base import TaskStep, declaration
from agent_env_core.steps.context import PromptRequest, RunContext
from agent_env_core.verifiers.pool import VerifierJob

LOAD_CARD = {
    "name": "quay",
    "capabilities": {"extensions": [{"uri": "urn:load/v1", "params": {"endpoint": "/load", "methods": {"go": {}}}}]},
}


class Verifiers:
    """Verifies by script; keeps the jobs."""

    def __init__(self) -> None:
        self.jobs: list[VerifierJob] = []
        self.rows: list[dict[str, Any]] = [{"result": True, "score": 0.25}]

    async def verify(self, job: VerifierJob) -> list[dict[str, Any]]:
        self.jobs.append(job)
        return self.rows


class World:
    """A run on scripted parts.

    Attributes:
        run: The run.
        card: The card of the env that is deployed next.
        requests: What went to the env.
        replies: The replies of the player, or errors.
        asked: What it was asked.
        options: What deploys asked for.
    """

    def __init__(self) -> None:
        self.card: dict[str, Any] = LOAD_CARD
        self.requests: list[tuple[str, str, bytes]] = []
        self.replies: list[str | Exception] = []
        self.asked: list[PromptRequest] = []
        self.options: list[DeployOptions] = []
        self.verifiers = Verifiers()
        self.client = httpx.AsyncClient(transport=httpx.MockTransport(self.answer))
        env = Env("E", "quay", "mcp_server", "quay", "server", EnvImage(ref="docker.io/q"), Path("/q"))
        artifact = Artifact("V", "v", "file", Path("/artifacts/v"), ("check.py",))
        bundle = Bundle("b", Path("/b"), "@local/b", envs={"E": env}, artifacts={"V": artifact})
        self.run = RunContext("id", bundle, self.deploy, self.play, self.verifiers)  # type: ignore[arg-type]

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append((request.method, request.url.path, request.content))
        return httpx.Response(200, json={"ok": True})

    async def deploy(self, env: Env, step_id: str, options: DeployOptions) -> Deployment:
        self.options.append(options)
        return Deployment(env, step_id, None, read_card(self.card), "http://q", {}, self.client)  # type: ignore[arg-type]

    async def play(self, request: PromptRequest) -> str:
        self.asked.append(request)
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def do(self, type_: str, **fields: Any) -> None:
        await step(type_, **fields).run(self.run)


@pytest.fixture
async def world() -> Any:
    world = World()
    yield world
    await world.client.aclose()


def step(type_: str, **fields: Any) -> TaskStep:
    return plugins().step_type(type_).model_validate({"id": type_, "type": type_, **fields})


@pytest.mark.parametrize(
    ("type_", "fields", "expected"),
    [
        ("deploy_env", {"env_id": "E"}, []),
        ("deploy_env", {"env_id": "E", "unknown": 1, "sandbox_type": "local"}, []),
        ("deploy_env", {}, ["env_id is missing"]),
        ("deploy_env", {"env_id": ""}, ["env_id: string should have at least 1 character, not ''"]),
        ("deploy_env", {"env_id": "E", "ttl_seconds": "60"}, ["ttl_seconds: input should be a valid number, not '60'"]),
        ("deploy_env", {"env_id": "E", "ttl_seconds": 0}, ["ttl_seconds: input should be greater than 0, not 0"]),
        ("deploy_env", {"env_id": "E", "memory_mb": 1.5}, ["memory_mb: input should be a valid integer, not 1.5"]),
        ("deploy_env", {"env_id": "E", "id": 3, "depends_on": "x"}, []),  # the reader's own to tell
        ("apply_server_config", {"env_id": "E", "directives": []}, ["directives: list should have at least 1 item"]),
        ("apply_server_config", {"env_id": "E"}, ["directives is missing"]),
        (
            "apply_server_config",
            {"env_id": "E", "directives": [{"uri": "u"}, {"service": "a", "environment": "b", "uri": "u"}]},
            ["directives.0: name the server once", "directives.1: name the server once"],
        ),
        ("apply_server_config", {"env_id": "E", "directives": [{"service": "*"}]}, ["directives.0.uri is missing"]),
        (
            "modify_env_tool_access",
            {"env_id": "E", "action": "hide", "role": "", "tools": "*"},
            ["action: input should be 'disable' or 'enable'", "role", "tools"],
        ),
        ("deploy_agent", {}, []),
        ("deploy_agent", {"env_ids": "E"}, ["env_ids: input should be a valid list, not 'E'"]),
        ("prompt_agent", {}, ["set exactly one of prompt and parts"]),
        ("prompt_agent", {"prompt": "a", "parts": []}, ["set exactly one of prompt and parts"]),
        ("prompt_agent", {"prompt": "", "model": "m", "max_turns": 3}, []),
        ("env_outcome_verifier", {"env_id": "E"}, ["file_artifact_id is missing"]),
        ("env_outcome_verifier", {"env_id": "E", "file_artifact_id": "V", "score_aggregator": "x"}, ["score_aggreg"]),
    ],
)  # fmt: skip
def test_what_the_reader_is_told(reader_says: Any, type_: str, fields: dict[str, Any], expected: list[str]):
    reader_says(type_, fields, expected)


def test_every_type_declares_its_references():
    fields = {name: {reference.field for reference in declaration(name).references or ()} for name in (
        "deploy_env", "apply_server_config", "modify_env_tool_access", "deploy_agent", "prompt_agent",
        "env_outcome_verifier",
    )}  # fmt: skip
    assert fields == {
        "deploy_env": {"env_id", "artifact_id"},
        "apply_server_config": {"env_id"},
        "modify_env_tool_access": {"env_id"},
        "deploy_agent": {"env_ids", "a2a_agent_id", "agent_snapshot_files_artifact_id"},
        "prompt_agent": {"snapshot_config.env_id"},
        "env_outcome_verifier": {"env_id", "file_artifact_id"},
    }
    with pytest.raises(PluginError, match="there is no step type 'telepathy'; correct it, or install the plugin"):
        declaration("telepathy")


def test_defaults():
    made: Any = step("deploy_env", env_id="E")
    assert (made.depends_on, made.fail_task_on_error, made.ttl_seconds) == (None, True, 7200)
    agent: Any = step("deploy_agent")
    assert (agent.agent_name, agent.env_ids, agent.role, agent.system_prompt) == ("default-agent", [], None, None)
    prompt: Any = step("prompt_agent", prompt="p")
    assert (prompt.agent_name, prompt.timeout_seconds, len(prompt.prompt_id)) == ("default-agent", 600, 36)
    verifier: Any = step("env_outcome_verifier", env_id="E", file_artifact_id="V")
    assert (verifier.score_aggregator, len(verifier.verifier_id), verifier.prompt_id) == ("all_pass", 32, None)
    config: Any = step("apply_server_config", env_id="E", directives=[{"service": "q", "uri": "u"}])
    assert (config.timeout_seconds, config.tolerate_unadvertised, config.directives[0].args) == (30, False, {})


def test_dependencies_may_be_objects():
    assert step("deploy_agent", depends_on=["a", {"task_step_id": "b"}]).depends_on == ["a", "b"]


@pytest.mark.parametrize(
    ("fields", "longest", "ttl"),
    [({}, None, 7200), ({}, 3600, 3600), ({"ttl_seconds": 60}, 3600, 60), ({"ttl_seconds": 9000}, 3600, 9000)],
)
def test_a_sandbox_lives_as_long_as_asked(fields: dict[str, Any], longest: float | None, ttl: float):
    made: Any = step("deploy_env", env_id="E", **fields)
    assert made.options(longest).ttl == ttl


async def test_deploying(world: World):
    await world.do("deploy_env", env_id="E", cpu=2.0, memory_mb=256)
    assert world.options == [DeployOptions(7200, 2.0, 256)]
    assert world.run.env("E").step_id == "deploy_env"
    with pytest.raises(EpisodeError, match="the env 'quay' is already deployed, by step 'deploy_env'"):
        await world.do("deploy_env", env_id="E")


async def test_calling_extensions(world: World):
    await world.do("deploy_env", env_id="E")
    calls = [{"service": "quay", "uri": "urn:load/v1", "args": {"n": 1}}, {"environment": "*", "uri": "urn:load/v1"}]
    await world.do("apply_server_config", env_id="E", directives=calls)
    assert world.requests == [("POST", "/load", b'{"n":1}'), ("POST", "/load", b"{}")]
    assert [change["result"] for change in world.run.metadata["server_config_changes"]] == [{"ok": True}] * 2


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ({"service": "dock", "uri": "urn:load/v1"}, "the env 'quay' has no server 'dock'; it has: quay"),
        ({"service": "quay", "uri": "urn:x"}, "'quay' advertises no extension 'urn:x'; it advertises: urn:load/v1"),
    ],
)
async def test_what_is_not_advertised(world: World, call: dict[str, Any], said: str):
    await world.do("deploy_env", env_id="E")
    with pytest.raises(EpisodeError, match=said):
        await world.do("apply_server_config", env_id="E", directives=[call])
    await world.do("apply_server_config", env_id="E", directives=[call], tolerate_unadvertised=True)
    assert said in world.run.metadata["server_config_skipped"][0]["reason"]
    assert world.requests == []


async def test_access_is_changed_here_and_in_a_server_that_keeps_rules_itself(world: World):
    own = {"uri": "urn:agentenv:disable-tool/v1", "params": {"endpoint": "/tools/disable", "methods": {"disable": {}}}}
    world.card = {"name": "quay", "capabilities": {"extensions": [own]}}
    await world.do("deploy_env", env_id="E")
    await world.do("modify_env_tool_access", env_id="E", action="disable", role="default", tools=["a"])
    await world.do("modify_env_tool_access", env_id="E", action="enable", role="default", tools=["b"])
    assert world.requests == [("POST", "/tools/disable", b'{"role":"default","tools":["a"]}')]
    access = world.run.env("E").access
    assert (access.allows(None, "a"), access.allows(None, "b", hidden=True)) == (False, True)


async def test_an_agent_has_its_envs(world: World):
    await world.do("deploy_env", env_id="E")
    await world.do("deploy_agent", env_ids=["E", "E"], role=" ", system_prompt="S")
    agent = world.run.agent("default-agent")
    assert ([env.env.id for env in agent.envs], agent.role, agent.system_prompt) == (["E"], None, "S")
    with pytest.raises(EpisodeError, match="the agent 'default-agent' is already deployed"):
        await world.do("deploy_agent")
    with pytest.raises(EpisodeError, match="env_step_id='other': the env 'quay' was deployed by 'deploy_env'"):
        await world.do("deploy_agent", agent_name="b", env_ids=["E"], env_step_id="other")
    await world.do("deploy_agent", agent_name="b", env_ids=["E"], env_step_id="deploy_env")


@pytest.mark.parametrize(
    ("type_", "fields"),
    [
        ("apply_server_config", {"env_id": "E", "directives": [{"service": "quay", "uri": "u"}]}),
        ("modify_env_tool_access", {"env_id": "E", "action": "disable", "role": "default", "tools": ["a"]}),
        ("deploy_agent", {"env_ids": ["E"]}),
        ("env_outcome_verifier", {"env_id": "E", "file_artifact_id": "V"}),
    ],
)
async def test_an_env_must_be_deployed_first(world: World, type_: str, fields: dict[str, Any]):
    with pytest.raises(EpisodeError, match=r"the env 'E' isn't deployed \(deployed: none\): a deploy_env step"):
        await world.do(type_, **fields)


async def test_prompting(world: World):
    await world.do("deploy_agent", system_prompt="Old.")
    world.replies = ["one", "two", "three"]
    await world.do("prompt_agent", prompt="a", prompt_id="p1")
    await world.do("prompt_agent", prompt="b", system_prompt="New.")
    await world.do("prompt_agent", prompt="c")
    assert [(r.prompt, r.system_prompt) for r in world.asked] == [("a", "Old."), ("b", "New."), ("c", "New.")]
    assert [r.response for r in world.run.responses] == ["one", "two", "three"]
    first = world.run.responses[0]
    assert (first.prompt_id, first.agent_name, first.error) == ("p1", "default-agent", "")
    assert first.replied_at is not None
    assert first.replied_at >= first.sent_at
    with pytest.raises(EpisodeError, match="the agent 'b' isn't deployed"):
        await world.do("prompt_agent", prompt="x", agent_name="b")


async def test_a_prompt_without_a_reply_is_on_record(world: World):
    await world.do("deploy_agent")
    world.replies = [EpisodeError("turn", "nobody answered")]
    with pytest.raises(EpisodeError, match="nobody answered"):
        await world.do("prompt_agent", prompt="a")
    (response,) = world.run.responses
    assert (response.response, response.error) == (None, "turn: nobody answered")


async def test_verifying(world: World):
    await world.do("deploy_env", env_id="E")
    await world.do("deploy_agent")
    world.replies = ["one", "two"]
    await world.do("prompt_agent", prompt="a", prompt_id="p1")
    await world.do("prompt_agent", prompt="b", prompt_id="p2")
    verify = {"env_id": "E", "file_artifact_id": "V", "verifier_id": "v"}
    await world.do("env_outcome_verifier", **verify)
    assert (world.run.verifications["v"].score, world.run.verifications["v"].results) == (1.0, world.verifiers.rows)
    await world.do("env_outcome_verifier", **verify, score_aggregator="weighted_average", prompt_id="p1")
    assert world.run.verifications["v"].score == 0.25
    jobs = world.verifiers.jobs
    assert [(str(job.file), job.mcp_url, job.base_url) for job in jobs] == [
        ("/artifacts/v/check.py", "http://q/mcp", "http://q")
    ] * 2
    assert [job.run["turns"][0]["reply"]["text"] for job in jobs] == ["two", "one"]
    with pytest.raises(EpisodeError, match="prompt_id='p3': no prompt of that id was sent"):
        await world.do("env_outcome_verifier", **verify, prompt_id="p3")


async def test_verifying_a_run_without_prompts(world: World):
    await world.do("deploy_env", env_id="E")
    await world.do("env_outcome_verifier", env_id="E", file_artifact_id="V")
    assert world.verifiers.jobs[0].run["turns"] == []


async def test_a_step_without_run_says_so(world: World):
    with pytest.raises(NotImplementedError, match="the step type 'mine' has no run"):
        await TaskStep(id="x", type="mine").run(world.run)
