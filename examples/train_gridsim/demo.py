"""The whole job in order: serve, evaluate, warm-start, evaluate, train, evaluate; and how long each stage took."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from agent_env.training.trl import AgentEnv

from agent_env_core.plugins import plugins
from examples.train_gridsim import episodes, evaluate, gridsim, grpo, model, report, sft
from examples.train_gridsim.prompts import task_of
from examples.train_gridsim.settings import BUNDLE, Settings

if TYPE_CHECKING:
    from datasets import Dataset
    from rich.console import Console

FEW = 4
"""One eval day in so many is played where the answer is plain: by the untrained model, and with shuffled prices."""


class Demo:
    """One run.

    Args:
        settings: What to do.
        console: Where progress goes.
    """

    def __init__(self, settings: Settings, console: Console) -> None:
        self._settings, self._console = settings, console
        self._rewards: dict[str, evaluate.Rewards] = {}
        self.results = report.Results(sandbox=settings.sandbox, seed=settings.seed)

    def run(self) -> report.Results:
        """Runs all stages and leaves the trained model in the output folder."""
        settings = self._settings
        with self._stage("start"):
            env = AgentEnv.local(BUNDLE, split="train", sandbox=settings.sandbox, max_concurrent_envs=settings.rollouts)
        with env:
            with self._stage("start"):
                self._prepare(env)
            with self._stage("baselines"):
                self._play_rules(env)
            few = evaluate.sample(self._eval_rows, len(self._eval_rows) // FEW + 1)
            self._evaluate(report.UNTRAINED, "evaluation, untrained", few)
            with self._stage("SFT"):
                sft.train(self._model, self._tokenizer, sft.rows(), settings, self._console)
            self._evaluate(report.SFT, "evaluation, after SFT", self._eval_rows)
            with self._stage("GRPO"):
                self.results.steps, unscored = grpo.train(self._trainer, self._watch, self._console)
                self.results.unscored += unscored
            self._evaluate(report.GRPO, "evaluation, after GRPO", self._eval_rows)
            few = evaluate.sample(evaluate.shuffled(self._own_eval_rows, settings.seed), len(few))
            self._evaluate(report.SHUFFLED, "evaluation, prices shuffled", few)
        trained = (report.UNTRAINED, report.SFT, report.GRPO, report.SHUFFLED)
        rules = (name for name in self._rewards if name not in trained)
        self.results.rewards = {name: self._rewards[name] for name in (*trained, *rules)}
        for part in (self._model, self._tokenizer):
            part.save_pretrained(settings.out / "model")
        return self.results

    def _prepare(self, env: AgentEnv) -> None:
        """Makes the model, and checks that the server allows as many episodes at once as the trainer plays."""
        adapter = plugins().trainer_adapter("grpo")
        for problem in adapter.check(env, vars(grpo.config(self._settings))):
            raise SystemExit(problem)
        # This is env.factory, with one thing more: when the trainer asks for a first reward, its whole batch is scored.
        factory = adapter.arguments(env)["environment_factory"]
        idle_day = gridsim.report([0.0] * 24, [0] * 24)
        self._tokenizer = model.gridsim_tokenizer(factory, gridsim.max_step(), idle_day)
        self._model = model.build_model(self._tokenizer, seed=self._settings.seed)
        self._own_eval_rows = evaluate.sample(env.dataset_for("eval"), self._settings.eval_days)
        self._eval_rows = grpo.in_price_code(self._own_eval_rows)
        self._watch = episodes.Watch(factory)
        self._trainer = grpo.make_trainer(
            self._model, self._tokenizer, grpo.in_price_code(env.dataset), self._watch.factory, self._settings
        )
        self._console.print(
            f"The model is a Qwen3 of {self._model.num_parameters():,} parameters and {len(self._tokenizer)} tokens."
        )

    def _play_rules(self, env: AgentEnv) -> None:
        """What can be had without a model; graded by the env's own code, without playing."""
        baselines = gridsim.baselines()
        prices = [[task_of(row["prompt"])["prices_usd_per_mwh"] for row in rows]
                  for rows in (env.dataset, self._own_eval_rows)]  # fmt: skip
        for name, rule in baselines.baselines(prices[0]).items():
            rewards = baselines.rewards(rule, prices[1])
            self._rewards[name] = dict(zip(self._own_eval_rows["index"], rewards, strict=True))

    def _evaluate(self, name: str, title: str, rows: Dataset) -> None:
        with self._stage("evaluations"):
            rewards = evaluate.play(title, self._trainer, self._watch, rows, self._console)
        self._rewards[name] = rewards
        self.results.unscored += list(rewards.values()).count(None)

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        begun = time.monotonic()
        yield
        self.results.seconds[name] = self.results.seconds.get(name, 0.0) + time.monotonic() - begun
