"""Images, built by Modal from a Dockerfile or from a reference to a registry.

Modal names a build by everything that goes into it and joins those that ask for the same one, so there is no cache and
no lock here.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from agent_env_core.errors import ConfigError, ImageError, Unsupported, describe
from agent_env_core.sandbox.contract import Image
from agent_env_modal.account import Opened
from agent_env_modal.failure import translate, words
from agent_env_modal.settings import Settings

if TYPE_CHECKING:
    import modal

logger = logging.getLogger("agent_env_modal")

_LOG_LINES = 30
_LOG_SECONDS = 15.0


class Images:
    """Builds images, and knows those of this process.

    Args:
        settings: They name the secret of a private registry.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._known: dict[str, modal.Image] = {}

    async def prepare(self, opened: Opened, image: Image) -> str:
        """Builds ``image``; see :meth:`agent_env_core.sandbox.contract.SandboxProvider.prepare`."""
        import modal

        what = image.ref or f"{image.context}/{image.dockerfile}"
        try:
            # Without the image's own ENTRYPOINT, which would swallow every command.
            recipe = (await asyncio.to_thread(self._recipe, image)).entrypoint([])
            logger.info("modal: building %s", what)
            built = await recipe.build.aio(opened.app)
        except modal.exception.ImageBuildError as exc:
            error = translate(exc, f"building {what}")
            tail = await self._tail(opened, exc.image_id)
            raise type(error)(f"{error}; its last output:\n{tail}" if tail else str(error)) from exc
        except modal.exception.NotFoundError as exc:  # a secret is the only thing that is looked up
            raise ConfigError(f"modal: registry_secret={self._settings.registry_secret!r}: {words(exc)}") from exc
        except (
            FileNotFoundError,
            PermissionError,
            UnicodeError,
        ) as exc:  # of this machine: Modal was asked nothing yet
            raise ImageError(f"modal: {what} can't be built: {describe(exc)}") from exc
        except Exception as exc:
            error = translate(exc, f"building {what}")
            raise (ImageError(str(error)) if isinstance(error, Unsupported) else error) from exc
        logger.info("modal: %s is the image %s", what, built.object_id)
        self._known[built.object_id] = built
        return built.object_id

    def _recipe(self, image: Image) -> modal.Image:
        import modal

        name = self._settings.registry_secret
        secret = modal.Secret.from_name(name, environment_name=self._settings.environment or None) if name else None
        if image.context is None:
            return modal.Image.from_registry(image.ref or "", secret=secret)
        context = image.context.absolute()  # the SDK compares its path with that of a .dockerignore
        dockerfile = context / image.dockerfile
        if not dockerfile.is_file():
            raise ImageError(f"modal: there is no Dockerfile at {dockerfile}")
        return modal.Image.from_dockerfile(dockerfile, context_dir=context, registry_secret=secret)

    async def _tail(self, opened: Opened, image_id: str) -> str:
        """The end of what a build printed; empty where Modal doesn't tell in time."""
        import modal

        lines: list[str] = []
        try:
            async with asyncio.timeout(_LOG_SECONDS):
                failed = modal.Image.from_id(image_id, client=opened.client)
                async for entry in failed.logs.tail.aio(_LOG_LINES):
                    lines.append(entry.message)
        except Exception as exc:
            logger.debug("modal: no log of the image %s: %s", image_id, exc)
        return "".join(lines).strip()

    def get(self, opened: Opened, image_id: str) -> modal.Image:
        """An image that was prepared, here or by another process.

        Raises:
            ImageError: It can't be one's id.
        """
        import modal

        if not image_id.startswith("im-"):
            raise ImageError(f"modal: {image_id!r} is no image that was prepared; `prepare` gives what is needed")
        if image_id not in self._known:
            self._known[image_id] = modal.Image.from_id(image_id, client=opened.client)
        return self._known[image_id]
