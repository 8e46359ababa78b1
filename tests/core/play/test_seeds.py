"""The seed of a run fills names of entities as it fills any text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agent_env_core.bundle import Bundle
from agent_env_core.errors import EpisodeRefused
from agent_env_core.play.spec import EpisodeSpec

Steps = list[dict[str, Any]]


@pytest.fixture
def seeded_bundle(make_bundle: Callable[..., Bundle], steps: Callable[..., Steps]) -> Bundle:
    """A task whose env and verifier a seed names."""
    changes = {
        "env": {"env_id": "<env>"},
        "agent": {"env_ids": ["<env>"], "a2a_agent_id": "<agent>"},
        "load": {"env_id": "<env>"},
        "grade": {"env_id": "<env>", "file_artifact_id": "<env>-verifier", "score_aggregator": "<how>"},
    }
    return make_bundle({"t": steps(**changes)})


def test_names_that_a_seed_brings_become_ids(seeded_bundle: Bundle):
    assert not seeded_bundle.problems
    spec = EpisodeSpec.from_task(seeded_bundle.tasks[0], seed={"env": "counter", "how": "any_pass"})
    (env_id,) = seeded_bundle.envs
    assert [getattr(step, "env_id", None) for step in spec.steps] == [env_id, env_id, None, None, env_id]
    assert vars(spec.steps[2])["env_ids"] == [env_id]
    assert vars(spec.steps[4])["file_artifact_id"] in seeded_bundle.artifacts
    again = EpisodeSpec.from_task(seeded_bundle.tasks[0], seed={"env": env_id.rpartition("/")[2], "how": "all_pass"})
    assert again.deploys[0].env_id == env_id, "the task itself stays as it is written"


@pytest.mark.parametrize(
    ("seed", "told"),
    [
        ({"how": "any_pass"}, "env: env_id: '<env>' waits for a seed (fill it in with --seed KEY=VALUE"),
        ({"env": "nope", "how": "any_pass"}, "env: env_id: 'nope', as the seed has it, is not in this bundle (name an"),
        ({"env": "counter", "how": "sum"}, "grade: score_aggregator: input should be 'all_pass'"),
    ],
)
def test_what_a_seed_leaves_open_or_gets_wrong_is_told(seeded_bundle: Bundle, seed: dict[str, str], told: str):
    with pytest.raises(EpisodeRefused) as caught:
        EpisodeSpec.from_task(seeded_bundle.tasks[0], seed=seed)
    said = [str(problem) for problem in caught.value.problems]
    assert any(line.startswith(f"tasks/t.json:{told}") for line in said), said
    assert not any("no earlier step" in line for line in said)


def test_a_seed_may_bring_the_wrong_type(make_bundle: Callable[..., Bundle], steps: Callable[..., Steps]):
    files = {"artifacts/two/a.py": "", "artifacts/two/b.py": ""}
    bundle = make_bundle({"t": steps(grade={"file_artifact_id": "<judge>"})}, files=files)
    with pytest.raises(EpisodeRefused, match="'two' is of type file_artifact_universe, and file is needed"):
        EpisodeSpec.from_task(bundle.tasks[0], seed={"judge": "two"})
