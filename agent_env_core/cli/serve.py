"""``agent-env serve``: a bundle as an OpenEnv server."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--sandbox", default="docker", help="Sandbox provider that envs are deployed with.")
@click.option("--host", default="127.0.0.1", help="Address to listen on; 0.0.0.0 for all.")
@click.option("--port", default=8000, type=click.IntRange(0, 65535), help="Port to listen on; 0 takes a free one.")
@click.option(
    "--max-concurrent-envs", default=8, envvar="MAX_CONCURRENT_ENVS", show_envvar=True, type=click.IntRange(1),
    help="Sessions at once: at least one for each rollout in flight.",
)  # fmt: skip
@click.option("--reward", default=None, help="The score to reward: a step id, or a combiner such as 'mean'.")
def serve(bundle: Path, sandbox: str, host: str, port: int, max_concurrent_envs: int, reward: str | None) -> None:
    """Serve the tasks of BUNDLE, a folder, to trainers."""
    raise NotImplementedError
