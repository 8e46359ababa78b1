"""From what Docker's SDK raises to the six sandbox errors. This is the only place that does it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from agent_env_core.errors import Busy, ConfigError, Gone, ImageError, SandboxError, Unavailable, Unsupported, describe

if TYPE_CHECKING:
    from docker import APIClient

FILE_ERRORS = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)

_LOG_LINES = 20
_POOLS = "remove unused networks (`docker network prune`) or widen default-address-pools"

# Fragments of the engine's own words, most telling first. An engine's status code alone says little: 500 covers a full
# disk, a taken port and a program that isn't in the image.
_KNOWN: tuple[tuple[str, Callable[[str], SandboxError]], ...] = (
    (
        "no space left on device",
        lambda text: ConfigError(
            f"{text}; the engine's disk is full: `docker system df` shows what takes it, and "
            "`agent-env gc --images --yes` removes what agent-env built and nothing uses"
        ),
    ),
    ("fully subnetted", lambda text: Busy(f"{text}; {_POOLS}", 5.0)),
    ("non-overlapping ipv4 address pool", lambda text: Busy(f"{text}; {_POOLS}", 5.0)),
    (
        "no available ipv4 addresses",
        lambda text: Busy(
            f"{text}; the network of all sandboxes is full: set AGENT_ENV_MAX_RUNNING to what it holds, or give the "
            "engine larger default-address-pools and remove the network, which is made anew",
            5.0,
        ),
    ),
    (
        "exchange full",
        lambda text: Busy(
            f"{text}; a bridge of Linux takes 1,024 containers: set AGENT_ENV_MAX_RUNNING below that", 5.0
        ),
    ),
    ("toomanyrequests", lambda text: Busy(f"{text}; the registry limits pulls: log in to it, or wait", 60.0)),
    (
        "storage-opt",
        lambda text: ConfigError(
            f"{text}; the engine's storage keeps no disk limits (overlay2 does on xfs): set disk_mb=0"
        ),
    ),
    (
        "container-init binary not found",
        lambda text: ConfigError(f"{text}; Podman's init is missing on the engine's machine (apt install catatonit)"),
    ),
    ("port is already allocated", Busy),
    ("address already in use", Busy),  # the engine picks among its own ports, and others of the machine take them too
    ("cannot allocate memory", Busy),
    ("resource temporarily unavailable", Busy),
    ("too many open files", Busy),
    ("no such image", ImageError),
    ("executable file not found", ImageError),
    ("no such container", Gone),
    ("no such exec instance", Gone),
    ("is not running", Gone),
    ("marked for removal", Gone),
)


def words(exc: BaseException) -> str:
    """What the engine said, in one line and without the SDK's wrapping."""
    text = getattr(exc, "explanation", None)
    return " ".join(str(text).split()) if text else describe(exc)


def translate(exc: BaseException, doing: str) -> Exception:
    """The error to raise for ``exc``, caught while ``doing`` something (a phrase such as ``starting a sandbox``).

    Sandbox errors and the file errors of the contract pass through. Whatever is not recognised is ``Unavailable``: the
    engine may or may not have done what it was asked.
    """
    if isinstance(exc, SandboxError) or type(exc) in FILE_ERRORS:
        return exc  # type: ignore[return-value]  # both are Exceptions
    from docker.errors import APIError, ImageNotFound, NotFound

    default: type[SandboxError] = Unavailable
    if isinstance(exc, ImageNotFound):
        default = ImageError
    elif isinstance(exc, NotFound):
        default = Gone
    elif isinstance(exc, APIError) and exc.status_code in (401, 403):
        default = ConfigError
    elif isinstance(exc, APIError) and exc.status_code == 400:
        default = Unsupported
    return recognise(f"docker: {doing} failed: {words(exc)}", default)


def recognise(text: str, default: type[SandboxError]) -> SandboxError:
    """The error for a text of the engine's, with the fix where there is one; ``default`` for one that is not known."""
    lowered = text.lower()
    return next((error(text) for fragment, error in _KNOWN if fragment in lowered), default(text))


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """Raises what :func:`translate` makes of any exception of the block."""
    try:
        yield
    except Exception as exc:
        error = translate(exc, doing)
        if error is exc:
            raise
        raise error from exc


@contextmanager
def inside(client: APIClient, sandbox_id: str, doing: str) -> Iterator[None]:
    """Like :func:`translated` for work in one sandbox: where the sandbox has ended, that is the error, and says why."""
    try:
        yield
    except Exception as exc:
        with translated(doing):
            alive(client, sandbox_id)
        error = translate(exc, doing)
        if error is exc:
            raise
        # It runs, whatever the engine's words were.
        raise (Unavailable(str(error)) if isinstance(error, Gone) else error) from exc


def image_id(client: APIClient, ref: str) -> str | None:
    """The id of an image on this engine; None where it has none of that name."""
    from docker.errors import ImageNotFound, NotFound

    try:
        return str(inspect_image(client, ref)["Id"])
    except (ImageNotFound, NotFound):
        return None


def inspect_image(client: APIClient, image: str) -> dict[str, Any]:
    """What the engine knows of an image."""
    info: dict[str, Any] = client.inspect_image(image)  # type: ignore[no-untyped-call]  # a gap in its stubs
    return info


def alive(client: APIClient, sandbox_id: str) -> dict[str, Any]:
    """What the engine knows of a sandbox that runs.

    Raises:
        Gone: It does not; the message says how it ended.
    """
    from docker.errors import NotFound

    if not is_id(sandbox_id):
        raise Gone(f"docker: {sandbox_id!r} can't be the id of a sandbox")
    try:
        info: dict[str, Any] = client.inspect_container(sandbox_id)
    except NotFound:
        raise Gone(f"docker: the sandbox {short(sandbox_id)} has ended: it was removed") from None
    if not is_alive(info):
        raise Gone(obituary(client, info))
    return info


def is_id(text: str) -> bool:
    """Whether a text may name a container; the SDK puts ids into URLs as they are."""
    return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", text) is not None


def is_alive(info: dict[str, Any]) -> bool:
    """Whether a container runs, by the engine's own flags (a paused one does)."""
    state = info["State"]
    return bool(state.get("Running")) and not state.get("Dead") and state.get("Status") != "removing"


def obituary(client: APIClient, info: dict[str, Any]) -> str:
    """How a container's main process ended, and its last words."""
    state = info["State"]
    text = f"docker: the sandbox {short(info['Id'])} has ended: "
    command = " ".join(info["Config"].get("Entrypoint") or [])
    if state.get("OOMKilled"):
        text += f"it ran out of memory (limit {info['HostConfig'].get('Memory', 0) >> 20} MiB)"
    elif state.get("Error"):
        text += " ".join(str(state["Error"]).split())
    else:
        text += f"its main process ({command}) ended with exit code {state.get('ExitCode')}"
    tail = last_words(client, info["Id"])
    return f"{text}; its last output:\n{tail}" if tail else text


def last_words(client: APIClient, sandbox_id: str) -> str:
    """The end of what a container wrote; empty where the engine can't tell any more."""
    from docker.errors import DockerException

    try:
        raw = client.logs(sandbox_id, tail=_LOG_LINES)
    except (DockerException, OSError):
        return ""
    return plain(raw.decode(errors="replace"))[-4000:].strip()


def plain(text: str) -> str:
    """A program's output without colours and control characters."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|[^\x20-\x7e\n\t\u00a0-\U0010ffff]", "", text)


def short(sandbox_id: str) -> str:
    """An id as people know it from ``docker ps``."""
    return sandbox_id[:12]
