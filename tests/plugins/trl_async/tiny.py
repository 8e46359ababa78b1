"""Makes the model that the runs train: small, and already sure how to play the counter, but not how far to count."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import product
from typing import Any

AMOUNTS = range(4)
HEADER, END = "<|im_start|>assistant\n", "<|im_end|>"


def make(folder: str, factory: type, prompts: Sequence[Any], failures: Sequence[str] = ()) -> None:
    """Writes a model and its tokenizer into ``folder``. All that recurs in a rollout is one token each.

    Args:
        folder: Where to.
        factory: The environment class.
        prompts: What the tasks ask.
        failures: What the tools of tasks that can't be played say: the model then ends the conversation.
    """
    from examples.train_gridsim.model import build_model, build_tokenizer, call_message, tool_methods

    tools = tool_methods(factory)
    conversations = [
        [
            *prompt,
            call_message("add", amount=amount),
            {"role": "tool", "name": "add", "content": json.dumps({"value": amount})},
            call_message("end_turn", response="done"),
            {"role": "tool", "name": "end_turn", "content": "The episode has ended."},
            {"role": "assistant", "content": "Done."},
        ]
        for prompt, amount in product(prompts, AMOUNTS)
    ]
    conversations += [
        [
            *prompt,
            call_message("add", amount=amount),
            {"role": "tool", "name": "add", "content": str({"error": failure})},
            {"role": "assistant", "content": "Done."},
        ]
        for prompt, amount, failure in product(prompts, AMOUNTS, failures)
    ]
    plain = build_tokenizer([])
    texts = [plain.apply_chat_template(talk, tools=tools, tokenize=False) for talk in conversations]
    pieces = {piece for text in texts for piece in text.replace(HEADER, END).replace("<|im_start|>", END).split(END)}
    tokenizer = build_tokenizer([HEADER.removeprefix("<|im_start|>"), *sorted(filter(str.strip, pieces))])
    model = build_model(tokenizer, hidden=64)
    _teach(model, tokenizer, [tokenizer(text)["input_ids"] for text in texts])
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _teach(model: Any, tokenizer: Any, conversations: list[list[int]]) -> None:
    """Trains on the assistant's own tokens, the end of each turn included."""
    import torch

    header = tokenizer(HEADER)["input_ids"]
    longest = max(map(len, conversations))
    ids = torch.full((len(conversations), longest), tokenizer.pad_token_id)
    labels = torch.full_like(ids, -100)
    for row, tokens in enumerate(conversations):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        own = False
        for at, token in enumerate(tokens):
            if own:
                labels[row, at] = token
            own = (own and token != tokenizer.eos_token_id) or tokens[at - len(header) + 1 : at + 1] == header
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(100):
        model(input_ids=ids, attention_mask=ids != tokenizer.pad_token_id, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
