"""What goes wrong on E2B's side, and what it becomes; and what is asked of E2B when all goes well."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest
from agent_env_e2b.provider import E2BProvider
from agent_env_e2b.settings import Settings
from e2b_double import E2BDouble
from e2b_world import Fault
from limits import sixty_four_rollouts
from waiting import eventually

from agent_env_core.errors import Busy, ConfigError, Gone, ImageError, SandboxError, Unavailable, Unsupported
from agent_env_core.sandbox.choose import start_host
from agent_env_core.sandbox.contract import Image, SandboxSpec

BASE = Image(ref="python:3.11-slim")


async def spec(provider: E2BProvider, **more: Any) -> SandboxSpec:
    return SandboxSpec(image=await provider.prepare(BASE), ttl=60, **more)


@pytest.mark.parametrize(
    ("status", "message", "error"),
    [
        (429, "you are creating sandboxes too fast", Busy),
        (429, "you have reached the maximum number of concurrent E2B sandboxes (20)", Busy),
        (503, "no capacity", Busy),
        (401, "invalid API key", ConfigError),
        (403, "the team is blocked", ConfigError),
        (404, "template not found", ImageError),
        (400, "timeout is too long", Unsupported),
        (500, "oops", Unavailable),
        (502, "bad gateway", Unavailable),
        (0, "creating a sandbox", Unavailable),
    ],
)
async def test_each_answer_to_a_create(
    provider: E2BProvider, double: E2BDouble, status: int, message: str, error: type[SandboxError]
) -> None:
    asked = await spec(provider)
    double.world.faults = [Fault("POST /v2/sandboxes", status, message, times=1)]
    with pytest.raises(error, match=re.escape(message)) as caught:
        await provider.create(asked)
    assert type(caught.value) is error
    assert isinstance(caught.value, Busy) is (getattr(caught.value, "retry_after", None) == 0.2)
    assert not double.world.sandboxes
    await provider.kill((await provider.create(asked)).id)


@pytest.mark.parametrize(
    ("call", "status", "error"),
    [
        ("POST /v3/templates", 401, ConfigError),
        ("POST /v3/templates", 500, Unavailable),
        ("POST /v3/templates", 400, ImageError),
        ("POST /v2/templates", 500, Unavailable),
        ("GET /templates/", 500, Unavailable),
        ("POST /templates/tags", 500, Unavailable),
    ],
)
async def test_each_answer_to_a_build(
    provider: E2BProvider, double: E2BDouble, call: str, status: int, error: type[SandboxError]
) -> None:
    double.world.templates.clear()
    double.world.faults = [Fault(call, status)]
    with pytest.raises(error):
        await provider.prepare(BASE)
    double.world.faults = []
    assert await provider.prepare(BASE)


async def test_a_template_that_is_only_begun_is_built_anew(provider: E2BProvider, double: E2BDouble) -> None:
    double.world.templates.clear()
    double.world.faults = [Fault("POST /v2/templates", 500)]
    with pytest.raises(Unavailable):
        await provider.prepare(BASE)
    double.world.faults = []
    await provider.kill((await provider.create(await spec(provider))).id)


async def test_many_that_want_one_image_build_it_once(double: E2BDouble, fast: Settings) -> None:
    double.world.templates.clear()
    before = double.world.builds
    made = await asyncio.gather(*(E2BProvider(fast).prepare(BASE) for _ in range(6)))
    assert len(set(made)) == 1
    assert double.world.builds == before + 1


async def test_another_size_is_another_template(double: E2BDouble, fast: Settings, provider: E2BProvider) -> None:
    big = E2BProvider(fast.model_copy(update={"memory_mb": 4096}))
    name = (await big.prepare(BASE)).partition("@")[0]
    assert name not in await provider.prepare(BASE)
    assert double.world.find(name).memory == 4096


async def test_the_end_of_a_failed_build_is_shown(provider: E2BProvider, tmp_path: Any) -> None:
    (tmp_path / "Dockerfile").write_text("FROM python:3.11-slim\nRUN echo here is why && exit 3\n")
    with pytest.raises(ImageError, match=r"(?s)exit status 3.*here is why"):
        await provider.prepare(Image(context=tmp_path))


# -- creates that nobody waits for


async def test_a_slow_create_that_nobody_waits_for_leaves_nothing(provider: E2BProvider, double: E2BDouble) -> None:
    asked = await spec(provider)
    double.world.held_up = threading.Event()
    creating = asyncio.create_task(provider.create(asked))
    await eventually(lambda: double.do(double.world.labelled({})))
    creating.cancel()
    double.world.held_up.set()
    with pytest.raises(asyncio.CancelledError):
        await creating
    await provider.aclose()
    assert double.do(double.world.labelled({})) == []


async def test_a_storm_of_cancelled_creates_leaves_nothing(provider: E2BProvider, double: E2BDouble) -> None:
    asked = await spec(provider, command=("sleep", "600"))
    creates = [asyncio.create_task(provider.create(asked)) for _ in range(24)]
    for number, create in enumerate(creates):
        await asyncio.sleep(0.01 * (number % 3))
        create.cancel()
    results = await asyncio.gather(*creates, return_exceptions=True)
    for box in results:
        if not isinstance(box, BaseException):
            await provider.kill(box.id)
    await provider.aclose()
    assert any(isinstance(box, asyncio.CancelledError) for box in results)
    assert double.do(double.world.labelled({})) == []


async def test_a_main_process_that_cant_be_started_leaves_nothing(provider: E2BProvider, double: E2BDouble) -> None:
    asked = await spec(provider, command=("sleep", "600"))
    double.world.faults = [Fault("POST /process.Process/Start", 500)]
    with pytest.raises(Unavailable):
        await provider.create(asked)
    assert double.do(double.world.labelled({})) == []


# -- streams that break


async def test_an_answer_that_is_lost_is_told_and_its_command_is_ended(
    provider: E2BProvider, double: E2BDouble
) -> None:
    box = await provider.create(await spec(provider))
    double.world.faults = [Fault("POST /process.Process/Start", events=2, times=1)]
    with pytest.raises(Unavailable, match="isn't known"):
        await box.exec(["sh", "-c", "echo ran >> /srv/ran; echo out; exec sleep 77"])
    assert await box.read("/srv/ran") == b"ran\n"
    assert (await box.exec(["pgrep", "-fx", "sleep 77"])).exit_code == 1
    await provider.kill(box.id)


async def test_a_main_process_is_listened_to_again(
    provider: E2BProvider, double: E2BDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent_env_e2b.mains.FIRST_PAUSE", 0.02)
    asked = await spec(
        provider, command=("sh", "-c", "echo up; until [ -e /srv/end ]; do sleep 0.05; done; echo bye; exit 3")
    )
    double.world.faults = [Fault("POST /process.Process/Start", events=2, times=1)]
    box = await provider.create(asked)
    await eventually(lambda: "POST /process.Process/Connect" in double.world.calls)
    await box.write("/srv/end", b"")
    await eventually(lambda: not double.world.sandboxes)  # it is ended with its main process
    with pytest.raises(Gone, match=r"(?s)exit code 3; its last output:.*bye"):
        await box.exec(["true"])


async def test_a_paused_sandbox_is_listed_and_can_be_ended(provider: E2BProvider, double: E2BDouble) -> None:
    box = await provider.create(await spec(provider))
    double.world.sandboxes[box.id].state = "paused"
    assert [info.id async for info in provider.list({})] == [box.id]
    with pytest.raises(Gone, match="paused"):
        await provider.attach(box.id)
    assert await provider.kill(box.id)


async def test_a_sandbox_of_somebody_else_is_none_of_ours(provider: E2BProvider, double: E2BDouble) -> None:
    box = await provider.create(await spec(provider))
    double.world.sandboxes[box.id].metadata.clear()
    assert [info async for info in provider.list({})] == []
    with pytest.raises(Gone, match="no sandbox of agent-env"):
        await provider.attach(box.id)
    double.do(double.world.end(double.world.sandboxes[box.id]))


# -- what E2B is asked for


@pytest.mark.parametrize(
    ("network", "allowed", "asked"),
    [
        ("open", True, {"allowPublicTraffic": False}),
        ("none", False, {"allowPublicTraffic": False}),
        (
            ("pypi.org", "10.0.0.0/8"),
            True,
            {"allowPublicTraffic": False, "allowOut": ["pypi.org", "10.0.0.0/8"], "denyOut": ["0.0.0.0/0"]},
        ),
    ],
)
async def test_network_policies_as_e2b_is_asked_for_them(
    provider: E2BProvider, bodies: Callable[[], list[dict[str, Any]]], network: Any, allowed: bool, asked: Any
) -> None:
    await provider.kill((await provider.create(await spec(provider, network=network))).id)
    body = bodies()[0]
    assert (body["allow_internet_access"], body["network"]) == (allowed, asked)
    assert (body["timeout"], body["autoPause"]) == (60, False)


async def test_the_key_is_neither_logged_nor_handed_into_a_sandbox(
    provider: E2BProvider, double: E2BDouble, caplog: pytest.LogCaptureFixture, bodies: Callable[[], Any]
) -> None:
    key = os.environ["E2B_API_KEY"]
    with caplog.at_level(logging.DEBUG):
        box = await provider.create(await spec(provider, command=("sleep", "600")))
        look = "for each in /proc/[0-9]*/environ /proc/[0-9]*/cmdline; do tr '\\0' ' ' <$each; done"
        seen = (await box.exec(["sh", "-c", look])).stdout.decode(errors="replace")
        await provider.kill(box.id)
    assert "sleep 600" in seen
    for text in (seen, caplog.text, json.dumps(bodies())):
        assert key not in text


async def test_a_port_takes_no_request_without_the_token(provider: E2BProvider) -> None:
    import httpx

    box = await provider.create(await spec(provider, command=("python3", "-m", "http.server", "8000"), ports=(8000,)))
    endpoint = await box.endpoint(8000)
    bare = {name: value for name, value in endpoint.headers.items() if "token" not in name}
    async with httpx.AsyncClient(trust_env=False) as client:
        assert (await client.get(endpoint.url, headers=bare)).status_code == 403
    await provider.kill(box.id)


async def test_without_an_address_of_its_own_a_port_is_a_host(
    provider: E2BProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = await provider.create(await spec(provider, ports=(8000,)))
    monkeypatch.delenv("E2B_SANDBOX_URL")
    endpoint = await box.endpoint(8000)
    assert endpoint.url == f"https://8000-{box.id}.e2b.app"
    assert set(endpoint.headers) == {"e2b-traffic-access-token"}
    await provider.kill(box.id)


async def test_commands_run_as_the_images_user(provider: E2BProvider, tmp_path: Any) -> None:
    (tmp_path / "Dockerfile").write_text("FROM python:3.11-slim\nUSER nobody\n")
    box = await provider.create(SandboxSpec(await provider.prepare(Image(context=tmp_path)), 60))
    assert (await box.exec(["id", "-un"])).stdout == b"nobody\n"
    await box.write("/srv/mine", b"")
    assert (await box.exec(["stat", "-c", "%U", "/srv/mine"])).stdout == b"nobody\n"
    assert (await box.exec(["sleep", "600"], timeout=0.3)).timed_out
    await provider.kill(box.id)


async def test_what_the_base_image_sets_reaches_commands(provider: E2BProvider) -> None:
    box = await provider.create(await spec(provider, env={"MINE": "yes"}))
    done = await box.exec(["sh", "-c", 'echo "$IMAGE_SAYS $MINE"'])
    assert done.stdout == b"hello yes\n"
    again = await provider.attach(box.id)
    assert (await again.exec(["sh", "-c", 'echo "$IMAGE_SAYS $MINE"'])).stdout == b"hello yes\n"
    await provider.kill(box.id)


# -- accounts


async def test_an_account_that_cant_be_used_is_passed_by_with_its_reason(
    double: E2BDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("E2B_API_KEY", "e2b_wrong")
    told: list[str] = []
    host = await start_host("e2b,process", on_progress=told.append)
    assert host.provider.name == "process"
    assert "no sandboxes from e2b: listing sandboxes failed: 401" in told[0]
    assert "e2b_wrong" not in told[0]
    await host.aclose()


async def test_a_longer_life_than_the_plans_is_refused(provider: E2BProvider, double: E2BDouble) -> None:
    double.world.longest = 3600
    asked = await spec(provider)
    with pytest.raises(Unsupported, match="1 hours"):
        await provider.create(SandboxSpec(asked.image, 7200))
    box = await provider.create(asked)
    with pytest.raises(Unsupported, match="1 hours"):
        await box.extend(7200)
    with pytest.raises(Unsupported, match="at most 86400"):
        await box.extend(1e6)
    await provider.kill(box.id)


async def test_64_rollouts_finish_on_an_account_that_allows_20_at_a_time(double: E2BDouble, fast: Settings) -> None:
    provider = E2BProvider(fast)
    double.world.concurrent, double.world.peak = 20, 0
    await sixty_four_rollouts(provider, BASE, at_once=20)
    assert double.world.peak == 20
