"""``python -m agent_env_core.cli``: the same as ``agent-env``."""

from agent_env_core.cli.main import main

main(prog_name="agent-env")
