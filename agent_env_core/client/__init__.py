"""The wire client trainers use. Depends on websockets and httpx alone."""

from agent_env_core.client.address import Address, hand_down_token
from agent_env_core.client.hosts import Hosts
from agent_env_core.client.messages import ForeignTools, Offered, Outcome, Row, ToolAnswer, Turn
from agent_env_core.client.plain import servers_at
from agent_env_core.client.server import Info, Server, Toolset
from agent_env_core.client.session import Session, close_all, seconds

__all__ = [
    "Address",
    "ForeignTools",
    "Hosts",
    "Info",
    "Offered",
    "Outcome",
    "Row",
    "Server",
    "Session",
    "ToolAnswer",
    "Toolset",
    "Turn",
    "close_all",
    "hand_down_token",
    "seconds",
    "servers_at",
]
