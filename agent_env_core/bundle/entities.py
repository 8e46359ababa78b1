"""Envs and agents: folders that become container images."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from agent_env_core.bundle.config import Table
from agent_env_core.bundle.holding import Holding, Reading
from agent_env_core.bundle.model import Agent, Env, EnvImage
from agent_env_core.bundle.names import listed, quote
from agent_env_core.bundle.references import Lost, Target
from agent_env_core.bundle.source_scan import card_names

DOCKERFILE = "Dockerfile"
ENV_TYPE = "mcp_server"
MULTI_TYPE = "multi"
AGENT_TYPE = "a2a_agent"
ENV_KEYS = ("type", "id", "image", "environment_name", "env_provider_type")
MULTI_KEYS = ("type", "id", "mcp_server_envs", "website_envs", "name", "env_provider_type")
AGENT_KEYS = ("type", "id", "image", "default_env_vars", "metadata")
METADATA_KEYS = ("default_model", "min_disk_size_gb", "takes_credentials")
#: Kinds of env that the format knows and that can't be deployed here.
OTHER_ENV_TYPES = frozenset({"website", "computer_driver"})
CONFIG_ONLY_TYPES = frozenset({"gateway_server", "service_db"})
PROVIDER_TYPES = ("gateway", "server")
#: Names that a gateway uses for its own servers.
GATEWAY_NAMES = frozenset({"gateway", "servicedb", "pgweb", "db-mcp", "website-browser"})
_REGISTRY = re.compile(r"(?:localhost|[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+)(?::\d+)?|[A-Za-z0-9-]+:\d+", re.ASCII)
_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_PART}(?:/{_PART})*(?::\w[\w.-]{{0,127}})?(?:@sha256:[0-9a-f]{{64}})?", re.ASCII)
_IMAGE_FORMS = (frozenset({"dockerfile"}), frozenset({"ref"}), frozenset({"artifact", "version"}))


def image_ref_fault(ref: str) -> str:
    """Why a text can't be the ``ref`` of an image, or an empty text."""
    registry, _, rest = ref.partition("/")
    if not rest or not _REGISTRY.fullmatch(registry):
        return "doesn't begin with its registry"
    return "" if _REPOSITORY.fullmatch(rest) else "isn't an image reference"


def read_ref(table: Table, key: str, ref: Any) -> str | None:
    """A registry reference; None with a problem noted."""
    fault = image_ref_fault(ref) if isinstance(ref, str) else "isn't a text"
    if not fault:
        return str(ref)
    table.fault(key, f"{quote(ref)} {fault}", "spell it in full, e.g. docker.io/library/python:3.12-slim")
    return None


def read_image(reading: Reading, held: Holding) -> EnvImage | None:
    """The image of an env or agent, from the ``image`` key of its toml; None with a problem noted."""
    value = held.table.data.get("image")
    if value is None:
        return _default(reading, held)
    keys = {"artifact"} if isinstance(value, str) else set(value) if isinstance(value, dict) else set()
    if not keys or keys == {"version"} or not any(keys <= form for form in _IMAGE_FORMS):
        fix = 'write { dockerfile = "…" }, { ref = "…" }, { artifact = "…" }, or leave it out to build Dockerfile'
        held.table.fault("image", f"can't be {quote(value)}", fix)
        return None
    if "dockerfile" in keys:
        return _built(held, value["dockerfile"])
    if "ref" in keys:
        ref = read_ref(held.table, "image.ref", value["ref"])
        return EnvImage(ref=ref) if ref else None
    found = reading.find(held.table, "image", value, "artifact", "docker_image")
    artifact = reading.artifact(found.id) if found else None
    if artifact is None:
        return None
    ref = artifact.settings.get("ref")
    return EnvImage(ref=ref) if ref else EnvImage(context=artifact.path, dockerfile=DOCKERFILE)


def _default(reading: Reading, held: Holding) -> EnvImage | None:
    if DOCKERFILE in held.files:
        return EnvImage(context=Path(held.folder.path), dockerfile=DOCKERFILE)
    reading.problems.add(held.place, f"has no {DOCKERFILE}", f"add one, or set image in {held.table.place}")
    return None


def _built(held: Holding, dockerfile: Any) -> EnvImage | None:
    path = "/".join(part for part in dockerfile.split("/") if part != ".") if isinstance(dockerfile, str) else None
    if path in held.files:
        return EnvImage(context=Path(held.folder.path), dockerfile=path)
    message = f"must be a file of this folder, not {quote(dockerfile)}"
    held.table.fault("image.dockerfile", message, f"its files: {listed(held.files, limit=6)}")
    return None


def is_multi(held: Holding) -> bool:
    """Whether an env's folder is that of one which is made of others; those are read first."""
    return held.table.data.get("type") == MULTI_TYPE


def read_env(reading: Reading, held: Holding) -> Env | None:
    """An env from its folder; None with problems noted."""
    table = held.table
    kind = table.text("type") or ENV_TYPE
    if kind == MULTI_TYPE:
        return _multi(reading, held)
    if kind in OTHER_ENV_TYPES:
        _unsupported(reading, held, f"type {kind!r}", f"is of type {kind}")
        return None
    if kind != ENV_TYPE:
        fault = "can't stand in a bundle" if kind in CONFIG_ONLY_TYPES else "is unknown"
        table.fault("type", f"{quote(kind)} {fault}", f"use {ENV_TYPE} or {MULTI_TYPE}")
        return None
    table.known(ENV_KEYS)
    image = read_image(reading, held)
    provider = _provider(table)
    name = table.text("environment_name")
    if "environment_name" not in table.data and image is not None:
        name = _scan(reading, held, image)
    if name in GATEWAY_NAMES and provider == "gateway":
        table.fault("environment_name", f"{name!r} is a name of the gateway's own", "choose another")
    if image is None or name is None:
        return None
    return Env(held.id, held.name, ENV_TYPE, name, provider, image, Path(held.folder.path))


def _provider(table: Table) -> str:
    provider = table.text("env_provider_type") or PROVIDER_TYPES[0]
    if provider not in PROVIDER_TYPES:
        table.fault("env_provider_type", f"{quote(provider)} is unknown", f"use one of {', '.join(PROVIDER_TYPES)}")
    return provider


def _unsupported(reading: Reading, held: Holding, what: str, told: str) -> None:
    """Notes an env that the format knows and that can't be run here; it concerns the tasks that use it and no other."""
    reading.names.refuse("env", held.id, Lost(f"{told}, which can't be deployed by this version", ""))
    message = f"{what} can't be deployed by this version"
    held.problems.add(held.table.place, message, "tasks that name the env are left out")


def _multi(reading: Reading, held: Holding) -> Env | None:
    """An env that is made of other envs of the bundle, each with an environment name of its own."""
    table = held.table
    before = len(reading.problems.found)
    table.known(MULTI_KEYS)
    lists = {key: table.data.get(key, []) for key in ("mcp_server_envs", "website_envs")}
    for key, value in lists.items():
        if not isinstance(value, list):
            table.fault(key, f"must be a list of envs, not {quote(value)}")
    name = table.text("name") or held.name
    if "name" in table.data and len(name.split()) > 1:
        table.fault("name", f"{quote(name)} has a blank in it", "use a hyphen")
    provider = _provider(table)
    if len(reading.problems.found) > before:
        return None
    if lists["website_envs"]:
        _unsupported(reading, held, "website_envs", "is made of websites")
        return None
    if not lists["mcp_server_envs"]:
        table.fault("mcp_server_envs", "is missing, or empty", 'name at least one env: ["…"]')
    children = _children(reading, held, lists["mcp_server_envs"])
    if len(reading.problems.found) > before or not children:
        return None
    path = Path(held.folder.path)
    return Env(held.id, held.name, MULTI_TYPE, name, provider, None, path, tuple(children))


def _children(reading: Reading, held: Holding, given: list[Any]) -> list[Env]:
    """The envs that a list names; none where one of them can't be read, which is noted where it lies."""
    targets: dict[str, Target] = {}
    for at, item in enumerate(given):
        key = f"mcp_server_envs[{at}]"
        target = reading.find(held.table, key, item, "env")
        if target is None:
            continue
        if target.type == MULTI_TYPE:
            held.table.fault(key, f"{target.name!r} is made of others itself", "name those")
        elif target.id in targets:
            held.table.fault(key, f"names {target.name!r} again", "name each env once")
        else:
            targets[target.id] = target
    children = [child for env_id in targets if (child := reading.env(env_id))]
    by_name: dict[str, Env] = {}
    for child in children:
        if (other := by_name.setdefault(child.environment_name, child)) is not child:
            said = f"{child.name!r} and {other.name!r} have one environment_name, {child.environment_name!r}"
            held.table.fault("mcp_server_envs", said, "give one of them another: directives tell servers apart by it")
    return children if len(children) == len(targets) else []


def _scan(reading: Reading, held: Holding, image: EnvImage) -> str | None:
    """The server's name from the sources of a built image; None with a problem noted."""
    fix = f'set environment_name = "…" in {held.table.place}'
    if image.context != Path(held.folder.path):
        reading.problems.add(held.place, "has no sources here to read its environment_name from", fix)
        return None
    home = image.dockerfile.rpartition("/")[0]
    sources = [path for path in held.files if path.endswith(".py")]
    beside = [path for path in sources if path.rpartition("/")[0] == home]
    found = _card_names(reading, held, beside) or _card_names(reading, held, sorted({*sources} - {*beside}))
    if len(found) == 1:
        return found.pop()
    said = f"its sources have several: {listed(found)}" if found else "no source has it"
    message = f'has no environment_name, and it can\'t be read from @environment_card(name="…"): {said}'
    reading.problems.add(held.place, message, fix)
    return None


def _card_names(reading: Reading, held: Holding, paths: list[str]) -> set[str]:
    found: set[str] = set()
    for path in paths:
        found |= card_names(reading.folder.read(held.files[path], skip_large=True) or b"")
    return found


def read_agent(reading: Reading, held: Holding) -> Agent | None:
    """An agent from its folder; None with problems noted."""
    table = held.table
    kind = table.text("type") or AGENT_TYPE
    if kind != AGENT_TYPE:
        table.fault("type", f"{quote(kind)} is unknown", f"use {AGENT_TYPE}")
        return None
    table.known(AGENT_KEYS)
    variables = table.table("default_env_vars")
    if variables:
        for key, value in variables.data.items():
            if not isinstance(value, str):
                variables.fault(key, f"must be a text, not {quote(value)}", "put it in quotes")
    if metadata := table.table("metadata"):
        metadata.known(METADATA_KEYS)
        metadata.text("default_model")
        metadata.number("min_disk_size_gb")
        metadata.flag("takes_credentials")
    image = read_image(reading, held)
    if image is None:
        return None
    return Agent(
        held.id,
        held.name,
        AGENT_TYPE,
        image,
        Path(held.folder.path),
        dict(variables.data) if variables else {},
        dict(metadata.data) if metadata else {},
    )
