from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import logging
import sys
import time
import zipfile
from functools import partial
from pathlib import Path

import psutil
import pytest
from agent_env_process import commands, venvs
from agent_env_process.images import ImageCache
from agent_env_process.plan import read_plan
from agent_env_process.provider import ProcessProvider

from agent_env_core.errors import ConfigError, ImageError, Unsupported
from agent_env_core.sandbox.contract import Image, SandboxSpec
from agent_env_core.testing.checks.base import eventually as kit_eventually

eventually = partial(kit_eventually, seconds=20, what="what the test waits for")

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
FROM = f"FROM python:{HERE}-slim\n"


@pytest.fixture
def cache(config, tmp_path):
    """A cache of this test's own."""
    config["cache_dir"] = str(tmp_path / "cache")
    return ImageCache(tmp_path / "cache")


@pytest.fixture
async def provider(cache, config):
    provider = ProcessProvider(config)
    yield provider
    await provider.aclose()


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "context"
    folder.mkdir()
    return folder


def wheel(folder: Path, name: str = "tinything") -> str:
    """A package without an index: one module, one command."""
    files = {
        f"{name}.py": "def main():\n    print('tiny says', __file__)\n",
        f"{name}-1.0.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{name}-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{name}-1.0.dist-info/entry_points.txt": f"[console_scripts]\n{name}={name}:main\n",
    }
    lines = []
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={digest},{len(text)}")
    files[f"{name}-1.0.dist-info/RECORD"] = "\n".join([*lines, f"{name}-1.0.dist-info/RECORD,,", ""])
    file = f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(folder / file, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return file


def finished(cache: ImageCache) -> list[str]:
    """What is in the cache, but for locks."""
    inner = cache.environments.iterdir() if cache.environments.is_dir() else ()
    found = [*cache.folder.iterdir(), *inner]
    return [path.name for path in found if path.suffix != ".lock" and path != cache.environments]


async def test_packages_are_installed_for_the_image_alone(provider, cache, folder, caplog, context):
    file = wheel(folder)
    with caplog.at_level(logging.INFO):
        prepared = await provider.prepare(
            context(folder, FROM + f"WORKDIR /wheels\nCOPY {file} .\nRUN pip install --no-index /wheels/*.whl\n")
        )
    assert "pip install --no-index" in caplog.text
    box = await provider.create(SandboxSpec(prepared, 60))
    said = await box.exec(["tinything"])
    assert said.stdout.startswith(b"tiny says")
    assert str(cache.environments).encode() in said.stdout
    module = Path(said.stdout.decode().split()[-1])
    assert list(module.parent.glob("__pycache__/tinything.*.pyc")), "compiled when the image is built"
    seen = await box.exec(["python", "-c", "import importlib.util as u; print(u.find_spec('pluggy'))"])
    assert seen.stdout == b"None\n", "packages of the Python that runs this must not be seen"
    await provider.kill(box.id)


PIP = """
import os, sys
print('\\n'.join(f'line {n}' for n in range(100)))
print('asked for', sys.argv[1:], 'in', os.getcwd(), os.environ.get('X'))
sys.exit('no' in sys.argv)
"""


@pytest.fixture
def quick_pip(monkeypatch):
    """Environments whose pip is a few lines, since making a real one takes seconds."""
    real = venvs.run

    async def run(argv, cwd, env, told):
        if told != "python -m venv":
            return await real(argv, cwd, env, told)
        done = await real([*argv[:-1], "--without-pip", argv[-1]], cwd, env, told)
        pip = Path(argv[-1]) / "lib" / f"python{HERE}" / "site-packages/pip"
        pip.mkdir()
        (pip / "__main__.py").write_text(PIP)
        return done

    monkeypatch.setattr(venvs, "run", run)


async def test_a_failed_install_says_why_and_leaves_nothing(provider, cache, folder, quick_pip, context):
    dockerfile = FROM + "WORKDIR /app\nENV X=/app/x\nRUN pip install -r /app/list.txt '==1.*' no\nCOPY list.txt .\n"
    image = context(folder, dockerfile.replace("RUN", "COPY list.txt .\nRUN"), list__txt="")
    with pytest.raises(ImageError) as caught:
        await provider.prepare(image)
    first, *output = str(caught.value).splitlines()
    assert first == f"{folder}/Dockerfile:5: pip install -r /app/list.txt '==1.*' no failed with exit code 1:"
    tree = next(word for word in output[-1].split() if word.endswith("/scratch/app"))
    assert output[-1] == f"asked for ['install', '-r', '{tree}/list.txt', '==1.*', 'no'] in {tree} {tree}/x"
    assert output[0] == "line 71", "the end of the output is what counts"
    assert finished(cache) == []


async def test_an_image_found_in_the_cache_takes_milliseconds(provider, cache, folder, context):
    image = context(folder, FROM + "COPY hello.py /app/\n", hello__py="print('hello')")
    await provider.prepare(image)
    began = time.perf_counter()
    await provider.prepare(image)
    assert time.perf_counter() - began < 0.2  # 4 ms on an idle machine


async def test_everything_copied_is_compiled_under_its_own_name(provider, cache, folder, context):
    prepared = await provider.prepare(context(folder, FROM + "COPY hello.py /app/\n", hello__py="x = 1"))
    compiled = list((cache.place(prepared) / "tree/app/__pycache__").iterdir())
    assert len(compiled) == 1
    assert b"/app/hello.py" in compiled[0].read_bytes()
    box = await provider.create(SandboxSpec(prepared, 60))
    done = await box.exec(["python", "-v", "-c", "import hello"], cwd="/app")
    assert b"matches" in done.stderr.split(b"hello.py")[0].splitlines()[-1] + done.stderr.split(b"hello.py")[1][:20]
    await provider.kill(box.id)


async def test_files_lie_where_docker_would_put_them(provider, cache, folder, context):
    (folder / "data/sub").mkdir(parents=True)
    (folder / "data/sub/x").write_text("x")
    (folder / "run.sh").write_text("#!/bin/sh\necho ran\n")
    lines = (
        "WORKDIR /srv/app",
        "COPY run.sh data /srv/all/",
        "COPY data renamed",
        "COPY --chmod=755 run.sh /usr/local/bin/run",
        "COPY data/sub/x /etc/app.conf",
        "RUN mkdir -p logs",
        "COPY . .",
    )
    prepared = await provider.prepare(context(folder, FROM + "\n".join(lines)))
    tree = cache.place(prepared) / "tree"
    found = {path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file()}
    assert found == {
        "srv/all/run.sh",
        "srv/all/sub/x",
        "srv/app/renamed/sub/x",
        "usr/local/bin/run",
        "etc/app.conf",
        "srv/app/Dockerfile",
        "srv/app/data/sub/x",
        "srv/app/run.sh",
    }
    image = cache.get(prepared)
    assert image.owned == ("/etc/app.conf", "/srv/all", "/srv/app", "/usr/local/bin/run")
    assert image.workdir == "/srv/app"
    box = await provider.create(SandboxSpec(prepared, 60))
    assert (await box.exec(["run"])).stdout == b"ran\n"
    assert (await box.exec(["cat", "/etc/app.conf"])).stdout == b"x"
    assert (await box.exec(["sh", "-c", "ls /srv/all"])).stdout == b"run.sh\nsub\n"
    await provider.kill(box.id)


async def test_many_processes_build_an_image_once(config, cache, folder, context):
    context(folder, FROM + "COPY hello.txt /app/\n", hello__txt="hi")
    script = (
        "import asyncio, json, logging, sys\n"
        "from pathlib import Path\n"
        "from agent_env_core.sandbox.contract import Image\n"
        "from agent_env_process.provider import ProcessProvider\n"
        "logging.basicConfig(level='INFO', format='%(message)s')\n"
        "print(asyncio.run(ProcessProvider(json.loads(sys.argv[1])).prepare(Image(context=Path(sys.argv[2])))))\n"
    )
    argv = [sys.executable, "-c", script, json.dumps(config), str(folder)]
    pipes = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE}
    children = await asyncio.gather(*(asyncio.create_subprocess_exec(*argv, **pipes) for _ in range(3)))
    said = await asyncio.gather(*(child.communicate() for child in children))
    assert [child.returncode for child in children] == [0, 0, 0], said
    assert len({out for out, _ in said}) == 1
    assert sum(b"prepared" in err for _, err in said) == 1


async def test_a_cancelled_build_leaves_nothing(provider, cache, folder, monkeypatch, no_processes_left, context):
    slow, said = folder.parent / "python", folder.parent / "pid"
    slow.write_text(f"#!/bin/sh\necho $$ > {said}.part\nmv {said}.part {said}\nsleep 600 & sleep 600\n")
    slow.chmod(0o755)
    monkeypatch.setattr(sys, "_base_executable", str(slow))
    build = asyncio.create_task(provider.prepare(context(folder, FROM)))

    async def number():
        return said.exists() and int(said.read_text())

    pid = await eventually(number)
    build.cancel()
    with pytest.raises(asyncio.CancelledError):
        await build
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    assert finished(cache) == []


async def test_a_build_that_was_killed_is_begun_again(config, cache, folder, provider, context):
    image = context(folder, FROM + "COPY hello.txt /app/\n", hello__txt="hi")
    plan = await asyncio.to_thread(read_plan, folder, "Dockerfile")
    ruin = cache.place(plan.ref)
    (ruin / "venv/bin").mkdir(parents=True)
    (ruin / "venv/bin/python").touch()
    assert cache.find(plan.ref) is None
    prepared = await provider.prepare(image)
    assert prepared == plan.ref
    box = await provider.create(SandboxSpec(prepared, 60))
    assert (await box.exec(["python", "-c", "print(1)"])).stdout == b"1\n"
    await provider.kill(box.id)


async def test_a_build_sees_the_index_and_no_secrets(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("PIP_INDEX_URL", "https://index.example")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example")
    monkeypatch.setenv("PIPSQUEAK", "no")
    env = commands._environment()
    assert env["PIP_INDEX_URL"]
    assert env["HTTPS_PROXY"]
    assert {"HF_TOKEN", "PIPSQUEAK"}.isdisjoint(env)


async def test_a_long_step_says_that_it_still_runs(monkeypatch, caplog):
    monkeypatch.setattr(commands, "HEARTBEAT", 0.01)
    with caplog.at_level(logging.INFO):
        beat = asyncio.create_task(commands._heartbeat("pip install x", lambda: b"one\nCollecting x\n"))
        await eventually(lambda: asyncio.sleep(0, caplog.records))
        beat.cancel()
    assert "pip install x: still running after 0 s: Collecting x" in caplog.text


async def test_a_registry_reference_is_refused_with_the_way_out(provider):
    with pytest.raises(Unsupported, match="docker provider can use it"):
        await provider.prepare(Image(ref="python:3.12"))


async def test_a_cache_that_cant_be_written_is_a_matter_of_configuration(provider, cache, folder, tmp_path, context):
    (tmp_path / "cache").write_text("a file in the way")
    with pytest.raises(ConfigError, match="XDG_CACHE_HOME"):
        await provider.prepare(context(folder, FROM))


async def test_a_missing_environment_module_is_named(provider, cache, folder, monkeypatch, context):
    fake = folder.parent / "python"
    fake.write_text("#!/bin/sh\necho 'ensurepip is not available'; exit 1\n")
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "_base_executable", str(fake))
    with pytest.raises(ImageError, match="apt install python3-venv"):
        await provider.prepare(context(folder, FROM))


async def test_the_start_command_of_an_image_is_known(provider, cache, folder, context):
    prepared = await provider.prepare(context(folder, FROM + 'ENTRYPOINT ["python"]\nCMD ["-V"]\n'))
    assert await provider.image_command(prepared) == ("python", "-V")


def test_an_unknown_image_is_named(cache):
    for name in ("nothing", "../escape", ""):
        with pytest.raises(ImageError, match="prepare it first"):
            cache.get(name)


def test_settings_are_checked():
    for config, part in (
        ({"cach_dir": "/x"}, "no setting 'cach_dir'; known: isolation, memory_mb, .*cache_dir"),
        ({"cache_gb": "much"}, "cache_gb='much': .*number"),
        ({"cache_days": 0}, "cache_days=0: .*greater than 0"),
        ({"isolation": "vm"}, "isolation='vm': .*'auto', 'bubblewrap', 'namespace' or 'none'"),
    ):
        with pytest.raises(ConfigError, match=part):
            ProcessProvider(config)


def test_folders_follow_the_users_settings(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "c"))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "h"))
    provider = ProcessProvider()
    assert provider._cache.folder == tmp_path / "c/agent-env/process"
    assert provider._state.folder.parent == tmp_path / "h/.local/state/agent-env/process"
