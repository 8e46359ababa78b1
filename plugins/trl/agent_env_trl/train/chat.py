"""Whether a model's chat template can play, and whether what it plays has room in the model's context."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx

from agent_env_core.errors import Problem, describe

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

LONGEST = 4
"""How many of the longest prompts are measured: the longest text isn't always the most tokens."""
FIX = "take a model whose template has tools, such as Qwen3, or set one up with trl.clone_chat_template"
MARKS = ("mark of the user", "mark_of_the_tool", "mark of the argument", "mark of the answer")


Tools = Mapping[str, Sequence[Callable[..., Any]]]


@dataclass(frozen=True)
class Model:
    """What is read of a model without its weights.

    Attributes:
        name: Its name or folder.
        tokenizer: Its tokenizer.
        config: Its configuration.
    """

    name: str
    tokenizer: PreTrainedTokenizerBase
    config: PretrainedConfig

    @classmethod
    def read(cls, name: str) -> Model | Problem:
        """Reads a model's tokenizer and configuration, or says why they can't be read."""
        from transformers import AutoConfig, AutoTokenizer

        if name.startswith(("/", "~", "./", "../")) and not os.path.isdir(name):  # else it's asked for on the hub
            return Problem("model", f"there is no folder {name!r}", "give the folder of a model, or a name on the hub")
        if os.path.isdir(name) and not os.path.isfile(os.path.join(name, "config.json")):
            return Problem("model", f"the folder {name!r} has no config.json", "give the folder a model was saved in")
        silence = "" if os.path.isdir(name) else _silence_of_the_hub()
        try:
            return cls(
                name,
                AutoTokenizer.from_pretrained(name, local_files_only=bool(silence)),
                AutoConfig.from_pretrained(name, local_files_only=bool(silence)),
            )
        except Exception as exc:  # hubs and formats fail in as many ways as there are
            if silence:
                fix = "give a model's folder, or the name of a downloaded model with HF_HUB_OFFLINE=1"
                return Problem("model", f"{name!r} is no folder here, nor downloaded, and {silence}", fix)
            fix = "give the name of a model on the hub that this machine reaches, or its folder"
            return Problem("model", f"{name!r} can't be read: {describe(exc).splitlines()[0]}", fix)


def _silence_of_the_hub() -> str:
    """Why the hub can't be asked; empty where it answers, or where HF_HUB_OFFLINE says that it isn't asked.

    The hub's own client tries each file again for most of a minute before it says so.
    """
    from huggingface_hub import constants

    if constants.is_offline_mode():
        return ""
    try:
        httpx.head(constants.ENDPOINT, timeout=10)
    except (httpx.HTTPError, httpx.InvalidURL) as exc:
        return f"the hub at {constants.ENDPOINT} doesn't answer: {describe(exc)}"
    return ""


def template_problems(model: Model) -> list[Problem]:
    """Whether the template shows a conversation with tool calls, and whether TRL can read calls back."""
    if not model.tokenizer.chat_template:
        return [Problem("model", f"{model.name!r} has no chat template", FIX)]
    try:
        shown = _rendered(model.tokenizer)
    except Exception as exc:  # a template is a program
        return [Problem("model", f"the chat template of {model.name!r} can't show tool calls: {describe(exc)}", FIX)]
    absent = [mark for mark in MARKS if mark not in shown]
    if absent:
        return [Problem("model", f"the chat template of {model.name!r} leaves tool calls out, or their answers", FIX)]
    unread = _unread(model.tokenizer)
    return [] if unread is None else [Problem("model", unread, FIX + ", or give its tokenizer a response_template")]


def _rendered(tokenizer: PreTrainedTokenizerBase) -> str:
    user, tool, argument, answer = MARKS
    parameters = {"type": "object", "properties": {"text": {"type": "string", "description": "A text."}}}
    function = {"name": tool, "description": "A tool.", "parameters": parameters}
    call = {"type": "function", "function": {"name": tool, "arguments": {"text": argument}}}
    conversation: Any = [
        {"role": "user", "content": user},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": tool, "content": answer},
    ]
    shown = tokenizer.apply_chat_template(
        conversation, tools=[{"type": "function", "function": function}], tokenize=False
    )
    return str(shown)


def _unread(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Why TRL couldn't read the model's tool calls back, if so: it knows the templates that it ships."""
    if getattr(tokenizer, "response_template", None) or getattr(tokenizer, "response_schema", None):
        return None
    try:
        from trl.chat_template_utils import add_response_schema
    except ImportError:  # a TRL that has moved it asks the same when the trainer is made
        return None
    try:
        add_response_schema(tokenizer)
    except ValueError as exc:
        return f"TRL can't read this model's tool calls back: {describe(exc)}"
    return None


def context_problems(
    model: Model, rows: Sequence[Mapping[str, Any]], tools: Tools,
    arguments: Mapping[str, Any],
) -> Iterator[Problem]:  # fmt: skip
    """Whether the longest prompt leaves room for ``max_completion_length`` tokens.

    Args:
        model: The model.
        rows: Dataset rows.
        tools: The tools of each environment, by the row's ``environment``; the only one's is empty.
        arguments: The trainer's configuration.
    """
    limits = {
        "the model's context": getattr(model.config.get_text_config(), "max_position_embeddings", None),
        "arguments.vllm_max_model_length": arguments.get("vllm_max_model_length")
        if arguments.get("use_vllm")
        else None,
    }
    known = {name: limit for name, limit in limits.items() if isinstance(limit, int)}
    wanted = arguments.get("max_completion_length")
    if not known or not isinstance(wanted, int):
        return
    where, limit = min(known.items(), key=lambda item: item[1])
    longest = max((_tokens(model, row, tools, arguments) for row in _longest(rows)), default=0)
    if longest + wanted > limit:
        yield Problem(
            "arguments.max_completion_length",
            f"is {wanted}, and the longest prompt with its tools has {longest} tokens: {longest + wanted} together, and"
            f" {where} has room for {limit}",
            f"set it to at most {limit - longest}" if longest < limit else "take a model with a longer context",
        )


def _longest(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows with the longest prompts, some of each environment."""
    by_environment: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_environment.setdefault(row.get("environment", ""), []).append(row)
    return [
        row
        for some in by_environment.values()
        for row in sorted(some, key=lambda row: sum(len(message["content"]) for message in row["prompt"]))[-LONGEST:]
    ]


def _tokens(
    model: Model,
    row: Mapping[str, Any],
    tools: Tools,
    arguments: Mapping[str, Any],
) -> int:
    encoded: Any = model.tokenizer.apply_chat_template(
        row["prompt"],
        tools=list(tools[row.get("environment", "")]),
        add_generation_prompt=True,
        return_dict=True,
        **(arguments.get("chat_template_kwargs") or {}),
    )
    return len(encoded["input_ids"])
