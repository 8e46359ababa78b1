"""Images of envs: prepared once for a whole server, with the command each one starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent_env_core.errors import ImageError
from agent_env_core.sandbox.contract import Image, KnowsImageCommand

if TYPE_CHECKING:
    from agent_env_core.bundle import Env
    from agent_env_core.sandbox.host import SandboxHost


@dataclass(frozen=True)
class PreparedImage:
    """An image that sandboxes can start from: the provider's reference to it, and its main command."""

    ref: str
    command: tuple[str, ...]


async def prepare_image(env: Env, host: SandboxHost) -> PreparedImage:
    """Builds or pulls an env's image and finds out what it starts.

    Raises:
        SandboxError: It can't be had, or nobody can say what it starts; the message has the fix.
        BundleError: Its Dockerfile can't be read.
    """
    from agent_env_core.bundle.dockerfile import read_dockerfile

    image = env.image
    if image is None:
        raise ImageError(f"the env {env.name!r} is made of others, and each of them has an image of its own")
    command: tuple[str, ...] = ()
    if image.context is not None:
        command = read_dockerfile(image.context / image.dockerfile).start_command()
    ref = await host.prepare(Image(ref=image.ref, context=image.context, dockerfile=image.dockerfile))
    provider = host.provider
    if not command and isinstance(provider, KnowsImageCommand):
        command = await provider.image_command(ref)
    if not command:
        what = f"its Dockerfile ({image.dockerfile})" if image.context else f"the image {image.ref}"
        raise ImageError(
            f"the env {env.name!r}: nothing says how its server is started: {what} has no CMD or ENTRYPOINT that"
            f' {provider.name} can read; end the Dockerfile with e.g. CMD ["python", "server.py"]'
        )
    return PreparedImage(ref, command)
