"""What Modal is asked for, and what reaches a sandbox: read off the double's own books."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import httpx
import pytest
from agent_env_modal.provider import ModalProvider
from agent_env_modal.settings import Settings
from grpclib import Status
from modal_double import ModalDouble
from modal_proto import api_pb2 as api
from modal_wire import Fault
from modal_world import CREDENTIALS

from agent_env_core.errors import ConfigError, Gone, ImageError, Unsupported
from agent_env_core.plugins import plugins
from agent_env_core.sandbox.contract import Image, SandboxSpec

BASE = Image(ref="python:3.11-slim")
Access = api.NetworkAccess.NetworkAccessType


async def made(provider: ModalProvider, double: ModalDouble, **spec: Any) -> api.Sandbox:
    """The definition that a spec becomes; the sandbox is ended."""
    box = await provider.create(SandboxSpec(image=await provider.prepare(BASE), **{"ttl": 60, **spec}))
    asked = double.world.find(box.id).asked
    await provider.kill(box.id)
    return asked


async def test_a_spec_becomes_a_definition(provider: ModalProvider, double: ModalDouble) -> None:
    asked = await made(provider, double, ttl=60.2, cpu=0.5, memory_mb=512, workdir="/srv", command=("sleep", "9"))
    assert (asked.timeout_secs, asked.workdir, list(asked.entrypoint_args)) == (61, "/srv", ["sleep", "9"])
    limits = asked.resources
    assert (limits.milli_cpu, limits.milli_cpu_max, limits.memory_mb, limits.memory_mb_max) == (500, 500, 512, 512)
    assert not asked.open_ports.ports
    assert (asked.network_access.network_access_type, asked.runtime) == (Access.OPEN, "")


async def test_settings_fill_what_a_spec_leaves_open(double: ModalDouble) -> None:
    provider = ModalProvider(Settings(cpu=2, memory_mb=256, region="us-east, eu", runtime="vm", app="other"))
    assert provider.capabilities.isolation == "vm"
    asked = await made(provider, double)
    assert (asked.resources.milli_cpu_max, asked.resources.memory_mb_max, asked.runtime) == (2000, 256, "vm")
    assert list(asked.scheduler_placement.regions) == ["us-east", "eu"]
    assert ("main", "other") in double.world.apps or ("", "other") in double.world.apps
    await provider.aclose()


@pytest.mark.parametrize(
    ("spec", "kind", "cidrs", "domains"),
    [
        ({"network": "none"}, Access.BLOCKED, [], []),
        ({"network": "none", "ports": (8000,)}, Access.ALLOWLIST, [], []),
        (
            {"network": ("pypi.org", "*.example.org", "10.0.0.0/8", "1.1.1.1")},
            Access.ALLOWLIST,
            ["10.0.0.0/8", "1.1.1.1/32"],
            ["pypi.org", "*.example.org"],
        ),
    ],
)
async def test_a_network_policy_is_asked_for_as_it_is(
    provider: ModalProvider, double: ModalDouble, spec: dict[str, Any], kind: int, cidrs: list[str], domains: list[str]
) -> None:
    access = (await made(provider, double, **spec)).network_access
    assert (access.network_access_type, list(access.allowed_cidrs), list(access.allowed_domains)) == (
        kind, cidrs, domains,
    )  # fmt: skip


async def test_a_gpu_is_asked_for_by_name_and_the_sandbox_works(provider: ModalProvider, double: ModalDouble) -> None:
    image = await provider.prepare(BASE)
    box = await provider.create(SandboxSpec(image=image, ttl=60, gpu="A100:2", env={"ONE": "1"}, labels={"a": "b"}))
    gpu = double.world.find(box.id).asked.resources.gpu_config
    assert (gpu.gpu_type, gpu.count) == ("A100", 2)
    assert (await (await provider.attach(box.id)).exec(["printenv", "ONE"])).stdout == b"1\n"
    assert [info.id async for info in provider.list({"a": "b"})] == [box.id]
    assert await provider.kill(box.id)
    with pytest.raises(Gone, match="it was killed"):
        await box.read("/etc/hostname")


async def test_an_endpoint_lets_nobody_in_without_its_headers(provider: ModalProvider, double: ModalDouble) -> None:
    serve = ("sh", "-c", "cd /srv; echo in > index.html; exec python3 -m http.server 8000")
    box = await provider.create(SandboxSpec(image=await provider.prepare(BASE), ttl=60, command=serve, ports=(8000,)))
    endpoint = await box.endpoint(8000)
    async with httpx.AsyncClient(trust_env=False) as client:
        for pause in range(100):
            if (reply := await client.get(endpoint.url, headers=dict(endpoint.headers))).status_code == 200:
                break
            await asyncio.sleep(pause / 100)  # the server starts
        assert reply.text == "in\n"
    async with httpx.AsyncClient(trust_env=False) as client:  # a connection of its own
        assert (await client.get(endpoint.url)).status_code == 401
    await provider.kill(box.id)


async def test_tunnels_are_opened_only_where_they_are_set(double: ModalDouble) -> None:
    provider = ModalProvider(Settings(endpoints="tunnel"))
    box = await provider.create(SandboxSpec(image=await provider.prepare(BASE), ttl=60, ports=(8000,)))
    assert [port.port for port in double.world.find(box.id).asked.open_ports.ports] == [8000]
    endpoint = await box.endpoint(8000)
    assert endpoint.url.startswith("https://127.0.0.1:")
    assert not endpoint.headers
    other = ModalProvider(Settings())
    plain = await other.create(SandboxSpec(image=await other.prepare(BASE), ttl=60, ports=(8000,)))
    assert not double.world.find(plain.id).asked.open_ports.ports
    await provider.kill(box.id)
    await other.kill(plain.id)


async def test_arguments_past_what_the_sdk_takes(provider: ModalProvider, double: ModalDouble) -> None:
    box = await provider.create(SandboxSpec(image=await provider.prepare(BASE), ttl=60))
    parts = ["it's", "", "$HOME", "new\nline", "ü" * 30_000, "y" * 60_000]
    before = (await box.exec(["sh", "-c", "ls -A /tmp"])).stdout
    done = await box.exec(["python3", "-c", "import sys; print([len(each) for each in sys.argv[1:]])", *parts])
    assert done.stdout == b"[4, 0, 5, 8, 30000, 60000]\n"
    assert (await box.exec(["sh", "-c", "ls -A /tmp"])).stdout == before, "the file of the arguments is gone"
    await provider.kill(box.id)


async def test_a_command_may_leave_its_session(provider: ModalProvider, double: ModalDouble) -> None:
    box = await provider.create(SandboxSpec(image=await provider.prepare(BASE), ttl=60))
    for deadline in (1, 20):  # on a busy machine it may take longer than the first to begin
        done = await box.exec(["sh", "-c", "setsid sleep 600 & echo $!; exec sleep 600"], timeout=deadline)
        assert done.timed_out
        if done.stdout:
            break
    alive = await box.exec(["sh", "-c", f"grep -h State /proc/{int(done.stdout)}/status"])
    assert b"S (sleeping)" not in alive.stdout
    await provider.kill(box.id)


async def test_a_folder_that_is_not_there_is_a_result(provider: ModalProvider, double: ModalDouble) -> None:
    box = await provider.create(SandboxSpec(image=await provider.prepare(BASE), ttl=60))
    done = await box.exec(["true"], cwd="/no/such/folder")
    assert done.exit_code == 126
    assert b"/no/such/folder" in done.stderr
    await provider.kill(box.id)


# -- images


async def test_a_failed_build_shows_the_end_of_its_output(provider: ModalProvider, tmp_path: Any) -> None:
    (tmp_path / "Dockerfile").write_text("FROM python:3.11-slim\nRUN echo the compiler is missing && exit 3\n")
    with pytest.raises(ImageError, match="the compiler is missing"):
        await provider.prepare(Image(context=tmp_path))


async def test_an_image_that_cant_be_built_is_the_images_fault(
    provider: ModalProvider, double: ModalDouble, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "Dockerfile").write_bytes(b"FROM python:3.11-slim\n# \xff\xfe\n")
    with pytest.raises(ImageError, match="can't be built"):
        await provider.prepare(Image(context=tmp_path))
    (tmp_path / "Dockerfile").write_text("FROM python:3.11-slim\nNONSENSE\n")
    double.world.control.add("ImageGetOrCreate", Fault(Status.INVALID_ARGUMENT, "unknown instruction"))
    with pytest.raises(ImageError, match="unknown instruction"):
        await provider.prepare(Image(context=tmp_path))


async def test_the_ignore_file_of_a_dockerfile_counts_wherever_one_stands(
    provider: ModalProvider, double: ModalDouble, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "Dockerfile").write_text("FROM python:3.11-slim\nCOPY . /ctx\n")
    (tmp_path / "Dockerfile.dockerignore").write_text("secret\n")
    (tmp_path / "secret").write_text("x")
    monkeypatch.chdir(tmp_path)
    image = await provider.prepare(Image(context=Path()))
    box = await provider.create(SandboxSpec(image=image, ttl=60))
    assert (await box.exec(["ls", "/ctx"])).stdout.split() == [b"Dockerfile", b"Dockerfile.dockerignore"]
    await provider.kill(box.id)


async def test_what_else_is_in_the_app_is_none_of_ours(provider: ModalProvider, double: ModalDouble) -> None:
    import modal

    ours = await provider.create(SandboxSpec(image=await provider.prepare(BASE), ttl=60))
    app = await modal.App.lookup.aio("agent-env")
    other = await modal.Sandbox.create.aio(
        "sleep", "60", app=app, image=modal.Image.from_id(await provider.prepare(BASE))
    )
    assert [info.id async for info in provider.list({})] == [ours.id]
    await provider.kill(ours.id)
    await other.terminate.aio(wait=True)


async def test_an_id_of_nobody_is_not_there_whatever_its_form(provider: ModalProvider, double: ModalDouble) -> None:
    double.world.control.add("SandboxWaitV2", *[Fault(Status.INVALID_ARGUMENT, "malformed")] * 2)
    for unknown in ("no-such-sandbox", "sbx-01", "", "../escape", "sb-none"):
        assert not await provider.kill(unknown)
        with pytest.raises(Gone):
            await provider.attach(unknown)


async def test_one_build_for_all_who_ask(provider: ModalProvider, double: ModalDouble, tmp_path: Any) -> None:
    (tmp_path / "Dockerfile").write_text("FROM python:3.11-slim\nCOPY . /srv\nRUN sleep 0.2\n")
    (tmp_path / "one").write_text("1")
    await asyncio.gather(*(provider.prepare(Image(context=tmp_path)) for _ in range(3)))
    builds = double.world.images.builds
    assert (
        len([each for each in double.world.images.known.values() if "RUN sleep 0.2" in each.recipe.dockerfile_commands])
        == 1
    )
    await provider.prepare(Image(context=tmp_path))
    assert double.world.images.builds == builds


async def test_a_private_registry_is_opened_by_a_secret_of_the_account(double: ModalDouble) -> None:
    provider = ModalProvider(Settings(registry_secret="mine"))
    with pytest.raises(ConfigError, match="'mine'"):
        await provider.prepare(BASE)
    double.world.secrets["mine"] = {"REGISTRY_USERNAME": "me", "REGISTRY_PASSWORD": "pw"}
    prepared = await provider.prepare(Image(ref="python:3.12-slim"))
    recipes = [each.recipe.image_registry_config.secret_id for each in double.world.images.known.values()]
    assert prepared in double.world.images.known
    assert "st-mine" in recipes
    await provider.aclose()


# -- credentials and settings


async def test_credentials_enter_neither_a_sandbox_nor_a_log(
    provider: ModalProvider, double: ModalDouble, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    box = await provider.create(SandboxSpec(image=await provider.prepare(BASE), ttl=60, env={"ONE": "1"}))
    seen = (await box.exec(["sh", "-c", "env; cat /proc/1/environ"])).stdout.decode() + repr(box.__dict__)
    await provider.kill(box.id)
    for secret in CREDENTIALS:
        assert secret not in seen + caplog.text + str(double.world.find(box.id).asked)


def test_the_table_of_settings_is_the_readmes() -> None:
    readme = Path(__file__).resolve().parents[3] / "plugins" / "modal" / "README.md"
    rows = [line for line in readme.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    named = [row.split("`")[1] for row in rows]
    assert named[: len(Settings.model_fields)] == list(Settings.model_fields)


def test_a_wrong_setting_is_told_before_anything() -> None:
    factory = plugins().sandbox_provider("modal")
    with pytest.raises(ConfigError, match="endpoints"):
        factory({"endpoints": "public"})
    with pytest.raises(ConfigError, match="no setting 'token'"):
        factory({"token": "x"})


async def test_what_nobody_can_do_is_refused_at_once(provider: ModalProvider, double: ModalDouble) -> None:
    image, before = await provider.prepare(BASE), len(double.world.sandboxes)
    for spec in ({"ttl": 90_000.0}, {"ttl": 60, "workdir": "srv"}, {"ttl": 60, "env": {"a-b": "1"}}):
        with pytest.raises(Unsupported, match="modal"):
            await provider.create(SandboxSpec(image=image, **spec))
    assert len(double.world.sandboxes) == before
