"""``docs/porting-a-bundle.md``: its bundle behaves as the page says, before the env is mapped and after."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from agent_env_core.cli.main import main

PAGE = Path(__file__).resolve().parents[2] / "docs" / "porting-a-bundle.md"


@pytest.fixture
def page(tmp_path: Path) -> dict[str, str]:
    """The titled blocks of the page, those that are files written below ``tmp_path``."""
    text = PAGE.read_text(encoding="utf-8")
    blocks = dict(re.findall(r'^```\w+ title="([^"]+)"\n(.*?)^```', text, re.DOTALL | re.MULTILINE))
    for name, content in blocks.items():
        if name not in ("before", "after"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(content, encoding="utf-8")
    return blocks


def validated(folder: Path) -> str:
    result = CliRunner().invoke(main, ["validate", str(folder / "harbour")])
    assert result.exit_code == 1
    return result.output


def test_every_problem_that_the_page_tells_of(page: dict[str, str], tmp_path: Path) -> None:
    told = validated(tmp_path)
    assert all(line in told for line in page["before"].splitlines())
    steps = {place.rpartition(":")[2] for place in re.findall(r"^ *tasks/(\S+): ", told, re.MULTILINE)}
    assert steps == {"env", "planner", "grade", "record"}


def test_the_store_map_leaves_one(page: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_ENV_STORE", str(tmp_path / "store.toml"))
    told = validated(tmp_path)
    assert all(line in told for line in page["after"].splitlines())
    assert told.count("tasks/") == 1


@pytest.mark.slow
def test_it_plays(page: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from agent_env.training.trl import AgentEnv

    monkeypatch.setenv("AGENT_ENV_STORE", str(tmp_path / "store.toml"))
    with AgentEnv.local(tmp_path / "harbour", split="week", sandbox="process") as env:
        assert len(env.dataset) == 1
        environment = env.factory()
        environment.reset(**env.dataset[0])
        environment.berth(ship="Alma")
        assert environment.get_reward() == pytest.approx(1 / 3)
