from __future__ import annotations

import pytest

from agent_env_core.envs.access import ToolAccess

Change = tuple[str, str, list[str]]


@pytest.mark.parametrize(
    ("changes", "role", "tool", "hidden", "allowed"),
    [
        ([], "default", "a", False, True),
        ([], None, "a", False, True),
        ([], "default", "a", True, False),  # hidden by default, and no rule names it
        ([("disable", "default", ["a"])], "default", "a", False, False),
        ([("disable", "default", ["a"])], None, "a", False, False),  # no role is the default role
        ([("disable", "default", ["a"])], "planner", "a", False, True),  # and a rule for it says nothing of another
        ([("disable", "default", ["a"])], "default", "b", False, True),
        ([("disable", "*", ["a"])], "planner", "a", False, False),
        ([("disable", "*", ["a"]), ("enable", "planner", ["a"])], "planner", "a", False, True),  # own role first
        ([("disable", "planner", ["*"])], "planner", "a", False, False),
        ([("disable", "planner", ["*"]), ("enable", "planner", ["a"])], "planner", "a", False, True),
        ([("disable", "planner", ["*"]), ("enable", "planner", ["a"])], "planner", "b", False, False),
        ([("enable", "planner", ["a"]), ("disable", "planner", ["*"])], "planner", "a", False, False),  # replaces
        ([("disable", "*", ["a"]), ("enable", "planner", ["*"])], "planner", "a", False, True),
        ([("disable", "planner", ["a"]), ("disable", "*", ["*"])], "planner", "a", False, False),
        ([("disable", "planner", ["a"]), ("enable", "*", ["*"])], "planner", "a", False, True),  # clears everything
        ([("disable", "*", ["*"])], "anyone", "a", False, False),
        ([("enable", "planner", ["a"]), ("disable", "*", ["a"])], "planner", "a", False, False),  # set in every map
        ([("enable", "planner", ["b"]), ("disable", "*", ["a"])], "planner", "b", False, True),
        ([("enable", "*", ["*"])], "default", "a", True, False),  # a wildcard doesn't show what is hidden
        ([("enable", "default", ["*"])], "default", "a", True, False),
        ([("enable", "default", ["a"])], "default", "a", True, True),
        ([("enable", "*", ["a"])], "planner", "a", True, True),
        ([("enable", "*", ["a"]), ("disable", "planner", ["*"])], "planner", "a", True, True),
        ([("enable", "default", ["*", "a"])], "default", "a", True, False),  # a list with a wildcard is the wildcard
        ([("enable", "default", ["a", "*"])], "default", "a", True, False),
        ([("disable", "*", ["*"]), ("enable", "default", ["a"])], "planner", "a", False, False),
        ([("disable", "*", ["*"]), ("enable", "default", ["a"])], "default", "b", False, False),
        ([("disable", "planner", ["a"]), ("enable", "*", ["a"])], "planner", "a", False, True),
        ([("enable", "*", ["a"]), ("disable", "*", ["*"])], "default", "a", True, False),
        ([("disable", "", ["a"])], None, "a", False, True),  # only a missing role is the default role
        ([("enable", "default", ["x", "a"]), ("disable", "default", ["x"])], "default", "a", True, True),
    ],
)
def test_rules(changes: list[Change], role: str | None, tool: str, hidden: bool, allowed: bool):
    access = ToolAccess()
    for action, whom, tools in changes:
        access.change(action, whom, tools)  # type: ignore[arg-type]
    assert access.allows(role, tool, hidden=hidden) is allowed


def test_a_change_tells_the_rules_of_that_role_alone():
    access = ToolAccess()
    assert access.change("disable", "default", ["b", "a"]) == {"role": "default", "disabled": ["a", "b"], "allowed": []}
    assert access.change("enable", "default", ["b"]) == {"role": "default", "disabled": ["a"], "allowed": ["b"]}
    assert access.change("disable", "*", ["c"]) == {"role": "*", "disabled": ["c"], "allowed": []}
    assert access.change("enable", "default", []) == {"role": "default", "disabled": ["a", "c"], "allowed": ["b"]}
    assert access.change("enable", "*", ["*"]) == {"role": "*", "disabled": [], "allowed": ["*"]}
    assert access.change("enable", "default", []) == {"role": "default", "disabled": [], "allowed": []}
