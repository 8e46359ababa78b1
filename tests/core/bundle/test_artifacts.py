"""Artifacts of every type, and skills."""

import pytest

from agent_env_core.bundle import frontmatter

SKILL = "---\nname: pruning\ndescription: How to prune.\n---\n# Text\n"


@pytest.mark.parametrize(
    ("files", "kind", "settings"),
    [
        ({"verify.py": ""}, "file", {}),
        ({"verify.py": "", "artifact.toml": 'description = "x"'}, "file", {}),
        ({"verify.py": "", ".DS_Store": "", "__pycache__/v.pyc": ""}, "file", {}),
        ({"a": "", "b/c": ""}, "file_artifact_universe", {}),
        ({"a": "", "artifact.toml": 'type = "file_artifact_universe"'}, "file_artifact_universe", {}),
        ({"Dockerfile": "", "x": ""}, "docker_image", {}),
        ({"artifact.toml": 'type = "docker_image"\nref = "docker.io/a/b"'}, "docker_image", {"ref": "docker.io/a/b"}),
        (
            {"s.json": "", "artifact.toml": 'type = "environment"\nenvironment_name = "garden"'},
            "environment",
            {"environment_name": "garden"},
        ),
        (
            {"artifact.toml": 'type = "environment"\nenvironment_name = "q"\nfile = { artifact = "garden-judge" }'},
            "environment",
            {"environment_name": "q", "file": "{root}/garden-judge"},
        ),
        (
            {"garden/s.json": "", "metadata/day/d.txt": "", "artifact.toml": 'type = "environment_universe"'},
            "environment_universe",
            {"environment_artifacts": (), "derived": ("{root}/it__garden",)},
        ),
        (
            {"artifact.toml": 'type = "environment_universe"\nenvironment_artifacts = ["seed"]'},
            "environment_universe",
            {"environment_artifacts": ("{root}/seed",), "derived": ()},
        ),
        (
            {"q.py": "", "artifact.toml": 'type = "cli"\ncommand_name = "q"\nentrypoint = "q.py"'},
            "cli",
            {"command_name": "q", "entrypoint": "q.py"},
        ),
    ],
)
def test_an_artifact(garden, files, kind, settings):
    garden.write("artifacts/seed/artifact.toml", 'type = "environment"\nenvironment_name = "q"')
    garden.write("artifacts/seed/s.json", "")
    garden.fill({f"artifacts/it/{path}": text for path, text in files.items()})
    bundle = garden.load()
    artifact = bundle.artifacts[f"{bundle.id_root}/it"]

    def filled(value):
        return tuple(map(filled, value)) if isinstance(value, tuple) else value.format(root=bundle.id_root)

    assert artifact.type == kind
    assert artifact.settings == {key: filled(value) for key, value in settings.items()}
    assert artifact.files == tuple(sorted(set(files) - {"artifact.toml", ".DS_Store", "__pycache__/v.pyc"}))


UNIVERSE = {
    "artifacts/world/artifact.toml": 'type = "environment_universe"\nenvironment_artifacts = ["seed"]',
    "artifacts/world/garden/beds.json": "{}",
    "artifacts/world/arbor/vines.json": "{}",
    "artifacts/world/metadata/day/noon.txt": "",
    "artifacts/seed/artifact.toml": 'type = "environment"\nenvironment_name = "shed"\nfile = "tools"',
    "artifacts/tools/tools.json": "{}",
}


def test_the_folders_of_a_universe_are_artifacts_with_ids_of_their_own(garden):
    bundle = garden.fill(UNIVERSE).load()
    world = f"{bundle.id_root}/world"
    derived = {key: one.type for key, one in bundle.artifacts.items() if key.startswith(f"{world}__")}
    assert derived == {
        f"{world}__arbor": "environment",
        f"{world}__arbor__file": "file",
        f"{world}__garden": "environment",
        f"{world}__garden__file": "file",
        f"{world}__metadata__day": "file",
    }
    assert bundle.artifacts[f"{world}__garden"].settings == {
        "environment_name": "garden",
        "file": f"{world}__garden__file",
    }
    home = garden.root / "artifacts/world"
    assert bundle.artifacts[f"{world}__garden__file"].file == home / "garden/beds.json"
    assert bundle.artifacts[f"{world}__metadata__day"].file == home / "metadata/day/noon.txt"


def test_what_an_artifact_seeds(garden):
    bundle = garden.fill(UNIVERSE).load()
    root, folder = bundle.id_root, garden.root / "artifacts"
    assert bundle.seeds(f"{root}/world") == {
        "shed": folder / "tools/tools.json",
        "arbor": folder / "world/arbor/vines.json",
        "garden": folder / "world/garden/beds.json",
    }
    assert bundle.seeds(f"{root}/seed") == {"shed": folder / "tools/tools.json"}
    assert bundle.seeds(f"{root}/world__arbor") == {"arbor": folder / "world/arbor/vines.json"}
    for wrong in ("tools", "nowhere"):
        with pytest.raises(KeyError):
            bundle.seeds(f"{root}/{wrong}")


def test_a_derived_artifact_is_named_like_any_other(garden):
    step = {"id": "g", "type": "env_outcome_verifier", "file_artifact_id": "world__garden__file"}
    bundle = garden.fill({**UNIVERSE, "tasks/t.json": [step]}).load()
    assert bundle.tasks[1].steps[0]["file_artifact_id"] == f"{bundle.id_root}/world__garden__file"


@pytest.mark.parametrize(
    ("files", "place", "message"),
    [
        ({".DS_Store": ""}, "", "is empty"),
        ({"artifact.toml": ""}, "", "is empty"),
        ({"a": "", "artifact.toml": "x = 1"}, "/artifact.toml", "unknown key 'x'"),
        ({"a": "", "artifact.toml": "type = 3"}, "/artifact.toml", "type must be a non-empty text, not 3"),
        ({"a": "", "artifact.toml": 'type = "boat"'}, "/artifact.toml", "type 'boat' is unknown"),
        ({"a": "", "Artifact.toml": ""}, "/Artifact.toml", "another case than artifact.toml"),
        ({"a": "", "b": "", "artifact.toml": 'type = "file"'}, "", "must hold exactly one file, and holds 2: a, b"),
        ({"a": "", "b": "", "artifact.toml": 'description = "x"'}, "/artifact.toml", "unknown key 'description'"),
        ({"artifact.toml": 'type = "file_artifact_universe"'}, "", "is empty"),
        ({"artifact.toml": 'type = "docker_image"'}, "", "has neither a Dockerfile nor a ref"),
        ({"Dockerfile": "", "artifact.toml": 'ref = "docker.io/a/b"'}, "", "has a Dockerfile and a ref"),
        ({"artifact.toml": 'type = "docker_image"\nref = "a"'}, "/artifact.toml", "doesn't begin with its registry"),
        ({"a": "", "artifact.toml": 'type = "environment"'}, "/artifact.toml", "environment_name is missing"),
        (
            {"artifact.toml": 'type = "environment"\nenvironment_name = "q"'},
            "",
            "must hold exactly one file, and holds 0",
        ),
        (
            {"a": "", "artifact.toml": 'type = "environment"\nenvironment_name = "q"\nfile = "garden-judge"'},
            "/artifact.toml",
            "file names another artifact, and the folder holds files too",
        ),
        (
            {"artifact.toml": 'type = "environment"\nenvironment_name = "q"\nfile = 3'},
            "/artifact.toml",
            "file must be the name of an artifact",
        ),
        (
            {"artifact.toml": 'type = "environment"\nenvironment_name = "q"\nfile = "nowhere"'},
            "/artifact.toml",
            "file: artifact 'nowhere' is not in this bundle",
        ),
        ({"a": "", "artifact.toml": 'type = "environment_universe"'}, "/a", "is in no place"),
        (
            {"q/a": "", "q/b": "", "artifact.toml": 'type = "environment_universe"'},
            "/q",
            "exactly one file, and holds 2",
        ),
        ({"artifact.toml": 'type = "environment_universe"'}, "", "holds no seed"),
        (
            {"q/a": "", "artifact.toml": 'type = "environment_universe"\nenvironment_artifacts = 3'},
            "/artifact.toml",
            "environment_artifacts must be a list, not 3",
        ),
        (
            {"artifact.toml": 'type = "environment_universe"\nenvironment_artifacts = ["garden-judge"]'},
            "/artifact.toml",
            "environment_artifacts[0] must name an artifact of type environment",
        ),
        ({"a": "", "artifact.toml": 'type = "cli"\ncommand_name = "q"'}, "/artifact.toml", "entrypoint is missing"),
        ({"SKILL.md": SKILL}, "", "has a SKILL.md, so it is a skill"),
    ],
)
def test_a_wrong_artifact_is_one_problem(garden, files, place, message):
    garden.fill({f"artifacts/it/{path}": text for path, text in files.items()})
    problems = garden.problems()
    told = [problem for problem in problems if problem.place == f"artifacts/it{place}" and message in problem.message]
    assert told, problems
    assert len(problems) == 1 + (message == "is in no place")  # which leaves it without a seed as well


def test_a_skill(folder):
    folder.fill({"skills/pruning/SKILL.md": SKILL, "skills/pruning/tables/season.csv": ""})
    (skill,) = folder.load().skills.values()
    assert (skill.name, skill.description) == ("pruning", "How to prune.")
    assert skill.files == ("SKILL.md", "tables/season.csv")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "has no SKILL.md"),
        ("", "doesn't begin with front matter"),
        ("---\nname: pruning\n", "without an end"),
        ("---\nname: pruning\n---\n", "has no description"),
        ("---\ndescription: x\n---\n", "has no name"),
        ("---\nname: sowing\ndescription: x\n---\n", "name 'sowing' differs from its folder's, 'pruning'"),
        ("---\nname: pruning\ndescription: x\nauthor: me\n---\n", "unknown key 'author'"),
        (f"---\nname: pruning\ndescription: {'x' * 1025}\n---\n", "description is 1025 characters long, and 1024"),
        (f"---\nname: pruning\ndescription: x\ncompatibility: {'x' * 501}\n---\n", "compatibility is 501"),
        ("---\nname: pruning\njust words\n---\n", "isn't 'key: value' in line 3"),
        (b"---\nname: \xff\n---\n", "is not UTF-8"),
    ],
)
def test_a_wrong_skill_is_one_problem(folder, text, message):
    folder.write("skills/pruning/more.txt", "x")
    if text is not None:
        folder.write("skills/pruning/SKILL.md", text)
    (problem,) = folder.problems()
    assert message in problem.message


@pytest.mark.parametrize("name", ["Pruning", "two--hyphens", "-x", "a_b", "x" * 65])
def test_a_skill_name_that_will_not_do(folder, name):
    folder.write(f"skills/{name}/SKILL.md", f"---\nname: {name}\ndescription: x\n---\n")
    (problem,) = folder.problems()
    assert "name" in problem.message


@pytest.mark.parametrize(
    ("source", "want"),
    [
        ("a: plain text # comment", "plain text"),
        ("a: it's#1 # one", "it's#1"),
        ("a: 'it''s'  # comment", "it's"),
        (r'a: "tab\t \u00e9"', "tab\t \u00e9"),
        ("a: one\n  two\n\n  three", "one two three"),
        ("a: |\n  one\n  two\n", "one\ntwo"),
        ("a: >-\n  one\n  two\n\n  three\n", "one two\nthree"),
        ("a:\n  b: 1\n  c: 2", "b: 1\n  c: 2"),
        ("a:\n- x\n- y", "- x\n- y"),
        ("# note\n\na: http://x/y:z", "http://x/y:z"),
        ("a:", ""),
    ],
)
def test_front_matter_texts(source, want):
    assert frontmatter.parse(source.split("\n")) == {"a": want}


@pytest.mark.parametrize("source", ["a: 'open", 'a: "open', r'a: "\q"', "a: 1\na: 2", "- x", ": x", "{a: 1}"])
def test_front_matter_that_is_refused(source):
    with pytest.raises(frontmatter.FrontMatterFault):
        frontmatter.parse(source.split("\n"))
