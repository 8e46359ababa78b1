"""TRL's own AsyncGRPOTrainer on our environments, on a processor, and TRL's endless waits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from waiting import until

pytest.importorskip("trl.experimental.async_grpo.async_rollout_worker", reason="TRL 1.18 moved what the stand-ins fit")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
VLLM_ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
}


def run(names: str, bundle: Path, folder: Path, *server: str, seconds: float = 390) -> dict[str, Any]:
    """What became of runs of ``train_async.py``, by name, and their messages as ``stderr``."""
    running = subprocess.Popen(
        [sys.executable, str(HERE / "train_async.py"), names, str(folder), str(bundle), *server],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True,
        env={
            **os.environ, "PYTHONPATH": str(ROOT), "TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1", "ASYNC_RUN": str(folder),
        },
    )  # fmt: skip
    try:
        out, err = running.communicate(timeout=seconds)
    except BaseException as exc:
        os.killpg(running.pid, signal.SIGKILL)  # vLLM with it, which would keep its port
        exc.add_note(running.communicate()[1][-5000:])
        raise
    told = [json.loads(line) for line in out.splitlines() if line.startswith('{"run"')]
    assert running.returncode == 0, err[-5000:]
    return {run["run"]: run for run in told} | {"stderr": err}


def left(folder: Path) -> list[list[str]]:
    """The processes of a run that there are."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("ASYNC_RUN") == str(folder):
                found.append(process.cmdline())
        except psutil.Error:
            continue
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the model and the trainer's output are."""
    return tmp_path_factory.mktemp("async")


@pytest.fixture(scope="module")
def runs(one_toolset: Path, folder: Path) -> dict[str, Any]:
    """Three runs of the counter bundle with one toolset."""
    return run("trains,capacity,killed", one_toolset, folder)


def test_it_trains_on_rollouts_of_the_bundle(runs: dict[str, Any]) -> None:
    steps = [entry for entry in runs["trains"]["log"] if "reward" in entry]
    assert runs["trains"]["error"] is None
    assert len(steps) == 4
    scored = [step for step in steps if step["reward"] is not None]
    assert len(scored) >= 3, "one task can't be played, and its group may fill a whole step: TRL logs no reward for it"
    for step in scored:
        assert step["rewards/counter-v1"] == step["reward"]
        assert 0 <= step["reward"] <= 1
        assert step["tools/call_frequency"] > 0
    shown = {"loss", "grad_norm", "reward_std", "tools/failure_frequency", "perf/weight_sync_s"}
    assert shown | {"sample/staleness_mean"} <= set().union(*steps)


def test_rollouts_that_could_not_be_played_are_left_out_and_the_worker_lives_on(runs: dict[str, Any]) -> None:
    assert "rollout left unscored: the task at index 0 of split 'train'" in runs["stderr"]
    assert "Worker process failed" not in runs["stderr"]


def test_the_first_rollouts_are_the_policy_itself_and_later_ones_are_behind(runs: dict[str, Any]) -> None:
    steps = [entry for entry in runs["trains"]["log"] if "reward" in entry]
    assert steps[0]["ratio"] == pytest.approx(1, abs=1e-4)
    assert [0 <= step["sample/staleness_mean"] <= 2 for step in steps] == [True] * 4
    assert any(step["sample/staleness_mean"] > 0 for step in steps)


def test_a_server_at_its_limit_ends_the_run_with_the_fix(runs: dict[str, Any]) -> None:
    kind, text, trace = runs["capacity"]["error"]
    assert kind == "CapacityError"
    assert "at its limit of 8 sessions" in text
    assert "max_concurrent_envs" in text
    assert trace.startswith("In the rollout process (pid ")


@pytest.mark.long
def test_other_tools_than_the_models_end_the_run_with_the_reason(counter_bundle: Path, tmp_path: Path) -> None:
    kind, text, _ = run("foreign", counter_bundle, tmp_path)["foreign"]["error"]
    assert kind == "ForeignTools"
    assert "the bundle's toolsets don't keep such tasks apart" in text


def test_a_killed_rollout_process_ends_the_run_soon(runs: dict[str, Any]) -> None:
    kind, text = runs["killed"]["error"]
    assert kind == "AgentEnvError"
    assert "was killed by SIGKILL" in text
    assert runs["killed"]["seconds_since_the_kill"] < 30


def test_the_checks_find_nothing_wrong_with_the_server(runs: dict[str, Any]) -> None:
    assert runs["look"] == {"run": "look", "problems": [], "room": 16384, "tokens": 100}


@pytest.mark.long
@pytest.mark.timeout(1000)
@pytest.mark.skipif("VLLM_PYTHON" not in os.environ, reason="needs a vLLM of its own: make test-vllm")
def test_the_same_with_vllm(one_toolset: Path, tmp_path: Path) -> None:
    """Needs ``VLLM_PYTHON``, a Python with vLLM for processors, and ``VLLM_PORT``, a free port."""
    url = f"http://127.0.0.1:{os.environ['VLLM_PORT']}"
    words = (
        f"{os.environ['VLLM_PYTHON']} -m vllm.entrypoints.openai.api_server --host 127.0.0.1"
        f" --port {os.environ['VLLM_PORT']} --dtype float32 --max-model-len 512 --enforce-eager --max-num-seqs 16"
        " --logprobs-mode processed_logprobs --enable-lora --max-lora-rank 8 --max-loras 4 --model"
    )
    with pytest.MonkeyPatch.context() as patch:
        for name, value in VLLM_ENVIRONMENT.items():
            patch.setenv(name, value)
        found = run("trains,killed", one_toolset, tmp_path, url, *words.split(), seconds=900)
    test_it_trains_on_rollouts_of_the_bundle(found)
    test_the_first_rollouts_are_the_policy_itself_and_later_ones_are_behind(found)
    test_a_killed_rollout_process_ends_the_run_soon(found)
    assert found["look"]["problems"] == []
    assert found["look"]["room"] == 512
    assert found["look"]["tokens"] > 1


def test_nothing_is_left_of_any(runs: dict[str, Any], folder: Path) -> None:
    assert [runs[name]["children"] for name in ("trains", "capacity", "killed")] == [[]] * 3
    until(lambda: not left(folder))
