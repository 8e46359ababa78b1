"""Sandbox providers that lack one thing, and what a check of the conformance kit says of them."""

from __future__ import annotations

import hashlib
import importlib
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agent_env_core.testing.checks import CHECKS
from agent_env_core.testing.checks.base import Skipped, Target, Trial, perform
from agent_env_core.testing.running import prepare_base

BASE = "python:3.11-slim"
CHECK = {check.name: check for check in CHECKS}


@contextmanager
def mutated(plugin: ModuleType, file: str, old: str, new: str, folder: Path) -> Iterator[ModuleType]:
    """The module ``provider`` of a copy of a plugin in which one text is replaced.

    Args:
        plugin: The plugin's package.
        file: The file with the text.
        old: The text, which the file has once; empty changes nothing.
        new: What stands there instead.
        folder: For the copy.
    """
    assert plugin.__file__ is not None
    name = f"mutant_{hashlib.sha256(f'{plugin.__name__} {file} {old}'.encode()).hexdigest()[:12]}"
    shutil.copytree(Path(plugin.__file__).parent, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for source in (each for each in (folder / name).iterdir() if each.suffix in (".py", ".pl")):
        text = source.read_text(encoding="utf-8")
        if source.name == file and old:
            assert text.count(old) == 1, f"{file} must have {old!r} once"
            text = text.replace(old, new)
        source.write_text(text.replace(plugin.__name__, name), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield importlib.import_module(f"{name}.provider")
    for module in [each for each in sys.modules if each.partition(".")[0] == name]:
        del sys.modules[module]


async def outcome(
    provider: Any, check: str, folder: Path, end_all: Callable[[], None], limit: float
) -> Exception | None:
    """What a check says of a provider; None where it passes.

    Args:
        provider: The provider; it is closed at the end.
        check: The check's name.
        folder: For what the check writes.
        end_all: Ends all its sandboxes from outside.
        limit: Seconds the check has.
    """

    @asynccontextmanager
    async def evicted() -> AsyncIterator[Any]:
        end_all()
        yield provider

    (base := folder / "base").mkdir()
    (kit := folder / "kit").mkdir()
    image = await prepare_base(provider, BASE, base)
    tested = Target(provider, image, BASE, faults={"evicted": evicted})
    try:
        await perform(CHECK[check], Trial(tested, kit, CHECK[check].boxes), limit)
    except Skipped as exc:
        pytest.fail(f"the check didn't apply: {exc}")
    except Exception as exc:
        return exc
    finally:
        end_all()
        await provider.aclose()
    return None
