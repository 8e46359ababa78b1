"""The generator's modules, which lie in the bundle and are no package, and the demo's package in ``examples/``."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
GENERATOR = ROOT / "bundles" / "gridsim-v1" / "generator"


def _module(name: str) -> ModuleType:
    for folder in (str(GENERATOR), str(ROOT)):
        if folder not in sys.path:
            sys.path.append(folder)
    return importlib.import_module(name)


@pytest.fixture(scope="session")
def battery() -> ModuleType:
    return _module("paths").battery


@pytest.fixture(scope="session")
def days() -> ModuleType:
    return _module("days")


@pytest.fixture(scope="session")
def generate() -> ModuleType:
    return _module("generate")


@pytest.fixture(scope="session")
def baselines() -> ModuleType:
    return _module("baselines")


@pytest.fixture(scope="session")
def rows() -> ModuleType:
    return _module("rows")
