"""What goes wrong on Modal's side, and what it becomes: the SDK meets real answers of a service that fails."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from agent_env_modal.failure import translate
from agent_env_modal.provider import ModalProvider
from agent_env_modal.settings import Settings
from grpclib import Status
from limits import sixty_four_rollouts
from modal import exception as sdk
from modal_double import ModalDouble
from modal_wire import EVERY, Fault
from waiting import eventually

from agent_env_core.errors import Busy, ConfigError, Gone, ImageError, SandboxError, Unavailable, Unsupported
from agent_env_core.sandbox.choose import start_host
from agent_env_core.sandbox.contract import Image, SandboxSpec

BASE = Image(ref="python:3.11-slim")


async def spec(provider: ModalProvider, **more: Any) -> SandboxSpec:
    return SandboxSpec(image=await provider.prepare(BASE), ttl=60, **more)


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault(Status.RESOURCE_EXHAUSTED, "the workspace is full"), Busy),
        (Fault(Status.UNAUTHENTICATED, "unknown token"), ConfigError),
        (Fault(Status.PERMISSION_DENIED, "not yours"), ConfigError),
        (Fault(Status.INVALID_ARGUMENT, "no such region"), Unsupported),
        (Fault(Status.FAILED_PRECONDITION, "changed meanwhile"), Unavailable),
        (Fault(Status.ABORTED, "changed meanwhile"), Unavailable),
        (Fault(Status.NOT_FOUND, "no image"), ImageError),
        (Fault(Status.DATA_LOSS, "lost"), Unavailable),
        (Fault(Status.UNIMPLEMENTED, "not yet"), Unavailable),
        (Fault(Status.ALREADY_EXISTS, "there"), Unavailable),
    ],
)
async def test_each_answer_to_a_create(
    provider: ModalProvider, double: ModalDouble, fault: Fault, error: type[SandboxError]
) -> None:
    asked = await spec(provider)
    double.world.control.add("SandboxCreateV2", fault)
    with pytest.raises(error, match=fault.message) as caught:
        await provider.create(asked)
    assert type(caught.value) is error
    box = await provider.create(asked)  # the next one is no worse for it
    await provider.kill(box.id)


async def test_a_throttled_create_says_for_how_long_and_is_never_waited_for_inside(
    provider: ModalProvider, double: ModalDouble
) -> None:
    asked = await spec(provider)
    double.world.control.add("SandboxCreateV2", Fault(Status.RESOURCE_EXHAUSTED, "slow down", retry_after=33.0))
    with pytest.raises(Busy) as caught:
        await asyncio.wait_for(provider.create(asked), 10)
    assert caught.value.retry_after == 33.0
    assert not double.world.running()


async def test_a_create_that_is_sent_twice_makes_one_sandbox(provider: ModalProvider, double: ModalDouble) -> None:
    asked = await spec(provider, labels={"one": "only"})
    double.world.control.add("SandboxCreateV2", Fault(Status.UNAVAILABLE, after=True))
    box = await provider.create(asked)
    assert [each.id for each in double.world.running({"one": "only"})] == [box.id]
    await provider.kill(box.id)


async def test_a_slow_create_that_nobody_waits_for_leaves_nothing(provider: ModalProvider, double: ModalDouble) -> None:
    asked = await spec(provider)
    control, goes_on = double.world.control, threading.Event()
    control.add("SandboxCreateV2", Fault(until=goes_on))
    asked_before = control.calls["SandboxCreateV2"]
    creating = asyncio.create_task(provider.create(asked))
    await eventually(lambda: control.calls["SandboxCreateV2"] > asked_before)
    creating.cancel()
    goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await creating
    await provider.aclose()
    assert not double.world.running()
    assert control.calls["SandboxTerminateV2"]


async def test_a_storm_of_cancelled_creates_leaves_nothing(provider: ModalProvider, double: ModalDouble) -> None:
    asked = await spec(provider, labels={"storm": "yes"})
    creates = [asyncio.create_task(provider.create(asked)) for _ in range(24)]
    for number, create in enumerate(creates):
        await asyncio.sleep(0.005 * (number % 3))
        create.cancel()
    results = await asyncio.gather(*creates, return_exceptions=True)
    await provider.aclose()
    for box in results:
        if not isinstance(box, BaseException):
            await provider.kill(box.id)
    assert any(isinstance(box, asyncio.CancelledError) for box in results)
    assert not double.world.running()


async def test_output_comes_whole_though_its_stream_breaks(provider: ModalProvider, double: ModalDouble) -> None:
    box = await provider.create(await spec(provider))
    breaks = [Fault(Status.UNAVAILABLE, cut=1000), Fault(Status.INTERNAL, cut=70_000), Fault(Status.UNAVAILABLE)]
    double.world.router.add("TaskExecStdioRead", *breaks)
    done = await box.exec(["python3", "-c", "print('x' * 300_000, end=''); import sys; print('e', file=sys.stderr)"])
    assert (done.exit_code, len(done.stdout), done.stderr) == (0, 300_000, b"e\n")
    await provider.kill(box.id)


async def test_a_file_arrives_whole_though_its_stream_breaks(provider: ModalProvider, double: ModalDouble) -> None:
    box = await provider.create(await spec(provider))
    double.world.router.add("TaskExecStdinWriteStream", Fault(Status.UNAVAILABLE, cut=300_000))
    data = os.urandom(1_000_000)
    await box.write("/kit/data", data)
    assert await box.read("/kit/data") == data
    await provider.kill(box.id)


async def test_a_start_that_is_sent_twice_runs_once(provider: ModalProvider, double: ModalDouble) -> None:
    box = await provider.create(await spec(provider))
    double.world.router.add("TaskExecStart", Fault(Status.UNAVAILABLE, after=True))
    await box.exec(["sh", "-c", "echo ran >> /srv/ran"])
    assert await box.read("/srv/ran") == b"ran\n"
    await provider.kill(box.id)


async def test_an_end_that_nobody_told_is_seen(
    provider: ModalProvider, double: ModalDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pause in ("_FIRST_LOOK", "_LOOK"):
        monkeypatch.setattr(f"agent_env_modal.sandbox.{pause}", 0.2)
    box = await provider.create(await spec(provider))
    double.world.router.add("TaskExecWait", Fault(delay=600))
    double.world.router.add("TaskExecStdioRead", *[Fault(delay=600)] * 2)  # a worker that is gone answers nothing
    starts = double.world.router.calls["TaskExecStart"]
    call = asyncio.create_task(box.exec(["sleep", "600"]))
    await eventually(lambda: double.world.router.calls["TaskExecStart"] > starts)
    double.do(double.world.find(box.id).finish(4))
    with pytest.raises(Gone, match="time to live"):
        await asyncio.wait_for(call, 60)


async def test_gone_says_how_it_ended(provider: ModalProvider, double: ModalDouble) -> None:
    box = await provider.create(await spec(provider, command=("sh", "-c", "exit 3")))
    with pytest.raises(Gone, match="exit code 3"):
        await box.exec(["sleep", "60"])


# -- credentials


BAD_CREDENTIALS = {
    "modal token new": {"MODAL_TOKEN_ID": "", "MODAL_TOKEN_SECRET": ""},
    "Token missing": {"MODAL_TOKEN_ID": "ak-some", "MODAL_TOKEN_SECRET": ""},
    "Token ID is malformed or unknown": {"MODAL_TOKEN_ID": "ak-other", "MODAL_TOKEN_SECRET": "as-double"},
}
"""What is said of credentials."""


def test_credentials_that_are_missing_or_refused_are_told_in_one_line(double: ModalDouble) -> None:
    created = len(double.world.created)
    script = (
        "import asyncio, json, os, sys\n"
        "from agent_env_core.errors import ConfigError\n"
        "from agent_env_core.plugins import plugins\n"
        "from agent_env_core.sandbox.contract import SandboxSpec\n"
        "async def main():\n"
        "    for env in json.loads(sys.argv[1]):\n"
        "        os.environ.update(env)\n"
        "        try:\n"
        "            provider = plugins().sandbox_provider('modal')({})\n"
        "            await provider.create(SandboxSpec(image='im-1', ttl=60))\n"
        "        except ConfigError as exc:\n"
        "            print(exc)\n"
        "asyncio.run(main())\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script, json.dumps(list(BAD_CREDENTIALS.values()))],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert len(lines) == len(BAD_CREDENTIALS), ran.stdout
    for line, says in zip(lines, BAD_CREDENTIALS, strict=True):
        assert says in line
    assert "as-double" not in ran.stdout + ran.stderr
    assert len(double.world.created) == created


def test_looking_at_a_provider_needs_no_account() -> None:
    """Neither is the SDK imported nor anybody asked until something is made."""
    script = (
        "import sys\n"
        "from agent_env_core.plugins import plugins\n"
        "assert plugins().sandbox_provider('modal')({}).capabilities.gpu\n"
        "assert 'modal' not in sys.modules and 'grpclib' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, env={**os.environ, "MODAL_TOKEN_ID": "ak-any"})


async def test_an_account_that_cant_be_used_is_passed_by_with_its_reason(double: ModalDouble) -> None:
    double.world.control.always[EVERY] = Fault(Status.UNAUTHENTICATED, "unknown token")
    told: list[str] = []
    host = await start_host("modal,process", on_progress=told.append)
    assert host.provider.name == "process"
    assert "no sandboxes from modal: looking for the app" in told[0] or "no sandboxes from modal: logging in" in told[0]
    assert "modal token new" in told[0]
    await host.aclose()


# -- accounts with limits


async def test_64_rollouts_finish_on_an_account_that_allows_20_at_a_time(double: ModalDouble) -> None:
    provider = ModalProvider(Settings(retry_after=0.2, creates_per_second=1000))
    double.world.capacity, double.world.most = 20, 0
    await sixty_four_rollouts(provider, BASE, at_once=20)
    assert double.world.most == 20
    await provider.aclose()


# -- the table by itself


@pytest.mark.parametrize(
    ("raised", "error"),
    [
        (lambda: sdk.ConflictError("x"), Unavailable),
        (lambda: sdk.InvalidError("x"), Unsupported),
        (lambda: sdk.ImageBuildError("x", "im-1"), ImageError),
        (lambda: sdk.ImageBuildError("terminated due to external shut-down", "im-1"), Unavailable),
        (lambda: sdk.VersionError("x"), ConfigError),
        (lambda: sdk.ClientClosed("x"), Unavailable),
        (lambda: sdk.ConnectionError("x"), Unavailable),
        (lambda: sdk.TimeoutError("x"), Unavailable),
        (lambda: sdk.SandboxFilesystemNotADirectoryError("x"), NotADirectoryError),
        (lambda: sdk.SandboxFilesystemFileTooLargeError("x"), Unsupported),
        (lambda: sdk.SandboxFilesystemError("x"), Unavailable),
        (lambda: OSError(5, "x"), Unavailable),
        (lambda: Gone("x"), Gone),
    ],
)
def test_what_the_sdk_raises(raised: Callable[[], Exception], error: type[Exception]) -> None:
    assert type(translate(raised(), "trying")) is error
