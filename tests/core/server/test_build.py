"""What is checked when an app is built, before anything runs."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from agent_env.openenv import build_app
from agent_env_core import integrity
from agent_env_core.errors import BundleError, PluginError, Problem
from agent_env_core.server.catalog import read_catalog
from agent_env_core.server.limits import DEFAULT_SESSIONS, session_limit, warm_limit

SECOND_SCORE = {
    "id": "style", "type": "env_outcome_verifier", "env_id": "counter", "file_artifact_id": "counter-verifier",
    "verifier_id": "style",
}  # fmt: skip


def two_scores(changed_counter: Any, counter_bundle: Path) -> Path:
    import json

    steps = json.loads((counter_bundle / "tasks" / "one-turn.json").read_text(encoding="utf-8"))
    return changed_counter(tasks={"one-turn": [*steps, SECOND_SCORE]})


def test_the_signature_is_the_documented_one() -> None:
    assert str(inspect.signature(build_app)).startswith("(bundle:")
    parameters = inspect.signature(build_app).parameters
    defaults = {name: parameter.default for name, parameter in parameters.items() if name != "bundle"}
    assert defaults == {"reward": None, "sandbox": None, "max_concurrent_envs": 8, "warm": None}
    assert repr(defaults["max_concurrent_envs"]) == "8"


@pytest.mark.parametrize(
    ("given", "variable", "limit"),
    [(DEFAULT_SESSIONS, None, 8), (DEFAULT_SESSIONS, "32", 32), (4, "32", 4), (8, "32", 8), (48, None, 48)],
)
def test_who_sets_the_limit(monkeypatch: pytest.MonkeyPatch, given: int, variable: str | None, limit: int) -> None:
    monkeypatch.delenv("MAX_CONCURRENT_ENVS", raising=False)
    if variable is not None:
        monkeypatch.setenv("MAX_CONCURRENT_ENVS", variable)
    assert session_limit(given) == limit


@pytest.mark.parametrize("value", ["0", "-1", "many", "1.5"])
def test_a_limit_that_is_none_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("MAX_CONCURRENT_ENVS", value)
    with pytest.raises(ValueError, match=f"MAX_CONCURRENT_ENVS={value} must be a whole number"):
        session_limit()
    with pytest.raises(ValueError, match="max_concurrent_envs=0 must be"):
        session_limit(0)


@pytest.mark.parametrize(
    ("given", "variable", "limit"), [(None, None, None), (None, "3", 3), (0, "3", 0), (5, None, 5), (None, "0", 0)]
)
def test_who_sets_what_is_made_ahead(
    monkeypatch: pytest.MonkeyPatch, given: int | None, variable: str | None, limit: int | None
) -> None:
    monkeypatch.delenv("AGENT_ENV_WARM", raising=False)
    if variable is not None:
        monkeypatch.setenv("AGENT_ENV_WARM", variable)
    assert warm_limit(given) == limit


@pytest.mark.parametrize("value", ["-1", "many", "1.5"])
def test_what_is_made_ahead_must_be_a_number(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("AGENT_ENV_WARM", value)
    with pytest.raises(ValueError, match=f"AGENT_ENV_WARM={value} must be a whole number"):
        warm_limit()
    with pytest.raises(ValueError, match="warm=-1 must be"):
        warm_limit(-1)


def test_a_mixed_up_installation_is_told_before_anything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    beside = Problem("openenv", "openenv-core 0.3.0 is installed beside openenv 0.10.0", integrity.OPENENV_FIX)
    monkeypatch.setattr(integrity, "problems", lambda path=None: [beside])
    with pytest.raises(PluginError, match="pip uninstall -y openenv-core openenv"):
        build_app("no/such/bundle")


def test_an_unknown_sandbox_is_refused_with_those_there_are(counter_bundle: Path) -> None:
    with pytest.raises(PluginError, match=r"there is no sandbox provider 'submarine'; known: .*process"):
        build_app(counter_bundle, sandbox="submarine")


def test_a_bundle_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="can't be used"):
        build_app(tmp_path / "nowhere", sandbox="process")
    with pytest.raises(ValueError, match="serves nothing"):
        build_app({}, sandbox="process")


def test_several_scores_need_a_reward(changed_counter: Any, counter_bundle: Path) -> None:
    bundle = two_scores(changed_counter, counter_bundle)
    with pytest.raises(ValueError, match=r"several scores \(grade, style\).*in the task 'one-turn'"):
        read_catalog(bundle)
    assert read_catalog(bundle, "grade").score_ids == ("grade",)
    with pytest.raises(ValueError, match="'style' is neither a step that scores"):
        read_catalog(bundle, "style")
    catalog = read_catalog(bundle, lambda scores: 0.5 * scores["grade"])
    assert catalog.find("train", 0).served.reward({"grade": 1.0, "style": 0.0}) == 0.5


def test_tasks_that_cannot_be_played_are_left_out_and_told_once(
    serve: Any, changed_counter: Any, caplog: pytest.LogCaptureFixture
) -> None:
    unprompted = [{"id": "env", "type": "deploy_env", "env_id": "counter"}]
    told: list[str] = []
    bundle = changed_counter(tasks={"one": unprompted, "two": unprompted})
    server = serve(bundle, on_progress=told.append)
    assert len(server.service.catalog.splits["all"]) == 10
    lines = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    assert lines == ["left out 2 of 12 tasks (one, two): it prompts no agent, so there is nothing to play"]
    assert not any("left out" in line for line in told)


def test_tasks_that_cannot_be_read_are_left_out_and_told_once(
    changed_counter: Any, caplog: pytest.LogCaptureFixture
) -> None:
    strange = [{"id": "fly", "type": "warp"}]
    bundle = changed_counter(tasks={"one": strange, "two": strange})
    assert len(read_catalog(bundle).splits["all"]) == 10
    lines = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    assert len(lines) == 1
    assert lines[0].startswith("left out 2 of 12 tasks (one, two): step 'fly': there is no step type 'warp'")


def test_what_cannot_be_deployed_here_is_left_out_of_every_split(counter_bundle: Path) -> None:
    catalog = read_catalog(counter_bundle)
    first = catalog.splits["train"][0].task.id
    rest = catalog.without({first})
    assert len(rest.splits["train"]) == 1
    assert rest.rows["train"][0]["index"] == 0
    assert first not in {row["id"] for row in rest.rows["all"]}
    assert catalog.without(()) is catalog


async def test_a_reward_that_fails_is_no_reward(serve: Any) -> None:
    def broken(scores: Any) -> float:
        return scores["nothing"]

    server = serve(reward=broken)
    with server.session() as session:
        session.reset(split="train", index=0)
        ended = session.step({"type": "call_tool", "tool_name": "end_turn", "arguments": {}})
    metadata = ended.observation["metadata"]
    assert (ended.done, ended.reward) == (True, None)
    assert metadata["status"] == "error"
    assert metadata["error"].startswith("no reward: ")
    assert set(metadata["scores"]) == {"grade"}
