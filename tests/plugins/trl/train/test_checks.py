"""What is wrong with a set-up is said before a model is loaded, each problem with its fix."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from agent_env_trl.plugin import Grpo
from agent_env_trl.train import checks, setup, versions
from agent_env_trl.train.settings import Settings


@dataclass
class Config:
    """Some of ``GRPOConfig``'s fields, with its defaults."""

    output_dir: str | None = None
    per_device_train_batch_size: int = 8
    per_device_eval_batch_size: int = 8
    gradient_accumulation_steps: int = 1
    steps_per_generation: int | None = None
    generation_batch_size: int | None = None
    num_generations: int = 8
    num_generations_eval: int | None = None
    eval_strategy: str = "no"
    max_steps: int = -1
    bf16: bool | None = None
    fp16: bool = False
    use_cpu: bool = False
    learning_rate: float = 1e-6
    report_to: str | list[str] | None = None


def settings(**given: Any) -> Settings:
    return Settings(bundle="b", model="m", **given)


def test_fields_of_another_name() -> None:
    (problem,) = checks.fields(Config, {"max_step": 3, "max_steps": 3}, "arguments")
    assert str(problem) == "arguments.max_step: Config has no such field (did you mean max_steps?)"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_steps": "ten"}, "max_steps: is 'ten', and must be a whole number"),
        ({"max_steps": 1.5}, "max_steps: is 1.5, and must be a whole number"),
        ({"max_steps": True}, "max_steps: is True, and must be a whole number"),
        ({"num_generations": [8]}, "num_generations: is [8], and must be a whole number"),
        ({"learning_rate": "2e-5x"}, "learning_rate: is '2e-5x', and must be a number"),
        ({"bf16": "no"}, "bf16: is 'no', and must be true or false (write false)"),
        ({"bf16": "On"}, "bf16: is 'On', and must be true or false (write true)"),
        ({"bf16": "perhaps"}, "bf16: is 'perhaps', and must be true or false"),
        ({"bf16": 2}, "bf16: is 2, and must be true or false"),
    ],
)
def test_values_of_another_type(given: dict[str, Any], message: str) -> None:
    (problem,) = checks.fields(Config, given, "arguments")
    assert str(problem) == f"arguments.{message}"


@pytest.mark.parametrize(
    "given",
    [{"bf16": False}, {"bf16": 0}, {"bf16": None}, {"learning_rate": 1}, {"eval_strategy": "no"}, {"report_to": 3}],
)
def test_values_that_may_be_of_the_type(given: dict[str, Any]) -> None:
    assert checks.fields(Config, given, "arguments") == []


def test_a_class_whose_types_cannot_be_seen_is_asked_itself() -> None:
    class Hidden:
        def __init__(self, size: int) -> None: ...

        size: Unknown  # type: ignore[name-defined]  # noqa: F821 - that it isn't there is the point

    assert checks.fields(Hidden, {"size": "big"}, "arguments") == []


def test_a_configuration_that_takes_anything_is_asked_itself() -> None:
    assert checks.fields(lambda **given: given, {"anything": 1}, "arguments") == []


@pytest.mark.parametrize(
    ("given", "processes", "message"),
    [
        ({}, 1, None),
        ({"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}, 1, None),
        ({"per_device_train_batch_size": 4}, 2, None),
        ({"generation_batch_size": 12}, 1, None),
        ({"per_device_train_batch_size": 6}, 1, "num_generations, 8 (make it a multiple of 8,"),
        ({"per_device_train_batch_size": 3, "gradient_accumulation_steps": 4}, 1, "make it a multiple of 2,"),
        ({"num_generations": 1}, 1, "compares at least 2 rollouts of a row"),
        ({"eval_strategy": "steps", "per_device_eval_batch_size": 6}, 1, "set num_generations_eval: 1"),
        ({"eval_strategy": "steps", "per_device_eval_batch_size": 6, "num_generations_eval": 1}, 1, None),
        ({"per_device_train_batch_size": "8"}, 1, None),
    ],
)  # fmt: skip
def test_batches_hold_whole_groups(given: dict[str, Any], processes: int, message: str | None) -> None:
    problems = [str(problem) for problem in checks.batches(Config, given, processes)]
    if message is None:
        assert problems == []
    else:
        (problem,) = problems
        assert message in problem


@pytest.mark.parametrize(
    ("given", "gpu", "message"),
    [
        ({}, False, "is on where it isn't set, and PyTorch sees no GPU (set use_cpu: true to train without one)"),
        ({"bf16": True}, True, "is on, and this machine's GPU has none (set bf16: false and fp16: true)"),
        ({"bf16": False}, True, ""),
        ({"fp16": True}, True, ""),
        ({"use_cpu": True}, False, ""),
    ],
)
def test_bf16_where_nothing_does_it(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], gpu: bool, message: str
) -> None:
    monkeypatch.setattr("transformers.utils.is_torch_bf16_gpu_available", lambda: False)
    monkeypatch.setattr("torch.cuda.is_available", lambda: gpu)
    problems = [str(problem) for problem in checks.precision(Config, given)]
    assert problems == ([f"arguments.bf16: {message}"] if message else [])


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_what_batches_refuses_trl_refuses_too() -> None:
    from trl import GRPOConfig

    given = {"per_device_train_batch_size": 6, "num_generations": 8}
    assert list(checks.batches(GRPOConfig, given, 1))
    with pytest.raises(ValueError, match="divisible by num_generations"):
        GRPOConfig(output_dir="out", use_cpu=True, bf16=False, **given)


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ({}, None),
        ({"eval_split": "eval"}, "arguments.eval_strategy"),
        ({"arguments": {"eval_strategy": "steps"}}, "eval_split"),
        ({"eval_split": "eval", "arguments": {"eval_strategy": "steps"}}, None),
    ],
)
def test_an_evaluation_needs_a_split_and_a_time(given: dict[str, Any], place: str | None) -> None:
    assert [problem.place for problem in checks.evaluation(settings(**given), Config)] == ([place] if place else [])


def test_a_trainer_that_does_not_evaluate() -> None:
    (problem,) = checks.evaluation(settings(eval_split="eval"), lambda max_steps: None)
    assert problem.place == "eval_split"


@pytest.fixture
def used(tmp_path: Path) -> Path:
    """An output folder with two checkpoints, and one that was never finished."""
    for step in (2, 10):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    (tmp_path / "checkpoint-12").mkdir()
    return tmp_path


def found(resume: Any, **arguments: Any) -> tuple[str | None, list[str]]:
    checkpoint, problems = checks.checkpoint(settings(resume=resume, arguments=arguments), Config)
    return checkpoint, [str(problem) for problem in problems]


def test_a_used_output_folder_is_refused_but_for_going_on(used: Path) -> None:
    checkpoint, (problem,) = found(False, output_dir=str(used))
    assert checkpoint is None
    assert problem.endswith("(set resume: true to go on with it, or another arguments.output_dir)")
    assert found(True, output_dir=str(used)) == (str(used / "checkpoint-10"), [])


@pytest.mark.parametrize("inside", ["file", "file/deeper"])
def test_an_output_folder_that_can_hold_nothing(tmp_path: Path, inside: str) -> None:
    (tmp_path / "file").touch()
    (problem,) = found(False, output_dir=str(tmp_path / inside))[1]
    assert f"{tmp_path / inside} can't hold checkpoints: {tmp_path / 'file'} is no folder" in problem


def test_an_output_folder_without_the_right_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)  # root may write everywhere
    (problem,) = found(False, output_dir=str(tmp_path / "new"))[1]
    assert f"{tmp_path} can't be written to" in problem


def test_a_checkpoint_by_its_path(used: Path) -> None:
    assert found(str(used / "checkpoint-2"), output_dir=str(used)) == (str(used / "checkpoint-2"), [])
    _, (problem,) = found(str(used / "checkpoint-12"), output_dir=str(used))
    assert "is no checkpoint" in problem
    assert f"(the newest here is {used / 'checkpoint-10'})" in problem


def test_nothing_to_go_on_from(tmp_path: Path) -> None:
    assert found(True, output_dir=str(tmp_path))[1] == [f"resume: {tmp_path} holds no checkpoint (leave it out)"]
    assert found(False)[1][0].startswith("arguments.output_dir: is missing")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What seems to be installed, by name."""
    here = {"trl": "1.16.0", "transformers": "5.24.0", "peft": "0.21.2", "openenv": "0.10.0", "mcp": "1.30.0"}
    needs = {
        "trl": ["transformers>=4.56.2", 'vllm<=0.31.0,>=0.22.0; extra == "vllm"', 'peft>=0.13.0; extra == "peft"',
                'harbor>=1; python_version < "3" and extra == "vllm"'],
    }  # fmt: skip

    def version(name: str) -> str:
        if name not in here:
            raise metadata.PackageNotFoundError(name)
        return here[name]

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(metadata, "requires", lambda name: needs.get(name))
    return here


@pytest.mark.parametrize(
    ("changed", "asked", "place", "message"),
    [
        ({}, {}, None, ""),
        ({}, {"peft": True}, None, ""),
        ({"trl": "1.17.0.dev0"}, {}, None, ""),
        ({"vllm": "0.32.0"}, {}, None, ""),
        ({"mcp": "2.3.0"}, {"local": False}, None, ""),
        ({"trl": None}, {}, "trl", "isn't installed (pip install 'trl>=1.15')"),
        ({"trl": "1.14.0"}, {}, "trl", "1.14.0 is installed, and trl>=1.15 is needed (pip install 'trl>=1.15')"),
        ({"trl": "1.15.0"}, {}, "triton", "and TRL 1.15.0 trains with nothing else (pip install 'trl>=1.16')"),
        ({"trl": "1.15.0", "triton": "3.5.0"}, {}, None, ""),
        ({"peft": "0.12.0"}, {"peft": True}, "peft", "0.12.0 is installed, and peft>=0.13.0 is needed"),
        ({"vllm": "0.32.0"}, {"arguments": {"use_vllm": True}}, "vllm", "and vllm<=0.31.0,>=0.22.0 is needed"),
        ({"vllm": None}, {"arguments": {"use_vllm": True}}, "vllm", "pip install 'vllm<=0.31.0,>=0.22.0'"),
        ({"mcp": "2.3.0"}, {}, "bundle", "and mcp 2.3.0 is installed (serve it where mcp 1 is, with agent-env serve"),
        ({"openenv": None}, {}, "bundle", "openenv isn't installed (pip install 'agentenv-framework[server]')"),
        (
            {"transformers": "5.12.0"},
            {},
            "jmespath",
            "transformers 5.12.0 needs it to read tool calls (pip install jmes",
        ),
    ],
)
def test_versions_go_together(
    installed: dict[str, str], changed: dict[str, str | None], asked: dict[str, Any], place: str | None, message: str
) -> None:
    for name, version in changed.items():
        installed.pop(name, None)
        if version is not None:
            installed[name] = version
    asked = {"arguments": {}, "peft": False, "local": True, **asked}
    problems = versions.problems(("trl>=1.15", "transformers>=5.2"), **asked)
    assert [problem.place for problem in problems] == ([place] if place else [])
    assert all(message in str(problem) for problem in problems)


@pytest.mark.parametrize("served", [{"url": "http://host:1"}, {"bundle": "b"}])
def test_what_the_file_says_of_the_tasks_reaches_the_env(monkeypatch: pytest.MonkeyPatch, served: Any) -> None:
    class Told:
        def __init__(self, url: str, **told: Any) -> None:
            self.told = told

        local = classmethod(lambda cls, bundle, **told: cls(bundle, **told))

    monkeypatch.setattr(setup, "AgentEnv", Told)
    said = {"split": "train", "reward": "mean", "tool_timeout": 7.0, "reset_timeout": 70.0, "answer_limit": 700}
    env: Any = setup.Setup(Settings(model="m", **served, **said), Path("c.yaml"))._env(Grpo(), {})
    assert {name: value for name, value in env.told.items() if name in said} == said
