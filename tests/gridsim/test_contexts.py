"""SFT trains on the very tokens that GRPO generates from: the published rows with Qwen3's template, and the demo's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_env.training.trl import AgentEnv

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
ROWS = 3


@pytest.fixture(scope="module")
def env(gridsim_bundle: Path) -> Iterator[AgentEnv]:
    with AgentEnv.local(gridsim_bundle, split="train", sandbox="process") as made:
        yield made


def sft_sequences(rows: Any, tokenizer: Any, model: Any, out: Path) -> list[tuple[list[int], list[int]]]:
    """What ``SFTTrainer`` makes of rows: the tokens of each, and its labels (-100 where nothing is learnt)."""
    from trl import SFTConfig, SFTTrainer

    config = SFTConfig(
        str(out), max_length=None, use_cpu=True, bf16=False, report_to="none", shuffle_dataset=False
    )  # fmt: skip
    prepared = SFTTrainer(model=model, args=config, train_dataset=rows, processing_class=tokenizer).train_dataset
    return [(row["input_ids"], row["labels"]) for row in prepared]


def grpo_contexts(
    rows: Any, tokenizer: Any, model: Any, factory: type, out: Path, monkeypatch: pytest.MonkeyPatch
) -> list[list[int]]:
    """The tokens that ``GRPOTrainer`` hands to the model's first generation for each row."""
    from trl import GRPOConfig, GRPOTrainer

    seen: list[list[int]] = []
    generate = model.generate

    def watched(*args: Any, **kwargs: Any) -> Any:
        for ids, mask in zip(kwargs["input_ids"].tolist(), kwargs["attention_mask"].tolist(), strict=True):
            seen.append([token for token, real in zip(ids, mask, strict=True) if real])
        return generate(*args, **kwargs)

    monkeypatch.setattr(model, "generate", watched)
    config = GRPOConfig(
        str(out), per_device_eval_batch_size=ROWS, num_generations_eval=1, max_completion_length=1, use_cpu=True,
        bf16=False, report_to="none", disable_tqdm=True, chat_template_kwargs={"enable_thinking": False},
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=model, args=config, train_dataset=rows, processing_class=tokenizer, environment_factory=factory
    )
    trainer.evaluate(eval_dataset=rows)
    return seen


def check(sequences: list[tuple[list[int], list[int]]], contexts: list[list[int]]) -> None:
    assert len(sequences) == len(contexts) == ROWS
    for tokens, labels in sequences:
        context = next((context for context in contexts if tokens[: len(context)] == context), [])
        assert context, "GRPO generates from other tokens"
        assert set(labels[: len(context)]) == {-100}
        assert labels[len(context) :] == tokens[len(context) :]


def test_the_published_rows(
    env: AgentEnv, rows: Any, tmp_path: Path, gridsim_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.resources

    from datasets import load_dataset

    from examples.train_gridsim.model import build_model, build_tokenizer
    from examples.train_gridsim.settings import WARM_START

    tokenizer = build_tokenizer([])
    tokenizer.chat_template = (importlib.resources.files("trl") / "chat_templates" / "qwen3.jinja").read_text("utf-8")
    model = build_model(tokenizer, hidden=64, layers=1)
    model.config.max_position_embeddings = 16_384
    published = load_dataset("json", data_files=str(WARM_START), split="train", cache_dir=str(tmp_path / "cache"))
    sequences = sft_sequences(published.select(range(ROWS)), tokenizer, model, tmp_path)
    contexts = grpo_contexts(env.dataset.select(range(ROWS)), tokenizer, model, env.factory, tmp_path, monkeypatch)
    check(sequences, contexts)
    tokens, labels = sequences[0]
    learnt = tokenizer.decode([token for token, label in zip(tokens, labels, strict=True) if label != -100])
    assert learnt.startswith(published[0]["completion"][0]["content"] + '\n<tool_call>\n{"name": "submit_schedule"')
    assert tokenizer.decode(contexts[0]).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


def test_the_rows_of_the_demo(env: AgentEnv, rows: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from examples.train_gridsim import gridsim, grpo, model, sft

    factory = env.factory
    assert isinstance(factory, type)
    tokenizer = model.gridsim_tokenizer(factory, gridsim.max_step(), gridsim.report([0.0] * 24, [0] * 24))
    policy = model.build_model(tokenizer, hidden=64, layers=1)
    warm_start = sft.rows().select(range(1, 1 + ROWS))
    train_rows = grpo.in_price_code(env.dataset.select(range(1, 1 + ROWS)))
    sequences = sft_sequences(warm_start, tokenizer, policy, tmp_path)
    contexts = grpo_contexts(train_rows, tokenizer, policy, factory, tmp_path, monkeypatch)
    check(sequences, contexts)
    assert max(len(tokens) for tokens, _ in sequences) < 64, "a phrase of the rollout isn't one token"
