"""An OpenEnv server as somebody else writes one: with ``openenv`` alone, its tools and the Task API."""

from __future__ import annotations

import socket
import sys

import uvicorn
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_types import (
    CallToolAction,
    CallToolObservation,
    ListToolsAction,
    ListToolsObservation,
    Tool,
    ToolError,
)
from openenv.core.env_server.types import State

NUMBER = {"type": "object", "properties": {"number": {"type": "integer", "description": "A number."}},
          "required": ["number"]}  # fmt: skip
TASKS = {
    "train": [{"id": "low", "index": 0, "question": "Find a number below 5.", "secret": 2}, {"index": 1, "secret": 9}],
    "test": [{"id": "last", "index": 0, "question": "Find 7.", "secret": 7}],
}


class Guess(Environment):
    """Think of a number: 0.25 for each guess that isn't it at first, 1 and the end for the right one."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, split="train", index=0, **kwargs):
        self.task = TASKS[split][index]
        self.others = self.task["secret"] == 7
        prompt = f"Find my number, of task {index}."
        return CallToolObservation(tool_name="", result=None, metadata={"prompt": prompt}, done=False)

    def step(self, action, timeout_s=None, **kwargs):
        if isinstance(action, ListToolsAction):
            tools = [Tool(name="guess", description="Guesses.", input_schema=NUMBER)]
            tools += [Tool(name="more", description="", input_schema={"type": "object"})] * self.others
            return ListToolsObservation(tools=tools)
        number = action.arguments["number"]
        if number < 0:
            raise ValueError("no such number")
        if number > 100:
            error = ToolError(error_type="invalid_args", message="too large")
            return CallToolObservation(tool_name="guess", result=None, error=error, reward=0.0, done=False)
        right = number == self.task["secret"]
        answer = {"right": True} if right else "no"
        return CallToolObservation(tool_name="guess", result=answer, reward=1.0 if right else 0.25, done=right)

    @property
    def state(self):
        return State(episode_id=self.task.get("id"), step_count=0)  # fails before the first reset

    def list_splits(self):
        return list(TASKS)

    def list_tasks(self, split):
        return TASKS[split]

    def num_tasks(self, split):
        return len(TASKS[split])

    def get_task(self, split, index):
        return TASKS[split][index]

    def get_task_range(self, split, start=None, stop=None):
        return TASKS[split][start:stop]


class NoTasks(Guess):
    """The same without the Task API."""

    list_splits = None


if __name__ == "__main__":
    env = NoTasks if "no-tasks" in sys.argv else Guess
    app = create_app(env, CallToolAction, CallToolObservation, env_name="guess", max_concurrent_envs=2)
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])
