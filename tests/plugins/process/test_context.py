from __future__ import annotations

import os

import pytest
from agent_env_process.context import Context, CopyFault


@pytest.fixture
def make(tmp_path):
    def make(*names, ignore=""):
        for name in names:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(name)
        if ignore:
            (tmp_path / ".dockerignore").write_text(ignore)
        return Context(tmp_path)

    return make


@pytest.mark.parametrize(
    ("ignore", "left"),
    [
        ("", {"a.py", "b.txt", "sub/c.py", "sub/deep/d.txt", ".dockerignore"}),
        ("*.py", {"b.txt", "sub/c.py", "sub/deep/d.txt"}),
        ("**/*.py", {"b.txt", "sub/deep/d.txt"}),
        ("**/*.py\n!sub/c.py", {"b.txt", "sub/c.py", "sub/deep/d.txt"}),
        ("sub", {"a.py", "b.txt"}),
        ("/sub/", {"a.py", "b.txt"}),
        ("sub/**", {"a.py", "b.txt"}),
        ("**/deep", {"a.py", "b.txt", "sub/c.py"}),
        ("sub\n!sub/deep", {"a.py", "b.txt", "sub/deep/d.txt"}),
        ("*\n!a.py", {"a.py"}),
        ("# only a comment\n\n?.txt", {"a.py", "sub/c.py", "sub/deep/d.txt"}),
        ("[ab].*", {"sub/c.py", "sub/deep/d.txt"}),
        ("[^a].txt", {"a.py", "sub/c.py", "sub/deep/d.txt"}),
        ("[^b].txt", {"a.py", "b.txt", "sub/c.py", "sub/deep/d.txt"}),
    ],
)
def test_dockerignore_leaves_out_what_docker_leaves_out(make, tmp_path, ignore, left):
    found = make("a.py", "b.txt", "sub/c.py", "sub/deep/d.txt", ignore=ignore or "# nothing")
    files = {name for name in found.files(".") if (tmp_path / name).is_file()}
    assert files - {".dockerignore"} == left - {".dockerignore"}


def test_sources_are_found(make):
    found = make("a.py", "b.py", "sub/c.py", ignore="b.py")
    assert found.matches("a.py") == ["a.py"]
    assert found.matches("./sub/") == ["sub"]
    assert found.matches("/sub") == ["sub"]
    assert found.matches("*.py") == ["a.py"]
    assert found.matches(".") == ["."]


@pytest.mark.parametrize("source", ["nothing", "b.py", "*.md"])
def test_a_source_that_is_not_there_is_named(make, source):
    with pytest.raises(CopyFault, match="is not in the build context"):
        make("a.py", "b.py", ignore="b.py").matches(source)


def test_nothing_outside_is_copied(make, tmp_path):
    outside = tmp_path.parent / "outside.txt"
    outside.write_text("secret")
    found = make("a.py")
    with pytest.raises(CopyFault, match="outside the build context"):
        found.matches("../outside.txt")
    (tmp_path / "link").symlink_to(outside)
    with pytest.raises(CopyFault, match="a link out of the build context"):
        found.copy("link", tmp_path / "copied")


def test_a_folder_is_copied_with_modes_ages_and_links(make, tmp_path):
    found = make("src/run.sh", "src/sub/x", ignore="**/skip")
    (tmp_path / "src/skip").touch()
    (tmp_path / "src/run.sh").chmod(0o755)
    os.utime(tmp_path / "src/run.sh", (1000, 1000))
    (tmp_path / "src/link").symlink_to("sub/x")
    (tmp_path / "src/empty").mkdir()
    out = tmp_path / "out"
    found.copy("src", out)
    assert {path.relative_to(out).as_posix() for path in out.rglob("*")} == {"run.sh", "sub", "sub/x", "link", "empty"}
    assert os.readlink(out / "link") == "sub/x"
    facts = (out / "run.sh").stat()
    assert (facts.st_mode & 0o777, facts.st_mtime) == (0o755, 1000)


@pytest.mark.parametrize("change", ["content", "name", "mode", "link", "new"])
def test_the_digest_sees_every_change(make, tmp_path, change):
    found = make("src/a", "src/b")
    (tmp_path / "src/l").symlink_to("a")
    before = found.digest("src")
    assert found.digest("src") == before
    match change:
        case "content":
            (tmp_path / "src/a").write_text("other")
        case "name":
            (tmp_path / "src/a").rename(tmp_path / "src/c")
        case "mode":
            (tmp_path / "src/a").chmod(0o700)
        case "link":
            (tmp_path / "src/l").unlink()
            (tmp_path / "src/l").symlink_to("b")
        case "new":
            (tmp_path / "src/new").mkdir()
    assert found.digest("src") != before


def test_what_is_ignored_doesnt_count(make, tmp_path):
    found = make("src/a", ignore="**/*.log")
    before = found.digest("src")
    (tmp_path / "src/x.log").write_text("noise")
    assert found.digest("src") == before
