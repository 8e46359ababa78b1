"""What is in the wheels, and what happens when they are installed, in every combination."""

from __future__ import annotations

import json
from email import message_from_bytes
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

VERSION = "1!0.1.0"

#: Prints where each module and each distribution named in argv comes from, as Python itself finds them.
WHERE = """
import importlib.metadata as metadata, importlib.util, json, sys
names, modules = json.loads(sys.argv[1])
origin = lambda name: getattr(importlib.util.find_spec(name), "origin", None)
report = {"modules": {name: origin(name) for name in modules}, "distributions": {}}
for name in names:
    dist = metadata.distribution(name)
    missing = [str(file) for file in dist.files if not file.locate().exists()]
    report["distributions"][name] = [dist.version, str(dist.locate_file("")), missing]
from agent_env_core import integrity
report["problems"] = [str(problem) for problem in integrity.problems()]
print(json.dumps(report))
"""


def wheel_of(folder: Path, name: str) -> Path:
    (wheel,) = folder.glob(f"{name.replace('-', '_')}-*.whl")
    return wheel


def where(environment: Any, sources: list[Any]) -> dict[str, Any]:
    modules = [module for source in sources for module in source.modules()]
    asked = json.dumps([[source.name for source in sources], modules])
    report: dict[str, Any] = json.loads(environment.run("-c", WHERE, asked))
    return report


def test_a_wheel_holds_the_package_and_nothing_else(wheels: Path, source: Any) -> None:
    wheel = wheel_of(wheels, source.name)
    with ZipFile(wheel) as archive:
        files = {name for name in archive.namelist() if ".dist-info/" not in name}
    wanted = {
        path.relative_to(source.folder).as_posix()
        for package in source.packages
        for path in (source.folder / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert files == wanted
    assert {name for name in files if name.endswith(".py")}


def test_no_wheel_makes_the_namespace_a_package(wheels: Path) -> None:
    for wheel in wheels.glob("*.whl"):
        with ZipFile(wheel) as archive:
            assert not {"agent_env/__init__.py", "agent_env/training/__init__.py"} & set(archive.namelist()), wheel.name


def test_the_metadata_of_a_wheel(wheels: Path, source: Any) -> None:
    with ZipFile(wheel_of(wheels, source.name)) as archive:
        (path,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = message_from_bytes(archive.read(path))
    assert metadata["Version"] == VERSION
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == "<3.14,>=3.11"
    assert len(str(metadata.get_payload())) > 200, "write the README of this distribution"


@pytest.mark.slow
@pytest.mark.parametrize("how", ["plain", "editable"])
def test_each_distribution_alone(environment: Any, source: Any, sources: dict[str, Any], how: str) -> None:
    chosen = list({"agentenv-framework": sources["agentenv-framework"], source.name: source}.values())
    check_installed(environment, chosen, how)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["plain", "editable"])
def test_all_distributions_together(environment: Any, sources: dict[str, Any], how: str) -> None:
    check_installed(environment, list(sources.values()), how)
    assert "none broken" in environment.program("agent-env", "plugins", "check")


def check_installed(environment: Any, chosen: list[Any], how: str) -> None:
    if how == "plain":
        environment.install(*(source.name for source in chosen))
        home = {source.name: environment.site for source in chosen}
    else:
        environment.install(*(argument for source in chosen for argument in ("-e", source.folder)))
        home = {source.name: source.folder for source in chosen}
    report = where(environment, chosen)
    for source in chosen:
        version, place, missing = report["distributions"][source.name]
        assert (version, missing) == (VERSION, [])
        assert Path(place) == environment.site
        for module in source.modules():
            origin = report["modules"][module]
            assert origin is not None, module
            assert Path(origin).is_relative_to(home[source.name]), f"{module} comes from {origin}"
    assert report["problems"] == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_trainers_side_in_a_bare_environment(bare_environment: Any, wheels: Path) -> None:
    pip = ["-m", "pip", "install", "--disable-pip-version-check", "--quiet", "--find-links", str(wheels)]
    bare_environment.run(*pip, "agentenv-framework-trl")
    script = """
import json, sys
import agent_env.training.trl as trl
from importlib import metadata
names = sorted(dist.metadata["Name"].lower() for dist in metadata.distributions())
print(json.dumps([trl.AgentEnv.__name__, names, sorted(sys.modules)]))
"""
    name, distributions, modules = json.loads(bare_environment.run("-c", script))
    assert name == "AgentEnv"
    assert "agentenv-framework-trl" in distributions
    assert not {"openenv", "openenv-core", "mcp", "agentenv-framework-protocol", "fastapi", "torch", "trl"} & set(
        distributions
    )
    assert not {"openenv", "mcp", "torch", "trl"} & set(modules)
