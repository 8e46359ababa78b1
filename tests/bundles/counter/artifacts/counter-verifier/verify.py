"""Grades the counter by how near it came to its goal; misbehaves when the env says so, for tests."""

import os
import time

from agentenv_protocol import client


async def verify(mcp_url: str, run: object) -> list[dict]:
    world = (await client.get_data(mcp_url.removesuffix("/mcp"))).parts[0].data
    match world["verify"]:
        case "raise":
            raise ValueError("the verifier was told to raise")
        case "hang":
            time.sleep(3600)  # noqa: ASYNC251 - it is told to hang, and to hold its loop while it does
        case "exit":
            os._exit(3)
        case "shout":
            for _ in range(1000):
                os.write(1, b"A" * 1_000_000)
        case "nonsense":
            return [{"result": True, "score": float("nan")}]
    reply = run.turns[-1].reply
    said = reply.text if reply else ""
    return [
        {"id": "goal", "result": world["value"] == world["goal"], "score": world["value"] / world["goal"]},
        {"id": "said", "result": "done" in said, "weight": 0, "reply": said, "roles": world["roles"]},
    ]
