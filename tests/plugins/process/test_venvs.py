"""Python environments are made once for all images that need the same one, and go when nothing does."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from agent_env_process import pruning, venvs
from agent_env_process.images import ENVIRONMENT_FACTS, FACTS, ImageCache
from agent_env_process.plan import Pip, read_plan
from agent_env_process.provider import ProcessProvider
from agent_env_process.pruning import DAY, GIB, tidy
from agent_env_process.venvs import environment_key, requirement_files

from agent_env_core.sandbox.contract import Prunable, SandboxSpec

FROM = "FROM python:3.11-slim\nWORKDIR /app\n"
COPY, CODE = "COPY requirements.txt .\n", "COPY server.py .\n"
INSTALL = "RUN pip install -r requirements.txt\n"


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "context"
    folder.mkdir()
    return folder


@pytest.fixture
def key(folder, context):
    """The key of the environment of a Dockerfile, beside these files."""

    def key(dockerfile, requirements="mcp==1.2\n", server="print(1)"):
        context(folder, FROM + dockerfile, requirements__txt=requirements, server__py=server)
        return environment_key(read_plan(folder, "Dockerfile"))

    return key


@pytest.mark.parametrize(
    "dockerfile",
    [
        COPY + INSTALL + CODE,
        COPY + INSTALL + "COPY . .\n",
        "COPY . .\n" + INSTALL,
        CODE + "RUN pip install --no-cache-dir 'mcp>=1' uvicorn\n",
        CODE + COPY + "RUN pip install --index-url https://index.example/simple -r /app/requirements.txt\n",
    ],
)
def test_changed_code_installs_nothing_again(key, dockerfile):
    assert key(dockerfile, server="print(1)") == key(dockerfile, server="print(2)")
    assert key(dockerfile) != key(dockerfile.replace("pip install", "pip install httpx"))


def test_changed_requirements_do(key):
    assert key(COPY + INSTALL, "mcp==1.2\n") != key(COPY + INSTALL, "mcp==1.3\n")
    assert key(COPY + "ENV PIP_PRE=1\n" + INSTALL) != key(COPY + INSTALL)


@pytest.mark.parametrize(
    ("dockerfile", "requirements"),
    [
        ("COPY . .\nRUN pip install .\n", ""),
        ("COPY . .\nRUN pip install ./server.py\n", ""),
        ("COPY . .\nRUN pip install 'x @ file:///app/x'\n", ""),
        ("COPY . .\n" + INSTALL, "-r more.txt\n"),
        ("COPY . .\n" + INSTALL, "./server\n"),
        ("COPY . .\n" + INSTALL, "x @ file:///app/x\n"),
        ("COPY . .\nRUN pip install -r missing.txt\n", ""),
    ],
)
def test_what_an_install_may_read_counts(key, dockerfile, requirements):
    assert key(dockerfile, requirements, "print(1)") != key(dockerfile, requirements, "print(2)")


@pytest.mark.parametrize(
    ("arguments", "files"),
    [
        (("mcp", "--no-cache-dir"), []),
        (("-r", "a.txt", "-cb.txt", "--requirement=c.txt"), ["a.txt", "b.txt", "c.txt"]),
        (("--index-url", "https://x.example/simple", "mcp[cli]>=1,<2"), []),
        (("-r", "https://x.example/list.txt"), None),
        ((".",), None),
        (("wheels/x.whl",), None),
        (("x.tar.gz",), None),
    ],
)
def test_requirement_files_are_found(arguments, files):
    assert requirement_files(Pip(1, arguments, "/app")) == files


@pytest.fixture
def count(monkeypatch):
    """Counts the environments that are made, without pip."""
    made = []
    real = venvs.run

    async def run(argv, cwd, env, told):
        if told == "python -m venv":
            made.append(argv[-1])
            argv = [*argv[:-1], "--without-pip", argv[-1]]
        return await real(argv, cwd, env, told)

    monkeypatch.setattr(venvs, "run", run)
    return made


@pytest.fixture
async def provider(config, tmp_path):
    provider = ProcessProvider({**config, "cache_dir": str(tmp_path / "cache")})
    yield provider
    await provider.aclose()


async def test_two_images_share_an_environment_and_each_has_its_files(provider, folder, context, count):
    first = await provider.prepare(context(folder, FROM + CODE, server__py="print('one')"))
    second = await provider.prepare(context(folder, FROM + CODE, server__py="print('two')"))
    assert first != second
    assert len(count) == 1
    for prepared, said in ((first, b"one\n"), (second, b"two\n")):
        box = await provider.create(SandboxSpec(prepared, 60))
        assert (await box.exec(["python", "server.py"])).stdout == said
        await provider.kill(box.id)


async def test_what_nothing_uses_can_be_removed(provider, folder, context, count):
    assert isinstance(provider, Prunable)
    used = await provider.prepare(context(folder, FROM + CODE, server__py="print('one')"))
    idle = await provider.prepare(context(folder, FROM + CODE, server__py="print('two')"))
    box = await provider.create(SandboxSpec(used, 60))
    unused = await provider.unused()
    assert [(thing.id, (thing.size or 0) > 0) for thing in unused] == [(f"image:{idle}", True)]
    assert await provider.prune(f"image:{used}") is False
    assert await provider.prune("image:../../etc") is False
    assert await provider.prune(f"image:{idle}")
    assert await provider.prune(f"image:{idle}") is False
    assert (await box.exec(["python", "server.py"])).stdout == b"one\n"
    await provider.kill(box.id)
    for thing in await provider.unused():
        assert await provider.prune(thing.id)
    assert await provider.unused() == []
    assert await provider.prepare(context(folder, FROM + CODE, server__py="print('one')")) == used


def entry(cache: ImageCache, name: str, *, days: float, size: int = 0, environment: str = "shared") -> None:
    """An image that was last used so many days ago, and its environment."""
    from agent_env_process.images import Environment, PreparedImage

    for folder in (cache.place(name), cache.environment_place(environment)):
        folder.mkdir(parents=True, exist_ok=True)
    Environment(environment, cache.environment_place(environment), 1).save()
    PreparedImage(name, cache.place(name), venv=cache.environment_place(environment) / "venv", size=size).save()
    used = time.time() - days * DAY
    os.utime(cache.place(name) / FACTS, (used, used))
    os.utime(cache.environment_place(environment) / ENVIRONMENT_FACTS, (used, used))


def left(cache: ImageCache) -> set[str]:
    return {one.name for one in pruning.entries(cache)}


def test_old_entries_go_by_themselves(tmp_path: Path):
    cache = ImageCache(tmp_path)
    entry(cache, "old", days=31, environment="oldest")
    entry(cache, "busy", days=31, environment="needed")
    entry(cache, "new", days=2)
    tidy(cache, lambda: {"busy"}, days=30, gigabytes=20)
    assert left(cache) == {"busy", "needed", "new", "shared"}


def test_past_the_bound_what_was_not_used_for_longest_goes(tmp_path: Path):
    cache = ImageCache(tmp_path)
    for name, days in (("a", 9), ("b", 5), ("c", 3), ("today", 0.1)):
        entry(cache, name, days=days, size=GIB, environment=f"of{name}")
    tidy(cache, set, days=30, gigabytes=2.5)
    assert {"c", "today"} <= left(cache)
    assert {"a", "b"}.isdisjoint(left(cache))
    tidy(cache, set, days=30, gigabytes=0.1)
    assert left(cache) == {"today", "oftoday"}, "what was used within a day stays"


def test_what_is_being_made_is_not_removed(tmp_path: Path):
    import fcntl

    cache = ImageCache(tmp_path)
    entry(cache, "old", days=99)
    with cache.lock(cache.place("old")).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert pruning.remove(cache, "image:old", set) is False
    assert pruning.remove(cache, "image:old", set) is True
