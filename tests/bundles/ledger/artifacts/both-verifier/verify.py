"""Scores an env of two ledgers, each by its own; and looks at the env as a whole, as a gateway shows it."""

import httpx
from agentenv_protocol import client
from agentenv_protocol.tool_client import ToolSession


async def verify(mcp_url: str) -> list[dict]:
    base = mcp_url.removesuffix("/mcp")
    card = await client.get_card(base)
    rows = []
    for child in card["children_environments"]:
        name = child["name"]
        assert client.find_child(card, name) == child
        state = (await client.get_data(f"{base}/svc/mcp-{name}")).parts[0].data
        found = {**state["entries"], "roles": state["roles"]}
        rows += [
            {"id": f"{name}-{key}", "score": float(found.get(key) == value), "found": found.get(key)}
            for key, value in state["want"].items()
        ]
    async with ToolSession(mcp_url=f"{base}/mcp") as tools:
        names = {tool.name for tool in await tools.list_tools()}
        said = await tools.call_tool("south_whoami", {})
    whole = {"north_put", "south_put"} <= names and not {"north_secret", "south_secret"} & names
    rows.append({"id": "union", "score": float(whole and not said.isError), "tools": sorted(names)})
    try:
        await client.get_data(base)
    except Exception as exc:
        rows.append({"id": "no-data-plane", "score": 1.0, "said": str(exc)})
    async with httpx.AsyncClient() as http:
        state = (await http.get(f"{base}/state")).json()
    rows.append({"id": "state", "score": float([s["name"] for s in state["mcp_servers"]] == ["north", "south"])})
    return rows
