"""The GridSim env: one battery, one day of prices, served as an MCP server.

A task loads its day through the extension ``urn:gridsim:load/v1``; the model submits one schedule through the tool
``submit_schedule``; the verifier reads the report, with the grade, through ``data/get``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from agentenv_protocol import (
    AgentEnvEnvironment,
    AgentEnvError,
    DataPart,
    environment_card,
    extension,
    get_data,
    tool,
)
from battery import BATTERY, ScheduleError, grade, play, read_schedule, report, to_cents, to_usd
from pydantic import Field, WithJsonSchema

PRICES = Path(__file__).parent / "prices"

# Checked by read_schedule alone: its messages tell a model what to mend, and it takes no True or "1" for a number.
Actions = Annotated[
    Any,
    WithJsonSchema({"type": "array", "items": {"type": "integer"}}),
    Field(
        description=f"24 integers, one for each hour from 0 to 23: {BATTERY.max_step} charges a block of "
        f"{BATTERY.block_mwh} MWh, -{BATTERY.max_step} sells one, 0 idles."
    ),
]


def dumps(answer: Any) -> str:
    """JSON without spaces: what a tool answers costs the model tokens."""
    return json.dumps(answer, separators=(",", ":"), ensure_ascii=False)


@environment_card(name="gridsim")
class GridSim(AgentEnvEnvironment):
    """One operating day of a grid battery."""

    def __init__(self) -> None:
        self.date: str | None = None
        self.prices: list[float] = []
        self.schedule: tuple[int, ...] | None = None

    @extension("urn:gridsim:load/v1", description="Loads one operating day and forgets the one before.")
    def load(self, date: str) -> dict[str, Any]:
        """Loads the prices of ``date`` (YYYY-MM-DD)."""
        pack = PRICES / f"{date[:4]}.json"
        days = json.loads(pack.read_text("utf-8")) if pack.is_file() else {}
        if date not in days:
            raise AgentEnvError("unknown_day", f"no prices for {date!r} in {pack.name}", status=404)
        self.date, self.prices, self.schedule = date, days[date], None
        return {"date": date, "hours": len(self.prices)}

    @get_data
    def state(self) -> list[DataPart]:
        """The report that a verifier grades from."""
        if self.date is None:
            return [DataPart(data={"date": None})]
        graded = grade(BATTERY, to_cents(self.prices), self.schedule)
        return [
            DataPart(
                data={
                    "date": self.date,
                    "submitted": self.schedule is not None,
                    "schedule": None if self.schedule is None else list(self.schedule),
                    "feasible": graded.feasible,
                    "profit_usd": graded.profit_usd,
                    "optimum_usd": graded.optimum_usd,
                    "optimal": graded.optimal,
                    "reward": graded.reward,
                }
            )
        ]

    @tool(
        description="Submits the schedule for the day. The first one that holds 24 integers in range is final; "
        "anything else is refused with the reason, and a corrected schedule may follow.",
        structured_output=False,
    )
    def submit_schedule(self, actions: Actions) -> str:
        """Takes a schedule and answers with what becomes of it."""
        if self.date is None:
            return dumps({"submitted": False, "error": "no day is loaded"})
        if self.schedule is not None:
            return dumps({"submitted": False, "error": "a schedule was already submitted, and the first one is final"})
        try:
            self.schedule = read_schedule(BATTERY, actions)
        except ScheduleError as problem:
            return dumps({"submitted": False, "error": str(problem)})
        return dumps(report(BATTERY, to_cents(self.prices), self.schedule))

    @tool(structured_output=False)
    def try_schedule(self, actions: Actions) -> str:
        """Says what a schedule would earn, without submitting it."""
        try:
            outcome = play(BATTERY, to_cents(self.prices), read_schedule(BATTERY, actions, len(self.prices)))
        except ScheduleError as problem:
            return dumps({"feasible": False, "error": str(problem)})
        return dumps({"feasible": outcome.feasible, "error": outcome.violation, "profit_usd": to_usd(outcome.units)})

    @tool(structured_output=False)
    def read_prices(self) -> str:
        """The day's 24 hourly day-ahead prices in USD/MWh, from hour 0 to hour 23."""
        return dumps({"date": self.date, "prices_usd_per_mwh": self.prices})


if __name__ == "__main__":
    GridSim().serve()
