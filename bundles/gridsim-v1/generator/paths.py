"""Where the bundle lies, and the battery module that its env runs: the generator computes with the same code."""

from __future__ import annotations

import sys
from pathlib import Path

BUNDLE = Path(__file__).resolve().parent.parent
ENV = BUNDLE / "envs" / "gridsim"

if str(ENV) not in sys.path:
    sys.path.insert(0, str(ENV))

import battery  # noqa: E402

__all__ = ["BUNDLE", "ENV", "battery"]
