"""A look at a provider ends, whatever that does."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import pytest

from agent_env_core.sandbox import probe
from agent_env_core.testing.fake import FakeProvider


def found(monkeypatch, provider, **how):
    make = provider if callable(provider) else lambda config: provider
    monkeypatch.setattr(probe, "plugins", lambda: SimpleNamespace(sandbox_provider=lambda name: make))
    return probe.look("odd", **how)


@pytest.mark.parametrize("error", [asyncio.CancelledError(), KeyboardInterrupt(), SystemExit("no key"), KeyError("x")])
@pytest.mark.parametrize("where", ["made", "capabilities", "list", "aclose"])
def test_whatever_it_raises_is_why_it_cannot_be_used(monkeypatch, error, where):
    def fails(*_):
        raise error

    if where == "made":
        look = found(monkeypatch, fails)
    elif where == "capabilities":
        look = found(monkeypatch, type("Odd", (FakeProvider,), {where: property(fails)})())
    else:
        provider = FakeProvider()
        setattr(provider, where, fails)
        look = found(monkeypatch, provider)
    assert look.problem.startswith(type(error).__name__)


@pytest.mark.parametrize("where", ["made", "list", "aclose"])
def test_one_that_hangs_and_cannot_be_cancelled_is_left_behind(monkeypatch, where):
    goes_on = threading.Event()

    def hangs(*_):
        goes_on.wait(60)
        raise KeyError("too late")

    provider = FakeProvider()
    if where != "made":
        setattr(provider, where, hangs)
    monkeypatch.setattr(probe, "MORE_SECONDS", 0.05)
    look = found(monkeypatch, hangs if where == "made" else provider, seconds=0.05)
    assert not goes_on.is_set()
    goes_on.set()
    assert where == "aclose" or look.problem.startswith("no answer within 0.1 s; see whether it runs")
