"""What a plugin author imports: the hook marker, the contracts, and the errors."""

from agent_env_core.errors import (
    AgentEnvError,
    BundleError,
    Busy,
    CapacityError,
    ConfigError,
    ContextTooLong,
    EpisodeError,
    EpisodeRefused,
    Gone,
    ImageError,
    ModelError,
    PluginError,
    Problem,
    SandboxError,
    SetupError,
    Unavailable,
    Unsupported,
)
from agent_env_core.hookspecs import hookimpl

__all__ = [
    "AgentEnvError",
    "BundleError",
    "Busy",
    "CapacityError",
    "ConfigError",
    "ContextTooLong",
    "EpisodeError",
    "EpisodeRefused",
    "Gone",
    "ImageError",
    "ModelError",
    "PluginError",
    "Problem",
    "SandboxError",
    "SetupError",
    "Unavailable",
    "Unsupported",
    "hookimpl",
]
