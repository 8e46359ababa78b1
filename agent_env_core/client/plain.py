"""Servers that speak OpenEnv and nothing of ours: their tasks, their tools, and how one of their episodes is played.

Such a server offers tools (actions of the type ``call_tool``), and the Task API, which lists splits and tasks over
HTTP. It keeps no deadlines and has no turns and no verifier: an episode ends when an observation says ``done``, or when
the model ends its turn, and its reward is the sum of what the observations gave. See https://huggingface.co/docs/openenv.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import httpx

from agent_env_core.client.address import PREFIX, Address
from agent_env_core.client.connection import Connection
from agent_env_core.client.loop import run
from agent_env_core.client.messages import (
    Observation,
    Offered,
    Outcome,
    Row,
    ToolAnswer,
    Turn,
    call_message,
    reset_message,
)
from agent_env_core.client.player import ENDED, Episode, Player
from agent_env_core.client.server import Info, Server, Toolset
from agent_env_core.errors import AgentEnvError, EpisodeError

PROMPTS = ("prompt", "question", "instruction")
"""What tasks and first observations call the words that a model is to see."""
SCORE = "reward"
"""The one score of an episode: the sum of its rewards."""


def servers_at(addresses: Iterable[Address], *, deploy_timeout: float) -> list[Server]:
    """The servers of addresses: ours, or any that speak OpenEnv.

    Raises:
        AgentEnvError: Nothing answers at some of them; the message names each.
    """
    servers: list[Server] = []
    silent: list[str] = []
    for address in addresses:
        server = Server(address, deploy_timeout=deploy_timeout)
        try:
            with server._client() as client:
                ours = client.get(f"{PREFIX}/info").status_code != 404
        except AgentEnvError as exc:
            silent.append(str(exc))
        else:
            servers.append(server if ours else PlainServer(address, deploy_timeout=deploy_timeout))
    if silent:
        raise AgentEnvError("\n".join(silent))
    return servers


class PlainServer(Server):
    """The HTTP side of a server that isn't ours."""

    def info(self) -> Info:
        """What the server says of its splits. How many sessions it allows is for it to know.

        Raises:
            AgentEnvError: It has no Task API.
        """
        with self._client() as client:
            names = self._listed(client.get("/list_environments"))
            if not names:
                raise AgentEnvError(f"the server at {self.address.url} serves no environment")
            name = str(names[0])
            splits = {}
            for split in self._listed(client.get(f"/{quote(name)}/splits")):
                told = self._json(client.post(f"/{quote(name)}/num_tasks", json={"split": split["name"]}))
                splits[str(split["name"])] = int(told["num_tasks"])
        return Info(name, quote(name), splits, (SCORE,), None, "", ("tools",), plain=True)

    def _listed(self, response: httpx.Response) -> list[Any]:
        if response.status_code in (404, 501):
            raise AgentEnvError(
                f"the server at {self.address.url} has no {PREFIX}/info, so it isn't one that"
                f" agent_env.openenv.build_app (or agent-env serve) made, and no {response.request.url.path}, so it has"
                " no Task API of OpenEnv's either (list_splits, num_tasks, get_task_range), and nothing to train on"
            )
        told = self._told(response)
        if not isinstance(told, list):
            raise self._stranger(response)
        return told

    def toolsets(self) -> tuple[Toolset, ...]:
        """Its tools, as it lists them after a reset of the first task.

        Raises:
            EpisodeError: The reset failed.
            AgentEnvError: It offers no tools.
        """
        info = self.info()
        split = next((split for split, count in info.splits.items() if count), None)
        if split is None:
            raise AgentEnvError(f"the server at {self.address.url} has no task, so its tools can't be found")
        tools = run(_tools(self.address, Row(split, 0), self._deploy_timeout))
        if not tools:
            raise AgentEnvError(
                f"the server at {self.address.url} offers no tools after a reset: nothing can be played"
            )
        return (Toolset(info.toolsets[0], _digest(tools), tuple(tools), plain=True),)

    def rows(self, info: Info, split: str) -> Sequence[Mapping[str, Any]]:
        """The tasks of a split, as rows of ours; a task without words of its own gets them at its reset.

        Raises:
            ValueError: The server has no such split.
        """
        tasks = super().rows(info, split)
        return [_row(task, split, index) for index, task in enumerate(tasks)]


async def _tools(address: Address, row: Row, seconds: float) -> list[Mapping[str, Any]]:
    link = await Connection.open(address)
    try:
        late = f"the reset that shows the tools took longer than {seconds:g}s"
        await link.ask(reset_message(row), seconds=seconds, phase="deploy", missed=late)
        return await _list(link, seconds)
    finally:
        await link.close()


async def _list(link: Connection, seconds: float) -> list[Mapping[str, Any]]:
    message = {"type": "step", "data": {"type": "list_tools"}}
    told = await link.ask(message, seconds=seconds, phase="deploy", missed="the tools weren't listed in time")
    listed = (told.get("observation") or {}).get("tools") or []
    return [
        {
            "name": str(tool["name"]),
            "description": str(tool.get("description") or ""),
            "input_schema": tool.get("input_schema") or tool.get("inputSchema") or {"type": "object"},
        }
        for tool in listed
    ]


def _digest(tools: Sequence[Mapping[str, Any]]) -> str:
    return hashlib.sha256(json.dumps(list(tools), sort_keys=True).encode()).hexdigest()


def _row(task: Any, split: str, index: int) -> Mapping[str, Any]:
    fields: Mapping[str, Any] = task if isinstance(task, Mapping) else {}
    ident = next((fields[key] for key in ("id", "task_id", "name") if fields.get(key) is not None), f"{split}-{index}")
    return {
        "id": str(ident),
        "index": index,
        "prompt": task if isinstance(task, str) else _words(fields),
        "system_prompt": fields.get("system_prompt"),
        "toolset": "tools",
    }


def _words(fields: Mapping[str, Any]) -> str:
    return next((text for key in PROMPTS if isinstance(text := fields.get(key), str)), "")


class PlainPlayer(Player):
    """Plays episodes on such a server. The deadlines are kept here: a missed one closes the socket."""

    slack = 0.0

    async def _reset(self, episode: Episode) -> None:
        episode.rewards = []
        message = reset_message(
            Row(episode.row.split, episode.row.index), task_id=episode.row.task_id, episode_id=episode.id
        )
        missed = f"the episode wasn't ready within {self._reset_seconds:g}s"
        seen = await self._ask(episode, message, self._reset_seconds, "deploy", missed)
        if seen.done:
            raise EpisodeError("deploy", "the server ended the episode at its reset")
        self._same_tools(episode, await self._offered(episode), "tasks of different tools need servers of their own")
        self._count(episode, seen)
        episode.turn = Turn(_words(seen.fields) or _words(seen.metadata))

    async def _offered(self, episode: Episode) -> Offered:
        assert episode.link is not None
        tools = await _list(episode.link, self._reset_seconds)
        return Offered(_digest(tools), tuple(tool["name"] for tool in tools))

    def _count(self, episode: Episode, seen: Observation) -> None:
        if seen.reward is not None:
            episode.rewards.append(float(seen.reward))
        if seen.done:
            self._finish(episode)

    @staticmethod
    def _finish(episode: Episode) -> None:
        total = sum(episode.rewards) if episode.rewards else None
        problem = "" if episode.rewards else "the server gave no reward in the whole episode"
        episode.outcome = Outcome(total, {} if total is None else {SCORE: total}, problem)

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> ToolAnswer:
        """Calls a tool, and counts the reward that comes with the answer."""
        episode, _ = await self._opened()
        if episode.over:
            return ToolAnswer(ENDED, is_error=True)
        missed = f"{tool} didn't answer within {self._tool_seconds:g}s, and the episode ended"
        try:
            seen = await self._ask(episode, call_message(tool, arguments), self._tool_seconds, "tool", missed)
        except EpisodeError as exc:
            if episode.link is not None and episode.link.lost is None:  # what the environment raised; it goes on
                return ToolAnswer(exc.reason, is_error=True)
            raise self._fail(episode, exc, "tool") from None
        self._count(episode, seen)
        return _answer(seen)

    async def _end_one(self, episode: Episode, response: str | None) -> Turn | None:
        self._finish(episode)
        return None

    async def _leave(self, episode: Episode, reason: str) -> None:
        """Abandons an episode: where the server is busy with it, only the end of the socket ends it."""
        episode.cancel()
        if episode.link is not None and episode.link.busy:
            episode.link.drop(EpisodeError("queue", reason))


def _answer(seen: Observation) -> ToolAnswer:
    """What a tool answered, as text: FastMCP's blocks, a text, or any JSON."""
    if seen.error is not None:
        return ToolAnswer(str(seen.error.get("message", "")), is_error=True)
    result = seen.result
    if isinstance(result, Mapping) and isinstance(blocks := result.get("content"), list):
        texts = [str(block.get("text") or "") for block in blocks if isinstance(block, Mapping)]
        return ToolAnswer("\n".join(texts), bool(result.get("is_error")))
    if "result" not in seen.fields:  # an observation of the environment's own kind
        result = {key: value for key, value in seen.fields.items() if key not in ("metadata", "tool_name", "error")}
    if result is None:
        return ToolAnswer("")
    return ToolAnswer(result if isinstance(result, str) else json.dumps(result))
