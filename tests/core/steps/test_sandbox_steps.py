"""The step types that act in sandboxes: what they read, what they refuse, which sandboxes they ask for."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from agent_env_core.bundle import Artifact, Bundle
from agent_env_core.errors import EpisodeError, Unsupported
from agent_env_core.plugins import plugins
from agent_env_core.sandbox.contract import Image, SandboxSpec
from agent_env_core.steps.base import TaskStep
from agent_env_core.steps.files import entity_files, inner, put_files, take_files, unpack
from agent_env_core.steps.placed import File, PlacedSandbox, Places, Plan, SandboxOrder
from agent_env_core.steps.placing import IMAGE_FOLDER, IMAGE_VARIABLE, default_image
from agent_env_core.steps.skills import description_of
from agent_env_core.testing.fake import CAPABILITIES, FakeProvider

BOX: dict[str, Any] = {"sandbox_name": "vm", "docker_context_artifact_id": "A"}
TESTS: dict[str, Any] = {"sandbox_name": "vm", "command": "true"}


def step(type_: str, id: str = "x", **fields: Any) -> Any:
    return plugins().step_type(type_).model_validate({"id": id, "type": type_, **fields})


@pytest.mark.parametrize(
    ("type_", "fields", "expected"),
    [
        (
            "deploy_sandbox",
            {"sandbox_name": "vm", "sandbox_mode": "vm", "disk_size_gb": 10, "sandbox_type": "local"},
            [],
        ),
        ("deploy_sandbox", {"sandbox_name": "a/b", "sandbox_mode": "vm"}, ["sandbox_name: "]),
        ("deploy_sandbox", {"sandbox_name": "c", "sandbox_mode": "container"}, ["a container needs image and port"]),
        ("deploy_sandbox", {"sandbox_mode": "pod"}, ["sandbox_name is missing", "sandbox_mode: input should be"]),
        ("run_docker_container", {**BOX, "ports": [80, "8080:80", "5432/tcp"]}, []),
        ("run_docker_container", {**BOX, "ports": ["http"]}, ["ports: 'http' is neither a number nor host:container"]),
        ("run_docker_container", {"sandbox_name": "vm"}, ["set exactly one of docker_context_artifact_id and docker"]),
        (
            "run_docker_container",
            {**BOX, "command_override": "x", "keep_alive_with_base_command": True},
            ["set one of command_override and keep_alive_with_base_command, not both"],
        ),
        ("install_agent", {}, ["sandbox_name is missing"]),
        ("install_agent", {"sandbox_name": "vm", "a2a_port": 8000, "a2a_agent_id": "claude-code"}, []),
        (
            "run_code",
            {"script_artifact_id": "A", "sandbox_name": "vm", "env_id": "E"},
            ["set one of env_id and sandbox"],
        ),
        ("run_code", {"script_artifact_id": "A", "entrypoint": "os.system"}, ["entrypoint: "]),
        ("verify_sandbox", {"criteria": []}, ["criteria: list should have at least 1 item"]),
        (
            "verify_sandbox",
            {"criteria": [{}], "agent_name": "a", "sandbox_name": "s"},
            ["set one of sandbox_name and ag"],
        ),
        ("run_container_unit_tests_verifier", TESTS, []),
        ("run_container_unit_tests_verifier", {**TESTS, "reward_path": "logs/r"}, ["reward_path: "]),
        (
            "run_container_unit_tests_verifier",
            {**TESTS, "fresh": True, "keep_processes": True},
            ["set one of fresh and"],
        ),
        ("run_container_unit_tests_verifier", {**TESTS, "fresh_paths": ["/a"]}, ["fresh_paths needs fresh"]),
        (
            "collect_artifacts",
            {"artifact_paths": ["../x"]},
            ["artifact_paths: '../x' isn't in base_path='/app/artifact'"],
        ),
        ("collect_artifacts", {"artifact_paths": ["/app/artifact/x", "y/"]}, []),
        ("add_skills", {}, ["name what to add"]),
        ("add_skills", {"skills": [{"body": "text"}]}, ["skills.0: a skill with a body needs a name"]),
        (
            "deploy_agent",
            {"skills": [{"name": "s"}]},
            ["skills.0: set exactly one of skill_md, content and object_url"],
        ),
    ],
)
def test_what_the_reader_is_told(reader_says: Any, type_: str, fields: dict[str, Any], expected: list[str]):
    reader_says(type_, fields, expected)


@pytest.mark.parametrize(
    ("type_", "fields", "expected"),
    [
        ("run_docker_container", {**BOX, "privileged": True}, "privileged=True can't be had in a sandbox"),
        ("run_docker_container", {**BOX, "devices": ["/dev/kvm"]}, "devices=['/dev/kvm'] can't be had in a sandbox"),
        ("run_docker_container", {**BOX, "cap_add": ["SYS_ADMIN"]}, "cap_add=['SYS_ADMIN'] can't be had"),
        ("run_docker_container", {**BOX, "volumes": {"/": "/host"}}, "volumes={'/': '/host'} can't be had"),
        ("run_docker_container", {**BOX, "shm_size": "1g"}, "shm_size='1g' can't be had"),
        ("run_docker_container", {**BOX, "build_args": {"A": "1"}}, "build_args={'A': '1'} can't be had"),
        (
            "run_docker_container",
            {**BOX, "network": "host"},
            "network='host': a container has the open network or none",
        ),
        (
            "run_docker_container",
            {"sandbox_name": "vm", "docker_context_url": "https://x"},
            "docker_context_url='https",
        ),
        ("deploy_sandbox", {"sandbox_name": "v", "sandbox_mode": "vm", "boot_mode": "uefi"}, "boot_mode='uefi' isn't"),
        ("deploy_agent", {"enable_docker": True}, "enable_docker=True isn't supported yet"),
        ("deploy_agent", {"skills": [{"name": "s", "object_url": "s3://x"}]}, "skills: 's' has an object_url"),
        ("deploy_agent", {"agent_name": "other"}, "agent_name='other': it is prompted, and only agents"),
        ("install_agent", {"sandbox_name": "vm", "agent_name": "other"}, "agent_name='other': it is prompted"),
        ("run_code", {"script_artifact_id": "A", "script_artifact_version": 2}, "script_artifact_version=2 isn't"),
        ("run_container_unit_tests_verifier", {**TESTS, "user": "bob"}, "user='bob': commands run as the image's own"),
        ("collect_artifacts", {"env_id": "E"}, "env_id='E' isn't supported yet"),
        ("collect_artifacts", {"artifacts_key": "k"}, "artifacts_key='k' isn't supported yet"),
        ("add_skills", {"cli_artifact_ids": ["c"]}, "cli_artifact_ids=['c'] isn't supported yet"),
        ("add_skills", {"skills": [{"object_url": "s3://x"}]}, "skills: 's3://x' is in an object store"),
    ],
)
def test_what_is_refused_by_name(type_: str, fields: dict[str, Any], expected: str):
    (line,) = step(type_, **fields).refusals(["default-agent"])
    assert line.startswith(expected)


def test_a_verifier_of_tests_is_known_by_its_step():
    assert step("run_container_unit_tests_verifier", id="grade", **TESTS).verifier_id == "grade"
    assert step("run_container_unit_tests_verifier", id="grade", **TESTS, verifier_id="v").verifier_id == "v"


# -- which sandboxes


def plan(*steps: TaskStep, workers: frozenset[str] = frozenset(), max_ttl: float | None = None) -> Plan:
    folder = Path("/bundle/artifacts/box")
    artifact = Artifact("A", "box", "file_artifact_universe", folder, ("Dockerfile",))
    return Plan(Bundle("b", Path("/bundle"), "@local/b", artifacts={"A": artifact}), steps, workers, max_ttl)


def test_an_agent_has_a_sandbox_where_it_works_in_one():
    agent = step("deploy_agent", cpu=2, memory_mb=512, env_vars={"A": "1"}, ttl_seconds=60)
    assert agent.orders(plan(agent)) == ()
    (order,) = agent.orders(plan(agent, workers=frozenset({"default-agent"})))
    assert order == SandboxOrder(default_image(), 60, {"A": "1"}, cpu=2, memory_mb=512)
    assert order.spec("ref") == SandboxSpec("ref", 60, env={"A": "1"}, cpu=2, memory_mb=512)
    elsewhere = step("deploy_agent", sandbox_name="vm")
    assert elsewhere.orders(plan(elsewhere, workers=frozenset({"default-agent"}))) == ()


def test_a_container_gets_what_its_machine_was_given():
    machine = step("deploy_sandbox", "vm", sandbox_name="vm", sandbox_mode="vm", memory_mb=4096, env_vars={"A": "1"})
    box = step("run_docker_container", "box", **BOX, env_vars={"B": "2"}, ports=["8080:80"], network="none")
    tests = step("run_container_unit_tests_verifier", "t", **TESTS, container_name="task-container")
    (order,) = box.orders(plan(machine, box, tests))
    image = Image(context=Path("/bundle/artifacts/box"))
    assert order == SandboxOrder(image, 7200, {"A": "1", "B": "2"}, (80,), None, 4096, "none")
    assert machine.orders(plan(machine, box, tests)) == ()  # nothing acts in the machine itself
    on_it = step("run_container_unit_tests_verifier", "u", **TESTS)
    assert len(machine.orders(plan(machine, box, on_it))) == 1


def test_a_container_of_a_given_image():
    asked = {"sandbox_name": "c", "sandbox_mode": "container", "image": "docker.io/library/nginx:1", "port": 80}
    made = step("deploy_sandbox", "c", **asked)
    (order,) = made.orders(plan(made, max_ttl=3600))
    assert (order.image, order.ports, order.ttl) == (Image(ref="docker.io/library/nginx:1"), (80,), 3600)


@pytest.mark.parametrize(
    ("policy", "network"),
    [(None, "open"), ("open", "open"), ("none", "none"), (["a.org", "b.org"], ("a.org", "b.org"))],
)
def test_network_policies(policy: Any, network: Any):
    made = step("deploy_sandbox", sandbox_name="vm", sandbox_mode="vm", network_policy=policy)
    assert made.asked(None).network == network


@pytest.mark.parametrize("policy", [{"egress": []}, "some", [], [1]])
def test_a_network_policy_that_isnt_understood_is_refused(policy: Any):
    made = step("deploy_sandbox", sandbox_name="vm", sandbox_mode="vm", network_policy=policy)
    with pytest.raises(Unsupported, match="it may be 'open', 'none', or a list of hosts"):
        made.asked(None)


def test_the_image_of_agents_can_be_another(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    assert default_image() == Image(context=IMAGE_FOLDER)
    monkeypatch.setenv(IMAGE_VARIABLE, "ghcr.io/me/tools:1")
    assert default_image() == Image(ref="ghcr.io/me/tools:1")
    monkeypatch.setenv(IMAGE_VARIABLE, str(tmp_path))
    assert default_image() == Image(context=tmp_path)


async def test_a_machine_is_made_when_something_acts_in_it():
    provider = FakeProvider()

    async def create(order: SandboxOrder) -> Any:
        return await provider.create(order.spec(await provider.prepare(order.image)))

    places = Places(create, capabilities=provider.capabilities)
    places.machines["vm"] = SandboxOrder(Image(ref="docker.io/x"), 60)
    assert provider.created == 0
    first, second = await asyncio.gather(places.find("vm"), places.find("vm"))
    assert first is second
    assert provider.created == 1
    with pytest.raises(
        EpisodeError, match=r"there is no sandbox 'vm/c' \(there are: vm\): a run_docker_container step"
    ):
        await places.find("vm", "c")
    with pytest.raises(EpisodeError, match=r"there is no sandbox 'x' \(there are: vm\): a deploy_sandbox step must"):
        await places.find("x")
    with pytest.raises(EpisodeError, match="there is already a sandbox 'vm'"):
        await places.make("vm", "container", places.machines["vm"])


# -- files


def zipped(**files: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"files": [{"path": "a/b", "content": "x"}]}', {"a/b": b"x"}),
        (b'{"files": [{"path": "/a", "content": "AAE=", "encoding": "base64"}]}', {"a": b"\0\1"}),
        (b'{"files": [{"path": "a", "content": {"n": 1}}]}', {"a": b'{"n": 1}'}),
        (b'{"users": []}', {"seed": b'{"users": []}'}),
        (b"\xff\x00", {"seed": b"\xff\x00"}),
        (zipped(**{"root/a/b": "x", "meta": "y"}), {"a/b": b"x"}),
    ],
)
def test_seeds_as_files(data: bytes, expected: dict[str, bytes]):
    assert {file.path: file.data for file in unpack(File("seed", data))} == expected


@pytest.mark.parametrize("path", ["..", "../x", "a/../../x", ".", "a\0b"])
def test_no_path_leads_out_of_its_folder(path: str):
    with pytest.raises(EpisodeError, match="leads out of its folder"):
        inner(path, "the seed")
    if path != ".":
        seed = json.dumps({"files": [{"path": path, "content": ""}]}).encode()
        with pytest.raises(EpisodeError, match="leads out of its folder"):
            unpack(File("seed", seed))


def test_what_is_no_files_for_a_sandbox():
    bundle = Bundle("b", Path("/b"), "@local/b", artifacts={"I": Artifact("I", "i", "docker_image", Path("/b/i"), ())})
    with pytest.raises(EpisodeError, match="the artifact 'i' is a docker_image, which is no files for a sandbox"):
        entity_files(bundle, "I")
    with pytest.raises(EpisodeError, match="there is no artifact 'J' in the bundle 'b'"):
        entity_files(bundle, "J")


async def placed_with(archive: bytes) -> PlacedSandbox:
    """A sandbox in which files are packed as an agent likes."""

    async def pack(box: Any, argv: Any, stdin: bytes) -> Any:
        from agent_env_core.sandbox.contract import ExecResult

        return ExecResult(0, archive, b"")

    provider = FakeProvider(programs={"sh": pack})
    order = SandboxOrder(Image(ref="docker.io/x"), 60)
    sandbox = await provider.create(order.spec(await provider.prepare(order.image)))
    return PlacedSandbox("vm", "vm", sandbox, order, CAPABILITIES)


def packed(*entries: tuple[str, bytes, bytes], link: str = "") -> bytes:
    """An archive of entries: name, kind, content."""
    tar = b""
    for name, kind, content in entries:
        header = tarfile.TarInfo(name)
        header.type, header.size, header.linkname = kind, len(content), link
        tar += header.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % 512)
    return gzip.compress(tar)


async def test_files_that_come_cut_off_are_not_taken_for_whole():
    whole = packed(("a", b"0", b"text"))
    assert [file.data for file in await take_files(await placed_with(whole), "/app")] == [b"text"]
    for cut in (b"\x1f\x8b\x08\x00half", whole[:-9]):
        with pytest.raises(EpisodeError, match="/app of 'vm' can't be taken"):
            await take_files(await placed_with(cut), "/app")
    placed = await placed_with(whole)
    with pytest.raises(EpisodeError, match="destination_path='app' must be an absolute path"):
        await put_files(placed, "app", [], "x")


@pytest.mark.parametrize(
    ("archive", "why"),
    [
        (packed(("a", b"0", bytes(3000))), "more than"),
        (packed(("a", b"0", bytes(900)), ("b", b"1", b""), ("c", b"1", b""), link="a"), "more than"),
        (packed(*[("a", b"0", b"")] * 5), "more than"),
        (packed(("x", b"x", b"1" * 600), ("a", b"0", b"")), "a header of 600 bytes"),
        (packed(("x", b"x", b"22 GNU.sparse.map=a,b\n"), ("a", b"0", b"")), "invalid literal"),
        (packed(*[("x", b"x", b"6 a=b\n")] * 1500), "recursion"),
    ],
    ids=["much", "hard links", "many", "long header", "nonsense", "headers of headers"],
)
async def test_an_archive_that_an_agent_made_takes_no_more_than_another(archive: bytes, why: str, monkeypatch: Any):
    for name, value in {"MAX_BYTES": 2560, "MAX_FILES": 4, "MAX_HEADER": 512}.items():
        monkeypatch.setattr(f"agent_env_core.steps.files.{name}", value if why != "recursion" else 1 << 30)
    with pytest.raises(EpisodeError, match=f"/app.* {why}"):
        await take_files(await placed_with(archive), "/app")


@pytest.mark.parametrize(
    ("text", "description"),
    [
        ("---\nname: a\ndescription: What it does.\n---\nText", "What it does."),
        ('---\ndescription: "quoted"\n---\n', "quoted"),
        ("No front matter\ndescription: x", ""),
        ("", ""),
    ],
)
def test_what_a_skill_is_for(text: str, description: str):
    assert description_of(text) == description
