"""Whatever lies in a folder, the reader returns a bundle or raises ``BundleError``, and opens nothing outside it."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_env_core.bundle import Bundle, Reference, StepDeclaration, installed_bundles, load_bundle
from agent_env_core.bundle.config import ConfigFault, parse_json, parse_toml
from agent_env_core.bundle.dockerfile import Dockerfile, parse_dockerfile
from agent_env_core.bundle.frontmatter import FrontMatterFault, parse, split
from agent_env_core.errors import BundleError, ImageError

DECLARED = StepDeclaration(
    "known",
    (
        Reference("env_id", "env", pin="env_version"),
        Reference("items.id", "artifact", pin="version"),
        Reference("names", "skill", many=True),
        Reference("makes", "artifact", output=True),
    ),
)
fuzzed = settings(max_examples=60, deadline=None)

_opened: list[str] | None = None


def _listen(event: str, args: tuple[Any, ...]) -> None:
    if _opened is not None and event in ("open", "os.scandir", "os.listdir") and isinstance(args[0], str):
        _opened.append(args[0])


sys.addaudithook(_listen)  # stays for good, and does nothing but while a folder is read


@contextlib.contextmanager
def recording():
    """The paths that are opened or listed meanwhile."""
    global _opened
    _opened = []
    try:
        yield _opened
    finally:
        _opened = None


def read(root: Path) -> Bundle | BundleError:
    """Reads a folder and sees to it that nothing outside it was opened."""
    installed_bundles()  # looks through Python's own folders, once a process
    with recording() as opened:
        try:
            found: Bundle | BundleError = load_bundle(root, lambda name: DECLARED if name == "known" else None)
        except BundleError as exc:
            found = exc
    allowed = (os.path.realpath(root), os.path.dirname(os.__file__))  # the library, for a module imported just then
    for path in opened:
        assert f"{os.path.realpath(path)}{os.sep}".startswith(tuple(one + os.sep for one in allowed)), path
    assert opened
    assert not isinstance(found, BundleError) or found.problems
    for problem in found.problems:
        str(problem).encode()  # it can be printed
    return found


SPECIAL = [
    "envs", "agents", "artifacts", "skills", "tasks", "evals", "Tasks", "aliases.toml", "bundle.toml", "README.md",
    "Dockerfile", "dockerfile", "env.toml", "agent.toml", "artifact.toml", "SKILL.md", "a.json", "A.JSON", "a.toml",
    "a.py", "a__b", ".DS_Store", "__pycache__", ".x", "metadata", "cafe\u0301", "caf\u00e9",
]  # fmt: skip
odd_names = st.text(min_size=1, max_size=12).filter(
    lambda name: "/" not in name and "\0" not in name and name not in (".", "..") and len(os.fsencode(name)) < 60
)
names = st.one_of(
    st.sampled_from(SPECIAL),
    odd_names,
    st.binary(min_size=1, max_size=4).filter(lambda b: b"/" not in b and b"\0" not in b).map(os.fsdecode),
).filter(lambda name: name not in (".", ".."))
plain = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.sampled_from(["a", "caf\u00e9"])
)
values = st.recursive(
    plain,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
fields = st.sampled_from(
    [
        "id",
        "type",
        "depends_on",
        "env_id",
        "env_version",
        "items",
        "names",
        "makes",
        "retry_config",
        "fail_task_on_error",
    ]
)
steps = st.one_of(
    values,
    st.dictionaries(fields, values, max_size=6),
    st.fixed_dictionaries(
        {"id": st.sampled_from("abc"), "type": st.just("known")},
        optional={
            "env_id": st.sampled_from(["a", "A", "zz"]),
            "items": st.lists(st.fixed_dictionaries({"id": st.sampled_from(["a", "b", "out"])}), max_size=2),
            "names": values,
            "makes": st.sampled_from(["out", "a"]),
            "depends_on": st.one_of(values, st.lists(st.sampled_from("abcd"), max_size=2)),
            "retry_config": st.one_of(values, st.fixed_dictionaries({"retry_from_step_id": st.sampled_from("abc")})),
        },
    ),
)
TOML = [
    'image = "a"',
    'type = "multi"\nmcp_server_envs = ["a", "b", {env = "a"}]',
    'type = "multi"\nwebsite_envs = ["a"]',
    'type = "website"',
    'type = "environment_universe"\nenvironment_artifacts = ["a", "b"]',
    'type = "environment"\nenvironment_name = "a"\nfile = "b"',
    '[envs]\na = ["x"]',
    'description = "x"',
    "image = {dockerfile = 'x/../../y'}",
    'type = "cli"',
    'id = "@local/x"',
    "[metadata]\nx = 1",
    "tasks = ['a', 1]",
]
contents = st.one_of(
    st.binary(max_size=40),
    st.lists(steps, max_size=4).map(lambda task: json.dumps(task).encode()),
    st.lists(st.sampled_from(TOML), max_size=3, unique=True).map(lambda lines: "\n".join(lines).encode()),
    st.sampled_from(
        [b"[" * 5000, b'@environment_card(name="x")\nclass A: ...', b"---\nname: a\ndescription: b\n---\n"]
    ),
)
targets = st.sampled_from(
    [".", "..", "../..", "../../..", "a.json", "../outside", "../../outside/a.json", "nowhere", "/", "/etc/passwd"]
)
nodes = st.one_of(contents, contents, targets, st.none())
trees = st.lists(st.tuples(st.lists(names, min_size=1, max_size=4), nodes), max_size=14)


def grow(root: Path, tree: list[tuple[list[str], bytes | str | None]]) -> None:
    """Makes a tree: bytes are files, texts are links, None is a folder. What can't be made is left out."""
    for parts, node in tree:
        path = root.joinpath(*parts)
        with contextlib.suppress(OSError, ValueError):
            if path.parent.resolve().is_relative_to(root.resolve()):
                path.parent.mkdir(parents=True, exist_ok=True)
                if node is None:
                    path.mkdir(exist_ok=True)
                elif isinstance(node, str):
                    path.symlink_to(node)
                elif not path.is_symlink():
                    path.write_bytes(node)


@fuzzed
@given(trees)
def test_any_tree(tree):
    with tempfile.TemporaryDirectory() as temporary:
        outside = Path(temporary, "outside")
        outside.mkdir()
        (outside / "a.json").write_text("[]")
        root = Path(temporary, "root")
        for kind in ("tasks", "envs", "artifacts"):
            (root / kind).mkdir(parents=True)
        grow(root, tree)
        read(root)


keys = st.sampled_from(
    ["path", "type", "id", "image", "environment_name", "env_provider_type", "mcp_server_envs", "website_envs", "name",
     "file", "description", "ref", "environment_artifacts", "command_name", "default_env_vars", "metadata", "tasks",
     "envs", "x"]
)  # fmt: skip
kinds = st.sampled_from(
    ["mcp_server", "multi", "website", "a2a_agent", "file", "environment", "environment_universe", "cli", "eval"]
)
settings_ = st.recursive(
    st.one_of(st.booleans(), st.integers(-9, 9), st.text(max_size=6), st.sampled_from(["a", "b", "Dockerfile"]), kinds),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["env", "artifact", "ref"]), inner),
    max_leaves=6,
)
tables = st.dictionaries(keys, st.one_of(settings_, kinds), max_size=5)


def toml(value: Any) -> str:
    """A value as TOML has it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value).replace("\x7f", r"\u007f")


def lines(table: dict[str, Any]) -> str:
    """A table as a file has it."""
    return "\n".join(f"{key} = {toml(value)}" for key, value in table.items())


@fuzzed
@given(tables, tables, tables, tables, tables)
def test_any_settings(env, other, artifact, agent, aliases):
    files = {"envs/a/env.toml": env, "envs/b/env.toml": other, "artifacts/a/artifact.toml": artifact}
    files |= {"agents/a/agent.toml": agent, "aliases.toml": aliases, "evals/e.toml": artifact}
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary, "root")
        for path, table in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(lines(table), errors="surrogatepass")
        (root / "envs/a/Dockerfile").write_text("")
        (root / "artifacts/b").mkdir()
        (root / "artifacts/b/s.json").write_text("{}")
        (root / "tasks").mkdir()
        (root / "tasks/t.json").write_text('[{"id": "x", "type": "known", "env_id": "b"}]')
        read(root)


@fuzzed
@given(st.one_of(tables.map(lambda entry: f"[envs.b]\n{lines(entry)}"), st.text(max_size=20)))
def test_any_store_map(text):
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary, "root")
        (root / "tasks").mkdir(parents=True)
        (root / "tasks/t.json").write_text('[{"id": "x", "type": "known", "env_id": "b"}]')
        store = Path(temporary, "store.toml")
        store.write_text(text, errors="surrogatepass")
        with pytest.MonkeyPatch.context() as patch, contextlib.suppress(BundleError):
            patch.setenv("AGENT_ENV_STORE", str(store))
            load_bundle(root, lambda name: DECLARED if name == "known" else None)


@fuzzed
@given(st.lists(steps, max_size=5))
def test_any_steps(task):
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary, "root")
        (root / "tasks").mkdir(parents=True)
        (root / "envs/a").mkdir(parents=True)
        (root / "envs/a/Dockerfile").write_text("")
        (root / "envs/a/a.py").write_text('@environment_card(name="a")\nclass A: ...')
        (root / "tasks/a.json").write_text(json.dumps(task))
        read(root)


@fuzzed
@given(st.dictionaries(odd_names, st.sampled_from(["tasks", "envs", "artifacts", "skills"]), max_size=6))
def test_names_in_any_script(found):
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary, "root")
        (root / "tasks").mkdir(parents=True)
        for name, kind in found.items():
            with contextlib.suppress(OSError):
                (root / kind / name).mkdir(parents=True)
        read(root)


@fuzzed
@given(values)
def test_json_is_read_as_others_read_it(value):
    text = json.dumps(value)
    try:
        assert parse_json(text.encode()) == value
    except ConfigFault:
        refused = any(word in text for word in ("NaN", "Infinity", r"\ud"))
        assert refused, text


@fuzzed
@given(st.binary(max_size=60))
def test_any_bytes_as_config(data):
    for parser in (parse_json, parse_toml):
        with contextlib.suppress(ConfigFault):
            parser(data)


@fuzzed
@given(st.text(alphabet="-:|>#'\"\\ \t\nabc[]{}\u00e9", max_size=60))
def test_any_front_matter(text):
    with contextlib.suppress(FrontMatterFault):
        parse(split(f"---\n{text}\n---\n")[0])


@fuzzed
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["FROM", "ENV", "ARG", "RUN", "COPY", "CMD", "EXPOSE", "WORKDIR", "#", "", "nope"]),
            st.text(alphabet="aA=$ {}:-+?'\"\\\t[],<#1\n`\u00e9", max_size=16),
        ),
        max_size=8,
    )
)
def test_any_dockerfile(lines):
    text = "FROM x\n" + "\n".join(f"{keyword} {rest}" for keyword, rest in lines)
    with contextlib.suppress(ImageError):
        found = parse_dockerfile(text)
        assert isinstance(found, Dockerfile)
        assert all(isinstance(word, str) for word in found.start_command())
