"""A language model small enough for a laptop's processor: 600,000 parameters, a tokenizer of its own.

The tokenizer knows bytes, so any text goes through it, and beside them a few *phrases*: the stretches of text that are
the same in every rollout (the tools' description, the wrapping of a tool call) and the actions. A phrase is one token.
So a rollout is a hundred tokens long instead of two thousand, and all that is left to learn is the schedule.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

    from examples.train_gridsim.prompts import Message

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
TEMPLATE = "qwen3_instruct_2507.jinja"
"""The chat template, out of TRL: it renders tools, and TRL knows how to read the calls back."""


def tool_methods(factory: type) -> list[Callable[..., Any]]:
    """The tools of an environment class, in the order in which TRL shows them to the model."""
    names = sorted(name for name in dir(factory) if not name.startswith("_") and name not in ("reset", "get_reward"))
    return [getattr(factory, name) for name in names if callable(getattr(factory, name))]


def call_message(name: str, **arguments: Any) -> Message:
    """An assistant's message that calls one tool."""
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": name, "arguments": arguments}}],
    }


def build_tokenizer(phrases: Sequence[str]) -> PreTrainedTokenizerFast:
    """A tokenizer of bytes, the marks of a chat, and ``phrases``; the longest phrase that fits wins."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={char: index for index, char in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(mark, normalized=False) for mark in (END_OF_TEXT, TURN_START, TURN_END)])
    core.add_tokens([AddedToken(phrase, special=False, normalized=False) for phrase in dict.fromkeys(phrases)])
    tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=core,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=1024,
    )
    tokenizer.chat_template = (importlib.resources.files("trl") / "chat_templates" / TEMPLATE).read_text("utf-8")
    return tokenizer


def gridsim_tokenizer(factory: type, max_step: int, report: str) -> PreTrainedTokenizerFast:
    """The tokenizer for rollouts of ``factory``'s environments.

    Args:
        factory: The environment class; its tools' description becomes one token.
        max_step: Actions run from ``-max_step`` to ``max_step``.
        report: A report of ``submit_schedule`` for an idle day, as the env words it.
    """
    actions = [str(action) for action in range(-max_step, max_step + 1)]
    held = [f",{blocks}" for blocks in range(10)]
    before, after = report.split("[")[0] + "[", "]" + report.split("]")[1].removesuffix("0.0}")
    return build_tokenizer(
        [*_fixed_text(factory), *actions, *(f", {action}" for action in actions), *held, before, after]
    )


def _fixed_text(factory: type) -> list[str]:
    """What a rollout that goes well holds besides prices, actions and the report: in pieces, each for one token.

    The marks of a turn's start and end stay tokens of their own, and so does the header of the model's own turns: what
    is generated never merges with what was given.
    """
    gap = "\x00"
    conversation: list[Message] = [
        {"role": "user", "content": gap},
        call_message("submit_schedule", actions=[gap]),
        {"role": "tool", "name": "submit_schedule", "content": gap},
        call_message("end_turn"),
        {"role": "tool", "name": "end_turn", "content": "The episode has ended."},
        {"role": "assistant", "content": "Done."},
    ]
    text = build_tokenizer([]).apply_chat_template(conversation, tools=[*tool_methods(factory)], tokenize=False)
    assert isinstance(text, str)
    header = f"{TURN_START}assistant\n"
    pieces = text.replace('"\\u0000"', gap).replace(TURN_END, gap).replace(header, header + gap).split(gap)
    return [piece for piece in pieces if len(piece) > 1]


def build_model(
    tokenizer: PreTrainedTokenizerFast, *, hidden: int = 128, layers: int = 4, seed: int = 0
) -> Qwen3ForCausalLM:
    """An untrained Qwen3 for ``tokenizer``; 600,000 parameters by default."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 32,
        num_key_value_heads=max(1, hidden // 64),
        head_dim=32,
        max_position_embeddings=512,
        # Positions matter here by a few dozen tokens, and wide first weights let attention find its places sooner: with
        # both, the model learns in a third of the steps.
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
        initializer_range=0.06,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    model = Qwen3ForCausalLM(config)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model
