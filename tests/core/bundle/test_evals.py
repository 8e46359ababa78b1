"""Evals and aliases."""

import pytest


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("", "tasks is missing"),
        ("tasks = []", "tasks must be a list of tasks with at least one, not []"),
        ('tasks = "spring"', "tasks must be a list"),
        ("tasks = [3]", "tasks[0] must be the name of a task or { task = "),
        ('tasks = [{ task = "spring", at = 1 }]', "tasks[0] must be the name of a task"),
        ('tasks = [{ name = "spring" }]', "tasks[0] must be the name of a task"),
        ('tasks = ["spring", "spring"]', "tasks[1] lists 'spring' again"),
        ('tasks = ["spring", { task = "spring" }]', "tasks[1] lists"),
        ('tasks = [{ task = "spring", version = 1 }]', "tasks[0] pins a version, and 'spring' belongs to this bundle"),
        ('tasks = ["Spring"]', "tasks[0]: a task 'Spring' isn't here, but 'spring' is"),
        ('tasks = ["stored"]', "tasks[0]: task 'stored' is not in this bundle"),
        ('tasks = ["notes"]', "'notes' names tasks/notes.md, which is no part of the bundle"),
        ('tasks = ["spring"]\ntype = "exam"', "type 'exam' is unknown"),
        ('tasks = ["spring"]\nsplit = "x"', "unknown key 'split'"),
        ('tasks = ["spring"]\nid = "x"', "id 'x' must start with @local/"),
        ("tasks =", "is not TOML"),
    ],
)
def test_a_wrong_eval_is_one_problem(garden, toml, message):
    garden.fill({"evals/it.toml": toml, "tasks/notes.md": ""})
    (problem,) = garden.problems()
    assert problem.place == "evals/it.toml"
    assert message in problem.message


def test_an_eval_of_ids_with_an_id_of_its_own(garden):
    root = garden.load().id_root
    garden.write("evals/it.toml", f'type = "eval"\nid = "@local/it"\ntasks = [{{ task = "{root}/spring" }}]')
    bundle = garden.load()
    assert bundle.evals["@local/it"].tasks == (f"{root}/spring",)
    assert "it" in bundle.splits()


def test_no_eval_is_named_all(garden):
    garden.write("evals/all.toml", 'tasks = ["spring"]')
    (problem,) = garden.problems()
    assert problem.message == "can't be named 'all': that split holds every task"


def test_two_evals_of_one_id(garden):
    garden.write("evals/it.toml", f'id = "{garden.load().id_root}/smoke"\ntasks = ["spring"]')
    (problem,) = garden.problems()
    assert "of evals/it.toml" in problem.message


def test_aliases(garden):
    garden.fill(
        {
            "agents/gardener/Dockerfile": "",
            "aliases.toml": '[agents]\ngardener = ["p", "plan-1"]\n[envs]\ngarden = ["q"]\n',
        }
    )
    assert not garden.problems()


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("[tasks]", "unknown key 'tasks'"),
        ("envs = 3", "envs must be a table, not 3"),
        ('[envs]\narbor = ["p"]', "envs.arbor is no folder of envs/"),
        ('[envs]\ngarden = "q"', "envs.garden must be a list of aliases, not 'q'"),
        ("[envs]\ngarden = []", "envs.garden must be a list of aliases"),
        ("[envs]\ngarden = [3]", "envs.garden has the alias 3, which can't be one"),
        ('[envs]\ngarden = ["Q"]', "envs.garden has the alias 'Q', which can't be one"),
        ('[envs]\ngarden = ["-q"]', "has the alias '-q', which can't be one"),
        (f'[envs]\ngarden = ["{"q" * 65}"]', "which can't be one"),
        ('[envs]\ngarden = ["acre"]', "envs.garden has the alias 'acre', which is another env's name"),
        ('[envs]\ngarden = ["x"]\nacre = ["x"]', "envs.acre has the alias 'x', and so has 'garden'"),
        ('[envs]\nfixed = ["x"]', "envs.fixed has an id of its own"),
        ("[envs", "is not TOML"),
    ],
)
def test_a_wrong_alias_is_one_problem(garden, toml, message):
    for name, more in (("acre", ""), ("fixed", 'id = "@local/fixed"\n')):
        garden.fill({f"envs/{name}/Dockerfile": "", f"envs/{name}/env.toml": f'{more}environment_name = "{name}"'})
    garden.write("aliases.toml", toml)
    (problem,) = garden.problems()
    assert problem.place == "aliases.toml"
    assert message in problem.message
