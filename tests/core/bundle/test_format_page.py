"""``docs/bundle-format.md``: its bundle is sound, its facts are the code's, and its lists of step types are up to date.

After a change of a step type, ``AGENT_ENV_WRITE_DOCS=1 pytest tests/core/bundle/test_format_page.py`` writes them anew.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import tomllib
import typing
from pathlib import Path

import pytest
from pydantic import BaseModel

from agent_env_core.bundle import load_bundle
from agent_env_core.bundle.artifacts import ARTIFACT_TYPES, SKILL_KEYS
from agent_env_core.bundle.entities import (
    AGENT_KEYS,
    ENV_KEYS,
    GATEWAY_NAMES,
    METADATA_KEYS,
    MULTI_KEYS,
    OTHER_ENV_TYPES,
)
from agent_env_core.bundle.evals import EVAL_KEYS
from agent_env_core.bundle.ids import MARKS
from agent_env_core.bundle.installed import GROUP, InstalledBundle
from agent_env_core.bundle.references import an
from agent_env_core.bundle.store import TABLES, VARIABLE, Store
from agent_env_core.plugins import CORE, plugins
from agent_env_core.steps.base import LATER, TaskStep, declaration

PAGE = Path(__file__).resolve().parents[3] / "docs" / "bundle-format.md"
BEGIN, END = "<!-- {}: written by tests/core/bundle/test_format_page.py -->\n", "<!-- /{} -->"


@pytest.fixture(scope="module")
def page() -> str:
    return PAGE.read_text(encoding="utf-8")


def section(page: str, title: str, *, examples: bool = False) -> str:
    """The text under a heading, without the examples in it unless they are asked for."""
    _, found, rest = page.partition(f"\n## {title}\n")
    assert found, title
    if examples:
        return rest.partition("\n## ")[0]
    return re.sub(r"^```.*?^```", "", re.split(r"^## ", rest, flags=re.MULTILINE)[0], flags=re.DOTALL | re.MULTILINE)


def first_cells(text: str) -> set[str]:
    """What stands in backquotes in the first column of a section's tables."""
    return {
        name for cell in re.findall(r"^\| (`[^|]*)\|", text, re.MULTILINE) for name in re.findall(r"`([^`]+)`", cell)
    }


def test_the_bundle_on_the_page_is_sound(page, tmp_path):
    files = re.findall(r'^```\w+ title="([^"]+)"\n(.*?)^```', page, re.DOTALL | re.MULTILINE)
    for path, text in files:
        file = tmp_path / "postbox" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    bundle = load_bundle(tmp_path / "postbox", declaration)
    assert bundle.description == "Sorting the morning's mail"
    counts = [len(part) for part in (bundle.envs, bundle.agents, bundle.artifacts, bundle.skills, bundle.tasks)]
    assert counts == [2, 1, 1, 1, 2]
    assert not bundle.problems
    assert [task.name for task in bundle.splits()["quick"]] == ["morning"]
    assert not bundle.ignored
    hall, env = bundle.envs.values()
    assert hall.children == (env,)
    assert (env.image.context, env.image.dockerfile) == (env.path, "docker/Dockerfile")


def test_the_store_map_on_the_page_is_one(page, tmp_path):
    text = section(page, "The store map", examples=True).partition("```toml\n")[2].partition("```")[0]
    (tmp_path / "store.toml").write_text(text)
    store = Store(tmp_path / "store.toml")
    (env,) = store.find("env", "openciv3")
    assert (env.environment_name, env.env_provider_type) == ("openciv3", "server")
    (tmp_path / "verifiers/harbour").mkdir(parents=True)
    (tmp_path / "verifiers/harbour/verify.py").write_text("")
    (verifier,) = store.find("artifact", "harbour-verifier")
    assert verifier.type == "file"
    keys = first_cells(section(page, "The store map"))
    assert keys == {key for _, keys in TABLES.values() for key in keys}
    assert f"`{VARIABLE}`" in section(page, "The store map")


def test_installed_bundles_on_the_page(page):
    text = section(page, "Installed bundles and aliases", examples=True)
    points = tomllib.loads(text.partition("```toml\n")[2].partition("```")[0])["project"]["entry-points"]
    assert points == {GROUP: {"postbox": "acme_games"}}
    assert f"`{InstalledBundle('postbox', 'acme-games', 'acme_games').id_root}/sorter`" in text


def test_keys_of_files(page):
    envs = section(page, "`envs/<name>/env.toml`")
    assert first_cells(envs.partition("`image` is one of")[0]) == set(ENV_KEYS)
    assert first_cells(envs.partition("### Several servers as one env")[2]) == set(MULTI_KEYS)
    assert all(f"`{name}`" in envs for name in (*GATEWAY_NAMES, *OTHER_ENV_TYPES))
    agents = section(page, "`agents/<name>/agent.toml`")
    assert first_cells(agents) == set(AGENT_KEYS)
    assert all(f"`{name}`" in agents for name in METADATA_KEYS)
    artifacts = section(page, "`artifacts/<name>/`")
    assert first_cells(artifacts) == set(ARTIFACT_TYPES)
    for kind, (keys, _) in ARTIFACT_TYPES.items():
        row = next(line for line in artifacts.splitlines() if line.startswith(f"| `{kind}` |"))
        assert re.findall(r"`([^`]+)`", row.split("|")[2]) == list(keys), kind
    assert all(f"`{name}`" in section(page, "`skills/<name>/SKILL.md`") for name in SKILL_KEYS)
    assert first_cells(section(page, "`evals/<name>.toml`")) == set(EVAL_KEYS)


def test_fields_of_every_step(page):
    common = section(page, "`tasks/<name>.json`").partition("### Fields of every step")[2].partition("###")[0]
    assert first_cells(common) == set(TaskStep.model_fields)


def test_the_characters_of_ids(page):
    assert f"`{' '.join(sorted(MARKS - {' '}, key='._-~/@()+,&'.index))}`" in page


# -- the tables of step types


def meanings(model: type[BaseModel]) -> dict[str, str]:
    """What a class's docstrings say of its attributes, those of its bases included."""
    found: dict[str, str] = {}
    for cls in (c for c in reversed(model.__mro__) if issubclass(c, BaseModel) and c not in (BaseModel, TaskStep)):
        listed = (inspect.getdoc(cls) or "").partition("Attributes:\n")[2]
        entries = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", listed, re.MULTILINE)
        found.update(
            (name, " ".join(text.split()).replace("``", "`").replace("None", "`null`")) for name, text in entries
        )
    return found


def default(step: type[TaskStep], name: str) -> str:
    field = step.model_fields[name]
    if field.is_required():
        return "needed"
    if field.default_factory is not None:
        made = field.default_factory()  # type: ignore[call-arg]
        return "a new one" if isinstance(made, str) else f"`{json.dumps(made)}`"
    return f"`{json.dumps(field.default)}`"


def more(step: type[TaskStep], name: str) -> str:
    """What a field's declaration adds to its meaning: what it names, what it may be, what its objects hold."""
    said = ""
    if reference := next((one for one in step.references if one.field == name), None):
        kind = f"artifact of type `{reference.artifact_type}`" if reference.artifact_type else reference.kind
        said += f" *Names {reference.kind + 's' if reference.many else an(kind)}.*"
    choices = typing.get_args(step.model_fields[name].annotation)
    if choices and all(isinstance(choice, str) for choice in choices):
        said += " One of " + ", ".join(f'`"{choice}"`' for choice in choices) + "."
    for inner in choices:
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            said += " Each is an object: " + "; ".join(
                f"`{key}`: {text[:1].lower()}{text[1:].rstrip('.')}" for key, text in meanings(inner).items()
            )
            said += "."
    return said


def table(name: str, step: type[TaskStep]) -> str:
    """One step type: its summary, and the fields its docstring tells of."""
    summary = " ".join((inspect.getdoc(step) or "").partition("\n\n")[0].split()).replace("``", "`")
    summary = re.sub(r"; see :class:.*", ".", summary)
    lines = [f"#### `{name}`", "", summary, "", "| Field | Default | Meaning |", "|---|---|---|"]
    lines += [
        f"| `{field}` | {default(step, field)} | {text}{more(step, field)} |" for field, text in meanings(step).items()
    ]
    return "\n".join((*lines, ""))


def test_the_step_tables_are_up_to_date():
    names = sorted(
        entry.name for entry in plugins().entries if entry.distribution == CORE and entry.group == "agent_env"
    )
    steps = [(name, plugins().step_type(name)) for name in names if name in plugins().known("step type")]
    assert steps
    wanted = "\n" + "\n".join(table(name, step) for name, step in steps) + "\n"
    keep_up("steps", wanted)


def test_the_step_types_that_are_not_run_are_up_to_date():
    keep_up("later", "\n" + ", ".join(f"`{name}`" for name in sorted(LATER)) + "\n\n")


def keep_up(part: str, wanted: str) -> None:
    """Compares a part of the page with what the code says, or writes it."""
    before, begin, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN.format(part))
    there, end, after = rest.partition(END.format(part))
    assert end
    if there != wanted and os.environ.get("AGENT_ENV_WRITE_DOCS"):
        PAGE.write_text(before + begin + wanted + end + after, encoding="utf-8")
    else:
        assert there == wanted, "run this file with AGENT_ENV_WRITE_DOCS=1"
