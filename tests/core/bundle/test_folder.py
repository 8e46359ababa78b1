"""Links, sockets and other oddities on disk: followed while they stay inside, and never out of the bundle."""

import os
import socket

import pytest

from agent_env_core.bundle import folder as folder_module


@pytest.fixture
def secret(tmp_path):
    path = tmp_path / "outside"
    path.mkdir()
    (path / "spring.json").write_text("[")
    (path / "server.py").write_text('@environment_card(name="stolen")\nclass A: ...')
    return path


def test_links_inside_are_followed(garden):
    os.rename(garden.root / "tasks", garden.root / "real")
    (garden.root / "tasks").symlink_to("real")
    (garden.root / "real/summer.json").symlink_to("spring.json")
    (garden.root / "envs/arbor").symlink_to(garden.root / "envs/garden")
    (garden.root / "envs/garden/shared").symlink_to("../../artifacts/garden-judge")
    bundle = garden.load()
    assert [task.name for task in bundle.tasks] == ["spring", "summer"]
    assert [env.name for env in bundle.envs.values()] == ["arbor", "garden"]


@pytest.mark.parametrize(
    ("place", "target"),
    [
        ("tasks/x.json", "outside/spring.json"),
        ("tasks/x.json", "outside"),
        ("evals/x.toml", "outside/spring.json"),
        ("envs/x", "outside"),
        ("envs/garden/more", "outside"),
        ("envs/garden/a.py", "outside/server.py"),
        ("envs/garden/env.toml", "outside/spring.json"),
        ("artifacts/x", "outside"),
        ("skills", "outside"),
        ("aliases.toml", "outside/spring.json"),
        ("README.md", "outside/spring.json"),
    ],
)
def test_a_link_that_leaves_is_one_problem(garden, secret, place, target):
    (garden.root / place).symlink_to(secret.parent / target)
    (problem,) = garden.problems()
    assert (problem.place, problem.message) == (place, "is a link that leaves the bundle")


def test_a_link_through_another_link_that_leaves(garden, secret):
    (garden.root / "door").symlink_to(secret)  # ignored itself, being no part of a bundle
    (garden.root / "tasks/x.json").symlink_to("../door/spring.json")
    (problem,) = garden.problems()
    assert problem.place == "tasks/x.json"


def test_a_neighbour_whose_name_begins_like_ours_is_outside(garden):
    neighbour = garden.root.parent / (garden.root.name + "-2")
    neighbour.mkdir()
    (neighbour / "x.json").write_text("[]")
    (garden.root / "tasks/x.json").symlink_to(neighbour / "x.json")
    (problem,) = garden.problems()
    assert "leaves the bundle" in problem.message


@pytest.mark.parametrize("place", ["tasks/x.json", "envs/x", "envs/garden/x", "artifacts/garden-judge/x"])
@pytest.mark.parametrize("target", ["nowhere", "x"])
def test_a_broken_link_is_one_problem(garden, place, target):
    (garden.root / place).symlink_to(target if target == "nowhere" else os.path.basename(place))
    problems = [problem for problem in garden.problems() if problem.place == place]
    assert [problem.message for problem in problems] == ["is a link that leads nowhere"]


@pytest.mark.parametrize(
    ("place", "target"), [("envs/garden/up", ".."), ("envs/garden/me", "."), ("envs/garden/d/root", "../../..")]
)
def test_a_link_to_a_holder_is_one_problem(garden, place, target):
    (garden.root / place).parent.mkdir(exist_ok=True)
    (garden.root / place).symlink_to(target)
    (problem,) = garden.problems()
    assert (problem.place, problem.message) == (place, "is a link to a folder that holds it, so it never ends")


def test_two_folders_that_link_to_each_other(garden):
    for one, other in (("a", "b"), ("b", "a")):
        (garden.root / "envs/garden" / one).mkdir()
        (garden.root / "envs/garden" / one / "link").symlink_to(f"../{other}")
    assert {problem.place for problem in garden.problems()} == {"envs/garden/a/link/link", "envs/garden/b/link/link"}


def test_links_that_multiply_content_come_to_an_end(garden, monkeypatch):
    monkeypatch.setattr(folder_module, "MAX_ENTRIES", 500)
    for level in range(20):
        (garden.root / f"envs/garden/l{level:02}").mkdir()
        for name in "ab":
            (garden.root / f"envs/garden/l{level:02}/{name}").symlink_to(f"../l{level + 1:02}")
    (garden.root / "envs/garden/l20").mkdir()
    (problem,) = garden.problems()
    assert problem.message == "holds more than 500 files and folders"


def test_links_at_the_root_that_mean_nothing_are_ignored(garden, secret):
    (garden.root / "current").symlink_to(".")
    (garden.root / "gone").symlink_to("nowhere")
    (garden.root / "out").symlink_to(secret)
    assert garden.load().ignored == ("current", "gone", "out")


@pytest.mark.parametrize("place", ["tasks/x.json", "envs/garden/x", "artifacts/garden-judge/x"])
def test_pipes_are_problems_and_nobody_waits_for_them(garden, place):
    os.mkfifo(garden.root / place)
    assert [problem.place for problem in garden.problems()] == [place]


def test_a_pipe_in_the_place_of_a_config_file(garden):
    os.mkfifo(garden.root / "aliases.toml")
    (problem,) = garden.problems()
    assert (problem.place, problem.message) == ("aliases.toml", "is neither a file nor a folder")


def test_a_socket(garden, monkeypatch):
    monkeypatch.chdir(garden.root / "tasks")  # a socket's path must be short
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("x.json")
        (problem,) = garden.problems()
    assert problem.message == "is neither a file nor a folder"


def test_a_name_that_is_not_text(garden):
    (garden.root / os.fsdecode(b"tasks/a\xff.json")).write_text("[]")
    (problem,) = garden.problems()
    assert (problem.place, problem.message) == (r"tasks/a\udcff.json", "has a name that isn't UTF-8")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_what_may_not_be_read(garden):
    (garden.root / "tasks/spring.json").chmod(0)
    (garden.root / "envs/garden").chmod(0)
    try:
        assert {problem.place for problem in garden.problems()} >= {"tasks/spring.json", "envs/garden"}
    finally:
        (garden.root / "envs/garden").chmod(0o755)


def test_a_file_that_goes_away_while_it_is_read(garden, monkeypatch):
    scan = folder_module.Folder.scan

    def scan_and_remove(self, rel, path):
        found = scan(self, rel, path)
        if rel == "tasks":
            (garden.root / "tasks/spring.json").unlink()
        return found

    monkeypatch.setattr(folder_module.Folder, "scan", scan_and_remove)
    (problem,) = garden.problems()
    assert problem.message == "can't be read: No such file or directory"


def test_folders_deeper_than_a_path_may_be_long(garden):
    here = os.open(garden.root / "envs/garden", os.O_RDONLY)
    try:
        for _ in range(30):
            os.mkdir("d" * 200, dir_fd=here)
            deeper = os.open("d" * 200, os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = deeper
    finally:
        os.close(here)
    (problem,) = garden.problems()
    assert problem.message == "can't be listed: File name too long"
