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
    (unsupported,) = bundle.unsupported
    assert (unsupported.place, unsupported.fix) == ("envs/shop/env.toml", "tasks that name the env are left out")
    assert unsupported.message == f"{said} be deployed by this version"
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
