"""Registers the provider ``docker``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agent_env_core.hookspecs import hookimpl
from agent_env_core.sandbox.contract import SandboxProvider
from agent_env_docker.settings import Settings


class _Factory:
    """Makes the provider; ``agent-env sandbox show docker`` prints the table of its settings."""

    settings_model = Settings

    def __call__(self, config: Mapping[str, Any]) -> SandboxProvider:
        from agent_env_docker.provider import DockerProvider

        return DockerProvider(Settings.read("docker", config))


@hookimpl
def agent_env_sandbox_providers(
    register: Callable[[str, Callable[[Mapping[str, Any]], SandboxProvider]], None],
) -> None:
    """Registers ``docker``."""
    register("docker", _Factory())
