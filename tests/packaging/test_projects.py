"""What the ``pyproject.toml`` files say, of themselves and of each other."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CORE = "agentenv-framework"


def requirements(source: Any) -> list[str]:
    extras = source.project.get("optional-dependencies", {})
    return [*source.project.get("dependencies", []), *(text for texts in extras.values() for text in texts)]


def test_all_are_of_one_version_with_an_epoch(sources: dict[str, Any]) -> None:
    versions = {source.project["version"] for source in sources.values()}
    assert len(versions) == 1
    assert versions.pop().startswith("1!")


def test_they_pin_each_other_exactly(source: Any, sources: dict[str, Any]) -> None:
    version = sources[CORE].project["version"]
    for text in requirements(source):
        name = re.split(r"[\[=<>! ]", text)[0]
        if name in sources:
            assert text.endswith(f"=={version}"), text


def test_each_plugin_needs_the_core(source: Any, sources: dict[str, Any]) -> None:
    if source.name != CORE:
        assert f"{CORE}=={sources[CORE].project['version']}" in source.project["dependencies"]


def test_they_agree_on_python_and_license(source: Any, sources: dict[str, Any]) -> None:
    assert source.project["requires-python"] == ">=3.11,<3.14"
    assert source.project["license"] == "Apache-2.0"


def test_the_core_has_an_extra_for_each_plugin(sources: dict[str, Any]) -> None:
    extras = sources[CORE].project["optional-dependencies"]
    for name in sources:
        if name != CORE:
            extra = name.removeprefix(f"{CORE}-")
            assert any(text.startswith(f"{name}==") for text in extras[extra])
            assert extra in "".join(extras["all"])


def test_openenv_goes_by_its_new_name(source: Any) -> None:
    assert not any(text.startswith("openenv-core") for text in requirements(source))


def test_the_trainers_side_needs_neither_openenv_nor_mcp(sources: dict[str, Any]) -> None:
    needed = sources["agentenv-framework-trl"].project["dependencies"] + sources[CORE].project["dependencies"]
    names = {re.split(r"[\[=<>! ]", text)[0] for text in needed}
    assert not names & {"openenv", "mcp", "agentenv-framework-protocol", "fastapi", "uvicorn", "trl", "torch"}


def test_every_entry_point_names_a_module_that_is_there(source: Any) -> None:
    for group in source.project.get("entry-points", {}).values():
        for value in group.values():
            assert find_spec(value.partition(":")[0]) is not None, value


def test_setup_installs_every_distribution(sources: dict[str, Any]) -> None:
    lines = (ROOT / "requirements-dev.txt").read_text(encoding="utf-8").splitlines()
    for source in sources.values():
        path = "." if source.folder == ROOT else source.folder.relative_to(ROOT).as_posix()
        assert any(re.fullmatch(rf"-e {re.escape(path)}(\[.*\])?", line) for line in lines), path


def test_types_and_imports_are_checked_in_every_distribution(sources: dict[str, Any]) -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for source in sources.values():
        for package in source.packages:
            assert f'"{(source.folder / package).relative_to(ROOT).as_posix()}"' in text.partition("[tool.mypy]")[2]


def test_every_package_says_that_it_is_typed(source: Any) -> None:
    for package in source.packages:
        if package != "agent_env":  # a namespace of several distributions: it can hold no file of its own
            assert (source.folder / package / "py.typed").exists()


def test_every_hint_names_an_extra_that_there_is(sources: dict[str, Any]) -> None:
    from agent_env_core.plugins import OUR_EXTRAS

    extras = sources[CORE].project["optional-dependencies"]
    assert set(OUR_EXTRAS.values()) <= set(extras)
    points = [source.project.get("entry-points", {}).get("agent_env", {}) for source in sources.values()]
    assert set(OUR_EXTRAS) <= {name for names in points for name in names}
