"""The bundle, and its port module, which lies in the env's folder and is no package."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

BUNDLE = Path(__file__).resolve().parent.parent.parent / "bundles" / "portsim-v1"


@pytest.fixture(scope="session")
def portsim_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A PortSim bundle with few tasks, generated for these tests."""
    out = tmp_path_factory.mktemp("portsim") / "portsim-v1"
    program = [sys.executable, str(BUNDLE / "generator"), "--out", str(out), "--train-tasks", "8", "--eval-tasks", "4"]
    subprocess.run(program, check=True, capture_output=True, timeout=60)
    return out


def generate(out: Path, *options: str) -> None:
    program = [sys.executable, str(BUNDLE / "generator"), "--out", str(out), *options]
    subprocess.run(program, check=True, capture_output=True, timeout=120)


@pytest.fixture(scope="session")
def port() -> ModuleType:
    spec = importlib.util.spec_from_file_location("portsim_port", BUNDLE / "envs" / "portsim" / "port.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look their module up
    spec.loader.exec_module(module)
    return module
