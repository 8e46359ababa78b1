from __future__ import annotations

from pathlib import Path

import pytest
from agent_env_process.paths import PathMap, absolute


@pytest.fixture
def paths(tmp_path):
    (tmp_path / "app/sub").mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python3").touch()
    return PathMap(tmp_path, ("/app", "/app-data", "/usr/src/x", "/etc/my.conf"), tmp_path / "bin")


@pytest.mark.parametrize(
    ("path", "base", "clean"),
    [
        ("x", "/app", "/app/x"),
        (".", "/app", "/app"),
        ("/x/", "/app", "/x"),
        ("../../..", "/app", "/"),
        ("//x", "/", "/x"),
    ],
)
def test_a_path_is_made_absolute_and_clean(path, base, clean):
    assert absolute(path, base) == clean


def test_every_container_path_is_below_the_root(paths, tmp_path):
    assert paths.host("/app/x") == tmp_path / "app/x"
    assert paths.host("/../../etc/passwd") == tmp_path / "etc/passwd"
    assert paths.host("/") == tmp_path
    with pytest.raises(ValueError, match="not an absolute path"):
        paths.host("app")


@pytest.mark.parametrize(
    ("text", "moved"),
    [
        ("/app", "{}/app"),
        ("/app/a.py", "{}/app/a.py"),
        ("PYTHONPATH=/app:/usr/src/x/lib", "PYTHONPATH={0}/app:{0}/usr/src/x/lib"),
        ("python '/app/a b.py' --conf=/etc/my.conf", "python '{0}/app/a b.py' --conf={0}/etc/my.conf"),
        ("/app-data/x", "{}/app-data/x"),
        ("cd /app&&ls", "cd {}/app&&ls"),
    ],
)
def test_the_images_own_paths_are_moved(paths, tmp_path, text, moved):
    assert paths.text(text) == moved.format(tmp_path)


@pytest.mark.parametrize(
    "text", ["/apple", "/app2", "/app.py", "./app", "x/app", "http://host/app", "/usr/src/xy", "~/app", "/etc", "app"]
)
def test_other_text_stays(paths, text):
    assert paths.text(text) == text


def test_what_was_moved_is_not_moved_again(paths):
    assert paths.text(paths.text("/app/x")) == paths.text("/app/x")


def test_an_argument_that_names_an_existing_file_is_moved(paths, tmp_path):
    (tmp_path / "tmp").mkdir()
    assert paths.argument("/tmp") == str(tmp_path / "tmp")
    assert paths.argument("/var") == "/var"
    assert paths.argument("/") == "/"
    assert paths.argument("-x=/app") == f"-x={tmp_path}/app"
    assert paths.argument("/a\0b") == "/a\0b"


@pytest.mark.parametrize("folder", ["/usr/local/bin", "/usr/bin"])
def test_the_images_python_is_the_environments(paths, tmp_path, folder):
    assert paths.argument(f"{folder}/python3") == str(tmp_path / "bin/python3")
    assert paths.argument(f"{folder}/env") == f"{folder}/env"


def test_without_own_paths_nothing_is_moved():
    assert PathMap(Path("/r"), ()).text("/app /tmp") == "/app /tmp"
