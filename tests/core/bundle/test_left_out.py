"""One task that can't be used never stops the others."""

from __future__ import annotations

import pytest

from agent_env_core.bundle import load_bundle
from agent_env_core.errors import BundleError, Problem
from agent_env_core.steps.base import LATER, declaration

WAIT = {"id": "a", "type": "wait", "seconds": 1}


def test_a_task_with_a_problem_is_left_out_with_its_reasons(garden):
    garden.fill({"tasks/autumn.json": [{**WAIT, "type": "warp"}, {**WAIT, "depends_on": "a"}], "tasks/b.json": "[NaN]"})
    bundle = garden.read()
    assert [task.name for task in bundle.tasks] == ["spring"]
    assert [(one.name, one.id, one.path.name, len(one.problems)) for one in bundle.left_out] == [
        ("autumn", f"{bundle.id_root}/autumn", "autumn.json", 3),
        ("b", f"{bundle.id_root}/b", "b.json", 1),
    ]
    assert {problem.place for problem in bundle.left_out[0].problems} == {"tasks/autumn.json:a"}
    assert bundle.problems == (*bundle.left_out[0].problems, *bundle.left_out[1].problems)


def test_it_stands_in_no_split_and_an_eval_may_still_name_it(garden):
    garden.fill({"tasks/b.json": "[", "evals/both.toml": 'tasks = ["b", "spring"]', "evals/none.toml": 'tasks = ["b"]'})
    bundle = garden.read()
    splits = {name: [task.name for task in tasks] for name, tasks in bundle.splits().items()}
    assert splits == {"all": ["spring"], "both": ["spring"], "none": [], "smoke": ["spring"]}
    assert bundle.evals[f"{bundle.id_root}/both"].tasks == (f"{bundle.id_root}/b", f"{bundle.id_root}/spring")


def test_a_bundle_of_which_no_task_is_left_says_why(folder):
    folder.fill({"tasks/a.json": "[", "tasks/b.json": [{**WAIT, "type": "warp"}]})
    with pytest.raises(BundleError) as caught:
        folder.read()
    assert [problem.place for problem in caught.value.problems] == ["tasks/a.json", "tasks/b.json:a"]


def test_what_is_wrong_with_the_bundle_is_told_with_what_is_wrong_with_its_tasks(garden):
    garden.fill({"tasks/b.json": "[", "envs/garden/env.toml": "x = 1"})
    with pytest.raises(BundleError) as caught:
        garden.read()
    assert [problem.place for problem in caught.value.problems] == ["envs/garden/env.toml", "tasks/b.json"]


@pytest.mark.parametrize(
    ("toml", "said", "told"),
    [
        ('type = "website"\nbackend_image = "x"', "type 'website' can't", "is of type website, which can't"),
        (
            'type = "computer_driver"\nmodule = "a.py:A"',
            "type 'computer_driver' can't",
            "is of type computer_driver, wh",
        ),
        ('type = "multi"\nwebsite_envs = ["garden"]', "website_envs can't", "is made of websites, which can't"),
    ],
)
def test_an_env_that_cannot_be_run_here_leaves_out_the_tasks_that_use_it(garden, toml, said, told):
    garden.fill({"envs/shop/env.toml": toml, "tasks/buy.json": [{"id": "env", "type": "deploy_env", "env_id": "shop"}]})
    bundle = garden.read()
    assert [task.name for task in bundle.tasks] == ["spring"]
    (fault,) = bundle.faults
    assert (fault.place, fault.fix) == ("envs/shop/env.toml", "tasks that name the env are left out")
    assert fault.message == f"{said} be deployed by this version"
    (problem,) = bundle.left_out[0].problems
    assert problem.place == "tasks/buy.json:env"
    assert problem.message.startswith(f"env_id: the env 'shop' {told}")


@pytest.mark.parametrize("name", sorted(LATER))
def test_a_published_step_type_that_is_not_run_here_is_one_problem(folder, name):
    folder.fill({"tasks/a.json": [{"id": "later", "type": name, "env_id": "x"}], "tasks/b.json": []})
    (left_out,) = load_bundle(folder.root, declaration).left_out
    message = f"the step type {name!r} is part of the format, and not supported by this version"
    assert left_out.problems == (Problem("tasks/a.json:later", message),)


def test_a_misspelt_step_type_says_what_was_meant(folder):
    folder.fill({"tasks/a.json": [{"id": "x", "type": "deploy_envs"}], "tasks/b.json": []})
    (left_out,) = load_bundle(folder.root, declaration).left_out
    message = "there is no step type 'deploy_envs'"
    assert left_out.problems == (Problem("tasks/a.json:x", message, "did you mean 'deploy_env'?"),)


BAD = 'x = 1\nenvironment_name = "shop"\nimage = { ref = "docker.io/library/python:3" }'
BUY = [{"id": "env", "type": "deploy_env", "env_id": "shop"}]
GRADE = [{"id": "grade", "type": "env_outcome_verifier", "file_artifact_id": "judge"}]
LOAD = [{"id": "load", "type": "load_artifact", "artifact_id": "seeds"}]
LEARN = [{"id": "learn", "type": "add_skills", "skill_ids": ["cooking"]}]


@pytest.mark.parametrize(
    ("files", "steps", "fault", "told"),
    [
        ({"envs/shop/env.toml": BAD}, BUY, "envs/shop/env.toml", "the env 'shop'"),
        ({"envs/shop/env.toml": "["}, BUY, "envs/shop/env.toml", "the env 'shop'"),
        (
            {"envs/shop/env.toml": 'environment_name = "shop"', "envs/shop/dockerfile": "FROM x"},
            BUY,
            "envs/shop/dockerfile",
            "the env 'shop'",
        ),
        ({"envs/shop/env.toml": 'image = "nowhere"'}, BUY, "envs/shop/env.toml", "the env 'shop'"),
        ({"artifacts/judge/.DS_Store": ""}, GRADE, "artifacts/judge", "the artifact 'judge'"),
        (
            {"artifacts/judge/artifact.toml": "x = 1", "artifacts/judge/a.py": ""},
            GRADE,
            "artifacts/judge/artifact.toml",
            "the artifact 'judge'",
        ),
        ({"skills/cooking/SKILL.md": "no front matter"}, LEARN, "skills/cooking/SKILL.md", "the skill 'cooking'"),
        (
            {
                "artifacts/seeds/artifact.toml": 'type = "environment_universe"',
                "artifacts/seeds/garden/g.json": "{}",
                "artifacts/seeds/stray.json": "{}",
            },
            LOAD,
            "artifacts/seeds/stray.json",
            "the artifact 'seeds'",
        ),
    ],
)
def test_what_is_wrong_with_an_entity_leaves_out_the_tasks_that_name_it_and_no_others(
    garden, files, steps, fault, told
):
    garden.fill({**files, "tasks/buy.json": steps})
    bundle = garden.read()
    assert [task.name for task in bundle.tasks] == ["spring"]
    assert fault in {problem.place for problem in bundle.faults}
    assert bundle.problems == bundle.faults, "each fault is told once, where it is"
    (problem,) = bundle.left_out[0].problems
    assert f"{told} can't be used" in problem.message
    assert problem.fix.startswith(f"mend {bundle.faults[0].place}: ")


def test_what_an_entity_is_made_of_takes_it_along(garden):
    garden.fill(
        {
            "envs/shop/env.toml": BAD,
            "envs/mall/env.toml": 'type = "multi"\nmcp_server_envs = ["garden", "shop"]',
            "artifacts/a-set/artifact.toml": 'type = "environment_universe"\nenvironment_artifacts = ["b-seed"]',
            "artifacts/b-seed/artifact.toml": 'type = "environment"\nenvironment_name = "garden"\nfile = "c-file"',
            "artifacts/c-file/artifact.toml": "x = 1",
            "artifacts/c-file/c.json": "{}",
            "tasks/buy.json": [{"id": "env", "type": "deploy_env", "env_id": "mall"}],
            "tasks/load.json": [{"id": "load", "type": "load_artifact", "artifact_id": "a-set"}],
        }
    )
    bundle = garden.read()
    assert [one.name for one in bundle.left_out] == ["buy", "load"]
    assert [problem.place for problem in bundle.problems] == ["artifacts/c-file/artifact.toml", "envs/shop/env.toml"]
    assert set(bundle.envs) == {f"{bundle.id_root}/garden"}
    assert set(bundle.artifacts) == {f"{bundle.id_root}/garden-judge"}


def test_a_broken_agent_leaves_out_nothing_since_the_trainer_plays_it(garden):
    garden.fill(
        {
            "agents/smith/agent.toml": 'x = 1\nimage = { ref = "docker.io/library/python:3" }',
            "tasks/buy.json": [{"id": "agent", "type": "deploy_agent", "a2a_agent_id": "smith"}],
        }
    )
    bundle = garden.read()
    assert [task.name for task in bundle.tasks] == ["buy", "spring"]
    assert [problem.place for problem in bundle.problems] == ["agents/smith/agent.toml"]
