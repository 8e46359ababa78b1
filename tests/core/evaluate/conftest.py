"""Small bundles of prompts, and evaluations of them without any sandbox."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_env_core.bundle import Bundle, load_bundle
from agent_env_core.evaluate.evaluation import Evaluation
from agent_env_core.evaluate.plan import make_plan
from agent_env_core.evaluate.results import Results
from agent_env_core.models import ChatModel
from agent_env_core.play.runner import Runner
from agent_env_core.sandbox.host import SandboxHost
from agent_env_core.steps.base import declaration
from agent_env_core.testing.fake import FakeProvider

Steps = list[dict[str, Any]]


@pytest.fixture
def ask() -> Callable[..., Steps]:
    """A task that asks and looks for ``yes`` in the reply: ``ask("Really?", timeout_seconds=3)``."""

    def make(*prompts: str, more: Steps | None = None, **fields: Any) -> Steps:
        steps: Steps = [{"id": "agent", "type": "deploy_agent"}]
        for number, prompt in enumerate(prompts, 1):
            step_id = f"ask-{number}"
            steps.append({"id": step_id, "type": "prompt_agent", "prompt_id": step_id, "prompt": prompt, **fields})
        looked = {"type": "response_contains", "needles": ["yes"]}
        last = f"ask-{len(prompts)}"
        grade = {"id": "grade", "type": "agent_prompt_response_verifier", "verifier_id": "g", "prompt_id": last}
        return [*steps, *(more or []), {**grade, "criteria": [looked]}]

    return make


@pytest.fixture
def make_bundle(tmp_path: Path) -> Callable[..., Bundle]:
    """A bundle of tasks, by name, and evals, by name."""

    def make(tasks: dict[str, Any], evals: dict[str, list[str]] | None = None) -> Bundle:
        root = tmp_path / "talk"
        for name, steps in tasks.items():
            (root / "tasks").mkdir(parents=True, exist_ok=True)
            (root / "tasks" / f"{name}.json").write_text(json.dumps(steps))
        for name, chosen in (evals or {}).items():
            (root / "evals").mkdir(exist_ok=True)
            (root / "evals" / f"{name}.toml").write_text(f"tasks = {json.dumps(chosen)}")
        return load_bundle(root, declaration)

    return make


@pytest.fixture
def rows(tmp_path: Path) -> Callable[[], list[dict[str, Any]]]:
    """What is on disk."""
    return lambda: [json.loads(line) for line in (tmp_path / "out" / "episodes.jsonl").read_text().splitlines()]


@pytest.fixture
def evaluate(tmp_path: Path, scripted_model: Any) -> Callable[..., Any]:
    """Plays a bundle with the scripted model; returns the evaluation once it has ended."""

    async def played(
        bundle: Bundle, *, seed: dict[str, str] | None = None, resume: bool = False, **options: Any
    ) -> Evaluation:
        plan = make_plan(bundle, seed=seed)
        host = SandboxHost(FakeProvider())
        settings = {"model": "m"}
        async with ChatModel("m", scripted_model.url) as model, host:
            with Results(tmp_path / "out", settings, resume=resume) as results:
                evaluation = Evaluation(plan, lambda spec: model, results, **options)
                async with Runner(bundle, sandbox=host, specs=plan.specs.values()) as runner:
                    await evaluation.run(runner)
                    assert not runner.episodes
                return evaluation

    return played
