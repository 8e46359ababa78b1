"""Every extension point of agent-env, in one file.

A plugin is a module (or any object) whose functions carry :data:`hookimpl` and bear the names below. It is found
through one of two entry-point groups:

* ``agent_env``: named things. The entry point's name is the name a user types (``sandbox="modal"`` loads ``modal``
  and nothing else), and the plugin must register exactly that name through the fitting ``register`` hook.
* ``agent_env.extend``: what works unnamed (toolset keys, episode events, commands). Loaded when a server, a training
  run or the command line starts.

An implementation may leave out arguments it does not need. All hooks exist since version 0.1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:  # types only: this module is the bottom of the import order
    from collections.abc import Callable, Hashable, Mapping

    import click

    from agent_env_core.adapters import Combiner, TrainerAdapter
    from agent_env_core.bundle import Task
    from agent_env_core.play.events import EpisodeEvent
    from agent_env_core.sandbox.contract import SandboxProvider
    from agent_env_core.steps.base import TaskStep

PROJECT = "agent_env"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def agent_env_sandbox_providers(
    register: Callable[[str, Callable[[Mapping[str, Any]], SandboxProvider]], None],
) -> None:
    """Registers sandbox providers: ``register(name, factory)``.

    ``factory(config)`` makes the provider; it is called once for each server or run that names it, before an event loop
    runs, and must neither connect nor create anything. ``config`` holds the provider's settings (may be empty).

    Called: when a user names the provider, after the plugin was imported.
    May raise: anything; the plugin is then reported as failed and others are untouched.
    """


@hookspec
def agent_env_reward_combiners(register: Callable[[str, Callable[[str], Combiner]], None]) -> None:
    """Registers reward combiners: ``register(name, factory)``.

    ``reward="weighted:grade=0.8,style=0.2"`` calls ``factory("grade=0.8,style=0.2")`` of the combiner ``weighted``; the
    text is empty where there is no colon. The factory returns a function from scores to a reward, or to None, which
    leaves the rollout out of the update. A scoring step of that id wins over a combiner of the same name.

    Called: when an ``AgentEnv`` or a server is made with such a ``reward=``.
    May raise: ``ValueError`` for a text it can't read; the message reaches the user.
    """


@hookspec(firstresult=True)
def agent_env_toolset_key(task: Task) -> Hashable | None:
    """Says which tasks share one environment class: tasks of equal keys do.

    Return None to leave the decision to the next plugin, and at last to the built-in rule, which keys by the played
    agent's envs and their versions, its role, the tool-access changes on it, and whether it works in a sandbox.

    Called: once for each served task, when a server starts. Must not block.
    May raise: anything; the server refuses to start and names the plugin.
    """


@hookspec
def agent_env_trainer_adapters(register: Callable[[str, Callable[[], TrainerAdapter]], None]) -> None:
    """Registers trainer adapters: ``register(name, factory)``; ``factory()`` makes a ``TrainerAdapter``.

    Called: when a user names the trainer.
    May raise: anything; the plugin is then reported as failed.
    """


@hookspec
def agent_env_task_steps(register: Callable[[str, type[TaskStep]], None]) -> None:
    """Registers step types: ``register(type, cls)``, where ``type`` is what a task file writes.

    Called: when a bundle uses the type, before its tasks are read.
    May raise: anything; the bundle then has a problem that names the type and the plugin.
    """


@hookspec
def agent_env_episode_event(event: EpisodeEvent) -> None:
    """Told of what happens to every episode: for recorders, metrics and tracing.

    Called: on the engine's event loop, in order for one episode. Must not block.
    May raise: anything; it is logged once a plugin and never disturbs the episode.
    """


@hookspec
def agent_env_commands(cli: click.Group) -> None:
    """Adds sub-commands to ``agent-env``.

    Called: once, when the command line starts. An existing command is not replaced.
    May raise: anything; the plugin is reported as failed and the command line goes on.
    """
