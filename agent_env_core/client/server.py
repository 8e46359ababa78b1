"""What a server tells over HTTP: what it serves, the tools of each toolset, the rows of its tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from agent_env_core.client.address import PREFIX, Address
from agent_env_core.client.messages import Offered
from agent_env_core.errors import AgentEnvError, EpisodeError, describe

API = 1
"""The version of our own routes that this client speaks."""
PAGE = 200
"""Rows a request asks for. The server answers on the loop that also serves sessions, so pages are kept small."""
SECONDS = 60.0


@dataclass(frozen=True)
class Info:
    """What a server serves.

    Attributes:
        name: The bundle's name, or several joined with ``+``.
        env_name: OpenEnv's name for it, which its task routes carry.
        splits: Split to number of tasks.
        score_ids: Steps that score every served task.
        max_concurrent_envs: Sessions it allows at once; None where it doesn't say.
        sandbox: Where episodes are deployed.
        toolsets: Names of the toolsets, sorted.
        plain: Whether it speaks OpenEnv alone, and nothing of ours.
    """

    name: str
    env_name: str
    splits: Mapping[str, int]
    score_ids: tuple[str, ...]
    max_concurrent_envs: int | None
    sandbox: str
    toolsets: tuple[str, ...]
    plain: bool = False


@dataclass(frozen=True)
class Toolset:
    """The tools that tasks of one kind offer on their first turn.

    Attributes:
        name: A name for people, unique on its server.
        digest: Equal for equal tools; a turn carries the same.
        tools: As MCP describes them: ``name``, ``description``, ``input_schema``.
        plain: Whether the server that offers them speaks OpenEnv alone.
    """

    name: str
    digest: str
    tools: tuple[Mapping[str, Any], ...] = field(hash=False)
    plain: bool = False

    @property
    def offered(self) -> Offered:
        """What a turn of such a task says of its tools."""
        return Offered(self.digest, tuple(str(tool["name"]) for tool in self.tools))


class Server:
    """A server's HTTP side, for synchronous callers.

    Args:
        address: The server.
        deploy_timeout: Seconds to wait for what the server has to deploy an env for.
    """

    def __init__(self, address: Address, *, deploy_timeout: float = 600.0) -> None:
        self.address = address
        self._deploy_timeout = deploy_timeout

    def info(self) -> Info:
        """What the server serves.

        Raises:
            AgentEnvError: Nothing answers, the token is refused, or it's no agent-env server of our version.
        """
        with self._client() as client:
            told = self._json(client.get(f"{PREFIX}/info"))
        if told.get("api") != API:
            raise AgentEnvError(
                f"the server at {self.address.url} speaks version {told.get('api')} of our routes, and this client"
                f" version {API}: install the same agentenv-framework on both sides (there: {told.get('version')})"
            )
        return Info(
            told["name"], told["env_name"], dict(told["splits"]), tuple(told["score_ids"]),
            int(told["max_concurrent_envs"]), told["sandbox"], tuple(told["toolsets"]),
        )  # fmt: skip

    def toolsets(self) -> tuple[Toolset, ...]:
        """The toolsets of every served task, by name. The server deploys each once to find out, and remembers.

        Raises:
            EpisodeError: An env didn't deploy; the message names the toolset.
            AgentEnvError: As for :meth:`info`.
        """
        with self._client(timeout=self._deploy_timeout + SECONDS) as client:
            told = self._json(client.get(f"{PREFIX}/toolsets", params={"timeout": self._deploy_timeout}))
        for entry in told["toolsets"]:
            if entry.get("error"):
                reason = f"the tools of toolset {entry['name']!r} couldn't be read: {entry['error']}"
                raise EpisodeError("deploy", reason, retryable=bool(entry.get("retryable")))
        return tuple(Toolset(entry["name"], entry["digest"], tuple(entry["tools"])) for entry in told["toolsets"])

    def rows(self, info: Info, split: str) -> Sequence[Mapping[str, Any]]:
        """The task rows of a split, in order: ``id, name, index, prompt, system_prompt, agent, toolset``.

        Raises:
            ValueError: The server has no such split; the message lists those it has.
            AgentEnvError: As for :meth:`info`.
        """
        if split not in info.splits:
            raise ValueError(
                f"the server at {self.address.url} has no split {split!r}; it has: {', '.join(info.splits) or 'none'}"
            )
        rows: list[Mapping[str, Any]] = []
        with self._client() as client:
            for start in range(0, info.splits[split], PAGE):
                body = {"split": split, "start": start, "stop": start + PAGE}
                rows += self._json(client.post(f"/{info.env_name}/task_range", json=body))["tasks"]
        return rows

    @contextmanager
    def _client(self, timeout: float = SECONDS) -> Iterator[httpx.Client]:
        try:
            with httpx.Client(
                base_url=self.address.url,
                headers=dict(self.address.headers),
                timeout=httpx.Timeout(timeout, connect=10),
                trust_env=not self.address.loopback,
            ) as client:
                yield client
        except httpx.ConnectError as exc:
            raise AgentEnvError(
                f"nothing answers at {self.address.url} ({describe(exc)}): start the server there, e.g. with"
                " agent-env serve BUNDLE, or mend the address"
            ) from None
        except httpx.HTTPError as exc:
            raise AgentEnvError(f"the server at {self.address.url} didn't answer: {describe(exc)}") from None

    def _json(self, response: httpx.Response) -> dict[str, Any]:
        told = self._told(response)
        if not isinstance(told, dict):
            raise self._stranger(response)
        return told

    def _told(self, response: httpx.Response) -> Any:
        """The JSON of a good answer; None where it isn't JSON."""
        url, status = self.address.url, response.status_code
        if status in (401, 403):
            given = "refused the token it was given" if self.address.token else "asks for a token"
            raise AgentEnvError(f"the server at {url} {given}: pass token=, or set AGENT_ENV_TOKEN here and there")
        if status == 404:
            raise self._stranger(response)
        if status != 200:
            raise AgentEnvError(f"the server at {url} answered HTTP {status} on {response.request.url.path}")
        try:
            return response.json()
        except ValueError:
            return None

    def _stranger(self, response: httpx.Response) -> AgentEnvError:
        return AgentEnvError(
            f"the server at {self.address.url} has no {response.request.url.path}: it isn't one that"
            " agent_env.openenv.build_app (or agent-env serve) made"
        )
