"""Evals and aliases."""

import pytest


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("", "tasks is missing"),
        ("tasks = []", "tasks must be a list of tasks with at least one, not []"),
        ('tasks = "monday"', "tasks must be a list"),
        ("tasks = [3]", "tasks[0] must be the name of a task, not 3"),
        ('tasks = [{ task = "monday", at = 1 }]', "tasks[0] must be the name of a task"),
        ('tasks = [{ name = "monday" }]', "tasks[0] must be the name of a task"),
        ('tasks = ["monday", "monday"]', "tasks[1] lists 'monday' again"),
        ('tasks = ["monday", { task = "monday" }]', "tasks[1] lists"),
        ('tasks = [{ task = "monday", version = 1 }]', "tasks[0] pins a version, and 'monday' belongs to this bundle"),
        ('tasks = ["Monday"]', "tasks[0]: a task 'Monday' isn't here, but 'monday' is"),
        ('tasks = ["stored"]', "tasks[0]: task 'stored' is not in this bundle"),
        ('tasks = ["notes"]', "'notes' names tasks/notes.md, which is no part of the bundle"),
        ('tasks = ["monday"]\ntype = "exam"', "type 'exam' is unknown"),
        ('tasks = ["monday"]\nsplit = "x"', "unknown key 'split'"),
        ('tasks = ["monday"]\nid = "x"', "id 'x' must start with @local/"),
        ("tasks =", "is not TOML"),
    ],
)
def test_a_wrong_eval_is_one_problem(quay, toml, message):
    quay.fill({"evals/it.toml": toml, "tasks/notes.md": ""})
    (problem,) = quay.problems()
    assert problem.place == "evals/it.toml"
    assert message in problem.message


def test_an_eval_of_ids_with_an_id_of_its_own(quay):
    root = quay.load().id_root
    quay.write("evals/it.toml", f'type = "eval"\nid = "@local/it"\ntasks = [{{ task = "{root}/monday" }}]')
    bundle = quay.load()
    assert bundle.evals["@local/it"].tasks == (f"{root}/monday",)
    assert "it" in bundle.splits()


def test_no_eval_is_named_all(quay):
    quay.write("evals/all.toml", 'tasks = ["monday"]')
    (problem,) = quay.problems()
    assert problem.message == "can't be named 'all': that split holds every task"


def test_two_evals_of_one_id(quay):
    quay.write("evals/it.toml", f'id = "{quay.load().id_root}/smoke"\ntasks = ["monday"]')
    (problem,) = quay.problems()
    assert "of evals/it.toml" in problem.message


def test_aliases(quay):
    quay.fill(
        {"agents/planner/Dockerfile": "", "aliases.toml": '[agents]\nplanner = ["p", "plan-1"]\n[envs]\nquay = ["q"]\n'}
    )
    assert not quay.problems()


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("[tasks]", "unknown key 'tasks'"),
        ("envs = 3", "envs must be a table, not 3"),
        ('[envs]\npier = ["p"]', "envs.pier is no folder of envs/"),
        ('[envs]\nquay = "q"', "envs.quay must be a list of aliases, not 'q'"),
        ("[envs]\nquay = []", "envs.quay must be a list of aliases"),
        ("[envs]\nquay = [3]", "envs.quay has the alias 3, which can't be one"),
        ('[envs]\nquay = ["Q"]', "envs.quay has the alias 'Q', which can't be one"),
        ('[envs]\nquay = ["-q"]', "has the alias '-q', which can't be one"),
        (f'[envs]\nquay = ["{"q" * 65}"]', "which can't be one"),
        ('[envs]\nquay = ["dock"]', "envs.quay has the alias 'dock', which is another env's name"),
        ('[envs]\nquay = ["x"]\ndock = ["x"]', "envs.dock has the alias 'x', and so has 'quay'"),
        ('[envs]\nfixed = ["x"]', "envs.fixed has an id of its own"),
        ("[envs", "is not TOML"),
    ],
)
def test_a_wrong_alias_is_one_problem(quay, toml, message):
    for name, more in (("dock", ""), ("fixed", 'id = "@local/fixed"\n')):
        quay.fill({f"envs/{name}/Dockerfile": "", f"envs/{name}/env.toml": f'{more}environment_name = "{name}"'})
    quay.write("aliases.toml", toml)
    (problem,) = quay.problems()
    assert problem.place == "aliases.toml"
    assert message in problem.message
