"""Links, sockets and other oddities on disk: followed while they stay inside, and never out of the bundle."""

import os
import socket

import pytest

from agent_env_core.bundle import folder as folder_module


@pytest.fixture
def secret(tmp_path):
    path = tmp_path / "outside"
    path.mkdir()
    (path / "monday.json").write_text("[")
    (path / "server.py").write_text('@environment_card(name="stolen")\nclass A: ...')
    return path


def test_links_inside_are_followed(quay):
    os.rename(quay.root / "tasks", quay.root / "real")
    (quay.root / "tasks").symlink_to("real")
    (quay.root / "real/tuesday.json").symlink_to("monday.json")
    (quay.root / "envs/pier").symlink_to(quay.root / "envs/quay")
    (quay.root / "envs/quay/shared").symlink_to("../../artifacts/quay-verifier")
    bundle = quay.load()
    assert [task.name for task in bundle.tasks] == ["monday", "tuesday"]
    assert [env.name for env in bundle.envs.values()] == ["pier", "quay"]


@pytest.mark.parametrize(
    ("place", "target"),
    [
        ("tasks/x.json", "outside/monday.json"),
        ("tasks/x.json", "outside"),
        ("evals/x.toml", "outside/monday.json"),
        ("envs/x", "outside"),
        ("envs/quay/more", "outside"),
        ("envs/quay/a.py", "outside/server.py"),
        ("envs/quay/env.toml", "outside/monday.json"),
        ("artifacts/x", "outside"),
        ("skills", "outside"),
        ("aliases.toml", "outside/monday.json"),
        ("README.md", "outside/monday.json"),
    ],
)
def test_a_link_that_leaves_is_one_problem(quay, secret, place, target):
    (quay.root / place).symlink_to(secret.parent / target)
    (problem,) = quay.problems()
    assert (problem.place, problem.message) == (place, "is a link that leaves the bundle")


def test_a_link_through_another_link_that_leaves(quay, secret):
    (quay.root / "door").symlink_to(secret)  # ignored itself, being no part of a bundle
    (quay.root / "tasks/x.json").symlink_to("../door/monday.json")
    (problem,) = quay.problems()
    assert problem.place == "tasks/x.json"


def test_a_neighbour_whose_name_begins_like_ours_is_outside(quay):
    neighbour = quay.root.parent / (quay.root.name + "-2")
    neighbour.mkdir()
    (neighbour / "x.json").write_text("[]")
    (quay.root / "tasks/x.json").symlink_to(neighbour / "x.json")
    (problem,) = quay.problems()
    assert "leaves the bundle" in problem.message


@pytest.mark.parametrize("place", ["tasks/x.json", "envs/x", "envs/quay/x", "artifacts/quay-verifier/x"])
@pytest.mark.parametrize("target", ["nowhere", "x"])
def test_a_broken_link_is_one_problem(quay, place, target):
    (quay.root / place).symlink_to(target if target == "nowhere" else os.path.basename(place))
    problems = [problem for problem in quay.problems() if problem.place == place]
    assert [problem.message for problem in problems] == ["is a link that leads nowhere"]


@pytest.mark.parametrize(
    ("place", "target"), [("envs/quay/up", ".."), ("envs/quay/me", "."), ("envs/quay/d/root", "../../..")]
)
def test_a_link_to_a_holder_is_one_problem(quay, place, target):
    (quay.root / place).parent.mkdir(exist_ok=True)
    (quay.root / place).symlink_to(target)
    (problem,) = quay.problems()
    assert (problem.place, problem.message) == (place, "is a link to a folder that holds it, so it never ends")


def test_two_folders_that_link_to_each_other(quay):
    for one, other in (("a", "b"), ("b", "a")):
        (quay.root / "envs/quay" / one).mkdir()
        (quay.root / "envs/quay" / one / "link").symlink_to(f"../{other}")
    assert {problem.place for problem in quay.problems()} == {"envs/quay/a/link/link", "envs/quay/b/link/link"}


def test_links_that_multiply_content_come_to_an_end(quay, monkeypatch):
    monkeypatch.setattr(folder_module, "MAX_ENTRIES", 500)
    for level in range(20):
        (quay.root / f"envs/quay/l{level:02}").mkdir()
        for name in "ab":
            (quay.root / f"envs/quay/l{level:02}/{name}").symlink_to(f"../l{level + 1:02}")
    (quay.root / "envs/quay/l20").mkdir()
    (problem,) = quay.problems()
    assert problem.message == "holds more than 500 files and folders"


def test_links_at_the_root_that_mean_nothing_are_ignored(quay, secret):
    (quay.root / "current").symlink_to(".")
    (quay.root / "gone").symlink_to("nowhere")
    (quay.root / "out").symlink_to(secret)
    assert quay.load().ignored == ("current", "gone", "out")


@pytest.mark.parametrize("place", ["tasks/x.json", "envs/quay/x", "artifacts/quay-verifier/x"])
def test_pipes_are_problems_and_nobody_waits_for_them(quay, place):
    os.mkfifo(quay.root / place)
    assert [problem.place for problem in quay.problems()] == [place]


def test_a_pipe_in_the_place_of_a_config_file(quay):
    os.mkfifo(quay.root / "aliases.toml")
    (problem,) = quay.problems()
    assert (problem.place, problem.message) == ("aliases.toml", "is neither a file nor a folder")


def test_a_socket(quay, monkeypatch):
    monkeypatch.chdir(quay.root / "tasks")  # a socket's path must be short
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("x.json")
        (problem,) = quay.problems()
    assert problem.message == "is neither a file nor a folder"


def test_a_name_that_is_not_text(quay):
    (quay.root / os.fsdecode(b"tasks/a\xff.json")).write_text("[]")
    (problem,) = quay.problems()
    assert (problem.place, problem.message) == (r"tasks/a\udcff.json", "has a name that isn't UTF-8")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_what_may_not_be_read(quay):
    (quay.root / "tasks/monday.json").chmod(0)
    (quay.root / "envs/quay").chmod(0)
    try:
        assert {problem.place for problem in quay.problems()} >= {"tasks/monday.json", "envs/quay"}
    finally:
        (quay.root / "envs/quay").chmod(0o755)


def test_a_file_that_goes_away_while_it_is_read(quay, monkeypatch):
    scan = folder_module.Folder.scan

    def scan_and_remove(self, rel, path):
        found = scan(self, rel, path)
        if rel == "tasks":
            (quay.root / "tasks/monday.json").unlink()
        return found

    monkeypatch.setattr(folder_module.Folder, "scan", scan_and_remove)
    (problem,) = quay.problems()
    assert problem.message == "can't be read: No such file or directory"


def test_folders_deeper_than_a_path_may_be_long(quay):
    here = os.open(quay.root / "envs/quay", os.O_RDONLY)
    try:
        for _ in range(30):
            os.mkdir("d" * 200, dir_fd=here)
            deeper = os.open("d" * 200, os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = deeper
    finally:
        os.close(here)
    (problem,) = quay.problems()
    assert problem.message == "can't be listed: File name too long"
