"""How a provider describes its settings, reads them, and says what is wrong with one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import PydanticUndefined

from agent_env_core.errors import ConfigError


class ProviderSettings(BaseModel):
    """Base of a provider's settings: a field each, with a default and a ``Field(description=...)`` for a person.

    A provider's factory that has the class as its attribute ``settings_model`` gets its table from
    ``agent-env sandbox show``. A setting that is secret has the type ``pydantic.SecretStr``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def read(cls, provider: str, config: Mapping[str, Any]) -> Self:
        """Reads a configuration; texts, as a command line has them, become what a field needs.

        What it leaves out is taken from the environment: ``AGENT_ENV_MODAL_REGION`` sets ``region`` of ``modal``.

        Args:
            provider: The provider's name, for messages and variables.
            config: Setting to value.

        Raises:
            ConfigError: A setting that doesn't exist, lacks, or has no fitting value; every one of them at once.
        """
        prefix = f"AGENT_ENV_{provider.upper().replace('-', '_')}_"
        found = {name: os.environ.get(prefix + name.upper()) for name in cls.model_fields}
        given = {name: value for name, value in found.items() if value is not None}
        try:
            return cls.model_validate({**given, **config})
        except ValidationError as exc:
            raise ConfigError("; ".join(cls._say(provider, error) for error in exc.errors())) from None

    @classmethod
    def _say(cls, provider: str, error: Mapping[str, Any]) -> str:
        name = ".".join(map(str, error["loc"]))
        match error["type"]:
            case "extra_forbidden":
                return f"{provider}: there is no setting {name!r}; known: {', '.join(cls.model_fields) or 'none'}"
            case "missing":
                return f"{provider}: the setting {name!r} must be given: {cls.model_fields[name].description}"
            case _:
                field = cls.model_fields.get(name.partition(".")[0])
                shown = "" if field is not None and "Secret" in repr(field.annotation) else f"={error['input']!r}"
                return f"{provider}: {name}{shown}: {error['msg'].removeprefix('Value error, ')}"

    @classmethod
    def table(cls) -> list[dict[str, str]]:
        """A row for each setting, in order: its name, type, default as text (empty where it must be given), meaning."""
        rows = []
        for name, field in cls.model_fields.items():
            default = field.get_default(call_default_factory=True)
            kind = getattr(field.annotation, "__name__", str(field.annotation)) if field.annotation else ""
            rows.append({
                "name": name,
                "type": kind,
                "default": "" if default is PydanticUndefined else repr(default),
                "meaning": field.description or "",
            })  # fmt: skip
        return rows
