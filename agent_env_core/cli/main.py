"""The group ``agent-env``: its commands, those of plugins, and how an error looks."""

from __future__ import annotations

import errno
from typing import Any

import click

from agent_env_core import integrity
from agent_env_core.cli.doctor import doctor
from agent_env_core.cli.gc import gc
from agent_env_core.cli.plugins import plugins as plugins_command
from agent_env_core.cli.ps import ps
from agent_env_core.cli.run import run
from agent_env_core.cli.sandbox import sandbox
from agent_env_core.cli.serve import serve
from agent_env_core.cli.validate import validate
from agent_env_core.errors import AgentEnvError, fix_for
from agent_env_core.plugins import plugins


class CommandLine(click.Group):
    """A group that plugins add commands to, and that shows errors of ours as a message instead of a traceback."""

    _extended = False

    def invoke(self, ctx: click.Context) -> Any:
        """Runs a command. An :class:`AgentEnvError` becomes its message and exit status 1, unless ``--debug``.

        So does a full disk, which what is printed may be going to.
        """
        try:
            return super().invoke(ctx)
        except AgentEnvError as exc:
            if ctx.params.get("debug"):
                raise
            raise click.ClickException(str(exc)) from exc
        except OSError as exc:
            if exc.errno not in (errno.ENOSPC, errno.EDQUOT) or ctx.params.get("debug"):
                raise
            where = exc.filename or "the output"
            raise click.ClickException(f"{where} can't be written: {exc.strerror}; {fix_for(exc, '')}") from exc

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A command by name; plugins are loaded only for a name that isn't ours."""
        return super().get_command(ctx, cmd_name) or self._with_plugins().commands.get(cmd_name)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands, those of plugins included."""
        return sorted(self._with_plugins().commands)

    def _with_plugins(self) -> CommandLine:
        if not self._extended:
            self._extended = True
            add_plugin_commands(self)
        return self


def add_plugin_commands(cli: click.Group) -> None:
    """Adds the commands that plugins bring; one that fails is recorded and the others go on."""
    for implementation in plugins().hook.agent_env_commands.get_hookimpls():
        added = click.Group(cli.name)  # a group of its own, so that a plugin can't replace what is there
        try:
            implementation.function(*((added,) if "cli" in implementation.argnames else ()))
            for name, command in added.commands.items():
                if name in cli.commands:
                    raise ValueError(f"the command {name!r} exists already and is not replaced")
                cli.add_command(command, name)
        except Exception as exc:
            plugins().record_failure(implementation.plugin_name, exc)
            click.echo(f"a plugin's commands are left out, see `agent-env plugins`: {exc}", err=True)


@click.group(cls=CommandLine, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(package_name="agentenv-framework", prog_name="agent-env")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.pass_context
def main(ctx: click.Context, debug: bool) -> None:
    """Train language models on bundles of agent tasks."""
    if ctx.invoked_subcommand != doctor.name:  # the doctor reports what is mixed up, and goes on
        integrity.check()


for _command in (doctor, gc, plugins_command, ps, run, sandbox, serve, validate):
    main.add_command(_command)
