"""Several hosts: which one a session goes to, and what they must agree on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agent_env_core.client import Address, Hosts, Info, Session, Toolset
from agent_env_core.client.connection import held
from agent_env_core.errors import AgentEnvError


async def play(peer: Any) -> None:
    """An episode for each reset."""
    await peer.welcome()
    while True:
        await peer.open_turn()
        await peer.score(1.0)


def test_a_host_that_does_not_answer_is_passed_over(scripted: Any) -> None:
    gone, there = scripted(play), scripted(play)
    gone.stop()
    session = Session(Address.of(gone.url), Address.of(there.url))
    session.reset("train", 0)
    assert session.outcome().reward == 1.0
    assert (held[gone.url], held[there.url]) == (0, 1)
    session.close()
    assert held[there.url] == 0


def test_the_sessions_of_a_host_that_went_away_go_on_elsewhere(scripted: Any) -> None:
    first, second = scripted(play), scripted(play)
    session = Session(Address.of(first.url), Address.of(second.url))
    session.reset("train", 0)
    assert session.outcome().reward == 1.0
    first.stop()
    session.reset("train", 1)
    assert session.outcome().reward == 1.0
    assert [message["type"] for message in second.heard[:2]] == ["state", "reset"]
    assert held[first.url] == 0
    session.close()


@pytest.mark.parametrize(("limits", "expected"), [((4, 4), [3, 3]), ((8, 4), [4, 2]), ((None, None), [3, 3])])
def test_sessions_are_spread_by_the_limits(scripted: Any, limits: tuple[int | None, ...], expected: list[int]) -> None:
    servers = [scripted(play) for _ in limits]
    hosts = [Address.of(server.url, limit=limit) for server, limit in zip(servers, limits, strict=True)]
    sessions = [Session(*hosts) for _ in range(6)]
    for session in sessions:
        session.reset("train", 0)
    assert [server.connections for server in servers] == expected
    for session in sessions:
        session.close()


class Serving:
    """What a ``Server`` tells, without one."""

    def __init__(self, url: str, **differently: Any) -> None:
        self.address = Address.of(url)
        self._row = {"id": "a", "index": 0, "prompt": "Go.", "system_prompt": None, "toolset": "quay"} | differently
        self._tools = differently.get("tools", [{"name": "look"}])
        self._info = Info("quay-v1", "quay", {"all": 1}, ("grade",), differently.get("limit", 4), "docker", ("quay",))

    def info(self) -> Info:
        return self._info

    def rows(self, info: Info, split: str) -> list[Any]:
        return [self._row]

    def toolsets(self) -> tuple[Toolset, ...]:
        return (Toolset("quay", repr(self._tools), tuple(self._tools)),)


def pair(**differently: Any) -> Hosts:
    return Hosts([Serving("http://a:1"), Serving("http://b:1", **differently)])  # type: ignore[list-item]


def test_hosts_that_agree() -> None:
    info, hosts = pair(limit=2).info()
    assert (info.max_concurrent_envs, [(host.url, host.limit) for host in hosts]) == (
        6, [("http://a:1", 4), ("http://b:1", 2)],
    )  # fmt: skip
    assert len(pair().rows(info, "all")) == len(pair().toolsets()) == 1
    assert pair(limit=None).info()[0].max_concurrent_envs is None


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("name", "dock-v1", "the bundle: 'quay-v1' here, 'dock-v1' there"),
        ("splits", {"all": 2}, "the splits: {'all': 1} here, {'all': 2} there"),
        ("score_ids", ("style",), r"the scores: \('grade',\) here, \('style',\) there"),
        ("toolsets", ("dock",), r"the toolsets: \('quay',\) here, \('dock',\) there"),
        ("plain", True, "the protocol: 'agent-env' here, 'OpenEnv alone' there"),
    ],
)
def test_what_servers_serve_differently_is_named(field: str, value: Any, told: str) -> None:
    one, other = Serving("http://a:1"), Serving("http://b:1")
    other._info = replace(other._info, **{field: value})
    with pytest.raises(AgentEnvError, match=f"http://a:1 and http://b:1 don't serve the same: {told}; serve the same"):
        Hosts([one, other]).info()  # type: ignore[list-item]


def test_the_first_row_that_differs_is_named() -> None:
    with pytest.raises(AgentEnvError, match=r"the prompt of row 0 of the split 'all': 'Go\.' here, 'Stay\.' there"):
        pair(prompt="Stay.").rows(pair().info()[0], "all")


@pytest.mark.parametrize(
    ("tools", "told"),
    [
        ([{"name": "look"}, {"name": "jump"}], r"the tools of 'quay': \['look'\] here, \['look', 'jump'\] there"),
        ([{"name": "look", "description": "Looks."}], "the descriptions or schemas of the tools of 'quay': "),
    ],
)
def test_tools_that_differ_are_named(tools: list[Any], told: str) -> None:
    with pytest.raises(AgentEnvError, match=told):
        pair(tools=tools).toolsets()
