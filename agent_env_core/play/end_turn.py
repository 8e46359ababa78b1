"""The tool by which a model ends its turn, where it is played through tools alone. No env may have one of this name."""

from __future__ import annotations

from typing import Any

END_TURN: dict[str, Any] = {
    "name": "end_turn",
    "description": "Ends your turn. Call it once you are done; what you reply to the task goes into the response.",
    "input_schema": {
        "type": "object",
        "properties": {"response": {"type": "string", "description": "Your reply to the task."}},
    },
}
