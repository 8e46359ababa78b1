"""What needs no double: settings, Dockerfiles, the table of errors, what a supervisor says."""

from __future__ import annotations

import base64
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import e2b
import httpx
import pytest
from agent_env_e2b.dockerfile import plan_of_context
from agent_env_e2b.failure import translate
from agent_env_e2b.plugin import Factory
from agent_env_e2b.provider import E2BProvider
from agent_env_e2b.settings import Settings
from agent_env_e2b.supervisor import Report
from agent_env_e2b.templates import parts

from agent_env_core.errors import Busy, ConfigError, Gone, ImageError, Unavailable, Unsupported
from agent_env_core.plugins import plugins
from agent_env_core.sandbox.contract import SandboxProvider, SandboxSpec

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("E2B_API_KEY", "e2b_some")


@pytest.mark.usefixtures("key")
def test_looking_at_the_provider_needs_no_sdk() -> None:
    script = (
        "import sys; from agent_env_core.plugins import plugins\n"
        "assert plugins().sandbox_provider('e2b')({}).capabilities.isolation == 'vm'\n"
        "assert 'e2b' not in sys.modules and 'connectrpc' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    assert isinstance(plugins().sandbox_provider("e2b")({}), SandboxProvider)


async def test_a_missing_key_is_told_in_one_line_with_the_fix() -> None:
    with pytest.raises(ConfigError, match="E2B_API_KEY isn't set"):
        Factory()({})
    provider = E2BProvider()
    spec = SandboxSpec("agent-env-x-0@root", 60)
    for call in (provider.create(spec), provider.attach("i0123456789"), provider.kill("i0123456789")):
        with pytest.raises(ConfigError, match=r"E2B_API_KEY isn't set.*export E2B_API_KEY") as caught:
            await call
        assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("key")
def test_an_sdk_that_would_only_pretend_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("E2B_DEBUG", "true")
    with pytest.raises(ConfigError, match="unset it"):
        Factory()({})


def test_plans_differ() -> None:
    hobby, pro = (E2BProvider(Settings(plan=plan)).capabilities for plan in ("hobby", "pro"))
    assert (hobby.max_ttl, pro.max_ttl) == (3600, 86400)
    assert (hobby.creates_per_second, pro.creates_per_second) == (1, 5)
    assert E2BProvider(Settings(creates_per_second=20)).capabilities.creates_per_second == 20


@pytest.mark.usefixtures("key")
def test_the_environment_sets_what_the_call_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_ENV_E2B_PLAN", "pro")
    monkeypatch.setenv("AGENT_ENV_E2B_CPU", "8")
    provider = Factory()({"cpu": "4"})
    assert isinstance(provider, E2BProvider)
    assert (provider.settings.plan, provider.settings.cpu) == ("pro", 4)


@pytest.mark.usefixtures("key")
@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"plann": "pro"}, "there is no setting 'plann'; known: plan, cpu"),
        ({"plan": "gold"}, "plan='gold'"),
        ({"memory_mb": "1025"}, "must be an even number"),
        ({"cpu": 0}, "cpu=0"),
    ],
)
def test_wrong_settings_are_refused(config: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Factory()(config)


def test_the_readme_has_the_settings() -> None:
    page = (ROOT / "plugins" / "e2b" / "README.md").read_text(encoding="utf-8")
    rows = {line.split("`")[1] for line in page.splitlines() if line.startswith("| `")}
    assert set(Settings.model_fields) <= rows


@pytest.mark.usefixtures("key")
async def test_cores_and_memory_of_one_sandbox_are_refused_with_the_fix() -> None:
    for settings in ({"cpu": 2.0}, {"memory_mb": 512}):
        with pytest.raises(Unsupported, match=r"cpu and memory_mb .*of the provider"):
            await E2BProvider().create(SandboxSpec("agent-env-x-0@root", 60, **settings))


# -- Dockerfiles


def plan(folder: Path, text: str):
    (folder / "Dockerfile").write_text(text)
    return plan_of_context(folder, "Dockerfile")


def test_what_would_run_at_the_build_is_left_out(tmp_path: Path) -> None:
    text = 'FROM python:3.11\n# a word\nENTRYPOINT ["a", \\\n  "b"]\nRUN x\nHEALTHCHECK CMD y\n'
    text += "USER app:app\nCMD z\nWORKDIR /w\n"
    made = plan(tmp_path, text)
    assert made.dockerfile == "FROM python:3.11\n# a word\nRUN x\nUSER app:app\nWORKDIR /w\n"
    assert (made.user, made.workdir) == ("app", "/w")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("FROM debian", ":2: E2B builds no Dockerfile of several stages"),
        ("RUN --mount=type=cache,target=/c true", r":2: E2B can't do RUN --mount"),
        ("COPY --from=other:1 /a /b", r":2: E2B can't do COPY --from"),
        ('SHELL ["/bin/bash", "-c"]', ":2: E2B knows no SHELL"),
        ("USER 1000", "USER 1000 must be a user's name"),
    ],
)
def test_what_e2b_would_leave_out_or_cant_do_is_refused(tmp_path: Path, line: str, says: str) -> None:
    with pytest.raises(ImageError, match=says):
        plan(tmp_path, f"FROM python:3.11\n{line}\n")


def test_what_was_not_prepared_is_no_image() -> None:
    assert parts("agent-env-x-12@app") == ("agent-env-x-12", "app")
    for text in ("base", "agent-env-x-12", "agent-env-x@root; rm"):
        with pytest.raises(ImageError, match="no image that was prepared"):
            parts(text)


# -- errors


@pytest.mark.parametrize(
    ("raised", "building", "error"),
    [
        (lambda: e2b.AuthenticationException("401"), False, ConfigError),
        (lambda: e2b.SandboxException("403: no", status_code=403), False, ConfigError),
        (lambda: e2b.RateLimitException("slow down"), False, Busy),
        (lambda: e2b.ServiceBusyException("no room"), False, Busy),
        (lambda: e2b.SandboxNotFoundException("x"), False, Gone),
        (lambda: e2b.SandboxNotRunningException("x"), False, Gone),
        (lambda: e2b.SandboxException("404: template", status_code=404), False, ImageError),
        (lambda: e2b.SandboxException("400: ttl", status_code=400), False, Unsupported),
        (lambda: e2b.SandboxException("500: x", status_code=500), False, Unavailable),
        (lambda: e2b.SandboxUnreachableException("x"), False, Unavailable),
        (lambda: e2b.TimeoutException("x"), False, Unavailable),
        (lambda: e2b.NotEnoughSpaceException("x"), False, Unavailable),
        (lambda: e2b.InvalidArgumentException("x"), False, Unsupported),
        (lambda: e2b.InvalidArgumentException("x"), True, ImageError),
        (lambda: e2b.TemplateException("too old"), False, ImageError),
        (lambda: e2b.BuildException("step 3 failed"), True, ImageError),
        (lambda: e2b.BuildException("400: bad"), True, ImageError),
        (lambda: e2b.BuildException("500: oops"), True, Unavailable),
        (lambda: e2b.FileUploadException("x"), True, ImageError),
        (lambda: httpx.ReadError("x"), False, Unavailable),
        (lambda: TimeoutError(), False, Unavailable),
        (lambda: Gone("x"), False, Gone),
        (lambda: IsADirectoryError("x"), False, IsADirectoryError),
    ],
)
def test_what_the_sdk_raises(raised: Callable[[], Exception], building: bool, error: type[Exception]) -> None:
    assert type(translate(raised(), "trying", building=building)) is error


# -- what a supervisor says


def test_a_report_is_read_in_any_pieces() -> None:
    data = bytes(range(256)) * 3
    said = f"o{base64.b64encode(data).decode()}\nebm8=\ndo17\nx143\n"
    for size in (1, 7, 1000):
        kept = {"o": b"", "e": b""}

        def keep(kind: str, piece: bytes, kept: dict[str, bytes] = kept) -> None:
            kept[kind] += piece

        report = Report(keep)
        for start in range(0, len(said), size):
            assert not report.over
            report.feed(said[start : start + size])
        assert (kept, report.code, report.dropped) == ({"o": data, "e": b"no"}, 143, {"o": 17})


def test_what_is_none_of_the_protocol_is_noise() -> None:
    report = Report(lambda kind, data: pytest.fail("nothing may be kept"))
    report.feed("o!!!\nxyz\nbash: line 1: oh\n")
    assert not report.over
    assert report.noise == "o!!!\nxyz\nbash: line 1: oh\n"
