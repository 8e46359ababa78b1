"""Registers the provider ``modal``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agent_env_core.hookspecs import hookimpl
from agent_env_core.sandbox.contract import SandboxProvider
from agent_env_core.sandbox.settings import require_sdk
from agent_env_modal.settings import Settings


class _Factory:
    """Makes the provider; ``agent-env sandbox show modal`` prints the table of its settings."""

    settings_model = Settings

    def __call__(self, config: Mapping[str, Any]) -> SandboxProvider:
        from agent_env_modal.account import require_credentials
        from agent_env_modal.provider import ModalProvider

        settings = Settings.read("modal", config)
        require_sdk("modal", "modal")
        require_credentials()
        return ModalProvider(settings)


@hookimpl
def agent_env_sandbox_providers(
    register: Callable[[str, Callable[[Mapping[str, Any]], SandboxProvider]], None],
) -> None:
    """Registers ``modal``."""
    register("modal", _Factory())
