"""The digest of a build context."""

import os

import pytest

from agent_env_core.bundle.digest import context_digest


@pytest.fixture
def context(tmp_path):
    root = tmp_path / "context"
    (root / "sub").mkdir(parents=True)
    (root / "Dockerfile").write_text("FROM scratch\n")
    (root / "sub/a.py").write_text("x = 1\n")
    return root


def test_it_is_stable(context):
    before = context_digest(context)
    assert before.startswith("sha256:")
    assert len(before) == 7 + 64
    os.utime(context / "Dockerfile", (0, 0))
    (context / "sub/a.py").chmod(0o600)
    (context / "__pycache__").mkdir()
    (context / "__pycache__/a.pyc").write_text("x")
    (context / ".DS_Store").write_text("x")
    assert context_digest(context) == before
    os.rename(context, context.with_name("moved"))
    assert context_digest(context.with_name("moved")) == before


@pytest.mark.parametrize(
    "change",
    [
        lambda c: (c / "sub/a.py").write_text("x = 2\n"),
        lambda c: (c / "sub/a.py").rename(c / "sub/b.py"),
        lambda c: (c / "sub/a.py").rename(c / "a.py"),
        lambda c: (c / "sub/a.py").chmod(0o755),
        lambda c: (c / "sub/empty").mkdir(),
        lambda c: (c / "sub/link").symlink_to("a.py"),
        lambda c: (c / ".dockerignore").write_text("x"),
        lambda c: os.mkfifo(c / "pipe"),
        lambda c: (c / os.fsdecode(b"\xff")).write_text(""),
    ],
)
def test_it_tells_contents_apart(context, change):
    before = context_digest(context)
    change(context)
    assert context_digest(context) != before


def test_it_covers_which_file_is_built(context):
    assert context_digest(context) != context_digest(context, "sub/Dockerfile")


def test_links_are_not_followed(context, tmp_path):
    (context / "link").symlink_to(tmp_path / "elsewhere")
    before = context_digest(context)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/x").write_text("x")
    assert context_digest(context) == before
