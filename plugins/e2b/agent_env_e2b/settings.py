"""What can be set on the provider. The table in the README is this class."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from agent_env_core.sandbox.settings import ProviderSettings

LONGEST = {"hobby": 3600.0, "pro": 86400.0}
"""Seconds a sandbox may live, by plan (E2B's documentation, 2026)."""

CREATES = {"hobby": 1.0, "pro": 5.0}
"""Sandboxes an account may create in a second, by plan (E2B's documentation, 2026)."""


class Settings(ProviderSettings):
    """Settings of the provider ``e2b``."""

    plan: Literal["hobby", "pro"] = Field(
        default="hobby",
        description="the account's plan, hobby or pro: how long a sandbox may live (1 h, 24 h), and how many are"
        " created in a second (1, 5)",
    )
    cpu: int = Field(default=2, ge=1, le=32, description="cores of every sandbox; another number is another template")
    memory_mb: int = Field(
        default=1024, ge=512, description="MiB of memory of every sandbox, an even number; another one, as for cpu"
    )
    creates_per_second: float = Field(
        default=0.0, ge=0, description="how many sandboxes are created in a second at most; 0 takes the plan's number"
    )
    retry_after: float = Field(
        default=3.0, gt=0, description="seconds to wait where the account has no room; E2B doesn't say for how long"
    )
    output_mb: int = Field(
        default=16, ge=1, description="MiB of stdout, and of stderr, kept of one command; the rest is dropped"
    )
    request_timeout: float = Field(
        default=60.0, gt=0, description="seconds E2B may take to answer one call; builds and transfers have no limit"
    )
    domain: str = Field(default="", description="E2B's domain, for an installation of your own; empty: $E2B_DOMAIN")

    @field_validator("memory_mb")
    @classmethod
    def _even(cls, value: int) -> int:
        if value % 2:
            raise ValueError("must be an even number, as E2B wants it")
        return value
