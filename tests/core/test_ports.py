"""No port is picked, given back, and hoped to be free still."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOLDERS = {
    "agent_env_core/envs/gateway.py",  # hands the bound socket to the server itself
    "agent_env_core/server/main.py",  # hands the bound socket to the server itself
    "agent_env_core/testing/asgi.py",  # the same
    "plugins/process/agent_env_process/ports.py",  # keeps it bound until the sandbox has ended
}
BINDS = re.compile(r"\.bind\(\(|\.bind\(address|create_server\(|bind_port|find_free_port|unused_port")


def test_only_those_who_keep_a_port_bind_one() -> None:
    sources = [*ROOT.glob("agent_env_core/**/*.py"), *ROOT.glob("plugins/*/agent_env*/**/*.py")]
    assert len(sources) > 100
    found = {str(path.relative_to(ROOT)) for path in sources if BINDS.search(path.read_text(encoding="utf-8"))}
    assert found == HOLDERS
