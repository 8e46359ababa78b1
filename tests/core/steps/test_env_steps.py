"""Steps that act on envs, over scripted servers and sandboxes: what they read, refuse, and do to a run."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent_env_core.bundle import Artifact, Bundle, Env, EnvImage
from agent_env_core.envs.card import read_card
from agent_env_core.envs.data import Seed
from agent_env_core.envs.deployment import Deployment
from agent_env_core.errors import EpisodeError
from agent_env_core.plugins import plugins
from agent_env_core.sandbox.contract import Capabilities, Endpoint, ExecResult
from agent_env_core.steps.base import TaskStep, declaration
from agent_env_core.steps.context import PlayedAgent, RunContext
from agent_env_core.steps.placed import File, Places

CLOCK = {"uri": "urn:agentenv:clock/v1", "params": {"endpoint": "/sync"}}


class Box:
    """A sandbox that keeps files and takes every command for done."""

    def __init__(self, id: str) -> None:
        self.id = id
        self.files: dict[str, bytes] = {}
        self.commands: list[list[str]] = []
        self.said = ExecResult(0, b"http://127.0.0.1:9\n", b"")

    async def write(self, path: str, data: bytes) -> None:
        self.files[path] = data

    async def read(self, path: str) -> bytes:
        return self.files[path]

    async def exec(self, argv: list[str], **options: Any) -> ExecResult:
        self.commands.append(argv)
        return ExecResult(0, b"/data\n", b"") if argv[0] == "pwd" else self.said

    async def endpoint(self, port: int) -> Endpoint:
        return Endpoint("http://env")


class World:
    """A run with a bundle of two envs, some artifacts, and whatever is deployed by hand."""

    def __init__(self, root: Path) -> None:
        self.asked: list[tuple[str, str, Any]] = []
        self.ended: list[str] = []
        self.boxes: dict[str, Box] = {}
        self.client = httpx.AsyncClient(transport=httpx.MockTransport(self.answer))
        image = EnvImage(ref="docker.io/q")
        self.north, self.south = (Env(n, n, "mcp_server", n, "server", image, root) for n in ("north", "south"))
        both = Env("both", "both", "multi", "both", "gateway", None, root, (self.north, self.south))
        self.bundle = Bundle(
            "b", root, "@local/b", envs={"north": self.north, "south": self.south, "both": both},
            artifacts={a.id: a for a in self.artifacts(root)},
        )  # fmt: skip
        self.run = RunContext("ep", self.bundle, None, None, None)  # type: ignore[arg-type]
        self.run.destroy = self.destroy
        self.run.places = Places(capabilities=Capabilities(isolation="container"))

    @staticmethod
    def artifacts(root: Path) -> list[Artifact]:
        def folder(name: str, kind: str, *files: str, **settings: Any) -> Artifact:
            for file in files:
                (root / name / file).parent.mkdir(parents=True, exist_ok=True)
                (root / name / file).write_text(f'{{"from": "{name}/{file}"}}')
            return Artifact(name, name, kind, root / name, tuple(files), settings=settings)

        return [
            folder("plain", "file", "a.txt"),
            folder("tree", "file_artifact_universe", "a.txt", "d/b.txt", "d/c.txt"),
            folder("image", "docker_image", "Dockerfile"),
            folder("tool", "cli", "x.py"),
            folder("seed", "environment", "s.json", environment_name="north"),
            folder("named", "environment", environment_name="south", file="plain"),
            folder("seeds", "environment_universe", environment_artifacts=("seed", "named")),
        ]

    def answer(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content or b"{}")
        self.asked.append((request.url.host, request.url.path, body))
        if request.url.path != "/agentenv":
            return httpx.Response(200, json={})
        parts = {"parts": [{"kind": "data", "data": {"of": request.url.host}}]}
        result = parts if body["method"] == "data/get" else {}
        return httpx.Response(200, json={"jsonrpc": "2.0", "id": 1, "result": result})

    async def destroy(self, sandbox: Any) -> None:
        self.ended.append(sandbox.id)

    def server(self, env: Env, *, operations: list[str] | None = None, extensions: Any = ()) -> Deployment:
        box = self.boxes[env.name] = Box(env.name)
        capabilities = {"operations": operations, "extensions": list(extensions)}
        card = read_card({"name": env.environment_name, "capabilities": capabilities})
        return Deployment(env, "deploy", box, card, f"http://{env.name}", {}, self.client)  # type: ignore[arg-type]

    def deploy(self, name: str, **options: Any) -> Deployment:
        env = self.bundle.envs[name]
        servers = [self.server(server, **options) for server in env.servers]
        whole = servers[0]
        if env.children:
            whole = Deployment(env, "deploy", whole.sandbox, whole.card, "", {}, self.client, children=tuple(servers))
        self.run.envs[name] = whole
        return whole

    @property
    def data_calls(self) -> list[tuple[str, str]]:
        return [(host, body["method"]) for host, path, body in self.asked if path == "/agentenv"]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path)
    yield made
    await made.client.aclose()


def step(type_: str, **fields: Any) -> TaskStep:
    return plugins().step_type(type_).model_validate({"id": type_, "type": type_, **fields})


A, N = {"artifact_id": "plain"}, {"env_id": "north"}
WHEN = {"type": "action", "tool": "t"}
ACT = {"type": "tool", "tool": "x"}
TIME = {"virtual_time": "2026-03-01T09:00:00Z", "virtual_seconds_per_real_second": 0}


def triggers(*actions: Any, **changes: Any) -> dict[str, Any]:
    """Fields of a step that registers one trigger on ``north``."""
    return {**N, "triggers": [{"id": "t", "when": WHEN, "actions": list(actions), **changes}]}


@pytest.mark.parametrize(
    ("type_", "fields", "said"),
    [
        ("load_artifact", N, "set exactly one of artifact_id, artifacts, urls, artifact_from_step_id, coll"),
        ("load_artifact", {**A, **N, "urls": ["https://x/y"]}, "it sets artifact_id, urls"),
        ("load_artifact", A, "set where to: env_id, agent_name or sandbox_name"),
        ("load_artifact", {**A, **N, "sandbox_name": "vm"}, "set one of env_id, agent_name and sandbox_name"),
        ("load_artifact", {**A, "agent_name": "a", "sandbox_name": "vm"}, "it sets agent_name, sandbox_name"),
        ("load_artifact", {**A, **N, "container_name": "c"}, "container_name='c' needs sandbox_name"),
        ("load_artifact", {**A, **N, "destination_path": "rel"}, "destination_path: string should match pattern"),
        ("load_artifact", {"urls": ["ftp://x"], **N}, "urls.0.url: string should match pattern"),
        ("load_artifact", {"urls": [{"url": "https://x", "filename": "../y"}], **N}, "urls.0: filename '../y' must be"),
        ("load_artifact", {"artifacts": [{"version": 1}], **N}, "artifacts.0.id is missing"),
        ("reset_env", {}, "env_id is missing"),
        ("snapshot_env", {**N, "export_timeout_seconds": 0}, "export_timeout_seconds: input should be greater than 0"),
        ("teardown_sandboxes", {}, "name what to end: agent_names, env_ids or sandbox_names"),
        ("teardown_sandboxes", {"env_ids": ["north"], "fail_task_on_error": True}, "fail_task_on_error can't be true"),
        ("sync_env_clock", {**N, "virtual_time": "noon"}, "virtual_time: 'noon' is no time of RFC 3339"),
        ("sync_env_clock", {**N, **TIME, "virtual_seconds_per_real_second": -1}, "virtual_seconds_per_real_second: in"),
        ("register_env_triggers", triggers(id=None), "triggers.0.id: Input should be a valid string"),
        ("register_env_triggers", triggers(when={"type": "x"}), "triggers.0.when.type: Input should be 'action'"),
        ("register_env_triggers", triggers(when={**WHEN, "where": {"a": 1}}), "triggers.0.when.where.a"),
        ("register_env_triggers", triggers(when={**WHEN, "where": {"a": {}}}), "where: a: must be an object"),
        ("register_env_triggers", triggers({"type": "tool"}), "triggers.0.actions.0: a tool action names its tool"),
        ("register_env_triggers", triggers(barrier={"at": "later"}), "triggers.0.barrier.at"),
        ("register_env_triggers", triggers({**ACT, "args": {"y": "${ args.z }"}}), "args: '${ args.z }' is no placeh"),
        ("register_env_triggers", {**N, "triggers": triggers()["triggers"] * 2}, "triggers.1: the id 't' is used"),
    ],
)  # fmt: skip
def test_what_the_reader_is_told(type_: str, fields: dict[str, Any], said: str):
    check = declaration(type_).check
    assert check is not None
    (found,) = check({"id": "x", "type": type_, **fields})
    assert said in found


@pytest.mark.parametrize(
    ("type_", "fields", "said"),
    [
        ("load_artifact", {**A, **N}, []),
        ("load_artifact", {**A, **N, "artifact_version": 2}, ["artifact_version=2"]),
        ("load_artifact", {"artifacts": [{"id": "plain", "version": 3}], **N}, ["artifacts.version=3"]),
        ("load_artifact", {**A, **N, "agent_name": "a"}, ["agent_name='a' with env_id is for a CLI of the env"]),
        ("snapshot_env", {**N, "include_env_changes": True}, ["include_env_changes=True"]),
        ("register_env_triggers", {**N, "triggers": [], "executor_agent_name": "x"}, ["executor_agent_name='x'"]),
        ("register_env_triggers", triggers(when={"type": "time", "at": "PT1H"}), ["triggers.0.when.type='time'"]),
        ("register_env_triggers", triggers({"type": "nl", "instruction": "x"}), ["triggers.0.actions.0.type='nl'"]),
        ("register_env_triggers", triggers({**ACT, "verify": {}}), ["triggers.0.actions.0.verify={}"]),
    ],
)  # fmt: skip
def test_what_keeps_a_task_from_being_played(type_: str, fields: dict[str, Any], said: list[str]):
    found = step(type_, **fields).refusals(["default-agent"])
    assert len(found) == len(said), found
    assert all(line.startswith(beginning) for line, beginning in zip(found, said, strict=True)), found


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"artifact_id": "seed", "env_id": "north"}, []),
        ({"artifact_id": "seeds", "env_id": "both"}, []),
        ({"artifact_id": "seeds", "agent_name": "a"}, []),
        ({"artifact_id": "snapshot", "env_id": "north"}, []),  # an output of the task
        ({"artifact_id": "seed", "env_id": "south"}, ["artifact_id='seed' seeds a server 'north'; the env"]),
        ({"artifact_id": "seeds", "env_id": "north"}, ["artifact_id='seeds' seeds a server 'south'; the env"]),
        ({"artifact_id": "tool", "agent_name": "a"}, ["artifact_id='tool' is of type cli, which can't be loaded"]),
        ({"artifacts": [{"id": "image"}], "env_id": "north"}, ["artifact_id='image' is of type docker_image"]),
    ],
)  # fmt: skip
def test_artifacts_that_do_not_fit(world: World, fields: dict[str, Any], said: list[str]):
    found = step("load_artifact", **fields).misfits(world.bundle)
    assert len(found) == len(said)
    assert all(line.startswith(beginning) for line, beginning in zip(found, said, strict=True)), found


async def test_a_seed_fills_the_server_it_is_for(world: World):
    world.deploy("both")
    await step("load_artifact", artifact_id="seeds", env_id="both").run(world.run)
    assert world.data_calls == [(n, m) for n in ("north", "south") for m in ("data/reset", "data/add")]
    assert world.boxes["north"].files == {"/data/s.json": b'{"from": "seed/s.json"}'}
    assert world.boxes["south"].files == {"/data/a.txt": b'{"from": "plain/a.txt"}'}


async def test_files_go_into_an_envs_sandbox(world: World):
    world.deploy("north")
    await step("load_artifact", artifact_id="plain", env_id="north").run(world.run)
    await step("load_artifact", artifacts=[{"id": "plain"}], env_id="north", destination_path="/x").run(world.run)
    assert list(world.boxes["north"].files) == ["/tmp/file_artifacts/a.txt", "/x/a.txt"]
    assert world.data_calls == []


async def test_seeds_and_files_go_each_where_they_belong(world: World):
    world.deploy("north", operations=["data/add"])
    await step("load_artifact", artifacts=[{"id": "tree"}, {"id": "seed"}], env_id="north", destination_path="/x").run(
        world.run
    )
    assert world.data_calls == [("north", "data/add")]  # what can't be reset isn't
    assert world.boxes["north"].files["/data/s.json"] == b'{"from": "seed/s.json"}'
    assert [argv[0] for argv in world.boxes["north"].commands] == ["pwd", "sh"]  # the tree travelled as an archive


async def test_a_snapshot_is_loaded_by_its_name_and_by_its_step(world: World):
    world.deploy("both")
    await step("snapshot_env", env_id="both", snapshot_id="t/kept").run(world.run)
    kept = {name: Seed(f"{name}.json", json.dumps({"of": name}).encode()) for name in ("north", "south")}
    assert world.run.snapshots == {"t/kept": kept}
    assert world.run.metadata["env_snapshotted_universes"] == [
        {"step_id": "snapshot_env", "id": "t/kept", "version": 1}
    ]
    for fields in ({"artifact_id": "t/kept"}, {"artifact_from_step_id": "snapshot_env"}):
        world.asked.clear()
        await step("load_artifact", env_id="both", **fields).run(world.run)
        assert world.data_calls == [(n, m) for n in ("north", "south") for m in ("data/reset", "data/add")]
    with pytest.raises(EpisodeError, match="artifact_from_step_id='other': that step made no artifact"):
        await step("load_artifact", env_id="both", artifact_from_step_id="other").run(world.run)


async def test_collected_files_are_loaded(world: World):
    world.deploy("north")
    world.run.collected["collect"] = (File("out.txt", b"x"),)
    for fields in ({"collected_artifacts_step_id": "collect"}, {"artifact_from_step_id": "collect"}):
        await step("load_artifact", env_id="north", **fields).run(world.run)
        assert world.boxes["north"].files.pop("/tmp/file_artifacts/out.txt") == b"x"
    with pytest.raises(EpisodeError, match="collected_artifacts_step_id='x': that step collected no files"):
        await step("load_artifact", env_id="north", collected_artifacts_step_id="x").run(world.run)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({**A, "env_id": "north"}, "the env 'north' isn't deployed"),
        ({**A, "env_id": "both", "env_step_id": "x"}, "env_step_id='x': the env 'both' was deployed by 'deploy'"),
        ({**A, "env_id": "both"}, "files can be put into an env of one server, and 'both' has several: north, south"),
        ({**A, "agent_name": "nobody"}, "the agent 'nobody' isn't deployed"),
        ({**A, "sandbox_name": "vm"}, "there is no sandbox 'vm'"),
    ],
)
async def test_places_that_are_none(world: World, fields: dict[str, Any], said: str):
    world.deploy("both")
    with pytest.raises(EpisodeError, match=said):
        await step("load_artifact", **fields).run(world.run)


async def test_an_env_is_reset_as_far_as_it_can_be(world: World):
    await step("reset_env", env_id="north").run(world.run)
    world.deploy("both")
    await step("reset_env", env_id="both").run(world.run)
    assert world.data_calls == [("north", "data/reset"), ("south", "data/reset")]
    world.deploy("north", operations=["data/get"])
    await step("reset_env", env_id="north").run(world.run)
    reasons = [note["reason"] for note in world.run.metadata["env_resets_skipped"]]
    assert reasons == ["the env 'north' isn't deployed", "the env 'north' has no data/reset"]
    assert step("reset_env", env_id="north").fail_task_on_error is False


async def test_a_snapshot_of_nothing_is_an_error(world: World):
    world.deploy("north", operations=[])
    with pytest.raises(EpisodeError, match="env_id: no server of the env 'north' has data/get"):
        await step("snapshot_env", env_id="north").run(world.run)


async def test_what_is_torn_down_is_no_longer_deployed(world: World):
    both = world.deploy("both")
    world.run.agents["a"] = PlayedAgent("a", (both,))
    ends = step("teardown_sandboxes", env_ids=["both", "south"], agent_names=["a", "b"], sandbox_names=["vm"])
    await ends.run(world.run)
    assert world.ended == ["north", "south"]
    assert (world.run.envs, world.run.agents) == ({}, {})
    skipped = [note["name"] for note in world.run.metadata["teardown_skipped"]]
    assert skipped == ["the agent 'b'", "the env 'south'", "the sandbox 'vm'"]


async def test_a_sandbox_that_does_not_end_is_noted(world: World):
    async def destroy(sandbox: Any) -> None:
        raise ConnectionError("no engine")

    world.deploy("north")
    world.run.destroy = destroy
    await step("teardown_sandboxes", env_ids=["north"]).run(world.run)
    assert world.run.metadata["teardown_skipped"][0]["reason"] == "ConnectionError: no engine"


async def test_a_server_that_follows_the_clock_is_told_where_to_ask(world: World):
    env = world.deploy("north", extensions=[CLOCK])
    await step("sync_env_clock", env_id="north", **TIME).run(world.run)
    assert world.asked == [("north", "/sync", {"env_get_time_url": "http://127.0.0.1:9/clock/time"})]
    assert world.boxes["north"].commands[0][2:] == ["2026-03-01T09:00:00Z", "0.0"]
    assert env.clock is not None
    assert env.clock.now().isoformat() == "2026-03-01T09:00:00+00:00"
    (noted,) = world.run.metadata["clock_configurations"]
    assert (noted["synced"], noted["skipped"]) == (["north"], [])


async def test_a_server_without_a_clock_is_passed_over_or_refused(world: World):
    world.deploy("north")
    await step("sync_env_clock", env_id="north", **TIME).run(world.run)
    assert world.run.metadata["clock_configurations"][0]["skipped"] == ["north"]
    with pytest.raises(EpisodeError, match="doesn't advertise urn:agentenv:clock/v1, and tolerate_missing_sync_time"):
        await step("sync_env_clock", env_id="north", tolerate_missing_sync_time=False, **TIME).run(world.run)


async def test_a_clock_needs_python_in_the_image(world: World):
    world.deploy("north", extensions=[CLOCK])
    world.boxes["north"].said = ExecResult(127, b"", b"python: not found")
    with pytest.raises(
        EpisodeError, match=r"the env 'north' follows a clock, which needs Python 3 .*python: not found"
    ):
        await step("sync_env_clock", env_id="north", **TIME).run(world.run)
    assert [argv[0] for argv in world.boxes["north"].commands] == ["python3", "python"]
