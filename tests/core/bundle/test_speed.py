"""How long a large bundle takes to read: printed, and not judged by the clock. What is judged is the work done."""

import sys
import time
from collections import Counter

import pytest

from agent_env_core.bundle import load_bundle
from agent_env_core.server.catalog import read_catalog
from agent_env_core.steps.base import declaration

TASKS = 2200
PROMPT = "Hour 12: 31.25 $/MWh, so charge. " * 90  # about 3 kB

_opened: Counter[str] | None = None


def _listen(event, args):
    if _opened is not None and event == "open":
        _opened[str(args[0])] += 1


sys.addaudithook(_listen)  # stays for good, and does nothing but while a bundle is read


@pytest.fixture
def large(garden):
    for number in range(TASKS):
        garden.write(
            f"tasks/day-{number:04}.json",
            [
                {"id": "env", "type": "deploy_env", "env_id": "garden", "ttl_seconds": 3600},
                {
                    "id": "load",
                    "type": "apply_server_config",
                    "env_id": "garden",
                    "directives": [{"service": "garden", "uri": "urn:garden:load/v1", "args": {"day": number}}],
                },
                {"id": "gardener", "type": "deploy_agent", "env_ids": ["garden"]},
                {"id": "play", "type": "prompt_agent", "prompt_id": "day", "system_prompt": "Plan.", "prompt": PROMPT},
                {"id": "grade", "type": "env_outcome_verifier", "env_id": "garden", "file_artifact_id": "garden-judge"},
            ],
        )
    names = ", ".join(f'"day-{number:04}"' for number in range(TASKS - 200))
    garden.write("evals/train.toml", f"tasks = [{names}]")
    return garden


def test_a_large_bundle_is_read_with_each_file_opened_once(large, capsys):
    global _opened
    _opened = Counter()
    start = time.perf_counter()
    try:
        bundle = large.load()
    finally:
        seconds = time.perf_counter() - start
        opened, _opened = _opened, None
    with capsys.disabled():
        print(f"\nbundle: {TASKS} tasks read and checked in {seconds:.2f} s ({seconds / TASKS * 1e6:.0f} µs a task)")
    assert len(bundle.tasks) == TASKS + 1
    assert len(bundle.splits()["train"]) == TASKS - 200
    tasks = {path: times for path, times in opened.items() if path.startswith(str(large.root / "tasks"))}
    assert set(tasks.values()) == {1}
    assert len(tasks) == TASKS + 1


def test_with_the_checks_of_the_real_step_types_and_all_that_a_server_makes_of_it(large, capsys):
    for name in ("deploy_env", "apply_server_config", "deploy_agent", "prompt_agent", "env_outcome_verifier"):
        declaration(name)  # loads it: that takes its time once a process
    start = time.process_time()
    bundle = load_bundle(large.root, declaration)
    read = time.process_time() - start
    catalog = read_catalog(large.root, "grade")
    whole = time.process_time() - start - read
    with capsys.disabled():
        print(f"\nbundle: {TASKS} tasks of real steps: read in {read:.2f} s, served in {whole:.2f} s (of this process)")
    assert len(bundle.tasks) == TASKS  # the garden's own lacks a field that its real step type needs
    assert len(catalog.splits["train"]) == TASKS - 200


def test_many_wrong_names_do_not_take_ever_longer(large):
    names = ", ".join(f'"night-{number:04}"' for number in range(TASKS))
    large.write("evals/train.toml", f"tasks = [{names}]")
    start = time.process_time()
    assert len(large.problems()) == TASKS
    assert time.process_time() - start < 20  # each compared with each would take minutes


def test_one_wrong_name_in_every_task_is_told_for_each_and_explained_once(large):
    (large.root / "envs/garden").rename(large.root / "envs/gardem")
    problems = large.problems()
    assert len(problems) == 4 * TASKS + 1
    assert {problem.fix for problem in problems} == {"did you mean 'gardem'?"}
