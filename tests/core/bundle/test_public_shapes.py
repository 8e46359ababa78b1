"""Tasks of the shapes that public bundles have: read with the real step types, and played where they prompt one agent.

Their envs are in a store of their authors', as in those bundles, and come from a store map.
"""

from __future__ import annotations

from typing import Any

import pytest

from agent_env_core.bundle import Bundle, load_bundle
from agent_env_core.errors import EpisodeRefused
from agent_env_core.play.spec import EpisodeSpec
from agent_env_core.steps.base import declaration

Steps = list[dict[str, Any]]


def step(type_: str, id_: str, **fields: Any) -> dict[str, Any]:
    return {"id": id_, "type": type_, **fields}


def call(id_: str, verb: str, **args: Any) -> dict[str, Any]:
    directive = {"service": "harbour", "uri": f"urn:harbour:{verb}/v1", "args": args}
    return step("apply_server_config", id_, env_id="harbour", directives=[directive])


def grade(id_: str = "grade", **fields: Any) -> dict[str, Any]:
    return step("env_outcome_verifier", id_, env_id="harbour", file_artifact_id="judge", verifier_id=id_, **fields)


DEPLOY = step("deploy_env", "env", env_id="harbour", ttl_seconds=3600)
SMOKE = [
    step("deploy_agent", "agent"),
    step("prompt_agent", "ask", prompt_id="p", prompt="Say ready."),
    step(
        "agent_prompt_response_verifier",
        "said",
        prompt_id="p",
        criteria=[
            {"type": "response_contains", "needles": ["ready"]},
            {"type": "response_regex_present", "pattern": "rea.y", "flags": ["IGNORECASE"]},
        ],
    ),
]
PACK = [
    DEPLOY,
    call("load", "load", scenario="s-03"),
    step("deploy_agent", "planner", env_ids=["harbour"]),
    step(
        "prompt_agent",
        "play",
        prompt_id="s-03",
        system_prompt="You allocate berths.",
        prompt="Plan.",
        max_turns=60,
        model_params={"temperature": 0.7},
        timeout_seconds=7200,
    ),
    call("close", "close"),
    grade(score_aggregator="weighted_average"),
]
LIVE = [
    DEPLOY,
    step("sync_env_clock", "clock", env_id="harbour", virtual_time="2031-02-03T04:05:06Z"),
    step(
        "register_env_triggers",
        "notices",
        env_id="harbour",
        watch_roles=["default"],
        triggers=[
            {
                "id": "storm",
                "when": {"type": "action", "tool": "plan", "where": {"result.week": {"equals": 2}}},
                "barrier": {"at": "provoking_call", "timeout_seconds": 5},
                "actions": [{"type": "tool", "tool": "notice", "args": {"text": "storm"}}],
            }
        ],
    ),
    step("deploy_agent", "planner", env_ids=["harbour"], role="planner"),
    step("modify_env_tool_access", "hide", env_id="harbour", action="disable", role="planner", tools=["notice"]),
    step("prompt_agent", "play", prompt="Plan.", fail_task_on_error=False),
    grade(),
]
DUEL = [
    DEPLOY,
    step("deploy_agent", "red", agent_name="red", env_ids=["harbour"], depends_on=["env"]),
    step("deploy_agent", "blue", agent_name="blue", env_ids=["harbour"], depends_on=["env"]),
    step("prompt_agent", "r1", agent_name="red", prompt="Go.", depends_on=["red"], fail_task_on_error=False),
    step("prompt_agent", "b1", agent_name="blue", prompt="Go.", depends_on=["blue"], fail_task_on_error=False),
    grade("red-score", depends_on=["r1", "b1"]),
    grade("blue-score", depends_on=["r1", "b1"]),
    step("aggregate_verifiers", "both", verifier_ids=["red-score", "blue-score"], verifier_id="both"),
]
LOCAL = [
    step("deploy_sandbox", "box", sandbox_name="box", sandbox_mode="vm", sandbox_type="local"),
    step("load_artifact", "put", sandbox_name="box", artifact_id="notes", destination_path="/tmp/notes"),
    step(
        "verify_sandbox",
        "look",
        sandbox_name="box",
        verifier_id="look",
        criteria=[{"type": "probe_file_exists", "criterion": "it is there", "paths": ["/tmp/notes/a.txt"]}],
    ),
]
CODING = [
    step("deploy_agent", "coder", a2a_agent_id="claude-code"),
    step("load_artifact", "repo", agent_name="default-agent", artifact_id="notes", destination_path="/app/repo"),
    step("prompt_agent", "fix", prompt_id="fix", timeout_seconds=3600, prompt="Make the tests pass."),
    step(
        "verify_sandbox",
        "tests",
        verifier_id="tests",
        base_dir="/app/repo",
        score_aggregator="weighted_average",
        criteria=[
            {"type": "bash_cmd_succeeds", "criterion": "tests pass", "bash_cmd": "python -m unittest -q", "weight": 3},
            {"type": "probe_file_exists", "criterion": "kept the readme", "paths": ["README.md"]},
        ],
    ),
]
PLUGIN_ONLY = [step("phone_play", "play", env_id="phone", goal="Set an alarm."), step("save_recording", "save")]


@pytest.fixture
def read(folder, tmp_path, monkeypatch):
    """Reads a bundle of one task, and an empty one that is always sound, whose envs are in the store map."""
    map_ = tmp_path / "store.toml"
    map_.write_text('[envs.harbour]\nimage = "ghcr.io/acme/harbour:1"\nenvironment_name = "harbour"\n')
    monkeypatch.setenv("AGENT_ENV_STORE", str(map_))

    def read(steps: Steps) -> Bundle:
        folder.fill({"artifacts/judge/verify.py": "", "artifacts/notes/a.txt": "", "artifacts/notes/README.md": ""})
        folder.fill({"tasks/it.json": steps, "tasks/none.json": []})
        return load_bundle(folder.root, declaration)

    return read


@pytest.mark.parametrize(
    ("steps", "turns", "scores"),
    [(SMOKE, ["ask"], ("said",)), (PACK, ["play"], ("grade",)), (LIVE, ["play"], ("grade",))],
    ids=["smoke", "pack", "live"],
)
def test_a_task_that_a_trainer_plays(read, steps, turns, scores):
    bundle = read(steps)
    assert bundle.problems == ()
    spec = EpisodeSpec.from_task(bundle.tasks[0])
    assert [prompt.step_id for prompt in spec.prompts] == turns
    assert spec.score_ids == scores


def test_a_coding_task_has_the_played_agent_work_in_a_sandbox(read):
    bundle = read(CODING)
    assert bundle.problems == ()
    spec = EpisodeSpec.from_task(bundle.tasks[0])
    assert spec.score_ids == ("tests",)


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        ([DEPLOY, grade()], "prompts no agent"),
        ([DEPLOY, call("load", "load"), call("submit", "submit"), grade()], "prompts no agent"),
        (LOCAL, "prompts no agent"),
        (DUEL, "prompts several agents: red, blue"),
    ],
    ids=["echo", "wiring", "local", "duel"],
)
def test_a_sound_task_that_is_no_episode_by_itself(read, steps, why):
    bundle = read(steps)
    assert bundle.problems == ()
    with pytest.raises(EpisodeRefused, match=why):
        EpisodeSpec.from_task(bundle.tasks[0])


def test_one_of_two_agents_is_played(read):
    bundle = read(DUEL)
    with pytest.raises(EpisodeRefused, match="blue"):
        EpisodeSpec.from_task(bundle.tasks[0], trainer_agents=["red"])
    spec = EpisodeSpec.from_task(bundle.tasks[0], trainer_agents=["red", "blue"])
    assert spec.score_ids == ("red-score", "blue-score", "both")


def test_a_task_of_a_plugin_that_is_not_here_is_left_out_cleanly(read):
    bundle = read(PLUGIN_ONLY)
    assert [task.name for task in bundle.tasks] == ["none"]
    assert [(problem.place, problem.message) for problem in bundle.problems] == [
        ("tasks/it.json:play", "there is no step type 'phone_play'"),
        ("tasks/it.json:save", "there is no step type 'save_recording'"),
    ]
