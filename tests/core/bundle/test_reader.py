"""The root of a bundle: what makes one, what is ignored, and problems that come all at once."""

import os
import pickle
from pathlib import Path

import pytest

from agent_env_core.bundle import load_bundle
from agent_env_core.errors import BundleError, PluginError


def test_a_whole_bundle(folder):
    folder.garden().fill(
        {
            "README.md": "---\ntitle: x\n---\n\n<img>\n[![badge](b)](c)\n## A garden to plan ##\nMore.\n",
            "agents/gardener/Dockerfile": "FROM scratch\n",
            "skills/pruning/SKILL.md": "---\nname: pruning\ndescription: How to prune.\n---\nText\n",
            "skills/pruning/more.txt": "x",
            "notes/todo.txt": "x",
            ".git/config": "x",
            "__pycache__/x.pyc": "x",
        }
    )
    bundle = folder.load()
    root = bundle.id_root
    assert (bundle.name, bundle.root, bundle.description) == ("gardenplan", folder.root, "A garden to plan")
    assert root == "@local" + str(folder.root)
    assert bundle.ignored == ("notes",)
    env = bundle.envs[f"{root}/garden"]
    assert (env.name, env.type, env.environment_name, env.env_provider_type) == (
        "garden",
        "mcp_server",
        "garden",
        "gateway",
    )
    assert (env.image.context, env.image.dockerfile, env.image.ref) == (folder.root / "envs/garden", "Dockerfile", None)
    assert list(bundle.agents) == [f"{root}/gardener"]
    assert bundle.artifacts[f"{root}/garden-judge"].file.name == "verify.py"
    assert bundle.skills[f"{root}/pruning"].files == ("SKILL.md", "more.txt")
    (task,) = bundle.tasks
    assert (task.id, task.bundle) == (f"{root}/spring", bundle)
    assert [step.get("env_id") for step in task.steps] == [f"{root}/garden", None]
    assert bundle.evals[f"{root}/smoke"].tasks == (task.id,)


def test_splits_are_all_in_order_of_names_and_each_eval_in_its_own(folder):
    folder.fill({f"tasks/{name}.json": [] for name in ("b", "a10", "a9", "c")})
    folder.fill({"evals/z.toml": 'tasks = ["c", "a9"]', "evals/y.toml": 'tasks = ["b"]'})
    splits = folder.load().splits()
    assert {name: [task.name for task in tasks] for name, tasks in splits.items()} == {
        "all": ["a10", "a9", "b", "c"],
        "y": ["b"],
        "z": ["c", "a9"],
    }


def test_loading_twice_gives_equal_bundles_and_tasks_survive_pickling(garden):
    bundle = garden.load()
    assert bundle == garden.load()
    assert len({bundle.tasks[0], garden.load().tasks[0]}) == 1
    copy = pickle.loads(pickle.dumps(bundle.tasks[0]))
    assert copy == bundle.tasks[0]
    assert copy.bundle == bundle


def test_a_link_to_the_folder_has_the_ids_of_the_folder(garden, tmp_path):
    link = tmp_path / "current"
    link.symlink_to(garden.root)
    assert garden.load(link) == garden.load()


@pytest.mark.parametrize("make", [lambda p: None, lambda p: p.write_text("x")], ids=["missing", "file"])
def test_what_is_no_folder(tmp_path, make):
    make(tmp_path / "x")
    with pytest.raises(BundleError, match=r"x can't be used: 1 problem\n  \.: (there is|is) no"):
        load_bundle(tmp_path / "x", lambda _: None)


def test_a_path_with_a_null(tmp_path):
    with pytest.raises(BundleError, match="can't be opened"):
        load_bundle(f"{tmp_path}/a\0b", lambda _: None)


def test_a_folder_with_no_kind(folder):
    folder.write("README.md", "x")
    (problem,) = folder.problems()
    assert "not a bundle: it has none of the folders envs, agents, artifacts, skills, tasks, evals" in problem.message


def test_a_path_that_no_id_can_hold(tmp_path):
    root = tmp_path / "a#b"
    (root / "tasks").mkdir(parents=True)
    with pytest.raises(BundleError, match=r"\.: has a path that can't be part of an id: .* hold: # \(move the bundle"):
        load_bundle(root, lambda _: None)


@pytest.mark.parametrize(
    ("files", "place", "message"),
    [
        ({"bundle.toml": ""}, "bundle.toml", "is reserved"),
        ({"BUNDLE.Toml": ""}, "BUNDLE.Toml", "is reserved"),
        ({"Aliases.toml": ""}, "Aliases.toml", "another case than aliases.toml"),
        ({"aliases.toml/x": ""}, "aliases.toml", "must be a file"),
        ({"Skills/x.txt": ""}, "Skills", "another case than skills"),
        ({"skills": ""}, "skills", "must be a folder"),
        ({"Tasks/x.json": "[]"}, "Tasks", "stands beside tasks"),
        ({"tasks/sub/x.json": "[]"}, "tasks/sub", "is a folder"),
        ({"evals/sub/x.toml": ""}, "evals/sub", "is a folder"),
        ({"tasks/x.JSON": "[]"}, "tasks/x.JSON", "must end in .json"),
        ({"evals/x.Toml": 'tasks = ["spring"]'}, "evals/x.Toml", "must end in .toml"),
        ({"tasks/Spring.json": "[]"}, "tasks/spring.json", "one name where case doesn't count"),
        (
            {"tasks/stra\N{LATIN SMALL LETTER SHARP S}e.json": "[]", "tasks/STRASSE.json": "[]"},
            "tasks/stra",
            "one name",
        ),
        ({"tasks/caf\u00e9.json": "[]", "tasks/cafe\u0301.json": "[]"}, "tasks/caf", "one name"),
        ({"tasks/a#.json": "[]"}, "tasks/a#.json", "has a name that can't be part of an id: it has characters"),
        ({"tasks/a .json": "[]"}, "tasks/a .json", "begins or ends with a space"),
        ({"artifacts/a__b/x": ""}, "artifacts/a__b", "'__' in its name"),
        (
            {"skills/garden-judge/SKILL.md": "---\nname: garden-judge\ndescription: x\n---"},
            "skills/",
            "has the name of",
        ),
    ],
)
def test_one_mistake_is_one_problem(garden, files, place, message):
    garden.fill(files)
    (problem,) = garden.problems()
    assert problem.place.startswith(place)
    assert message in problem.message


@pytest.mark.parametrize(
    ("files", "ignored"),
    [
        ({"notes.txt": ""}, ("notes.txt",)),
        (
            {"tasks/notes.md": "", "evals/x.json": "", "envs/README.md": ""},
            ("envs/README.md", "tasks/notes.md", "evals/x.json"),
        ),
        ({".hidden": "", "tasks/.spring.json.swp": "", "envs/.cache/x": "", "evals/.ipynb_checkpoints/x": ""}, ()),
        ({"Thumbs.db": "", "tasks/.DS_Store": "", "envs/garden/desktop.ini": "", "tasks/__pycache__/x": ""}, ()),
        ({"readme.md": "x"}, ()),
    ],
)
def test_what_is_ignored(garden, files, ignored):
    assert garden.fill(files).load().ignored == ignored


def test_an_exact_readme_wins(folder):
    folder.fill({"tasks/a.json": [], "readme.md": "wrong", "README.md": "right", "Readme.MD": "wrong"})
    assert folder.load().description == "right"


@pytest.mark.parametrize("text", ["", "# \n", "---\nopen front matter", b"\xff\xfe", "<p>\n![x](y)"])
def test_a_readme_without_a_line_of_text(folder, text):
    folder.fill({"tasks/a.json": [], "README.md": text})
    assert folder.load().description in ("", "open front matter", "\ufffd\ufffd")


def test_names_are_composed(folder):
    folder.write("tasks/cafe\u0301.json", [])
    assert folder.load().tasks[0].name == "caf\u00e9"


def test_two_envs_of_one_id(garden):
    garden.fill(
        {
            "envs/arbor/Dockerfile": "",
            "envs/arbor/env.toml": f'id = "@local{garden.root}/garden"\nenvironment_name = "p"\n',
        }
    )
    (problem,) = garden.problems()
    assert (problem.place, problem.message) == ("envs/garden", "has the id of envs/arbor")


def test_an_env_a_task_and_an_artifact_may_share_a_name(garden):
    garden.fill({"artifacts/garden/x.txt": "", "tasks/garden.json": []})
    bundle = garden.load()
    assert f"{bundle.id_root}/garden" in bundle.envs
    assert f"{bundle.id_root}/garden" in bundle.artifacts


def test_ten_different_mistakes_are_ten_problems(garden):
    garden.fill(
        {
            "envs/arbor/env.toml": "image = 3\n",
            "envs/acre/Dockerfile": "FROM scratch\n",
            "agents/gardener/agent.toml": 'imagee = "x"\nimage = { ref = "docker.io/library/x:1" }\n',
            "artifacts/empty/artifact.toml": "",
            "skills/pruning/SKILL.md": "no front matter\n",
            "tasks/nan.json": "[NaN]",
            "tasks/twice.json": '[{"id": "a", "id": "b", "type": "deploy_env"}]',
            "tasks/summer.json": [{"id": "env", "type": "deploy_env", "env_id": "Garden"}, {"id": "x", "type": "warp"}],
            "evals/all.toml": 'tasks = ["spring"]\n',
            "bundle.toml": "",
        }
    )
    places = [problem.place for problem in garden.problems()]
    assert places == [
        "agents/gardener/agent.toml",
        "artifacts/empty",
        "bundle.toml",
        "envs/acre",
        "envs/arbor/env.toml",
        "evals/all.toml",
        "skills/pruning/SKILL.md",
        "tasks/nan.json",
        "tasks/summer.json:env",
        "tasks/summer.json:x",
        "tasks/twice.json",
    ]


def test_a_broken_plugin_is_named_with_the_step_that_needs_it(folder):
    folder.write("tasks/a.json", [{"id": "fly", "type": "warp"}])

    def step_types(name: str):
        raise PluginError(f"plugin {name!r} of starfleet can't be loaded: no dilithium", "beam it up")

    with pytest.raises(BundleError) as caught:
        load_bundle(folder.root, step_types)
    (problem,) = caught.value.problems
    assert problem.place == "tasks/a.json:fly"
    assert problem.message == "plugin 'warp' of starfleet can't be loaded: no dilithium"
    assert problem.fix == "beam it up"


def test_a_step_type_is_asked_for_once(folder):
    asked: list[str] = []
    folder.fill({f"tasks/{n}.json": [{"id": "a", "type": "wait"}, {"id": "b", "type": "wait"}] for n in range(5)})
    with pytest.raises(BundleError):
        load_bundle(folder.root, asked.append)
    assert asked == ["wait"]


def test_reading_changes_nothing(garden):
    def state(root: Path) -> list[tuple[str, int, int]]:
        found = [Path(at) / name for at, dirs, files in os.walk(root) for name in (*dirs, *files)]
        return sorted((str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in found)

    before = state(garden.root)
    garden.load()
    assert state(garden.root) == before
