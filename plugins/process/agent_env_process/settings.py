"""What can be set on the provider. The table in the README is this class."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from agent_env_core.errors import ConfigError


def _user_folder(variable: str, default: str) -> Path:
    base = os.environ.get(variable)
    return (Path(base) if base else Path.home() / default) / "agent-env" / "process"


@dataclass(frozen=True)
class Settings:
    """Settings of the provider ``process``.

    Attributes:
        isolation: ``auto`` takes the best this machine allows: ``bubblewrap``, else ``namespace``, else ``none``. One
            of these by name is kept, or refused.
        cache_dir: Prepared images and Python environments.
        state_dir: Running sandboxes; every machine has its own folder in it.
        cache_days: Days after which what nothing has used is removed from the cache.
        cache_gb: GiB that the cache may take; past it, what was not used for longest goes first.
    """

    isolation: str = "auto"
    cache_dir: Path = field(default_factory=lambda: _user_folder("XDG_CACHE_HOME", ".cache"))
    state_dir: Path = field(default_factory=lambda: _user_folder("XDG_STATE_HOME", ".local/state"))
    cache_days: float = 30.0
    cache_gb: float = 20.0

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Settings:
        """Reads a configuration mapping.

        Raises:
            ConfigError: A setting that doesn't exist, or a value of the wrong type or size.
        """
        kinds = {"isolation": str, "cache_dir": Path, "state_dir": Path, "cache_days": float, "cache_gb": float}
        known = [entry.name for entry in fields(cls)]
        if stray := sorted(set(config) - set(known)):
            raise ConfigError(f"process: there is no setting {stray[0]!r}; known: {', '.join(known)}")
        values: dict[str, Any] = {}
        for name, value in config.items():
            try:
                values[name] = kinds[name](value)
            except (TypeError, ValueError):
                raise ConfigError(f"process: {name}={value!r} must be of type {kinds[name].__name__}") from None
        settings = cls(**values)
        for name in ("cache_days", "cache_gb"):
            if not getattr(settings, name) > 0:
                raise ConfigError(f"process: {name}={getattr(settings, name)!r} must be above 0")
        return settings
