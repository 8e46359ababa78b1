"""What can be set on the provider. The table in the README is this class.

Credentials are no settings: Modal's SDK takes them from its own variables or its own file.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from agent_env_core.sandbox.settings import ProviderSettings


class Settings(ProviderSettings):
    """Settings of the provider ``modal``."""

    app: str = Field("agent-env", min_length=1, description="the Modal app that holds the sandboxes; made if missing")
    environment: str = Field("", description="the Modal environment of that app; empty takes your profile's")
    endpoints: Literal["connect", "tunnel"] = Field(
        "connect",
        description="how ports are reached: `connect` asks for a token with each request; `tunnel` is a public address "
        "that anyone who learns it can use",
    )
    region: str = Field("", description="where sandboxes run: a region, or several with commas; empty is anywhere")
    runtime: Literal["", "gvisor", "vm"] = Field("", description="what isolates a sandbox; empty takes Modal's default")
    cpu: float = Field(0.0, ge=0, description="cores of a sandbox that asks for none; 0 takes Modal's default")
    memory_mb: int = Field(0, ge=0, description="MiB of a sandbox that asks for none; 0 takes Modal's default")
    registry_secret: str = Field("", description="the Modal secret that opens a private registry; empty uses none")
    creates_per_second: float = Field(40.0, gt=0, description="how many sandboxes are created in a second at most")
    retry_after: float = Field(
        3.0, gt=0, description="seconds to wait where Modal has no room for a sandbox and doesn't say for how long"
    )
    output_mb: int = Field(64, ge=16, description="MiB that are kept of each output of a command")

    @property
    def regions(self) -> list[str] | None:
        """The regions by themselves; None is anywhere."""
        return [name for part in self.region.split(",") if (name := part.strip())] or None
