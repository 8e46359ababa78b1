"""A bundle of three toolsets: a dict of classes, rows that name theirs, and a training step over all of them."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_env.training.trl import AgentEnv
from agent_env_trl.environment import ToolFailure

from agent_env_core.client import ForeignTools

ROOT = Path(__file__).resolve().parents[3]
NAMES = ["email", "email+bash", "gridsim"]


@pytest.fixture(scope="module")
def env(local: Callable[..., AgentEnv], office: Path) -> AgentEnv:
    return local(office, split="all")


@pytest.fixture(scope="module")
def rows(env: AgentEnv) -> dict[str, dict[str, Any]]:
    """The row of each toolset."""
    return {row["environment"]: row for row in env.dataset}


def tools(cls: type) -> list[str]:
    return [name for name in vars(cls) if not name.startswith("_")]


def test_each_row_names_its_class(env: AgentEnv, rows: dict[str, dict[str, Any]]) -> None:
    assert sorted(env.factory) == NAMES
    assert sorted(rows) == NAMES
    assert {name: tools(cls) for name, cls in env.factory.items()} == {
        "email": ["read_mail", "send_mail", "end_turn"],
        "email+bash": ["bash", "read_mail", "send_mail", "end_turn"],
        "gridsim": ["submit_schedule", "end_turn"],
    }
    assert sorted(cls.__name__ for cls in env.factory.values()) == [f"office-{name}" for name in NAMES]


def test_an_agent_that_works_in_a_sandbox_has_bash(env: AgentEnv, rows: dict[str, dict[str, Any]]) -> None:
    environment = env.factory["email+bash"]()
    environment.reset(**rows["email+bash"])
    assert "It leaves at nine." in environment.bash(command="cat /app/ferry/*")
    assert environment.read_mail() == "From: Ada. When does the ferry leave?"
    environment.send_mail(text="At nine.")
    assert environment.get_reward() == 1.0


def test_a_row_sent_to_the_wrong_class_stops_training(env: AgentEnv, rows: dict[str, dict[str, Any]]) -> None:
    environment = env.factory["email"]()
    environment.reset(**rows["email+bash"])
    with pytest.raises(ForeignTools, match="the row's environment isn't the one"):
        environment.send_mail(text="At nine.")
    with pytest.raises(ForeignTools):
        environment.get_reward()


def test_an_argument_of_a_wrong_type_comes_back_as_a_message(env: AgentEnv, rows: dict[str, dict[str, Any]]) -> None:
    """What the env's own library says of it reaches the model, and the episode goes on."""
    environment = env.factory["email"]()
    environment.reset(**rows["email"])
    with pytest.raises(ToolFailure, match=r"(?s)text.*string"):
        environment.send_mail(text=["At nine."])
    with pytest.raises(ToolFailure, match=r"(?s)text.*(required|missing)"):
        environment.send_mail()
    environment.send_mail(text="At nine.")
    assert environment.get_reward() == 1.0


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (
            {"environment": "chess"},
            "row 1 of the dataset names the environment 'chess', and its task is played in 'gridsim'",
        ),
        ({"environment": "chess"}, "'; 'all' has: email, email+bash, gridsim"),
        ({"environment": None}, "row 1 of the dataset names the environment None, and its task is played in 'gridsim'"),
        ({"split": "test"}, "has no split 'test'; it has: all"),
        ({"index": 99}, "row 1 of the dataset has the index 99, and the split 'all' has 3 tasks"),
        ({"task_id": "@local/elsewhere"}, "row 1 of the dataset is of the task '@local/elsewhere', and the server has"),
        ({"index": None}, "row 1 of the dataset has no split or no index"),
    ],
)
def test_a_row_that_cannot_be_played_is_told_before_training(env: AgentEnv, changed: Any, told: str) -> None:
    """With its number."""
    rows = [dict(row) for row in env.dataset]
    env.check_dataset(rows)
    with pytest.raises(ValueError, match=re.escape(told)):
        env.check_dataset([rows[0], rows[1] | changed, rows[2]])


# -- training


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


WORSE, BETTER = (
    {
        "submit_schedule": call("submit_schedule", actions=schedule),
        "bash": call("bash", command="cat /app/ferry/times.txt"),
        "send_mail": call("send_mail", text=mail),
    }
    for schedule, mail in (([0] * 23, "At ten."), ([0] * 24, "At nine."))
)


class Scripted:
    """Stands in for the model's sampling: it calls a tool that the prompt offers, then ends its answer."""

    def __init__(self, tokenizer: Any, calls: Iterable[dict[str, str]]) -> None:
        self._tokenizer = tokenizer
        self._turn = itertools.cycle(calls)

    def generate(self, input_ids: Any, attention_mask: Any, **_: Any) -> Any:
        import torch

        texts = [self._answer(self._tokenizer.decode(ids)) for ids in input_ids]
        ids = [self._tokenizer.encode(text + self._tokenizer.eos_token) for text in texts]
        longest = max(map(len, ids))
        filled = [one + [self._tokenizer.pad_token_id] * (longest - len(one)) for one in ids]
        return torch.cat([input_ids, torch.tensor(filled)], dim=1)

    def _answer(self, prompt: str) -> str:
        if "<tool_response>" in prompt:
            return "Done."
        offered = next(tool for tool in ("submit_schedule", "send_mail") if f'"name": "{tool}"' in prompt)
        return next(self._turn)[offered]


@pytest.fixture
def examples(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(ROOT))
    from examples.train_gridsim import model

    return model


def trainer_of(env: AgentEnv, examples: Any, out: Path, calls: Any, **settings: Any) -> Any:
    """A ``GRPOTrainer`` of one step whose model makes ``calls``."""
    import torch
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(1)
    tokenizer = examples.build_tokenizer([])
    tokenizer.model_max_length = 8192
    model = examples.build_model(tokenizer, hidden=64, layers=1)
    model.config.max_position_embeddings = 8192
    model.generate = Scripted(tokenizer, calls).generate
    rows = settings.pop("rows", env.dataset)
    config = GRPOConfig(
        output_dir=str(out), max_steps=1, num_generations=2, report_to="none", max_tool_calling_iterations=1,
        use_cpu=True, bf16=False, logging_steps=1, gradient_checkpointing=False, save_strategy="no", disable_tqdm=True,
        learning_rate=1e-3, **settings,
    )  # fmt: skip
    return GRPOTrainer(
        model=model, args=config, train_dataset=rows, processing_class=tokenizer, environment_factory=env.factory,
        reward_funcs=env.log_scores,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_step_of_grpo_over_all_of_them(env: AgentEnv, examples: Any, tmp_path: Path) -> None:
    import torch

    trainer = trainer_of(
        env, examples, tmp_path, [WORSE, BETTER], per_device_train_batch_size=6, max_completion_length=2048
    )
    before = trainer.model.model.embed_tokens.weight.detach().clone()
    trainer.train()
    (logged,) = [entry for entry in trainer.state.log_history if "reward" in entry]
    assert {name: logged[f"rewards/office-{name}/mean"] for name in NAMES} == {
        "email": 0.5, "email+bash": 0.5, "gridsim": pytest.approx(0.1),
    }  # fmt: skip
    assert logged["reward"] == pytest.approx(1.1 / 3)
    assert logged["scores/grade"] == pytest.approx(1.1 / 3)
    assert logged["tools/call_frequency"] == 1.0
    assert logged["tools/failure_frequency"] == 0.0
    assert not torch.equal(before, trainer.model.model.embed_tokens.weight)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_an_answer_that_is_longer_than_the_context(env: AgentEnv, examples: Any, tmp_path: Path) -> None:
    """TRL leaves the answer out and ends the rollout, which is scored as it stands; nothing raises."""
    flood = {"send_mail": call("bash", command="yes | head -c 900000")}
    rows = env.dataset.filter(lambda row: row["environment"] == "email+bash")
    trainer = trainer_of(
        env, examples, tmp_path, [flood], rows=rows, per_device_train_batch_size=2, max_completion_length=256
    )
    trainer.train()
    (logged,) = [entry for entry in trainer.state.log_history if "reward" in entry]
    assert logged["tools/call_frequency"] == 1.0
    assert logged["reward"] == 0.0
    assert 0 < logged["completions/max_length"] <= 256
