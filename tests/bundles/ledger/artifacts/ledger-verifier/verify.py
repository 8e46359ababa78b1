"""Scores a ledger by how much of what it should hold stands in it."""

from agentenv_protocol import client


async def verify(mcp_url: str) -> list[dict]:
    state = (await client.get_data(mcp_url.removesuffix("/mcp"))).parts[0].data
    entries = {**state["entries"], "roles": state["roles"], "sessions": state["sessions"]}
    return [
        {"id": key, "score": float(entries.get(key) == value), "found": entries.get(key)}
        for key, value in state["want"].items()
    ]
