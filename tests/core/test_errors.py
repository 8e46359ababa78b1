"""The vocabulary of errors: what a message holds, and how foreign exceptions are attributed."""

from __future__ import annotations

import pickle

import pytest

import agent_env_core
from agent_env_core import errors
from agent_env_core.errors import (
    AgentEnvError,
    BundleError,
    Busy,
    ConfigError,
    ContextTooLong,
    EpisodeError,
    EpisodeRefused,
    Gone,
    ImageError,
    ModelError,
    Problem,
    SandboxError,
    Unavailable,
    Unsupported,
    describe,
    episode_error,
)

ONE = Problem("tasks/b.json:grade", "the env 'gird' isn't in the bundle", "known: grid")
TWO = Problem("tasks/a.json", "isn't JSON")


def test_problems_come_all_at_once_sorted_and_once_each() -> None:
    error = BundleError("bundles/x", [ONE, TWO, ONE])
    assert error.problems == (TWO, ONE)
    assert str(error) == (
        "bundles/x can't be used: 2 problems\n"
        "  tasks/a.json: isn't JSON\n"
        "  tasks/b.json:grade: the env 'gird' isn't in the bundle (known: grid)"
    )


def test_one_problem_is_singular() -> None:
    assert str(EpisodeRefused("task 'a'", [TWO])).startswith("task 'a' can't be played as an episode: 1 problem\n")


def test_a_problem_of_several_lines_stays_apart_from_the_next() -> None:
    inner = BundleError("b", [Problem("tasks", "there is no task")])
    error = errors.SetupError("train.yaml", [Problem("bundle", str(inner)), Problem("model", "is missing")])
    assert str(error).splitlines()[1:] == [
        "  bundle: b can't be used: 1 problem",
        "    tasks: there is no task",
        "  model: is missing",
    ]


def test_a_thousand_problems_print_as_fifty_and_a_count() -> None:
    error = BundleError("b", [Problem(f"tasks/{n:04}.json", "is wrong") for n in range(1000)])
    lines = str(error).splitlines()
    assert lines[0] == "b can't be used: 1000 problems"
    assert lines[-1] == "  … and 950 more"
    assert len(lines) == 52
    assert len(error.problems) == 1000


@pytest.mark.parametrize(
    "error",
    [
        BundleError("b", [ONE]),
        EpisodeRefused("t", [ONE, TWO]),
        EpisodeError("deploy", "no room", retryable=True),
        Busy("later", retry_after=3.0),
        Gone("died"),
        ModelError("busy", retryable=True),
        ContextTooLong("long"),
    ],
)
def test_errors_cross_process_borders_whole(error: AgentEnvError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_every_error_of_ours_has_one_base() -> None:
    classes = [thing for thing in vars(errors).values() if isinstance(thing, type) and issubclass(thing, Exception)]
    assert classes
    assert all(issubclass(cls, AgentEnvError) for cls in classes)


def test_what_a_plugin_author_imports_is_there() -> None:
    assert all(hasattr(agent_env_core, name) for name in agent_env_core.__all__)
    public = {
        cls.__name__ for cls in vars(errors).values() if isinstance(cls, type) and cls.__module__ == errors.__name__
    }
    assert {name for name in public if not name.startswith("_")} <= set(agent_env_core.__all__)


@pytest.mark.parametrize(
    ("exc", "retryable"),
    [
        (ConfigError("no key"), False),
        (ImageError("RUN failed"), False),
        (Unsupported("gpu"), False),
        (Busy("quota"), True),
        (Unavailable("502"), True),
        (Gone("oom"), True),
        (ModelError("busy", retryable=True), True),
        (ContextTooLong("long"), False),
        (TimeoutError("slow"), True),
        (ValueError("bad"), False),
    ],
)
def test_whatever_a_boundary_catches_becomes_an_episode_error(exc: Exception, retryable: bool) -> None:
    error = episode_error(exc, "deploy")
    assert (error.phase, error.retryable) == ("deploy", retryable)
    assert str(error) == f"deploy: {describe(exc)}"


def test_an_episode_error_keeps_its_own_phase() -> None:
    error = EpisodeError("tool", "hung")
    assert episode_error(error, "verify") is error


def test_the_six_sandbox_errors_are_six() -> None:
    assert {cls.__name__ for cls in SandboxError.__subclasses__() if cls.__module__ == errors.__name__} == {
        "ConfigError", "ImageError", "Unsupported", "Busy", "Unavailable", "Gone",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("exc", "line"),
    [
        (ValueError("two\nlines  and blanks"), "ValueError: two lines and blanks"),
        (ValueError(), "ValueError"),
        (Gone("it died"), "it died"),
        (Gone(), "Gone"),
        (KeyError("k"), "KeyError: 'k'"),
    ],
)
def test_describe_gives_one_line(exc: Exception, line: str) -> None:
    assert describe(exc) == line


def test_describe_keeps_the_lines_of_a_build_and_of_last_words() -> None:
    error = ImageError("Dockerfile:3: pip failed:\n  ERROR: no such package  \n  exit code 1\n")
    assert describe(error) == "Dockerfile:3: pip failed:\n  ERROR: no such package\n  exit code 1"
    assert episode_error(error, "prepare").reason == describe(error)
    assert describe(Gone("")) == "Gone"
