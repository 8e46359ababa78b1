"""``agent-env serve``: a bundle as an OpenEnv server."""

from __future__ import annotations

from pathlib import Path

import click

from agent_env_core.server.limits import DEFAULT_SESSIONS, VARIABLE, WARM_VARIABLE, session_limit


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--sandbox", default="docker", metavar="NAME", help="Sandbox provider that envs are deployed with;"
              " of several (docker,process), the first that can be used here.")  # fmt: skip
@click.option("--host", default="127.0.0.1", help="Address to listen on; 0.0.0.0 for all of them.")
@click.option("--port", default=8000, type=click.IntRange(0, 65535), help="Port to listen on; 0 takes a free one.")
@click.option(
    "--max-concurrent-envs",
    type=click.IntRange(1),
    show_default=f"{VARIABLE}, else {DEFAULT_SESSIONS}",
    help="Sessions at once: at least one for each rollout in flight.",
)
@click.option(
    "--warm",
    type=click.IntRange(0),
    show_default=f"{WARM_VARIABLE}, else by sessions and machine",
    help="Deployments to make ahead, so that no reset waits for one; 0 makes none.",
)
@click.option("--reward", metavar="NAME", help="The score to reward: a step id, or a combiner such as mean.")
@click.pass_context
def serve(
    ctx: click.Context,
    bundle: Path,
    sandbox: str,
    host: str,
    port: int,
    max_concurrent_envs: int | None,
    warm: int | None,
    reward: str | None,
) -> None:
    """Serve the tasks of BUNDLE, a folder or an installed bundle, to trainers, until Ctrl-C or SIGTERM."""
    from agent_env_core.server.main import Settings
    from agent_env_core.server.main import serve as run

    try:
        sessions = session_limit() if max_concurrent_envs is None else max_concurrent_envs
    except ValueError as exc:
        raise click.UsageError(str(exc)) from exc
    settings = Settings(
        bundle=bundle,
        sandbox=sandbox,
        host=host,
        port=port,
        max_concurrent_envs=sessions,
        warm=warm,
        reward=reward,
    )
    ctx.exit(run(settings))
