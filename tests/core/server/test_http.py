"""The HTTP side: OpenEnv's Task API and descriptions, our own routes, and who is let in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from agent_env_core.client import Address, Server
from agent_env_core.errors import AgentEnvError


def ask(server: Any, method: str, path: str, **keywords: Any) -> httpx.Response:
    return httpx.request(method, server.url + path, trust_env=False, **keywords)


def test_task_api(counter: Any) -> None:
    assert ask(counter, "GET", "/list_environments").json() == ["counter"]
    assert ask(counter, "GET", "/counter/splits").json() == [
        {"name": "all", "type": "validation"},
        {"name": "eval", "type": "validation"},
        {"name": "train", "type": "train"},
    ]
    assert ask(counter, "POST", "/counter/num_tasks", json={"split": "train"}).json() == {"num_tasks": 2}
    task = ask(counter, "POST", "/counter/task", json={"split": "train", "index": 0}).json()["task"]
    assert task["id"].endswith("/counter/one-turn")
    assert task == {
        "id": task["id"],
        "name": "one-turn",
        "index": 0,
        "prompt": "Bring the counter to 3.",
        "system_prompt": "You operate a counter.",
        "agent": "agent",
        "toolset": "counter",
    } | {"agent": task["agent"]}
    whole = ask(counter, "POST", "/counter/tasks", json={"split": "all"}).json()
    assert whole["env_name"] == "counter"
    assert [row["index"] for row in whole["tasks"]] == list(range(10))
    part = ask(counter, "POST", "/counter/task_range", json={"split": "all", "start": 2, "stop": 4}).json()
    assert part["tasks"] == whole["tasks"][2:4]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/counter/task", {"split": "train", "index": 2}),
        ("/counter/task", {"split": "train", "index": -1}),
        ("/counter/task", {"split": "nowhere", "index": 0}),
        ("/counter/tasks", {"split": "nowhere"}),
        ("/counter/num_tasks", {"split": "nowhere"}),
    ],
)
def test_unknown_tasks_are_answered_400(counter: Any, path: str, body: dict[str, Any]) -> None:
    answer = ask(counter, "POST", path, json=body)
    assert (answer.status_code, answer.json()) == (400, {"detail": "Invalid task index"})


def test_openenvs_own_descriptions(counter: Any) -> None:
    assert ask(counter, "GET", "/health").json() == {"status": "healthy"}
    assert ask(counter, "GET", "/metadata").json()["name"] == "counter"
    schema = ask(counter, "GET", "/schema").json()
    assert schema["action"]["title"] == "CallToolAction"
    assert {"episode_id", "step_count", "task_id", "split", "index", "turn", "done"} <= set(
        schema["state"]["properties"]
    )
    opened = ask(counter, "POST", "/reset", json={"split": "train", "index": 0}).json()
    assert opened["metadata"]["task"]["name"] == "one-turn"


def test_info(counter: Any) -> None:
    info = Server(Address.of(counter.url)).info()
    assert info.name == info.env_name == "counter"
    assert info.splits == {"all": 10, "eval": 3, "train": 2}
    assert info.score_ids == ("grade",)
    assert info.max_concurrent_envs == 8
    assert info.sandbox == "process"
    assert set(info.toolsets) == {"counter", "counter-2", "counter-auditor"}


def test_toolsets_are_read_once_and_told_apart(counter: Any) -> None:
    server = Server(Address.of(counter.url))
    toolsets = {toolset.name: toolset for toolset in server.toolsets()}
    names = {name: {tool["name"] for tool in toolset.tools} for name, toolset in toolsets.items()}
    assert names["counter"] - names["counter-2"] == {"peek"}
    assert names["counter-2"] - names["counter"] == {"hint"}
    assert len({toolset.digest for toolset in toolsets.values()}) == 3 - (
        toolsets["counter"].digest == toolsets["counter-auditor"].digest
    )
    assert "end_turn" not in names["counter"]
    with counter.session() as session:
        metadata = session.reset(split="train", index=0).observation["metadata"]
    assert metadata["turn"]["tools"]["digest"] == toolsets["counter"].digest
    assert server.toolsets() == tuple(toolsets.values())


def test_rows_come_in_pages(counter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_env_core.client.server.PAGE", 3)
    server = Server(Address.of(counter.url))
    rows = server.rows(server.info(), "all")
    assert [row["index"] for row in rows] == list(range(10))
    with pytest.raises(ValueError, match="has no split 'nowhere'; it has: all, eval, train"):
        server.rows(server.info(), "nowhere")


def test_a_token_is_asked_for_where_there_is_one(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_ENV_TOKEN", "open sesame")
    server = serve()
    monkeypatch.delenv("AGENT_ENV_TOKEN")
    socket = f"ws{server.url.removeprefix('http')}/ws"
    assert ask(server, "GET", "/health").status_code == 200
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "open sesame"}):
        refused = ask(server, "GET", "/agent-env/v1/info", headers=headers)
        assert refused.status_code == 401
        assert "sesame" not in refused.text
        with pytest.raises(InvalidStatus), connect(socket, additional_headers=headers, proxy=None):
            pass
    with pytest.raises(AgentEnvError, match=r"asks for a token: pass token=, or set AGENT_ENV_TOKEN"):
        Server(Address.of(server.url)).info()
    with pytest.raises(AgentEnvError, match="refused the token it was given"):
        Server(Address.of(server.url, "wrong")).info()
    assert Server(Address.of(server.url, "open sesame")).info().name == "counter"
    with server.session(headers={"Authorization": "Bearer open sesame"}) as session:
        assert session.reset(split="train", index=0).observation["metadata"]["prompt"]


def test_pages_of_other_origins_are_refused(counter: Any) -> None:
    socket = f"ws{counter.url.removeprefix('http')}/ws"
    foreign = {"Origin": "http://evil.example"}
    assert ask(counter, "POST", "/reset", headers=foreign, json={}).status_code == 403
    with pytest.raises(InvalidStatus) as refusal, connect(socket, additional_headers=foreign, proxy=None):
        pass
    assert refusal.value.response.status_code == 403
    assert ask(counter, "GET", "/health", headers={"Origin": counter.url}).status_code == 200


def test_several_bundles_are_served_by_split(serve: Any, counter_bundle: Path, changed_counter: Any) -> None:
    other = changed_counter(name="other")
    server = serve({"train": counter_bundle, "test": other})
    info = Server(Address.of(server.url)).info()
    assert info.name == "counter+other"
    assert info.splits == {"train": 10, "test": 10}
    with server.session() as session:
        for split, bundle in (("train", "counter"), ("test", "other")):
            task = session.reset(split=split, index=0).observation["metadata"]["task"]
            assert f"/{bundle}/" in task["id"]
