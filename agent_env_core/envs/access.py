"""Which tools a role may see and call. Pure state, no I/O.

The rules are those of the published gateway, so a task that switches tools on and off behaves here as it does there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

ANY = "*"
DEFAULT_ROLE = "default"

Action = Literal["disable", "enable"]


class ToolAccess:
    """The access rules of one deployed env.

    For each role there is a map from a tool's name, or ``*``, to whether it is disabled. A call looks in its own role's
    map first and in the map of ``*`` next. In either, a rule that names the tool comes before that map's ``*`` rule. A
    tool that no rule speaks of is allowed, unless its server hides it by default: such a tool is shown only by a rule
    that names it.
    """

    def __init__(self) -> None:
        self._disabled: dict[str, dict[str, bool]] = {}

    def allows(self, role: str | None, tool: str, *, hidden: bool = False) -> bool:
        """Whether a caller may see and call a tool.

        Args:
            role: The caller's role; None is ``default``.
            tool: The tool's name.
            hidden: Whether the server hides the tool by default.
        """
        for rules in (self._disabled.get(role or DEFAULT_ROLE, {}), self._disabled.get(ANY, {})):
            if tool in rules:
                return not rules[tool]
            if ANY in rules and not hidden:
                return not rules[ANY]
        return not hidden

    def change(self, action: Action, role: str, tools: Iterable[str]) -> dict[str, str | list[str]]:
        """Applies one change.

        Args:
            action: ``disable`` or ``enable``.
            role: Whom it concerns; ``*`` is every role.
            tools: Names of tools; a ``*`` among them means every tool, whatever else stands there.

        Returns:
            The rules of ``role`` alone after the change: ``{"role", "disabled": sorted, "allowed": sorted}``.
        """
        named = list(tools)
        for tool in [ANY] if ANY in named else named:
            self._set(role, tool, action == "disable")
        own = self._disabled.get(role, {})
        return {
            "role": role,
            "disabled": sorted(name for name, disabled in own.items() if disabled),
            "allowed": sorted(name for name, disabled in own.items() if not disabled),
        }

    def copy(self) -> ToolAccess:
        """The rules as they are, which later changes don't touch."""
        made = ToolAccess()
        made.restore(self)
        return made

    def restore(self, other: ToolAccess) -> None:
        """Takes over the rules of another."""
        self._disabled = {role: dict(rules) for role, rules in other._disabled.items()}

    def _set(self, role: str, tool: str, disabled: bool) -> None:
        if role == ANY and tool == ANY:
            self._disabled = {ANY: {ANY: disabled}}
        elif role == ANY:
            for rules in self._disabled.values():
                rules[tool] = disabled
            self._disabled.setdefault(ANY, {})[tool] = disabled
        elif tool == ANY:
            self._disabled[role] = {ANY: disabled}
        else:
            self._disabled.setdefault(role, {})[tool] = disabled
