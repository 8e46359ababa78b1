"""From what a user wrote after ``sandbox=`` to a host: one provider's name, or several in the order of preference."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from agent_env_core.errors import ConfigError, PluginError, describe
from agent_env_core.plugins import plugins
from agent_env_core.sandbox.host import SandboxHost
from agent_env_core.sandbox.limits import check_environment
from agent_env_core.sandbox.probe import probe
from agent_env_core.sandbox.slots import run_folder

log = logging.getLogger(__name__)

DEFAULT_PROVIDER = "docker"

PROBE_SECONDS = 30.0
"""Seconds in which a provider that isn't the only one must answer."""


def provider_names(sandbox: str | None) -> tuple[str, ...]:
    """The providers that ``sandbox`` names, ``docker,process`` say; Docker without any.

    Raises:
        ConfigError: There is an empty name among them.
    """
    names = tuple(name.strip() for name in (DEFAULT_PROVIDER if sandbox is None else sandbox).split(","))
    if not all(names):
        raise ConfigError(f"sandbox={sandbox!r} must be a provider's name, or several with commas: docker,process")
    return tuple(dict.fromkeys(names))


def check_names(sandbox: str | None) -> None:
    """Refuses what can't become a host on any machine with these plugins; of several names, warns of an unknown one.

    Raises:
        ConfigError: See :func:`provider_names`.
        PluginError: None of the providers is installed.
    """
    names, missing = provider_names(sandbox), []
    for name in names:
        try:
            plugins().sandbox_provider(name)
        except PluginError as exc:
            missing.append(str(exc))
    if len(missing) == len(names):
        raise PluginError("; ".join(missing))
    for problem in missing:
        log.warning("sandbox=%r: %s", sandbox, problem)


def open_host(
    name: str | None = None,
    config: Mapping[str, Any] | None = None,
    *,
    run_id: str | None = None,
    max_starting: int | None = None,
    max_running: int | None = None,
) -> SandboxHost:
    """A host for the provider that ``name`` finds, ``docker`` by default. It is not started yet.

    Its limits are shared by all processes of this user on this machine, but for ``max_running``, which is its own.

    Args:
        name: A sandbox provider's name, e.g. ``process``.
        config: The provider's settings; anything that goes into JSON.
        run_id: See :class:`SandboxHost`.
        max_starting: See :class:`SandboxHost`.
        max_running: See :class:`SandboxHost`.

    Raises:
        PluginError: No such provider, or its plugin is broken.
        ConfigError: The provider refuses its settings.
    """
    name = DEFAULT_PROVIDER if name is None else name
    settings = dict(config or {})
    provider = plugins().sandbox_provider(name)(settings)
    try:
        shared = run_folder()
    except ConfigError as exc:
        log.warning("limits hold for this process alone: %s", exc)
        shared = None
    return SandboxHost(
        provider,
        run_id=run_id,
        max_starting=max_starting,
        max_running=max_running,
        reaper=(name, settings),
        shared=shared,
    )


async def start_host(
    sandbox: str | None = None,
    *,
    max_running: int | None = None,
    on_progress: Callable[[str], None] = log.info,
) -> SandboxHost:
    """A started host of the first of the named providers that can be used here.

    That is decided once, before anything is created. Each one that is passed by is told in one line.

    Args:
        sandbox: A provider's name, or several with commas in between.
        max_running: See :class:`SandboxHost`.
        on_progress: Told about the choice, where there is one.

    Raises:
        PluginError, ConfigError: The only provider can't be used, or none of them can; the message has each reason. Or
            the environment sets a limit that is none.
    """
    check_environment()
    names = provider_names(sandbox)
    if len(names) == 1:
        return await _started(open_host(names[0], max_running=max_running))
    refused = []
    for name in names:
        try:
            host = await _started(open_host(name, max_running=max_running), probe_seconds=PROBE_SECONDS)
        except Exception as exc:  # whatever it is, the next one may do
            reason = describe(exc).removeprefix(f"{name}: ")
            refused.append(f"{name}: {reason}")
            on_progress(f"no sandboxes from {name}: {reason}")
            continue
        isolation = host.provider.capabilities.isolation
        on_progress(f"sandboxes come from {name} (isolation: {isolation})")
        return host
    raise ConfigError(f"sandbox={sandbox!r}: none of them can be used here: " + "; ".join(refused))


async def _started(host: SandboxHost, *, probe_seconds: float | None = None) -> SandboxHost:
    try:
        if probe_seconds is not None:
            await probe(host.provider, probe_seconds)
        await host.start()
    except BaseException:
        await host.provider.aclose()  # not the host, which would ask it what is left: nothing was made
        raise
    return host
