"""The trainer's side pins neither vLLM nor mcp: it goes beside versions that the env host can't have."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from agent_env_trl.local import LocalServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

HOST_ONLY = ("agentenv_protocol", "agentenv_framework_protocol", "fastmcp", "mcp", "openenv", "openenv_core")
#: A trainer's machine with all that is new: TRL with its vLLM, the first vLLM that needs mcp 2, and mcp 2 itself.
NEW = ("trl[vllm]>=1.15", "vllm>=0.30", "mcp>=2")


def resolve(wheels: Path, *requirements: str) -> subprocess.CompletedProcess[str]:
    """Resolves as pip would, with uv: it reads the metadata of vLLM and torch and downloads neither."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--no-cache"]
    command += ["--python-version", "3.11", "--python-platform", "x86_64-manylinux_2_28", "--find-links", str(wheels)]
    command.append("-")
    return subprocess.run(command, input="\n".join(requirements), capture_output=True, text=True, check=False)


def chosen_by(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """The version of each distribution, by name."""
    assert done.returncode == 0, done.stderr
    return dict(line.split(" ")[0].split("==") for line in done.stdout.splitlines() if "==" in line)


def test_every_extra_resolves_to_our_own_wheels(wheels: Path, sources: dict[str, Any]) -> None:
    """No version of the index has the epoch of ours."""
    chosen = chosen_by(resolve(wheels, "agentenv-framework[all]"))
    assert {name: chosen[name] for name in sources} == dict.fromkeys(sources, "1!0.1.0")
    assert "openenv" in chosen
    assert "openenv-core" not in chosen


def test_the_trainers_side_resolves_beside_a_new_vllm(wheels: Path) -> None:
    chosen = chosen_by(resolve(wheels, "agentenv-framework-trl", *NEW))
    assert chosen["agentenv-framework-trl"] == chosen["agentenv-framework"] == "1!0.1.0"
    assert chosen["mcp"].startswith("2.")
    assert tuple(map(int, chosen["vllm"].split(".")[:2])) >= (0, 30)
    assert not {"openenv", "openenv-core", "agentenv-framework-protocol"} & chosen.keys()


def test_the_env_hosts_side_does_not(wheels: Path) -> None:
    done = resolve(wheels, "agentenv-framework[server]", *NEW)
    assert done.returncode != 0
    assert "mcp" in done.stderr


@pytest.fixture
def new_environment(environment: Any, sources: dict[str, Any]) -> Any:
    """A trainer's environment with mcp 2, and nothing of what serves."""
    borrowed = Path((environment.site / "borrowed.pth").read_text("utf-8").strip())
    own = environment.folder / "borrowed" / "site-packages"
    own.mkdir(parents=True)
    for link in borrowed.iterdir():
        if link.name.partition("-")[0].lower() not in HOST_ONLY:
            (own / link.name).symlink_to(link.resolve())
    (environment.site / "borrowed.pth").write_text(f"{own}\n", "utf-8")
    environment.uv("mcp>=2")
    environment.install("agentenv-framework", "agentenv-framework-trl")
    return environment


@pytest.fixture
def env_host(counter_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server of this installation, as another machine's would be: its address."""
    server = LocalServer(counter_bundle, sandbox="process")
    monkeypatch.setenv("AGENT_ENV_TOKEN", server.token)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    yield server.url
    server.close()


@pytest.mark.usefixtures("no_processes_left")
def test_it_trains_beside_mcp_2(new_environment: Any, env_host: str, tiny_model: Path, tmp_path: Path) -> None:
    arguments = {
        "output_dir": str(tmp_path / "out"), "max_steps": 1, "per_device_train_batch_size": 2, "num_generations": 2,
        "max_completion_length": 4, "use_cpu": True, "bf16": False, "gradient_checkpointing": False,
        "report_to": "none", "save_steps": 1, "logging_steps": 1,
    }  # fmt: skip
    document = {"url": env_host, "split": "train", "model": str(tiny_model), "arguments": arguments}
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(document), "utf-8")
    new_environment.program("agent-env", "train", str(tmp_path / "train.yaml"))
    state = json.loads((tmp_path / "out" / "checkpoint-1" / "trainer_state.json").read_text("utf-8"))
    assert state["log_history"][0]["reward"] == 0.0
    told = new_environment.run("-c", "from importlib.metadata import version; import mcp; print(version('mcp'))")
    assert told.startswith("2.")
