"""The rules that every step keeps, whatever its type."""

import pytest

WAIT = {"id": "a", "type": "wait", "seconds": 1}


def later(**fields):
    return {"id": "b", "type": "wait", "seconds": 1, **fields}


@pytest.mark.parametrize(
    "steps",
    [
        [],
        [WAIT],
        [WAIT, later(depends_on=None)],
        [WAIT, later(depends_on=[])],
        [WAIT, later(depends_on=["a"])],
        [WAIT, later(depends_on=[{"task_step_id": "a"}, "a"])],
        [WAIT, later(fail_task_on_error=False)],
        [WAIT, later(retry_config=None)],
        [WAIT, later(retry_config={"retry_from_step_id": "b"})],
        [WAIT, later(retry_config={"go_to_step_id": "a", "max_retries": 0})],
        [{**WAIT, "nobody": "knows", "depend_on": "this"}],
        [{**WAIT, "id": "\N{SNOWMAN} and: anything"}],
    ],
)
def test_steps_that_will_do(folder, steps):
    folder.write("tasks/t.json", steps)
    assert folder.load().tasks[0].steps == tuple(steps)


@pytest.mark.parametrize(
    ("steps", "place", "message"),
    [
        ({"steps": []}, "", "must be an array of steps, not an object"),
        (None, "", "not null"),
        (True, "", "not a true or false"),
        ('"x"', "", "not a text"),
        (3, "", "not a number"),
        ([[]], ":[0]", "must be an object, not an array"),
        ([WAIT, None], ":[1]", "must be an object, not null"),
        ([{"type": "wait", "seconds": 1}], ":[0]", "has no id"),
        ([{**WAIT, "id": ""}], ":[0]", "id must be a non-empty text, not ''"),
        ([{**WAIT, "id": 3}], ":[0]", "id must be a non-empty text, not 3"),
        ([{"id": "a"}], ":a", "has no type"),
        ([{"id": "a", "type": 3}], ":a", "type must be a text, not 3"),
        ([{"id": "a", "type": "warp"}], ":a", "there is no step type 'warp'"),
        ([{"id": "a", "type": "someday"}], ":a", "the step type 'someday' isn't supported here"),
        ([WAIT, WAIT], ":a", "the id 'a' is used twice, by [0] and [1]"),
        ([WAIT, later(depends_on="a")], ":b", "depends_on must be a list of step ids, not 'a'"),
        ([WAIT, later(depends_on={"task_step_id": "a"})], ":b", "depends_on must be a list"),
        ([WAIT, later(depends_on=[3])], ":b", "depends_on holds 3"),
        ([WAIT, later(depends_on=[{"step": "a"}])], ":b", 'depends_on holds {"step": "a"}'),
        ([WAIT, later(depends_on=["c"])], ":b", "depends_on names 'c', and no step has that id"),
        ([WAIT, later(depends_on=["b"])], ":b", "the step itself"),
        ([{**WAIT, "depends_on": ["b"]}, later()], ":a", "a later step"),
        ([WAIT, later(fail_task_on_error=0)], ":b", "fail_task_on_error must be true or false, not 0"),
        ([WAIT, later(retry_config="a")], ":b", "retry_config must be an object"),
        ([WAIT, later(retry_config={})], ":b", "retry_from_step_id must be a step id, not null"),
        ([WAIT, later(retry_config={"retry_from_step_id": "c"})], ":b", "names 'c', which is no step up to this"),
        ([WAIT, later(retry_config={"retry_from_step_id": "b", "max_retries": -1})], ":b", "0 or more, not -1"),
        ([WAIT, later(retry_config={"retry_from_step_id": "b", "max_retries": True})], ":b", "0 or more, not true"),
        ([WAIT, later(depends_on=[], retry_config={"retry_from_step_id": "a"})], ":b", "doesn't depend on"),
        ([{"id": "a", "type": "wait"}], ":a", "seconds: is missing"),
        ([{"id": "a", "type": "broken_check"}], ":a", "its check failed: KeyError: 'no such field'"),
    ],
)
def test_a_wrong_step_is_one_problem(folder, steps, place, message):
    folder.write("tasks/t.json", steps)
    (problem,) = folder.problems()
    assert problem.place == f"tasks/t.json{place}"
    assert message in problem.message


@pytest.mark.parametrize("data", [b"[", b"[1e999]", rb'["\ud800"]', b"\xff"])
def test_a_file_that_is_no_strict_json(folder, data):
    folder.write("tasks/t.json", data)
    (problem,) = folder.problems()
    assert problem.place == "tasks/t.json"


def test_a_file_past_the_limit(folder):
    folder.write("tasks/t.json", b"[" + b" " * (8 * 1024 * 1024) + b"]")
    (problem,) = folder.problems()
    assert problem.message == "is 8,388,610 bytes long, and 8 MiB is the limit"


def test_a_broken_task_may_still_be_named_by_an_eval(folder):
    folder.fill({"tasks/t.json": "[", "evals/e.toml": 'tasks = ["t"]'})
    (problem,) = folder.problems()
    assert problem.place == "tasks/t.json"
