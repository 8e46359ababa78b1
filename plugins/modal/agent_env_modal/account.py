"""The account: who is logged in, and the app that holds the sandboxes. Opened by the first call that needs it."""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agent_env_core.errors import ConfigError, NotSetUp
from agent_env_modal.failure import LOG_IN, translated, words
from agent_env_modal.settings import Settings

if TYPE_CHECKING:
    import modal

THROTTLE_VARIABLE = "MODAL_MAX_THROTTLE_WAIT"


_CREDENTIALS = ("MODAL_TOKEN_ID", "MODAL_OAUTH_CLIENT_ID", "MODAL_IS_REMOTE")


def require_credentials() -> None:
    """Refuses at once where the SDK can't find any credentials; whether they are good, the service says later.

    Raises:
        NotSetUp: There are neither variables nor a file.
    """
    file = Path(os.environ.get("MODAL_CONFIG_PATH") or Path.home() / ".modal.toml")
    if not any(os.environ.get(name) for name in _CREDENTIALS) and not file.is_file():
        raise NotSetUp(f"modal: there are no credentials: MODAL_TOKEN_ID isn't set, and no file {file}; {LOG_IN}")


@dataclass(frozen=True)
class Opened:
    """What is open: the SDK's client and the app."""

    client: modal.Client
    app: modal.App

    @property
    def app_id(self) -> str:
        """The app's id."""
        assert self.app.app_id is not None  # a looked-up app has one
        return self.app.app_id


class Account:
    """Opens the app once, for all calls that wait for it.

    Args:
        settings: They name the app and its environment.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._opening: asyncio.Task[Opened] | None = None

    async def open(self) -> Opened:
        """The client and the app.

        Raises:
            ConfigError: The credentials are missing or refused.
            Unavailable: The service doesn't answer.
        """
        if self._opening is None or _failed(self._opening):
            self._opening = asyncio.create_task(self._open())
        return await asyncio.shield(self._opening)

    async def _open(self) -> Opened:
        # A throttled call is reported at once, to be waited for where others that share the account wait too: the SDK
        # would wait inside of the call, without an end.
        os.environ.setdefault(THROTTLE_VARIABLE, "0")
        if (wire := logging.getLogger("hpack")).level == logging.NOTSET:
            wire.setLevel(logging.INFO)  # below that it logs every header, the credentials among them
        modal = await asyncio.to_thread(__import__, "modal")  # takes a second the first time
        settings = self._settings
        with translated("logging in"):
            client = await modal.Client.from_env.aio()
        with translated(f"looking for the app {settings.app!r}"):
            try:
                app = await modal.App.lookup.aio(
                    settings.app, client=client, environment_name=settings.environment or None, create_if_missing=True
                )
            except modal.exception.NotFoundError as exc:  # the app itself would be made
                raise ConfigError(
                    f"modal: environment={settings.environment!r}: {words(exc)}; `modal environment list` names them"
                ) from exc
        return Opened(client, app)

    async def aclose(self) -> None:
        """Stops an opening under way. The client is the SDK's, shared by the whole process, and stays open."""
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)


def _failed(task: asyncio.Task[Opened]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
