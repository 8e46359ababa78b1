"""Mixed-up installations are noticed, and the message holds the fix."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from agent_env_core import integrity
from agent_env_core.errors import PluginError


def distribution(folder: Path, name: str, version: str, *files: str) -> None:
    """Lays out an installed distribution as pip does: its files, its metadata, its record."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text("")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A site-packages folder with a sound installation in it."""
    distribution(tmp_path, "agentenv-framework", "1!0.1.0", "agent_env/openenv.py", "agent_env_core/__init__.py")
    distribution(tmp_path, "agentenv-framework-trl", "1!0.1.0", "agent_env/training/trl.py")
    distribution(tmp_path, "openenv", "0.10.0", "openenv/__init__.py")
    return tmp_path


def test_a_sound_installation_has_no_problems(site: Path) -> None:
    assert integrity.problems([str(site)]) == []
    integrity.check([str(site)])


def test_this_installation_is_sound() -> None:
    integrity.check()


def test_a_foreign_agent_env_is_named_with_its_distribution(site: Path) -> None:
    distribution(site, "agentenv-published", "0.4.2", "agent_env/__init__.py")
    with pytest.raises(PluginError) as caught:
        integrity.check([str(site)])
    message = str(caught.value)
    assert str(site / "agent_env" / "__init__.py") in message
    assert "of agentenv-published 0.4.2" in message
    assert "pip uninstall -y agentenv-published, then install agent-env again" in message


def test_a_foreign_agent_env_in_a_plain_folder_is_named_by_its_path(
    site: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "agent_env").mkdir()
    (elsewhere / "agent_env" / "__init__.py").write_text("")
    (problem,) = integrity.problems([str(elsewhere), str(site)])
    assert problem.fix == f"remove {elsewhere / 'agent_env'}, then install agent-env again"


def test_openenv_core_beside_openenv_gives_the_fix(site: Path) -> None:
    distribution(site, "openenv-core", "0.2.3", "openenv_core/__init__.py")
    with pytest.raises(PluginError) as caught:
        integrity.check([str(site)])
    assert "openenv-core 0.2.3" in str(caught.value)
    assert "beside openenv 0.10.0" in str(caught.value)
    assert "pip uninstall -y openenv-core openenv && pip install 'openenv>=0.9,<0.11'" in str(caught.value)


def test_openenv_core_alone_is_the_users_own_business(tmp_path: Path) -> None:
    distribution(tmp_path, "openenv-core", "0.2.3", "openenv_core/__init__.py")
    assert integrity.problems([str(tmp_path)]) == []


def test_a_real_interpreter_with_a_foreign_package_first_on_its_path_is_caught(tmp_path: Path) -> None:
    distribution(tmp_path, "agentenv-published", "0.4.2", "agent_env/__init__.py")
    code = "from agent_env_core import integrity; print([str(problem) for problem in integrity.problems()])"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=True
    )
    assert "of agentenv-published 0.4.2" in done.stdout
