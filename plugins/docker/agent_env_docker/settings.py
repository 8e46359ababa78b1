"""What can be set on the provider. The table in the README is this class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from agent_env_core.errors import ConfigError


@dataclass(frozen=True)
class Settings:
    """Settings of the provider ``docker``.

    Attributes:
        memory_mb: Memory of a sandbox in MiB where the spec asks for none; swap is never added to it.
        cpus: Cores of a sandbox where the spec asks for none; 0 sets no limit.
        pids: Processes and threads in a sandbox at once.
        disk_mb: MiB that a sandbox may write; 0 sets no limit. Where the engine's storage can't keep one, creating a
            sandbox fails and says so.
        output_mb: MiB of stdout, and of stderr, that one ``exec`` keeps; what is past it is dropped.
        engine_timeout: Seconds the engine may be silent within one call before that call fails as ``Unavailable``.
        builder: ``auto`` takes BuildKit where the ``docker`` command has it, else the classic builder; ``buildkit`` and
            ``classic`` ask for one.
        bytecode: Whether Python files are compiled in the images that are built.
        publish: Address, on the engine's machine, on which the ports of sandboxes are opened.
        host: Name or address under which this process reaches those ports; empty derives it from ``publish`` and
            from where the engine is.
    """

    memory_mb: int = 4096
    cpus: float = 0.0
    pids: int = 512
    disk_mb: int = 0
    output_mb: int = 64
    engine_timeout: int = 120
    builder: str = "auto"
    bytecode: bool = True
    publish: str = "127.0.0.1"
    host: str = ""

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Settings:
        """Reads a configuration mapping.

        Raises:
            ConfigError: A setting that does not exist, or a value of the wrong type or size.
        """
        known: dict[str, type] = {field.name: type(getattr(cls, field.name)) for field in fields(cls)}
        if stray := sorted(set(config) - set(known)):
            raise ConfigError(f"docker: there is no setting {stray[0]!r}; known: {', '.join(known)}")
        values: dict[str, Any] = {}
        for name, value in config.items():
            try:
                values[name] = _flag(value) if known[name] is bool else known[name](value)
            except (TypeError, ValueError):
                raise ConfigError(f"docker: {name}={value!r} must be of type {known[name].__name__}") from None
        settings = cls(**values)
        for name in ("memory_mb", "pids", "output_mb", "engine_timeout"):
            if getattr(settings, name) < 1:
                raise ConfigError(f"docker: {name}={getattr(settings, name)!r} must be at least 1")
        for name in ("cpus", "disk_mb"):
            if getattr(settings, name) < 0:
                raise ConfigError(f"docker: {name}={getattr(settings, name)!r} must not be negative; 0 sets no limit")
        return settings


def _flag(value: object) -> bool:
    """A truth value, also as text."""
    text = str(value).lower()
    if text not in ("true", "false"):
        raise ValueError(text)
    return text == "true"
