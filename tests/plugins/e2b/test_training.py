"""An episode of GridSim and a step of training on "E2B"."""

from __future__ import annotations

from pathlib import Path

import pytest
from gridsim_on_double import account, played_and_trained


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")  # what Torch and Transformers warn of is none of this test's
@pytest.mark.usefixtures("no_processes_left")
def test_gridsim_is_played_and_trained_on_e2b(
    gridsim_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_ENV_E2B_PLAN", "pro")
    with account("e2b_double"):
        played_and_trained("e2b", gridsim_bundle, tmp_path)
