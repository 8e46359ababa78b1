"""``docs/writing-a-sandbox-provider.md``: its provider is built, installed elsewhere, checked, and serves episodes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "writing-a-sandbox-provider.md"
CLOUD = ROOT / "tests" / "sample_cloud" / "cloud.py"
TOKEN = "acme-test-token"
EPISODES = 3
PYTEST_INI = "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error\n"

PLAY = f"""
import asyncio, json, pathlib, sys
from agent_env_core.bundle import load_bundle
from agent_env_core.play.runner import Runner
from agent_env_core.steps.base import declaration

async def rollout(spec, runner):
    episode = await spec.start(runner)
    turn = await episode.next_turn()
    async with turn.tools() as tools:
        await tools.call("guess", {{"number": 7}}, timeout=60)
    await turn.end("it was 7")
    scores = await episode.result()
    await episode.wait_finished()
    return list(scores.values())

async def main():
    async with Runner(load_bundle(pathlib.Path(sys.argv[1]), declaration), sandbox="acme") as runner:
        easy = next(spec for spec in runner.specs.values() if spec.task.name == "easy")
        return await asyncio.gather(*(rollout(easy, runner) for _ in range({EPISODES})))

print(json.dumps(asyncio.run(main())))
"""


def page_files() -> dict[str, str]:
    """The files that the page shows, by name."""
    blocks = re.findall(
        r'^```\w+ title="([^"]+)"\n(.*?)^```', PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    return dict(blocks)


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_processes_left: None) -> Iterator[str]:
    """The service of the page, running; the address of what it knows."""
    command = [sys.executable, str(CLOUD), str(tmp_path / "cloud")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as service:
        assert service.stdout is not None
        url = json.loads(service.stdout.readline())
        monkeypatch.setenv("ACME_URL", url)
        monkeypatch.setenv("ACME_TOKEN", TOKEN)
        try:
            yield f"{url}/world"
            assert httpx.get(f"{url}/world", trust_env=False).json()["exist"] == {}
        finally:
            service.kill()


@pytest.fixture
def acme(environment: Any, sources: dict[str, Any], tmp_path: Path) -> Any:
    """An environment with our distributions, except the providers, and the page's."""
    project = tmp_path / "acme"
    project.mkdir()
    for name, text in page_files().items():
        (project / name).write_text(text, encoding="utf-8")
    (project / "pytest.ini").write_text(PYTEST_INI, encoding="utf-8")
    environment.install("agentenv-framework", "agentenv-framework-trl")
    environment.install(project)
    return environment


def test_the_pages_provider_is_short() -> None:
    provider = page_files()["acme_sandboxes.py"]
    assert len(provider.splitlines()) < 150
    assert max(map(len, provider.splitlines())) <= 120


@pytest.mark.slow
def test_it_keeps_the_contract(acme: Any, cloud: str, tmp_path: Path) -> None:
    ran = acme.run("-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path / "acme" / "test_acme.py"))
    passed, skipped = map(int, re.search(r"(\d+) passed, (\d+) skipped", ran).groups())  # type: ignore[union-attr]
    assert passed >= 85
    assert skipped <= 12
    assert "nobody can" not in ran, "every fault can be brought about at this service"

    checked = acme.program("agent-env", "sandbox", "check", "acme", "--yes", "--only", "life")
    assert " 0 broken" in checked
    shown = " ".join(acme.program("agent-env", "sandbox", "show", "acme").split())
    assert "token SecretStr ********** Your token." in shown
    assert TOKEN not in shown


@pytest.mark.slow
def test_it_serves_episodes_by_name_and_makes_one_sandbox_for_each(
    acme: Any, cloud: str, tutorial_bundle: Path
) -> None:
    assert json.loads(acme.run("-c", PLAY, str(tutorial_bundle)).splitlines()[-1]) == [[1.0]] * EPISODES
    assert httpx.get(cloud, trust_env=False).json() == {"created": EPISODES, "exist": {}}
