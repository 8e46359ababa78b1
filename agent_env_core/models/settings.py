"""Which models there are to ask, and where: for steps that judge or stand in for a user, and for evaluations."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from agent_env_core.errors import ModelError
from agent_env_core.models.chat import ChatModel

DEFAULT_URL = "https://api.openai.com/v1"
URL_VARIABLE = "OPENAI_BASE_URL"
KEY_VARIABLE = "OPENAI_API_KEY"
JUDGE_VARIABLE = "AGENT_ENV_JUDGE_MODEL"
USER_VARIABLE = "AGENT_ENV_USER_MODEL"
OPTIONS = {JUDGE_VARIABLE: "--judge-model", USER_VARIABLE: "--user-model"}
"""What the command line has for the same; messages name both."""


@dataclass(frozen=True)
class ModelSettings:
    """Names of models, and the API they stand behind.

    Attributes:
        base_url: The API, e.g. ``http://127.0.0.1:8000/v1``.
        api_key_env: The environment variable that holds the key. The key itself is in no object that is printed.
        model: Plays agents in evaluations; None in a server, where a trainer does.
        judge_model: Judges; None leaves it to the step.
        user_model: Stands in for users; None leaves it to the step.
    """

    base_url: str = DEFAULT_URL
    api_key_env: str = KEY_VARIABLE
    model: str | None = None
    judge_model: str | None = None
    user_model: str | None = None

    @classmethod
    def from_env(cls) -> ModelSettings:
        """What the environment of this process says: :data:`URL_VARIABLE`, :data:`JUDGE_VARIABLE` and the like."""
        return cls(
            base_url=os.environ.get(URL_VARIABLE) or DEFAULT_URL,
            judge_model=os.environ.get(JUDGE_VARIABLE) or None,
            user_model=os.environ.get(USER_VARIABLE) or None,
        )

    def lacks(self, model: str | None, variable: str, base_url: str | None = None) -> str:
        """What is missing before ``model`` can be asked, with the setting that mends it; empty where nothing is.

        Args:
            model: Its name, if any.
            variable: The environment variable that names one.
            base_url: Another API than :attr:`base_url`.
        """
        if not model:
            return f"none is named; set {variable}, or use {OPTIONS[variable]} of `agent-env run`"
        return self.lacks_api if base_url is None else ""

    @property
    def lacks_api(self) -> str:
        """What is missing before :attr:`base_url` can be asked, with the settings that mend it."""
        if self.base_url != DEFAULT_URL or os.environ.get(self.api_key_env):
            return ""
        return (
            f"no API is named; set {URL_VARIABLE} (--base-url of `agent-env run`) to one that is compatible with"
            f" OpenAI's, or {self.api_key_env} for OpenAI's own"
        )

    def open(
        self, model: str | None, *, base_url: str | None = None, params: Mapping[str, Any] | None = None
    ) -> ChatModel:
        """A client for a model; its user closes it (``async with``).

        Args:
            model: Its name at the server.
            base_url: Another API than :attr:`base_url`. It gets the key only if it is on the same host.
            params: Fields of every request, e.g. ``temperature``.

        Raises:
            ModelError: No model is named.
        """
        if not model:
            raise ModelError(
                f"no model is named: set {JUDGE_VARIABLE} or {USER_VARIABLE}, or name one in the step or on the"
                " command line"
            )
        key = (
            os.environ.get(self.api_key_env)
            if base_url is None or _origin(base_url) == _origin(self.base_url)
            else None
        )
        return ChatModel(model, base_url or self.base_url, key, params=params, key_name=self.api_key_env)


def _origin(url: str) -> tuple[str, str, int | None]:
    """Whom a URL belongs to: a bundle may name any, and none but the user's own is told the user's key."""
    try:
        found = httpx.URL(url)
    except httpx.InvalidURL:
        return url, "", None
    return found.scheme, found.host, found.port
