"""The PortSim env: one quay for a few days, planned in turns, served as an MCP server.

A task loads its ships through ``urn:portsim:load/v1``; before each later turn ``urn:portsim:notice/v1`` moves the clock
and brings the news that the turn's prompt tells of. The verifier reads how each turn was planned through ``data/get``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

import port
from agentenv_protocol import (
    AgentEnvEnvironment,
    AgentEnvError,
    DataPart,
    environment_card,
    extension,
    get_data,
    tool,
)
from pydantic import Field, WithJsonSchema

# Checked by read_plan alone: its messages tell a model what to mend, and it takes no True or "1" for a number.
PlanArgument = Annotated[
    Any,
    WithJsonSchema(
        {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "ship": {"type": "string", "description": "The ship's name."},
                    "berth": {"type": "string", "description": "The berth's name."},
                    "start": {"type": "integer", "description": "The hour it starts there."},
                },
                "required": ["ship", "berth", "start"],
            },
        }
    ),
    Field(description="One entry for each ship that hasn't berthed yet: where it berths, and the hour it starts."),
]


def dumps(answer: Any) -> str:
    """JSON without spaces: what a tool answers costs the model tokens."""
    return json.dumps(answer, separators=(",", ":"), ensure_ascii=False)


@environment_card(name="portsim")
class PortSim(AgentEnvEnvironment):
    """One quay, and the plans made for it turn by turn."""

    def __init__(self) -> None:
        self.situation: port.Situation | None = None
        self.notices: list[Mapping[str, Any]] = []
        self.submitted: port.Plan | None = None
        self.turns: list[dict[str, Any]] = []

    @extension("urn:portsim:load/v1", description="Loads a task's quay and ships, and forgets the one before.")
    def load(self, scenario: dict[str, Any]) -> dict[str, Any]:
        """Starts the first turn of ``scenario``."""
        try:
            self.situation, notices = port.read_scenario(scenario)
        except (KeyError, TypeError) as exc:
            raise AgentEnvError("bad_scenario", f"the scenario can't be read: {exc!r}") from exc
        self.notices, self.submitted, self.turns = list(notices), None, []
        return {"ships": len(self.situation.ships), "turns": 1 + len(self.notices)}

    @extension("urn:portsim:notice/v1", description="Ends the turn and brings the next notice.")
    def notice(self) -> dict[str, Any]:
        """Grades the turn that ends, and moves on; where no plan was submitted the harbour office's is followed."""
        if self.situation is None or not self.notices:
            raise AgentEnvError("no_notice", "there is no notice left", status=409)
        self.turns.append(self.graded())
        in_force = self.submitted if self.submitted is not None else port.first_come(self.situation)
        self.situation = port.after_notice(self.situation, in_force, self.notices.pop(0))
        self.submitted = None
        return {"now": self.situation.now}

    def graded(self) -> dict[str, Any]:
        """How the turn that is open was planned."""
        assert self.situation is not None
        grade = port.grade(self.situation, self.submitted)
        return asdict(grade) | {"optimal": grade.optimal, "plan": port.lines(self.submitted or ())}

    @get_data
    def state(self) -> list[DataPart]:
        """The turns so far, graded."""
        turns = [] if self.situation is None else [*self.turns, self.graded()]
        return [DataPart(data={"turns": turns, "left": len(self.notices)})]

    @tool(structured_output=False)
    def list_ships(self) -> str:
        """The hour it is, the berths, the ships, and which of them have berthed already."""
        if self.situation is None:
            return dumps({"error": "no task is loaded"})
        return dumps(
            {
                "now": self.situation.now,
                "berths": [asdict(berth) for berth in self.situation.berths],
                "ships": [asdict(ship) for ship in self.situation.open],
                "berthed": port.lines(self.situation.begun),
            }
        )

    @tool(structured_output=False)
    def check_plan(self, plan: PlanArgument) -> str:
        """Says whether a plan can be kept and what it costs, without submitting it."""
        return self._answer("feasible", plan)[0]

    @tool(
        description="Submits the plan of this turn. The first one that can be kept is final; anything else is refused "
        "with the reason, and a corrected plan may follow.",
        structured_output=False,
    )
    def submit_plan(self, plan: PlanArgument) -> str:
        """Takes a plan and answers with what it costs."""
        if self.submitted is not None:
            return dumps(
                {"submitted": False, "error": "the plan of this turn was submitted, and the first one is final"}
            )
        answer, self.submitted = self._answer("submitted", plan)
        return answer

    def _answer(self, what: str, plan: Any) -> tuple[str, port.Plan | None]:
        if self.situation is None:
            return dumps({what: False, "error": "no task is loaded"}), None
        try:
            placed = port.read_plan(self.situation, plan)
        except port.PlanError as problem:
            return dumps({what: False, "error": str(problem)}), None
        return dumps({what: True, "cost": port.cost(self.situation, placed)}), placed


if __name__ == "__main__":
    PortSim().serve()
