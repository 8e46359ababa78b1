"""``agent-env train`` for real: TRL's trainer and a tiny model, on a bundle served here."""

from __future__ import annotations

import json
import re
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from agent_env.training.trl import AgentEnv
from agent_env_trl.environment import Environment
from click.testing import CliRunner, Result

from agent_env_core.cli.main import main
from agent_env_core.plugins import plugins

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]

ARGUMENTS = {
    "max_steps": 3, "save_steps": 1, "logging_steps": 1, "per_device_train_batch_size": 4, "num_generations": 2,
    "max_completion_length": 8, "use_cpu": True, "bf16": False, "gradient_checkpointing": False, "report_to": "none",
    "disable_tqdm": True, "learning_rate": 1e-3, "seed": 3,
}  # fmt: skip

Train = Callable[..., Result]


@pytest.fixture
def train(rows: Path, tiny_model: Path, tmp_path: Path) -> Train:
    """Runs ``agent-env train`` on a file of these keys; ``arguments`` are added to those above."""
    import torch

    torch.set_num_threads(1)

    def run(*options: str, arguments: dict[str, Any] | None = None, **keys: Any) -> Result:
        arguments = {"output_dir": str(tmp_path / "out"), **ARGUMENTS, **(arguments or {})}
        document = {"bundle": str(rows), "sandbox": "process", "model": str(tiny_model), "arguments": arguments, **keys}
        (tmp_path / "train.yaml").write_text(yaml.safe_dump(document), "utf-8")
        return CliRunner().invoke(main, ["train", str(tmp_path / "train.yaml"), *options], catch_exceptions=False)

    return run


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What happens, in order: ``"weights"`` when a checkpoint's are loaded, the row's index at a reset."""
    from trl import GRPOTrainer

    events: list[Any] = []
    reset, load = Environment.reset, GRPOTrainer._load_from_checkpoint

    def watched_reset(self: Environment, **row: Any) -> None:
        events.append(row["index"])
        reset(self, **row)

    def watched_load(self: Any, *arguments: Any, **keywords: Any) -> None:
        load(self, *arguments, **keywords)
        events.append("weights")

    monkeypatch.setattr(Environment, "reset", watched_reset)
    monkeypatch.setattr(GRPOTrainer, "_load_from_checkpoint", watched_load)
    return events


@pytest.mark.usefixtures("no_processes_left")
def test_it_trains_and_goes_on_at_the_next_row(train: Train, played: list[Any], tmp_path: Path) -> None:
    """On resume the weights come first, and then the rows that a straight run would see next."""
    whole = train(arguments={"output_dir": str(tmp_path / "whole"), "max_steps": 5, "save_strategy": "no"})
    assert whole.exit_code == 0, whole.output
    straight, played[:] = list(played), []
    assert len(straight) == 5 * 4
    assert straight[:8] != straight[8:16], "each epoch, of two steps, is shuffled anew"

    assert train().exit_code == 0
    assert played == straight[:12]
    out = tmp_path / "out"
    state = json.loads((out / "checkpoint-3" / "trainer_state.json").read_text("utf-8"))
    assert [entry["rewards/rows-v1/mean"] for entry in state["log_history"] if "reward" in entry] == [0.0, 0.0, 0.0]
    assert (out / "model.safetensors").is_file()

    refused = train()
    assert refused.exit_code == 1
    assert "holds the checkpoints of another run (set resume: true" in refused.output

    for checkpoint, first in ((str(out / "checkpoint-2"), 8), ("true", 12)):  # between epochs, and in the middle of one
        played[:] = []
        resumed = train("--set", f"resume={checkpoint}", arguments={"max_steps": 5, "save_strategy": "no"})
        assert f"going on from {out}" in resumed.output
        assert played == ["weights", *straight[first:]]


@pytest.mark.usefixtures("no_processes_left")
def test_an_evaluation_and_an_adapter(train: Train, tmp_path: Path) -> None:
    ran = train(
        arguments={"max_steps": 1, "eval_strategy": "steps", "eval_steps": 1, "num_generations_eval": 1},
        eval_split="all",
        peft={"r": 2, "target_modules": "all-linear", "task_type": "CAUSAL_LM"},
    )
    assert ran.exit_code == 0, ran.output
    assert (tmp_path / "out" / "adapter_model.safetensors").is_file()
    state = json.loads((tmp_path / "out" / "checkpoint-1" / "trainer_state.json").read_text("utf-8"))
    assert any("eval_rewards/rows-v1/mean" in entry for entry in state["log_history"])


@pytest.mark.long
@pytest.mark.usefixtures("no_processes_left")
def test_an_error_in_a_reward_function_of_ones_own(rows: Path, tiny_model: Path, tmp_path: Path) -> None:
    """It ends the training as it is, and takes the sandboxes of the batch with it."""
    from trl import GRPOConfig, GRPOTrainer

    def shaped(**batch: Any) -> list[float]:
        raise KeyError("style")

    with AgentEnv.local(rows, sandbox="process") as env:
        trainer = GRPOTrainer(
            model=str(tiny_model), args=GRPOConfig(output_dir=str(tmp_path / "out"), **ARGUMENTS), reward_funcs=shaped,
            **plugins().trainer_adapter("grpo").arguments(env),
        )  # fmt: skip
        with pytest.raises(KeyError, match="style") as raised:
            trainer.train()
    assert raised.traceback[-1].name == "shaped"


def test_a_dry_run_plays_one_rollout_and_loads_no_model(train: Train, tmp_path: Path) -> None:
    ran = train("--dry-run", "--set", f"arguments.output_dir={tmp_path / 'dry'}")
    assert ran.exit_code == 0, ran.output
    lines = {line.split()[0]: line.split(maxsplit=1)[1] for line in ran.stdout.splitlines()}
    assert lines["task"].endswith("/rows-v1/count-0 (split all, row 0)")
    assert lines["user"] == "Bring the counter to 3."
    assert lines["tool"].startswith("end_turn(*, response: str = '') -> str: Ends your turn.")
    assert (lines["answer"], lines["reward"]) == ("The episode has ended.", "0")
    assert not (tmp_path / "dry").exists()


@pytest.fixture
def hosts(rows: Path) -> Iterator[list[str]]:
    """The addresses of two servers of the bundle, for two sessions each."""
    with ExitStack() as serving:
        yield [
            serving.enter_context(AgentEnv.local(rows, sandbox="process", max_concurrent_envs=2)).url for _ in range(2)
        ]


def test_several_servers_hold_the_sessions_together(train: Train, hosts: list[str]) -> None:
    elsewhere: dict[str, Any] = {"bundle": None, "sandbox": None, "url": hosts}
    ran = train("--dry-run", **elsewhere)
    assert ran.exit_code == 0, ran.output
    assert "rows-v1: 5 tasks of all, grpo on" in ran.stderr
    ran = train("--dry-run", arguments={"per_device_train_batch_size": 8}, **elsewhere)
    assert f"8 rollouts at once, and the server at {', '.join(hosts)} allows 4 sessions" in ran.output
    ran = train("--dry-run", **elsewhere | {"url": [hosts[0], f"{hosts[0]}/"]})
    assert ran.exit_code == 1
    assert "must be one or more servers, each given once" in ran.output


def test_everything_that_is_wrong_is_said_at_once(train: Train, played: list[Any]) -> None:
    ran = train(
        arguments={"max_stepps": 1, "per_device_train_batch_size": 5, "max_completion_length": 4096},
        split="train",
        eval_split="eval",
        peft={"rank": 8},
    )
    assert ran.exit_code == 1
    for problem in (
        "arguments.max_stepps: GRPOConfig has no such field (did you mean max_steps?)",
        "arguments.per_device_train_batch_size: times 1 steps",
        "arguments.eval_strategy: isn't set, so nothing is played of eval_split (set it to steps)",
        "peft.rank: LoraConfig has no such field",
        "split: the bundle has no split 'train'; it has: all",
    ):
        assert problem in ran.output
    assert played == []


def test_what_only_the_tasks_tell(train: Train) -> None:
    ran = train(arguments={"max_completion_length": 4096, "per_device_train_batch_size": 16}, max_concurrent_envs=8)
    assert ran.exit_code == 1
    assert "16 rollouts at once, and the server at http://127.0.0.1" in ran.output
    assert "arguments.max_completion_length: is 4096, and the longest prompt with its tools has" in ran.output
    assert "the model's context has room for 4096 (set it to at most" in ran.output


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("", "has no chat template"),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "leaves tool calls out"),
        ("{% for m in messages %}{{ raise_exception('no') }}{% endfor %}", "can't show tool calls"),
        (
            "{% for m in messages %}{{ m.content }}{{ m.tool_calls }}{% endfor %}",
            "TRL can't read this model's tool calls",
        ),
    ],
)
def test_a_template_that_cannot_play(tiny_model: Path, tmp_path: Path, template: str, message: str) -> None:
    from agent_env_trl.train.chat import Model, template_problems

    copy = tmp_path / "model"
    shutil.copytree(tiny_model, copy)
    (copy / "chat_template.jinja").write_text(template)
    model = Model.read(str(copy))
    assert isinstance(model, Model)
    (problem,) = template_problems(model)
    assert message in str(problem)


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    from agent_env_trl.train.chat import Model

    assert str(Model.read(str(tmp_path / "none"))).startswith(f"model: there is no folder {str(tmp_path / 'none')!r}")
    assert "has no config.json (give the folder a model was saved in)" in str(Model.read(str(tmp_path)))
    (tmp_path / "config.json").write_text("{}")
    assert "can't be read" in str(Model.read(str(tmp_path)))


def test_a_model_on_a_hub_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """It's found out by one question, and not by the many tries that the hub's client makes for each file."""
    from agent_env_trl.train.chat import Model
    from huggingface_hub import constants

    with socket.socket() as taken:  # bound and not listening: nobody else gets the port, and nobody answers
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{taken.getsockname()[1]}")
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        problem = str(Model.read("nobody/has-this"))
    assert problem.startswith("model: 'nobody/has-this' is no folder here, nor downloaded, and the hub at http://127.0")
    assert problem.endswith("(give a model's folder, or the name of a downloaded model with HF_HUB_OFFLINE=1)")


def test_a_split_to_evaluate_that_is_not_there(train: Train) -> None:
    ran = train(arguments={"eval_strategy": "steps", "num_generations_eval": 1}, eval_split="tarin")
    assert ran.exit_code == 1
    assert re.search(r"^  eval_split: .* has no split 'tarin'; it has: all$", ran.output, re.MULTILINE), ran.output
