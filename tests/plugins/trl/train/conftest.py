"""A model small enough to be trained in a test, saved the way a hub's models are."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained Qwen3 of some thousand parameters that knows bytes; its context has 4096 tokens."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT))
        from examples.train_gridsim.model import build_model, build_tokenizer
    tokenizer = build_tokenizer([])
    tokenizer.model_max_length = 4096
    model = build_model(tokenizer, hidden=32, layers=1)
    model.config.max_position_embeddings = 4096
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
