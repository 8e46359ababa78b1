"""Where the bundle lies, and the port module that its env runs: the generator computes with the same code."""

from __future__ import annotations

import sys
from pathlib import Path

BUNDLE = Path(__file__).resolve().parent.parent
ENV = BUNDLE / "envs" / "portsim"

if str(ENV) not in sys.path:
    sys.path.insert(0, str(ENV))

import port  # noqa: E402 -- it lies in the env's folder

__all__ = ["BUNDLE", "ENV", "port"]
