"""Whether the longest conversation fits into what the vLLM server can read.

AsyncGRPO asks for ``max_completion_length`` tokens on every turn, however long the conversation is by then. vLLM
refuses a request that doesn't fit, and TRL's rollout process ends over it after minutes of retries. So the last turn
must fit: the prompt, every turn at its full length, and the tools' answers, whose length nobody knows before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agent_env_trl_async.vllm import Server

if TYPE_CHECKING:
    from agent_env_trl.agent_env import AgentEnv


def problems(server: Server, env: AgentEnv, arguments: Mapping[str, Any]) -> list[str]:
    """At most one line, with the numbers that would do."""
    turn = int(arguments.get("max_completion_length") or 2048)
    iterations = arguments.get("max_tool_calling_iterations")
    if not server.max_model_len:
        return []
    prompt = longest_prompt(server, env)
    room = server.max_model_len - prompt
    fitting = room // turn - 1  # one more turn follows the last tool call
    limit = f"the vLLM server at {server.url} reads {server.max_model_len} tokens (--max-model-len)"
    if fitting < 0:
        return [
            f"the longest prompt of {prompt} tokens and one turn of max_completion_length={turn} don't fit: {limit};"
            f" start it with --max-model-len {prompt + 2 * turn} at least, or shorten the turns"
        ]
    if iterations is None:
        return [
            "max_tool_calling_iterations isn't set, so that a conversation may grow until vLLM refuses it, which ends"
            f" the run: {limit}, the longest prompt has {prompt}, a turn up to max_completion_length={turn}: set"
            f" max_tool_calling_iterations={fitting} at most, less what the tools answer"
        ]
    turns = int(iterations) + 1
    needed = prompt + turns * turn
    if needed <= server.max_model_len:
        return []
    return [
        f"a conversation may have {needed} tokens (the longest prompt's {prompt} and {turns} turns of"
        f" max_completion_length={turn}) and the tools' answers, and {limit}: start it with --max-model-len {needed} at"
        f" least, or set max_tool_calling_iterations={fitting} or max_completion_length={room // turns}"
    ]


def longest_prompt(server: Server, env: AgentEnv) -> int:
    """The tokens of the longest prompt, tools included, as the server counts them; 0 where it doesn't count."""
    from transformers.utils import get_json_schema

    factory = env.factory
    classes = factory if isinstance(factory, dict) else {"": factory}
    longest: dict[str, list[Any]] = {}
    for row in env.dataset:
        name = str(row.get("environment", ""))
        if len(str(row["prompt"])) > len(str(longest.get(name, ""))):
            longest[name] = row["prompt"]
    counts = []
    for name, messages in longest.items():
        environment = classes[name]()  # touches no network
        methods = [getattr(environment, method) for method in sorted(dir(environment)) if not method.startswith("_")]
        tools = [get_json_schema(method) for method in methods if method.__name__ not in ("reset", "get_reward")]
        counts.append(server.tokens(messages, tools) or 0)
    return max(counts, default=0)
