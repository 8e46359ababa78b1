from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import field_validator

from agent_env_core.bundle import Bundle, Task
from agent_env_core.errors import EpisodeRefused
from agent_env_core.play.refusals import between_steps, choose_agents
from agent_env_core.play.spec import EpisodeSpec, Prompt
from agent_env_core.plugins import plugins
from agent_env_core.steps.base import TaskStep
from agent_env_core.steps.placed import works_in_sandbox

Steps = list[dict[str, Any]]


@pytest.fixture
def task(bundle: Bundle, steps: Callable[..., Steps]) -> Callable[..., Task]:
    """A task made of the usual steps, changed; it never saw the bundle reader."""

    def make(**changes: Any) -> Task:
        made = Task("@local/x/t", "t", Path("tasks/t.json"), tuple(steps(**changes)))
        object.__setattr__(made, "bundle", bundle)
        return made

    return make


def refusals(task: Task, **arguments: Any) -> list[str]:
    with pytest.raises(EpisodeRefused) as caught:
        EpisodeSpec.from_task(task, **arguments)
    return [str(problem) for problem in caught.value.problems]


def prompt(step_id: str, text: str = "Go.", **fields: Any) -> dict[str, Any]:
    return {"id": step_id, "type": "prompt_agent", "prompt": text, **fields}


def test_what_there_is_to_play(task: Callable[..., Task]):
    spec = EpisodeSpec.from_task(task())
    assert spec.trainer_agents == ("default-agent",)
    assert spec.prompts == (Prompt("default-agent", "play", "Bring the counter to 3.", None),)
    assert spec.score_ids == ("grade",)
    assert [step.env_id for step in spec.deploys] == ["counter"]


def test_system_prompts_stay_in_force_until_another_comes(task: Callable[..., Task]):
    more = [prompt("b"), prompt("c", system_prompt="New."), prompt("d")]
    spec = EpisodeSpec.from_task(task(agent={"system_prompt": "Old."}, more=more))
    assert [p.system_prompt for p in spec.prompts] == ["Old.", "Old.", "New.", "New."]


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        ({}, True),
        ({"service": "*"}, False),
        ({"service": "counter"}, False),
        ({"tolerate_unadvertised": True}, False),
        ({"fail_task_on_error": False}, False),
    ],
)
def test_a_directive_to_a_server_that_the_env_has_not(bundle: Bundle, task: Any, fields: dict[str, Any], refused: bool):
    (env_id,) = bundle.envs
    directive = {"service": fields.pop("service", "quay"), "uri": "u"}
    made = task(load={"env_id": env_id, "directives": [directive], **fields})
    told = refusals(made) if refused else list(EpisodeSpec.from_task(made).trainer_agents)
    assert told == (
        ["tasks/t.json:load: directives.0: the env 'counter' has no server 'quay'; it has: counter"]
        if refused
        else ["default-agent"]
    )


def test_seeds_fill_every_text(task: Callable[..., Task]):
    made = task(
        play={"prompt": "Reach <goal>, <name>; <other>."},
        load={"directives": [{"service": "counter", "uri": "u", "args": {"deep": [{"text": "<goal>"}]}}]},
    )
    spec = EpisodeSpec.from_task(made, seed={"goal": "5", "name": "you"})
    assert spec.prompts[0].prompt == "Reach 5, you; <other>."
    load: Any = spec.steps[1]
    assert load.directives[0].args == {"deep": [{"text": "5"}]}
    assert made.steps[3]["prompt"] == "Reach <goal>, <name>; <other>."


def test_several_agents_can_be_played_when_named(task: Callable[..., Task]):
    other = {"id": "b", "type": "deploy_agent", "agent_name": "b", "env_ids": []}
    made = task(more=[other, prompt("ask-b", agent_name="b")])
    assert EpisodeSpec.from_task(made, trainer_agents=["b", "default-agent"]).trainer_agents == ("b", "default-agent")
    assert [p.agent for p in EpisodeSpec.from_task(made, trainer_agents=["b", "default-agent"]).prompts] == [
        "default-agent",
        "b",
    ]


@pytest.mark.parametrize(
    ("changes", "arguments", "said"),
    [
        ({"play": None}, {}, "tasks/t.json: prompts no agent"),
        ({"more": [prompt("x", agent_name="b")]}, {}, "prompts several agents: default-agent, b"),
        ({}, {"trainer_agents": []}, "trainer_agents is empty"),
        ({}, {"trainer_agents": ["b"]}, "never prompts the agent 'b' (it prompts: default-agent)"),
        ({"agent": None}, {}, "never deploys the agent 'default-agent' that it prompts"),
        (
            {"more": [{"id": "again", "type": "deploy_agent"}]},
            {},
            "deploys the agent 'default-agent' more than once, by agent, again",
        ),
        ({"load": {"retry_config": {"retry_from_step_id": "load"}}}, {}, "tasks/t.json:load: retry_config"),
        ({"play": {"prompt": None, "parts": [{"kind": "file", "file": {"name": "a.png"}}]}}, {}, "model yet: a.png"),
        ({"play": {"prompt": None, "parts": []}}, {}, "play: parts is empty"),
        ({"play": {"prompt": None, "parts": [{"kind": "text"}]}}, {}, "play: parts.0.text: should be a text, not None"),
        ({"play": {"output_format": {"type": "object"}}}, {}, "play: output_format: should be {"),
        ({"play": {"output_format": {"schema": {}}}}, {}, "play: output_format: a trainer"),
        ({"play": {"agentenv_tools": ["x"]}}, {}, "play: agentenv_tools=['x'] isn't supported"),
        ({"play": {"snapshot_config": {"env_id": "counter"}}}, {}, "play: snapshot_config="),
        ({"play": {"max_conversation_turns": 0}}, {}, "play: max_conversation_turns: input should be greater than"),
        ({"play": {"max_conversation_turns": 3, "user_a2a_url": "http://x"}}, {}, "only a model can"),
        ({"play": {"max_conversation_turns": 3, "user_agent_name": "default-agent"}}, {}, "a simulated user"),
        (
            {"play": {"max_conversation_turns": 3},
             "more": [{"id": "u", "type": "deploy_agent", "agent_name": "human_agent", "env_ids": ["counter"]}]},
            {},
            "u: env_ids: the agent 'human_agent' stands for the user, and a simulated user has no tools",
        ),
        (
            {"more": [{"id": "sum", "type": "aggregate_verifiers", "verifier_ids": ["counter", "other"]}]},
            {},
            "sum: verifier_ids names 'other', which no earlier step has",
        ),
        ({"agent": {"agent_snapshot_files_artifact_id": "x"}}, {}, "agent: agent_snapshot_files_artifact_id='x'"),
        ({"agent": {"agent_changelog_object_url": "s3://x"}}, {}, "agent: agent_changelog_object_url="),
        ({"agent": {"enable_agent_changelog": True}}, {}, "agent: enable_agent_changelog=True"),
        ({"env": {"artifact_id": "seed"}}, {}, "env: artifact_id='seed' isn't supported"),
        ({"env": {"env_version": 2}}, {}, "env: env_version=2 isn't supported"),
        ({"env": {"env_state_type": "x"}}, {}, "env: env_state_type='x' isn't supported"),
        ({"env": {"gateway_mode": "fast"}}, {}, "env: gateway_mode: input should be 'performance' or 'consistent'"),
        ({"grade": {"file_artifact_version": 1}}, {}, "grade: file_artifact_version=1 isn't supported"),
        ({"grade": {"score_aggregator": "median"}}, {}, "grade: score_aggregator: input should be"),
        ({"env": {"env_id": 3}}, {}, "env: env_id: input should be a valid string, not 3"),
        ({"load": {"type": "telepathy"}}, {}, "load: there is no step type 'telepathy'"),
        (
            {"more": [{"id": "b", "type": "deploy_agent", "agent_name": "b"}, prompt("ask", agent_name="b")]},
            {"trainer_agents": ["default-agent"]},
            "b: agent_name='b': it is prompted, and only agents that are played from outside can be",
        ),
        (
            {"more": [{"id": name, "type": "deploy_agent", "agent_name": "idle"} for name in ("b", "c")]},
            {},
            "deploys the agent 'idle' more than once, by b, c",
        ),
        (
            {"more": [{"id": "x", "type": "env_outcome_verifier", "env_id": "counter", "file_artifact_id": "v"}
                      | {"verifier_id": "counter"}]},
            {},
            "x: verifier_id='counter' is also that of step 'grade'",
        ),
        ({"more": [prompt("x", depends_on=["nobody"])]}, {}, "step 'x' depends on 'nobody'"),
    ],
)  # fmt: skip
def test_refusals(task: Callable[..., Task], changes: dict[str, Any], arguments: dict[str, Any], said: str):
    found = refusals(task(**changes), **arguments)
    assert any(said in line for line in found), found


def test_all_reasons_come_at_once(task: Callable[..., Task]):
    found = refusals(task(play={"snapshot_config": 1, "agentenv_tools": 2}, agent=None, env={"env_version": 1}))
    assert len(found) == 4, found


def test_turns_are_counted_as_often_as_a_user_may_speak(task: Callable[..., Task]):
    user = {"id": "u", "type": "deploy_agent", "agent_name": "human_agent", "system_prompt": "You want 3."}
    spec = EpisodeSpec.from_task(task(play={"max_conversation_turns": 4}, more=[user, prompt("x")]))
    assert (spec.most_turns, len(spec.prompts), spec.trainer_agents) == (5, 2, ("default-agent",))


def test_parts_are_shown_as_one_text(task: Callable[..., Task]):
    parts = [{"kind": "text", "text": "Count <n>."}, {"kind": "data", "data": {"to": 3}}]
    spec = EpisodeSpec.from_task(task(play={"prompt": None, "parts": parts}), seed={"n": "up"})
    assert spec.prompts[0].prompt == 'Count up.\n\n{\n  "to": 3\n}'


PLAYED = ["default-agent"]


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ({"type": "verify_a2a_role"}, "verify_a2a_role examines a real agent"),
        ({"type": "deploy_human_agent"}, "deploy_human_agent names the agent"),
        ({"type": "register_agent_triggers", "agent_name": "default-agent"}, "register_agent_triggers names"),
        ({"type": "snapshot_agent_state"}, "snapshot_agent_state names"),
        ({"type": "collect_artifacts", "manifest_step_id": "play"}, "manifest_step_id='play' is a prompt"),
        ({"type": "register_env_triggers", "executor_agent_name": "default-agent"}, "executor_agent_name="),
        ({"type": "rubrics_verifier", "agent_name": "default-agent"}, "would judge"),
        ({"type": "peer_agents", "peerings": [{"to": "default-agent"}]}, "peers the agent 'default-agent'"),
        (prompt("x", agent_name="b", max_conversation_turns=2, user_agent_name="default-agent"), "a simulated user"),
    ],
)  # fmt: skip
def test_step_types_that_clash_with_playing(steps: Callable[..., Steps], step: dict[str, Any], said: str):
    found = [message for _, message, _ in between_steps(steps(more=[{"id": "x", **step}]), PLAYED)]
    assert len(found) == 1, found
    assert said in found[0]


@pytest.mark.parametrize(
    "step",
    [
        {"type": "collect_artifacts", "manifest_step_id": "other"},
        {"type": "rubrics_verifier", "agent_name": "default-agent", "use_agent_judge": False},
        {"type": "rubrics_verifier"},
        {"type": "register_env_triggers", "executor_agent_name": "b"},
        {"type": "a_plugin_of_somebody", "agent_name": "default-agent"},
    ],
)
def test_what_is_not_refused(steps: Callable[..., Steps], step: dict[str, Any]):
    assert list(between_steps(steps(more=[{"id": "x", **step}]), PLAYED)) == []


def test_model_settings_of_a_played_prompt_are_no_obstacle(task: Callable[..., Task]):
    settings = {"max_turns": 5, "model": "m", "model_params": {"t": 1}, "effort": "high", "timeout_seconds": 7200}
    EpisodeSpec.from_task(task(play=settings, env={"sandbox_type": "local", "disk_size_gb": 20, "metadata": {"a": 1}}))


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ({"type": "install_agent", "agent_name": "default-agent"}, True),
        ({"type": "load_artifact", "env_id": "counter"}, False),
        ({"type": "run_code", "agent_name": "default-agent"}, True),
        ({"type": "verify_sandbox"}, True),
        ({"type": "verify_sandbox", "sandbox_name": "vm"}, False),
        ({"type": "deploy_agent", "skills": [{"name": "s"}]}, True),
        ({"type": "deploy_agent", "skills": []}, False),
        ({"type": "install_agent"}, True),
        ({"type": "load_artifact", "agent_name": "default-agent"}, True),
        ({"type": "run_code"}, True),
        ({"type": "run_code", "env_id": "counter"}, False),
        ({"type": "run_code", "agent_name": "other"}, False),
        ({"type": "add_skills"}, True),
        ({"type": "collect_artifacts"}, True),
        ({"type": "collect_artifacts", "sandbox_name": "vm", "container_name": "c"}, False),
    ],
)
def test_who_works_in_a_sandbox(step: dict[str, Any], expected: bool):
    assert works_in_sandbox([{"id": "x", **step}], "default-agent") is expected


class Odd(TaskStep):
    """A step type of a careless plugin."""

    def refusals(self, played: Any) -> list[str]:
        raise RuntimeError("no idea")


class Odder(TaskStep):
    """One that can't even be read."""

    @field_validator("metadata")
    @classmethod
    def _fail(cls, value: Any) -> Any:
        raise TypeError("no clue")


@pytest.mark.parametrize(
    ("cls", "said"),
    [
        (Odd, "tasks/t.json:odd: the step type 'odd' can't say whether it can be played: RuntimeError: no idea"),
        (Odder, "tasks/t.json:odd: the step type 'odd' can't read it: TypeError: no clue"),
    ],
)
def test_a_step_type_that_fails_is_a_reason(
    task: Callable[..., Task], monkeypatch: pytest.MonkeyPatch, cls: type[TaskStep], said: str
):
    monkeypatch.setitem(plugins()._things, ("step type", "odd"), cls)
    assert refusals(task(more=[{"id": "odd", "type": "odd", "metadata": {"a": 1}}])) == [said]


def test_choosing_agents_keeps_the_order_of_first_prompts():
    steps = [prompt("a", agent_name="b"), prompt("b", agent_name="a"), prompt("c", agent_name="b")]
    assert choose_agents(steps, None)[0] == ("b", "a")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("async def verify(mcp_url:", "is not Python: '(' was never closed (line 1)"),
        ("def verify(mcp_url):\n    return []\n", "must define an async function: async def verify(mcp_url)"),
        ("async def verify(mcp_url):\n    return '\\d'\n", ""),
        ("from elsewhere import verify\n", ""),
    ],
)
def test_a_verifier_that_shows_to_be_none(
    make_bundle: Callable[..., Bundle], steps: Callable[..., Steps], code: str, said: str
):
    bundle = make_bundle({"t": steps(grade={"file_artifact_id": "mine"})}, files={"artifacts/mine/v.py": code})
    if not said:
        assert EpisodeSpec.from_task(bundle.tasks[0]).score_ids == ("grade",)
        return
    assert refusals(bundle.tasks[0]) == [f"tasks/t.json:grade: file_artifact_id: mine/v.py {said}"]
