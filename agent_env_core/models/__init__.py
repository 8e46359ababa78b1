"""Models behind an OpenAI-compatible API: they play agents, judge, and stand in for users."""

from agent_env_core.models.chat import ChatModel
from agent_env_core.models.messages import Completion, Message, ToolCall, Usage
from agent_env_core.models.settings import ModelSettings

__all__ = ["ChatModel", "Completion", "Message", "ModelSettings", "ToolCall", "Usage"]
