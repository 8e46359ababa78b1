"""References of steps: rewritten to ids, or a problem that says what was meant."""

import pytest

ENV = {"id": "env", "type": "deploy_env", "env_id": "garden"}
SNAP = {"id": "snap", "type": "snapshot_env", "env_id": "garden", "snapshot_id": "after"}


def load(**fields):
    return {"id": "load", "type": "load_artifact", **fields}


def step(kind, **fields):
    return {"id": "x", "type": kind, **fields}


@pytest.fixture
def garden(garden):
    return garden.fill(
        {
            "agents/gardener/Dockerfile": "",
            "artifacts/tree/a.txt": "",
            "artifacts/tree/b.txt": "",
            "skills/pruning/SKILL.md": "---\nname: pruning\ndescription: x\n---\n",
        }
    )


@pytest.mark.parametrize(
    ("steps", "at", "want"),
    [
        ([ENV], ["env_id"], "{root}/garden"),
        ([{**ENV, "env_id": "@ROOT@/garden"}], ["env_id"], "{root}/garden"),
        ([{**ENV, "env_version": None}], ["env_id"], "{root}/garden"),
        ([step("deploy_agent", env_ids=["garden", "@ROOT@/garden"])], ["env_ids"], ["{root}/garden", "{root}/garden"]),
        ([step("deploy_agent", a2a_agent_id="gardener")], ["a2a_agent_id"], "{root}/gardener"),
        ([step("deploy_agent", a2a_agent_id="claude-code")], ["a2a_agent_id"], "claude-code"),
        ([step("deploy_agent", a2a_agent_id=None)], ["a2a_agent_id"], None),
        ([step("prompt_agent", snapshot_config={"env_id": "garden"})], ["snapshot_config", "env_id"], "{root}/garden"),
        ([step("prompt_agent", snapshot_config="garden")], ["snapshot_config"], "garden"),
        ([step("prompt_agent", prompt="garden", env_id="garden")], ["env_id"], "garden"),
        ([load(artifact_id="garden-judge")], ["artifact_id"], "{root}/garden-judge"),
        ([load(artifact_id="pruning")], ["artifact_id"], "{root}/pruning"),
        ([load(artifacts=[{"id": "tree"}, {}, 3, {"id": 4}])], ["artifacts", 0, "id"], "{root}/tree"),
        ([step("add_skills", skill_ids=["pruning"])], ["skill_ids", 0], "{root}/pruning"),
        ([step("deploy_agent", env_ids="garden")], ["env_ids"], "garden"),
        ([ENV, SNAP], ["snapshot_id"], "{root}/t/after"),
        ([ENV, SNAP, load(artifact_id="after")], ["artifact_id"], "{root}/t/after"),
        ([ENV, {**SNAP, "snapshot_id": "tree"}, load(artifact_id="tree")], ["artifact_id"], "{root}/t/tree"),
        ([ENV, {**SNAP, "snapshot_id": "garden"}, {**ENV, "id": "y"}], ["env_id"], "{root}/garden"),
        (
            [ENV, SNAP, {**step("silent"), "depends_on": ["snap"]}, load(artifact_id="after", depends_on=["x"])],
            ["artifact_id"],
            "{root}/t/after",
        ),
        ([step("silent", note="nothing of ours", n=3)], ["note"], "nothing of ours"),
        ([step("visit", sandbox_name="garden")], ["sandbox_name"], "garden"),
        ([step("silent", target="@ROOT@/garden")], ["target"], "{root}/garden"),
    ],
)
def test_a_reference_becomes_an_id(garden, steps, at, want):
    root = garden.load().id_root
    steps = [{k: v.replace("@ROOT@", root) if isinstance(v, str) else v for k, v in s.items()} for s in steps]
    for one in steps:
        if "env_ids" in one and isinstance(one["env_ids"], list):
            one["env_ids"] = [value.replace("@ROOT@", root) for value in one["env_ids"]]
    garden.write("tasks/t.json", steps)
    (task,) = (task for task in garden.load().tasks if task.name == "t")
    value = task.steps[-1]
    for key in at:
        value = value[key]
    filled = [item.format(root=root) for item in want] if isinstance(want, list) else want and want.format(root=root)
    assert value == filled


@pytest.mark.parametrize(
    ("steps", "message", "fix"),
    [
        (
            [{**ENV, "env_id": "portsim"}],
            "env_id: env 'portsim' is not in this bundle",
            "add it under envs/, which has: garden",
        ),
        ([{**ENV, "env_id": "gardem"}], "env_id: env 'gardem' is not in this bundle", "did you mean 'garden'?"),
        ([{**ENV, "env_id": ""}], "env_id: env '' is not in this bundle", "envs/"),
        ([{**ENV, "env_id": "GARDEN"}], "env 'GARDEN' isn't here, but 'garden' is", "write 'garden'"),
        ([{**ENV, "env_id": "garden-judge"}], "env 'garden-judge' is not in this bundle", "envs/"),
        ([{**ENV, "env_version": 2}], "env_version pins a version of 'garden', which belongs to this bundle", "leave"),
        ([step("deploy_agent", a2a_agent_id="Gardener")], "an agent 'Gardener' isn't here, but 'gardener' is", "write"),
        (
            [step("deploy_agent", a2a_agent_id="loose")],
            "'loose' names agents/loose.py, which is no part",
            "agents/<name>/",
        ),
        ([step("deploy_agent", env_ids=["garden", "x"])], "env_ids: env 'x' is not in this bundle", "envs/"),
        ([load(artifact_id="verify.py")], "'verify.py' names artifacts/verify.py", "a folder artifacts/<name>/"),
        ([load(artifact_id="verify")], "'verify' names artifacts/verify.py", "a folder artifacts/<name>/"),
        ([load(artifact_id="Notes")], "'Notes' names notes.txt", ""),
        (
            [load(artifact_id="garden-judge", artifact_version=1)],
            "artifact_version pins",
            "leave artifact_version out",
        ),
        ([load(artifacts=[{"id": "tree", "version": 1}])], "version pins", "leave version out"),
        ([load(artifact_id="stored", artifact_version=0)], "artifact_version must be a whole number of 1 or more", ""),
        (
            [step("env_outcome_verifier", file_artifact_id="tree")],
            "'tree' is of type file_artifact_universe, and file",
            "",
        ),
        ([step("env_outcome_verifier", file_artifact_id="pruning")], "'pruning' is of type skill, and file", ""),
        ([step("add_skills", skill_ids=["tree"])], "skill 'tree' is not in this bundle", "skills/"),
        ([ENV, SNAP, load(artifact_id="after", depends_on=[])], "'after' is written by step 'snap'", "depends_on"),
        ([load(artifact_id="after"), ENV, SNAP], "'after' is written by step 'snap'", "move it up"),
        ([ENV, SNAP, load(artifact_id="after", artifact_version=1)], "which this task writes", "leave"),
        (
            [ENV, SNAP, step("env_outcome_verifier", file_artifact_id="after")],
            "file_artifact_id: 'after' is written as environment_universe, and file is needed",
            "",
        ),
        ([ENV, SNAP, {**SNAP, "id": "snap2"}], "the output 'after' is written by step 'snap' too", ""),
        ([step("silent", target="garden")], "target: 'garden' names an env of this bundle", "write the full id"),
    ],
)
def test_a_wrong_reference_says_what_to_write(garden, steps, message, fix):
    garden.fill({"artifacts/verify.py": "", "agents/loose.py": "", "notes.txt": "", "tasks/t.json": steps})
    told = [problem for problem in garden.problems() if message in problem.message]
    assert told, garden.problems()
    assert fix in told[0].fix
    assert told[0].place.startswith("tasks/t.json:")
    assert len(garden.problems()) == 1 + (fix == "" and "artifact_version must" in message)


def test_names_that_only_a_run_knows_are_left_alone(garden):
    garden.fill({"box.txt": "", "tasks/t.json": [step("visit", sandbox_name="box")]})
    assert not garden.problems()


@pytest.mark.parametrize("toml", ['type = "boat"', "type = 3", "type ="])
def test_a_wrong_artifact_is_no_second_problem_for_who_names_it(garden, toml):
    garden.write("artifacts/garden-judge/artifact.toml", toml)
    (problem,) = garden.problems()
    assert problem.place == "artifacts/garden-judge/artifact.toml"
