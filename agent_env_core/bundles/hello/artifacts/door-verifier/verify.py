"""Full marks for an open door; each wrong code on the way costs a quarter."""

import httpx


async def verify(mcp_url: str) -> list[dict]:
    """One row, from what the env says of itself."""
    ask = {"jsonrpc": "2.0", "id": 1, "method": "data/get", "params": {}}
    async with httpx.AsyncClient() as client:
        answer = await client.post(mcp_url.removesuffix("/mcp") + "/agentenv", json=ask)
    door = answer.json()["result"]["parts"][0]["data"]
    score = max(0.0, 1 - 0.25 * door["wrong"]) if door["open"] else 0.0
    return [{"id": "door", "result": door["open"], "score": score, "wrong_codes": door["wrong"]}]
