"""The guide's snippets say what the guide says they say; every claim is held by a test that there is."""

from __future__ import annotations

import ast
import inspect
import json
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import agent_env.training.trl
import pytest
from agent_env.training.trl import AgentEnv

ROOT = Path(__file__).resolve().parents[3]
GUIDE = ROOT / "docs" / "training-with-trl.md"
CLAIMS = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
GPU = ROOT / "examples" / "gpu"


def test_every_claim_names_a_test_that_there_is(missing_tests: Callable[[str], list[str]]) -> None:
    assert missing_tests(CLAIMS) == []


def test_every_claim_is_held_or_says_why_not() -> None:
    rows = [line for line in CLAIMS.splitlines() if line.startswith("| ") and not line.startswith("| claim |")]
    assert len(rows) > 60
    assert [row for row in rows if not re.search(r"::test_|\*\*Not here\*\*", row)] == []
    scripts = set(re.findall(r"`(examples/gpu/[\w.]+)`", CLAIMS))
    assert scripts
    assert [script for script in scripts if not (ROOT / script).is_file()] == []


# -- the guide


@pytest.fixture
def on_processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The guide's snippets run in the clone's folder, and without Docker."""
    made: list[AgentEnv] = []

    class OnProcesses(AgentEnv):
        @classmethod
        def local(cls, bundle: Any, **keywords: Any) -> AgentEnv:
            made.append(AgentEnv.local(bundle, sandbox="process", **keywords))
            return made[-1]

    monkeypatch.setattr(agent_env.training.trl, "AgentEnv", OnProcesses)
    monkeypatch.chdir(ROOT)
    yield
    for env in made:
        env.close()


def shown(code: str, names: dict[str, Any]) -> list[str]:
    """What a notebook of one cell for each line would show; of a signature, what stands between its brackets."""
    lines = []
    for statement in ast.parse(code).body:
        if isinstance(statement, ast.Expr):
            value = eval(compile(ast.Expression(statement.value), "guide", "eval"), names)
            lines += [] if value is None else [str(value) if isinstance(value, inspect.Signature) else repr(value)]
        else:
            exec(compile(ast.Module([statement], []), "guide", "exec"), names)
    return lines


def alike(text: str, pattern: str) -> bool:
    """Whether a text is what a page shows, where ``…`` stands for what was cut."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("…"))), text, re.DOTALL) is not None


def same(value: Any, page: Any) -> bool:
    if isinstance(page, dict):
        return list(value) == list(page) and all(same(value[key], page[key]) for key in page)
    if isinstance(page, list):
        return len(value) == len(page) and all(map(same, value, page))
    return alike(value, page) if isinstance(page, str) else bool(value == page)


@pytest.mark.usefixtures("on_processes", "gridsim_bundle")
def test_the_guides_snippets_say_what_the_guide_says() -> None:
    blocks = re.findall(r'^```(\w+) title="(\w+)"\n(.*?)^```', GUIDE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    ran: list[str] = []
    compared = 0
    for kind, title, text in blocks:
        if title == "Python":
            ran = shown(text, names)
        elif kind == "json":
            assert same(ast.literal_eval(ran[0]), json.loads(text)), ran[0][:300]
            compared += 1
        else:
            assert all(map(alike, ran, text.splitlines())), ran
            assert len(ran) == len(text.splitlines())
            compared += 1
    assert compared == 4


@pytest.mark.usefixtures("on_processes")
def test_a_bundle_with_several_toolsets(office: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(office.parent)
    (office.parent / "my-bundle").symlink_to(office)
    _runs_as_commented("environment\"]  # 'email'")


def _runs_as_commented(part: str) -> None:
    """Runs the block of the guide that holds ``part``; a comment behind an expression is what it shows."""
    blocks = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    (block,) = [block for block in blocks if part in block]
    lines = [line.partition("  # ") for line in block.splitlines()]
    expected = [comment for _, _, comment in lines if comment]
    from agent_env.training.trl import AgentEnv

    assert shown("\n".join(code for code, _, _ in lines), {"AgentEnv": AgentEnv}) == expected


@pytest.fixture
def two_scores(one_toolset: Path, tmp_path: Path) -> Path:
    """A bundle whose tasks record two scores, ``grade`` and ``style``."""
    import shutil

    bundle = tmp_path / "my-bundle"
    shutil.copytree(one_toolset, bundle)
    for path in (bundle / "tasks").glob("*.json"):
        steps = json.loads(path.read_text("utf-8"))
        graded = next(step for step in steps if step["id"] == "grade")
        path.write_text(json.dumps([*steps, {**graded, "id": "style", "verifier_id": "style"}]), encoding="utf-8")
    return bundle


def test_rewards_by_step_id_and_by_function(local: Callable[..., AgentEnv], two_scores: Path) -> None:
    env = local(two_scores, reward="grade")
    assert env.info.score_ids == ("grade", "style")
    mixed = AgentEnv(
        env.url, split="train", reward=lambda scores: 0.8 * scores["grade"] + 0.1 * scores["style"]
    )  # fmt: skip
    named = AgentEnv(env.url, split="train", reward="weighted:grade=0.5,style=0.2")
    environments = [each.factory() for each in (env, mixed, named)]
    for environment in environments:
        environment.reset(**env.dataset[0])
        environment.add(amount=3)
    assert [environment.get_reward() for environment in environments] == [1.0, pytest.approx(0.9), pytest.approx(0.7)]


def test_several_scores_and_no_choice_are_told_before_anything_is_built(
    local: Callable[..., AgentEnv], two_scores: Path
) -> None:
    with pytest.raises(ValueError, match=r'several scores \(grade, style\): choose one with reward="<step id>"'):
        local(two_scores)


def test_a_local_server_has_seven_minutes_to_close() -> None:
    from agent_env_trl import local

    assert local.CLOSE_SECONDS == 7 * 60


SERVE = """
import socket, sys, uvicorn
from agent_env.openenv import build_app

app = build_app(sys.argv[1], sandbox="process", max_concurrent_envs=4)
with socket.create_server(("127.0.0.1", 0)) as listener:
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])
"""


def test_a_served_bundle_trains_as_a_local_one(one_toolset: Path) -> None:
    """``build_app`` under uvicorn in a process of its own, as on an env host."""
    serving = subprocess.Popen([sys.executable, "-c", SERVE, str(one_toolset)], stdout=subprocess.PIPE, text=True)
    try:
        assert serving.stdout is not None
        env = AgentEnv(serving.stdout.readline().strip(), split="train")
        environment = env.factory()
        environment.reset(**env.dataset[0])
        environment.add(amount=3)
        assert environment.get_reward() == 1.0
        env.close()
    finally:
        serving.terminate()
        serving.communicate(timeout=60)


# -- scripts for GPUs


class Recorded:
    """Stands in for a trainer: checks what it is given against the real one, and trains nothing."""

    made: list[dict[str, Any]] = []  # noqa: RUF012 - one for the test that clears it

    def __init__(self, real: Any, **given: Any) -> None:
        inspect.signature(real.__init__).bind(None, **given)
        self.made.append({"trainer": real.__name__, **given})
        self.processing_class = self.model = SimpleNamespace(save_pretrained=lambda path: None)
        self.model.merge_and_unload = lambda: self.model

    def train(self) -> None:
        """Nothing."""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("on_processes", "gridsim_bundle")
def test_scripts_for_gpus_are_ready(monkeypatch: pytest.MonkeyPatch, portsim_served: str) -> None:
    import trl
    from trl.experimental import async_grpo

    monkeypatch.setattr(Recorded, "made", [])
    for module, prefix in ((trl, "SFT"), (trl, "GRPO"), (async_grpo, "AsyncGRPO")):
        monkeypatch.setattr(module, f"{prefix}Trainer", partial(Recorded, getattr(module, f"{prefix}Trainer")))
        config = getattr(module, f"{prefix}Config")
        monkeypatch.setattr(module, f"{prefix}Config", partial(config, use_cpu=True, report_to="none"))
    for script, arguments in (("sft.py", []), ("train.py", []), ("train_async.py", ["--url", portsim_served])):
        monkeypatch.setattr(sys, "argv", [script, *arguments])
        runpy.run_path(str(GPU / script), run_name="__main__")
    sft, grpo, later = Recorded.made
    assert [one["trainer"] for one in Recorded.made] == ["SFTTrainer", "GRPOTrainer", "AsyncGRPOTrainer"]
    assert len(sft["train_dataset"]) == 2000
    assert (len(grpo["train_dataset"]), len(grpo["eval_dataset"])) == (2000, 200)
    assert grpo["args"].generation_batch_size == 32
    assert later["environment_factory"].__name__ == "portsim-v1"
    assert subprocess.run(["bash", "-n", str(GPU / "vllm.sh")], check=False).returncode == 0


@pytest.fixture
def portsim_served(tmp_path: Path) -> Iterator[str]:
    """The address of a server of a small PortSim."""
    generator = ROOT / "bundles" / "portsim-v1" / "generator"
    out = tmp_path / "portsim-v1"
    program = [sys.executable, str(generator), "--out", str(out), "--train-tasks", "4", "--eval-tasks", "2"]
    subprocess.run(program, check=True, capture_output=True, timeout=60)
    with AgentEnv.local(out, split="train-standard", sandbox="process") as env:
        yield env.url
