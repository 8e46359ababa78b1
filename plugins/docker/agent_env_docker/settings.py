"""What can be set on the provider. The table in the README is this class."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from agent_env_core.sandbox.settings import ProviderSettings


class Settings(ProviderSettings):
    """Settings of the provider ``docker``."""

    memory_mb: int = Field(
        4096, ge=1, description="MiB of memory of a sandbox whose spec asks for none; no swap on top"
    )
    cpus: float = Field(0.0, ge=0, description="cores of a sandbox whose spec asks for none; 0 sets no limit")
    pids: int = Field(512, ge=1, description="processes and threads in one sandbox")
    disk_mb: int = Field(0, ge=0, description="MiB that a sandbox may write, where the engine's storage can limit it")
    output_mb: int = Field(64, ge=1, description="MiB kept of stdout, and of stderr, of one command")
    engine_timeout: int = Field(120, ge=1, description="seconds of silence of the engine after which a call fails")
    builder: Literal["auto", "buildkit", "classic"] = Field("auto", description="what builds images")
    bytecode: bool = Field(True, description="whether Python files are compiled in the images that are built")
    publish: str = Field("127.0.0.1", description="address on the engine's machine on which ports are opened")
    host: str = Field("", description="name by which this process reaches those ports, where it differs")
