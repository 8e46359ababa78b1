"""What every plugin imports: the hook marker, and the errors.

The contracts are beside what they are about: :mod:`agent_env_core.sandbox.contract` for sandbox providers,
:mod:`agent_env_core.adapters` for trainers and combiners, :mod:`agent_env_core.steps.base` for step types. All that
several sandbox providers need is in :mod:`agent_env_core.sandbox`.
"""

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
    NotSetUp,
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
    "NotSetUp",
    "PluginError",
    "Problem",
    "SandboxError",
    "SetupError",
    "Unavailable",
    "Unsupported",
    "hookimpl",
]
