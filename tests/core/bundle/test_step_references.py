"""The built-in step types declare the references that the format has for each, so that names become ids."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from agent_env_core.bundle import Reference
from agent_env_core.plugins import CORE, plugins
from agent_env_core.steps import base
from agent_env_core.steps.base import TaskStep

ENV = Reference("env_id", "env")
UNIVERSE = "file_artifact_universe"
FORMAT = {
    "deploy_env": (
        Reference("env_id", "env", "env_version"),
        Reference("artifact_id", "artifact", "artifact_version"),
    ),
    "deploy_agent": (
        Reference("env_ids", "env", many=True),
        Reference("a2a_agent_id", "agent", "a2a_agent_version"),
        Reference("agent_snapshot_files_artifact_id", "artifact", artifact_type=UNIVERSE),
    ),
    "install_agent": (Reference("a2a_agent_id", "agent"),),
    "load_artifact": (
        ENV,
        Reference("artifact_id", "artifact", "artifact_version"),
        Reference("artifacts.id", "artifact", "version"),
    ),
    "env_outcome_verifier": (
        ENV,
        Reference("file_artifact_id", "artifact", "file_artifact_version", artifact_type="file"),
    ),
    "run_code": (ENV, Reference("script_artifact_id", "artifact", "script_artifact_version")),
    "run_docker_container": (Reference("docker_context_artifact_id", "artifact", artifact_type=UNIVERSE),),
    "apply_server_config": (ENV,),
    "modify_env_tool_access": (ENV,),
    "sync_env_clock": (ENV,),
    "register_env_triggers": (ENV,),
    "reset_env": (ENV,),
    "prompt_agent": (Reference("snapshot_config.env_id", "env"),),
    "snapshot_env": (
        ENV,
        Reference("snapshot_id", "artifact", output=True, artifact_type="environment_universe"),
        Reference("original_universe_artifact_id", "artifact"),
    ),
    "add_skills": (
        Reference("skills.skill_artifact_id", "skill"),
        Reference("cli_artifact_ids", "artifact", many=True),
        Reference("file_artifact_universe_ids", "artifact", many=True, artifact_type=UNIVERSE),
    ),
    # The format lists none for these, whose fields name entities all the same.
    "teardown_sandboxes": (Reference("env_ids", "env", many=True),),
    "collect_artifacts": (ENV,),
    "rubrics_verifier": (Reference("judge_a2a_agent_id", "agent"),),
}
BUILT_IN = sorted(
    entry.name
    for entry in plugins().entries
    if entry.distribution == CORE and entry.name in plugins().known("step type")
)


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_step_type_declares_the_references_of_the_format(name):
    assert set(plugins().step_type(name).references) == set(FORMAT.get(name, ()))


class Silent(TaskStep):
    """Doesn't say what it names."""


class Says(Silent):
    """Names nothing, and says so."""

    references = ()


class Inherits(Says):
    """Has it from the class above."""


@pytest.mark.parametrize(
    ("owner", "step", "want"),
    [("acme", Silent, None), ("acme", Says, ()), ("acme", Inherits, ()), (CORE, Silent, ())],
)
def test_only_a_plugins_class_that_does_not_say_is_silent(monkeypatch, owner, step, want):
    known = SimpleNamespace(owner=lambda name: owner, step_type=lambda name: step)
    monkeypatch.setattr(base, "plugins", lambda: known)
    assert base.declaration("x").references == want


def test_a_later_type_that_a_plugin_brings_is_the_plugins(monkeypatch):
    known = SimpleNamespace(owner=lambda name: "acme", step_type=lambda name: Says)
    monkeypatch.setattr(base, "plugins", lambda: known)
    assert base.declaration("peer_agents").unsupported == ""


def test_what_a_plugins_step_names_and_nobody_rewrites_is_a_problem(garden):
    garden.write("tasks/t.json", [{"id": "x", "type": "silent", "target": "garden"}])
    (problem,) = garden.problems()
    assert problem.message == "target: 'garden' names an env of this bundle"
