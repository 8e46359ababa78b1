"""``agent-env doctor``: every rule of it, and the whole on this machine."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from agent_env_core.cli import doctor as doctor_module
from agent_env_core.cli import health
from agent_env_core.cli.health import Finding, release
from agent_env_core.cli.main import main
from agent_env_core.errors import ConfigError, Problem
from agent_env_core.sandbox import probe
from agent_env_core.sandbox.contract import Capabilities
from agent_env_core.testing.fake import FakeProvider

SOUND = {"openenv": "0.10.0", "mcp": "1.30.0", "trl": "1.16.0", "transformers": "5.24.0", "torch": "2.13.0+cpu"}


def levels(findings: Any) -> dict[str, str]:
    return {finding.subject: finding.level for finding in findings}


def only(findings: Any, subject: str) -> Finding:
    (finding,) = [finding for finding in findings if finding.subject == subject]
    return finding


@pytest.mark.parametrize(
    ("version", "numbers"),
    [
        ("1!0.1.0", (0, 1, 0)),
        ("2.13.0+cpu", (2, 13, 0)),
        ("0.30.1rc1", (0, 30, 1)),
        ("0.31.dev3", (0, 31)),
        ("odd", ()),
    ],
)
def test_release(version: str, numbers: tuple[int, ...]) -> None:
    assert release(version) == numbers


def test_a_sound_stack_has_no_problem() -> None:
    found = list(health.stack(SOUND))
    assert {finding.level for finding in found} == {"ok", "absent"}
    assert only(found, "vllm").level == "absent"


@pytest.mark.parametrize(
    ("changes", "subject", "fix"),
    [
        ({"vllm": "0.30.0"}, "vllm", "pip install 'vllm<0.30', or serve the bundle from an environment of its own"),
        ({"vllm": "0.31.0", "openenv": None}, "mcp", "pip install 'mcp>=2,<3'"),
        ({"mcp": "2.0.1"}, "mcp", "pip install 'mcp>=1.25,<2'"),
        ({"mcp": "1.20.0"}, "mcp", "pip install 'mcp>=1.25,<2'"),
        ({"openenv": "0.11.0"}, "openenv", "pip install 'openenv>=0.9,<0.11'"),
        ({"openenv": "0.8.2"}, "openenv", "pip install 'openenv>=0.9,<0.11'"),
        ({"trl": "1.14.2"}, "trl", "pip install 'trl>=1.15'"),
        ({"transformers": "5.1.9"}, "transformers", "pip install 'transformers>=5.2'"),
    ],
)
def test_versions_that_do_not_go_together(changes: dict[str, str | None], subject: str, fix: str) -> None:
    versions = {name: version for name, version in (SOUND | changes).items() if version}
    found = list(health.stack(versions))
    assert [finding.subject for finding in found if finding.level == "problem"] == [subject]
    assert only(found, subject).fix.startswith(fix)


@pytest.mark.parametrize("changes", [{"vllm": "0.29.0"}, {"vllm": "0.31.0", "openenv": None, "mcp": "2.1.0"}])
def test_versions_that_do(changes: dict[str, str | None]) -> None:
    versions = {name: version for name, version in (SOUND | changes).items() if version}
    assert "problem" not in levels(health.stack(versions)).values()


def test_ours_in_different_versions_is_a_problem() -> None:
    versions = {"agentenv-framework": "1!0.2.0", "agentenv-framework-docker": "1!0.1.0"}
    found = list(health.base(versions))
    assert only(found, "agentenv-framework-docker").level == "problem"
    assert "agentenv-framework is 1!0.2.0" in only(found, "agentenv-framework-docker").fix
    assert only(found, "agentenv-framework-trl").level == "absent"


@pytest.mark.parametrize(
    ("python", "level"), [((3, 10), "problem"), ((3, 11), "ok"), ((3, 13), "ok"), ((3, 14), "problem")]
)
def test_python(python: tuple[int, int], level: str) -> None:
    assert only(health.base({}, python), "Python").level == level


def test_a_mixed_up_installation_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health.integrity, "problems", lambda: [Problem("openenv", "two of them", "remove one")])
    assert only(health.base({}), "openenv") == Finding("agent-env", "openenv", "two of them", "problem", "remove one")


def with_providers(monkeypatch: pytest.MonkeyPatch, **providers: Any) -> None:
    def factory(name: str) -> Any:
        def make(config: Any) -> Any:
            if isinstance(providers[name], Exception):
                raise providers[name]
            return providers[name]

        return make

    fake = SimpleNamespace(known=lambda kind: sorted(providers), sandbox_provider=factory, entries=[])
    monkeypatch.setattr(health, "plugins", lambda: fake)
    monkeypatch.setattr(probe, "plugins", lambda: fake)


def able(**can: Any) -> FakeProvider:
    return FakeProvider(capabilities=Capabilities(**can))


def test_a_provider_shows_what_it_keeps_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    with_providers(
        monkeypatch,
        open=able(isolation="none", private_files=False),
        tight=able(isolation="vm", private_files=True, ttl_enforced=True),
    )
    found = list(health.sandboxes(serves=True))
    assert levels(found) == {"open": "ok", "tight": "ok"}
    assert "isolation: none; FILES SHARED" in only(found, "open").value
    assert "isolation: vm; files private" in only(found, "tight").value


def test_a_provider_says_what_it_found_on_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = able(isolation="namespace")
    provider.explain = lambda: "bubblewrap 0.8.0"  # type: ignore[attr-defined]  # an optional power
    with_providers(monkeypatch, near=provider)
    assert "isolation: namespace (bubblewrap 0.8.0); files private" in only(health.sandboxes(serves=True), "near").value


@pytest.mark.parametrize(
    ("serves", "expected"), [(True, {"bad": "note", "providers": "problem"}), (False, {"bad": "note"})]
)
def test_no_usable_provider_blocks_an_env_host_only(
    monkeypatch: pytest.MonkeyPatch, serves: bool, expected: Any
) -> None:
    with_providers(monkeypatch, bad=ConfigError("no key"))
    assert levels(health.sandboxes(serves=serves)) == expected


@pytest.mark.parametrize(
    ("status", "fix"), [("failed", "uninstall it"), ("conflict", "who claims it"), ("blocked", "AGENT_ENV_PLUGINS")]
)
def test_a_plugin_that_cannot_be_used_is_a_note(monkeypatch: pytest.MonkeyPatch, status: str, fix: str) -> None:
    entries = [
        SimpleNamespace(name="acme", distribution="acme-dist", status=status, detail="why"),
        SimpleNamespace(name="fine", distribution="acme-dist", status="loaded", detail=""),
    ]
    monkeypatch.setattr(health, "plugins", lambda: SimpleNamespace(load_all=lambda: entries))
    (finding,) = health.broken_plugins()
    assert (finding.subject, finding.value, finding.level) == ("acme of acme-dist", "why", "note")
    assert fix in finding.fix


def test_providers_that_may_not_load_are_no_reason_to_install_more(monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = SimpleNamespace(known=lambda kind: [], entries=[SimpleNamespace(status="blocked")])
    monkeypatch.setattr(health, "plugins", lambda: blocked)
    (finding,) = health.sandboxes(serves=True)
    assert "AGENT_ENV_PLUGINS" in finding.fix


@pytest.mark.parametrize("refuses", [True, False])
def test_a_provider_that_does_not_answer_says_why(monkeypatch: pytest.MonkeyPatch, refuses: bool) -> None:
    provider = able(isolation="container")
    provider.fault("list", error=ConfigError("fake: no engine; start it") if refuses else None, hang=not refuses)
    with_providers(monkeypatch, fake=provider)
    monkeypatch.setattr(probe.look, "__kwdefaults__", {"seconds": 0.05})
    said = (
        "no engine; start it"
        if refuses
        else "no answer within 0.05 s; see whether it runs, and can be reached from here"
    )
    assert only(health.sandboxes(serves=False), "fake") == Finding("sandboxes", "fake", said, "note")
    assert provider.closed


@pytest.mark.parametrize(("free", "level"), [(10**12, "ok"), (2 * 2**30, "note"), (2**20, "problem")])
def test_disk_space(monkeypatch: pytest.MonkeyPatch, free: int, level: str) -> None:
    monkeypatch.setattr(health.shutil, "disk_usage", lambda place: SimpleNamespace(free=free))
    assert set(levels(health.disks()).values()) == {level}


def test_a_cache_folder_that_is_not_made_yet_is_measured_at_its_parent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "not" / "made"))
    assert only(health.disks(), "caches").value.endswith(f"at {tmp_path}")


def test_settings_never_show_a_secret() -> None:
    found = list(health.settings({"AGENT_ENV_PLUGINS": "a", "AGENT_ENV_TOKEN": "s3cret", "HOME": "/root"}))
    assert [(finding.subject, finding.value) for finding in found] == [
        ("AGENT_ENV_PLUGINS", "'a'"),
        ("AGENT_ENV_TOKEN", "(set, not shown)"),
    ]


@pytest.mark.parametrize(
    ("setting", "level", "told"),
    [
        ("process, dcoker", "note", "has the name dcoker;"),
        ("process,agentenv-framework-docker", "ok", ""),
        ("", "ok", ""),
    ],
)
def test_a_plugin_that_is_allowed_and_not_here_is_noted(setting: str, level: str, told: str) -> None:
    (found,) = health.settings({"AGENT_ENV_PLUGINS": setting})
    assert (found.value, found.level) == (repr(setting), level)
    assert told in found.fix


@pytest.mark.parametrize(
    ("level", "code", "last"), [("problem", 1, "1 problem to solve"), ("note", 0, "nothing stands in the way")]
)
def test_only_a_problem_fails_the_doctor(monkeypatch: pytest.MonkeyPatch, level: Any, code: int, last: str) -> None:
    monkeypatch.setattr(health, "examine", lambda: [Finding("topic", "thing", "odd", level, "mend it")])
    result = CliRunner().invoke(main, ["doctor"])
    assert result.exit_code == code
    assert "→ mend it" in result.stdout
    assert result.stdout.splitlines()[-1] == last
    report = json.loads(CliRunner().invoke(main, ["doctor", "--json"]).stdout)
    assert report["ok"] == (code == 0)
    assert report["findings"][0]["fix"] == "mend it"
    assert report["format_version"] == doctor_module.FORMAT_VERSION


def test_this_machine_is_examined_without_importing_what_is_heavy() -> None:
    import subprocess
    import sys

    script = "import sys; from agent_env_core.cli.health import examine; f = examine(); print(len(f), *sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    modules = {module.partition(".")[0] for module in done.stdout.split()[1:]}
    assert int(done.stdout.split()[0]) > 15
    assert not modules & {"torch", "trl", "transformers", "datasets", "openenv", "mcp", "fastapi"}
