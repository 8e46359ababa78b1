"""How a provider describes its settings, reads them, and says what is wrong with one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from difflib import get_close_matches
from importlib.util import find_spec
from typing import Any, Literal, Self, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import PydanticUndefined

from agent_env_core.errors import ConfigError, NotSetUp


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
            ConfigError: A setting that doesn't exist, lacks, or has no fitting value; every one of them at once. Or a
                variable that is nearly, but not quite, one of a setting.
        """
        prefix = f"AGENT_ENV_{provider.upper().replace('-', '_')}_"
        cls._refuse_misspelt(provider, prefix)
        found = {name: os.environ.get(prefix + name.upper()) for name in cls.model_fields}
        given = {name: value for name, value in found.items() if value is not None}
        try:
            return cls.model_validate({**given, **config})
        except ValidationError as exc:
            raise ConfigError("; ".join(cls._say(provider, error) for error in exc.errors())) from None

    @classmethod
    def _refuse_misspelt(cls, provider: str, prefix: str) -> None:
        """Only what is close to a setting: another variable that begins alike may be somebody else's."""
        known = [name.upper() for name in cls.model_fields]
        for variable in sorted(os.environ):
            name = variable.removeprefix(prefix)
            if name == variable or name in known:
                continue
            if close := get_close_matches(name, known, n=1, cutoff=0.75):
                raise ConfigError(f"{provider}: {variable} is no setting; did you mean {prefix}{close[0]}?")

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
            rows.append({
                "name": name,
                "type": _kind(field.annotation),
                "default": "" if default is PydanticUndefined else _text(default),
                "meaning": field.description or "",
            })  # fmt: skip
        return rows


def _kind(annotation: object) -> str:
    """A type as a person reads it: one that has a few values as those."""
    if get_origin(annotation) is Literal:
        return " | ".join(map(_text, get_args(annotation)))
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def _text(value: object) -> str:
    """A value as a person would type it; an empty text in quotes, so that it is seen."""
    return str(value) if value != "" else "''"


def require_sdk(provider: str, module: str) -> None:
    """Refuses at once where the package is missing that a provider talks through; nothing is imported for it.

    Raises:
        NotSetUp: There is no such module.
    """
    if find_spec(module) is None:
        fix = f"pip install 'agentenv-framework[{provider}]'"
        raise NotSetUp(f"{provider}: the package {module} isn't installed; {fix}")
