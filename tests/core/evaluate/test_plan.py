"""Which tasks are played, and the scripts that bundles bring."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from agent_env_core.bundle import Bundle
from agent_env_core.errors import BundleError, ModelError
from agent_env_core.evaluate.plan import NothingSelected, make_plan
from agent_env_core.evaluate.script import Scripts, has_script

Make = Callable[..., Bundle]


@pytest.fixture
def bundle(make_bundle: Make, ask: Callable[..., Any]) -> Bundle:
    return make_bundle({name: ask(f"{name}?") for name in "abcd"}, {"x": ["c", "a"], "y": ["a", "b"]})


@pytest.mark.parametrize(
    ("tasks", "evals", "chosen", "skipped"),
    [
        ((), (), "cab", "d"),
        (("d",), (), "d", "abc"),
        (("d", "a", "d"), (), "da", "bc"),
        ((), ("y",), "ab", "cd"),
        (("b",), ("x",), "bca", "d"),
    ],
)
def test_what_is_selected(bundle: Bundle, tasks: Any, evals: Any, chosen: str, skipped: str):
    plan = make_plan(bundle, tasks, evals)
    assert [task.name for task in plan.tasks] == list(chosen)
    assert list(plan.skipped) == list(skipped)
    assert plan.specs.keys() == {task.id for task in plan.tasks}
    assert not plan.refused


def test_an_id_is_a_name_too(bundle: Bundle):
    assert [task.name for task in make_plan(bundle, [bundle.tasks[1].id]).tasks] == ["b"]


def test_without_evals_it_is_every_task(make_bundle: Make, ask: Callable[..., Any]):
    assert len(make_plan(make_bundle({"a": ask("A?"), "b": ask("B?")})).tasks) == 2


@pytest.mark.parametrize(
    ("tasks", "evals", "message"),
    [
        (["mondy"], [], r"has no task 'mondy'; did you mean monday\?"),
        (["zzz"], [], "has no task 'zzz'; it has: monday"),
        ([], ["zzz"], "has no eval 'zzz'; it has: none"),
    ],
)
def test_what_isnt_there(make_bundle: Make, ask: Callable[..., Any], tasks: Any, evals: Any, message: str):
    with pytest.raises(NothingSelected, match=message):
        make_plan(make_bundle({"monday": ask("A?")}), tasks, evals)


def test_a_changed_task_has_another_digest(make_bundle: Make, ask: Callable[..., Any]):
    before = make_plan(make_bundle({"a": ask("A?"), "b": ask("B?")}))
    after = make_plan(make_bundle({"a": ask("A?"), "b": ask("B!")}))
    assert before.tasks[0].digest == after.tasks[0].digest
    assert before.tasks[1].digest != after.tasks[1].digest


async def test_a_script_gives_its_answers_in_order_then_silence(bundle: Bundle):
    script = {"a": [{"say": "hm", "calls": [{"name": "f", "arguments": {"x": 1}}]}, {"say": "yes"}]}
    (bundle.root / "demo.json").write_text(json.dumps(script))
    assert has_script(bundle.root)
    played = Scripts(bundle).of("a")
    first, second, third = [await played.complete([]) for _ in range(3)]
    assert (first.text, [(call.name, call.arguments) for call in first.tool_calls]) == ("hm", [("f", '{"x": 1}')])
    assert (second.text, second.tool_calls, third.text) == ("yes", (), "")
    with pytest.raises(ModelError, match=r"demo.json has no answers for the task 'b'; it has some for: a"):
        Scripts(bundle).of("b")


@pytest.mark.parametrize("text", ["[]", "{", '{"a": [{"says": "x"}]}', '{"a": [{"calls": [{}]}]}', '{"a": {}}'])
def test_a_script_that_is_none(bundle: Bundle, text: str):
    (bundle.root / "demo.json").write_text(text)
    with pytest.raises(BundleError, match=r"demo\.json"):
        Scripts(bundle)


def test_a_script_that_isnt_there(bundle: Bundle):
    assert not has_script(bundle.root)
    with pytest.raises(BundleError, match="name another model"):
        Scripts(bundle)
