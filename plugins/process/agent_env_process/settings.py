"""What can be set on the provider. The table in the README is this class."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import Field

from agent_env_core.sandbox.settings import ProviderSettings


def _user_folder(variable: str, default: str) -> Path:
    base = os.environ.get(variable)
    return (Path(base) if base else Path.home() / default) / "agent-env" / "process"


class Settings(ProviderSettings):
    """Settings of the provider ``process``."""

    isolation: Literal["auto", "bubblewrap", "namespace", "none"] = Field(
        "auto", description="what keeps sandboxes apart; auto takes the best this machine allows"
    )
    memory_mb: int = Field(
        4096, ge=1, description="MiB of memory of a sandbox whose spec asks for none; no swap on top"
    )
    cpus: float = Field(0.0, ge=0, description="cores of a sandbox whose spec asks for none; 0 sets no limit")
    pids: int = Field(512, ge=1, description="processes and threads in one sandbox")
    cache_dir: Path = Field(
        default_factory=lambda: _user_folder("XDG_CACHE_HOME", ".cache"),
        description="prepared images and Python environments",
    )
    state_dir: Path = Field(
        default_factory=lambda: _user_folder("XDG_STATE_HOME", ".local/state"),
        description="running sandboxes, a folder for each machine",
    )
    cache_days: float = Field(30.0, gt=0, description="days after which what nothing used leaves the cache")
    cache_gb: float = Field(20.0, gt=0, description="GiB that the cache may take")
