"""Sessions over real sockets, some of which are cut off, hang, or are abandoned while they deploy."""

from __future__ import annotations

import pytest

from chaos import serve


@pytest.mark.slow
@pytest.mark.usefixtures("no_processes_left")
async def test_sessions_that_misbehave_disturb_nobody() -> None:
    served = await serve.run(3, 48)
    assert served.problems == []
    assert served.scored > 10


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("no_processes_left")
async def test_256_sessions_on_the_fake_provider() -> None:
    served = await serve.run(1, 256, calls=8, kinds=("plain",))
    assert served.problems == []
    assert served.scored == 256
    assert served.quantile(0.99) < 10 * served.quantile(0.5)
