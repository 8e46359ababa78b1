"""The double of Modal, one for each module, and a provider that talks to it through the real SDK."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from agent_env_modal.account import THROTTLE_VARIABLE
from agent_env_modal.provider import ModalProvider
from agent_env_modal.settings import Settings
from box import require
from modal_double import ModalDouble
from modal_world import Ended


@pytest.fixture(scope="module")
def modal_account() -> Iterator[ModalDouble]:
    """The double and the variables that lead to it."""
    require()
    import modal

    with ModalDouble() as double, pytest.MonkeyPatch.context() as patch:
        for name, value in double.env.items():
            patch.setenv(name, value)
        patch.setenv(THROTTLE_VARIABLE, "")  # the plugin sets it; this way it's as before afterwards
        patch.delenv(THROTTLE_VARIABLE)
        yield double
        modal.Client.from_env().close()


@pytest.fixture
def double(modal_account: ModalDouble) -> Iterator[ModalDouble]:
    """The double; a test that met what it doesn't know has failed, and none leaves a fault or a sandbox behind."""
    world = modal_account.world
    yield modal_account
    for faults in (world.control, world.router):
        unknown, faults.unknown[:] = list(faults.unknown), []
        faults.always.clear()
        faults._next.clear()
        assert not unknown
    world.capacity = None
    left = world.running()
    for box in left:  # one test's are not the next one's
        modal_account.do(box.finish(Ended.GENERIC_STATUS_TERMINATED))
    assert not [box.id for box in left]


@pytest.fixture
async def provider(double: ModalDouble) -> AsyncIterator[ModalProvider]:
    """A provider on the double."""
    provider = ModalProvider(Settings(retry_after=0.05))
    yield provider
    await provider.aclose()
