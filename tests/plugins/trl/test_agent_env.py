"""``AgentEnv`` as the trainer uses it: the documented session, step by step."""

from __future__ import annotations

import inspect
import logging
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from agent_env.training.trl import AgentEnv
from agent_env_trl.environment import ToolFailure
from transformers.utils import get_json_schema

from agent_env_core.errors import AgentEnvError, BundleError, CapacityError, PluginError

PUBLIC = ["add", "peek", "whoami", "write", "read", "big", "hang", "crash", "end_turn"]


@pytest.fixture
def environment(env: AgentEnv) -> Any:
    return env.factory()


def two_turns(env: AgentEnv) -> dict[str, Any]:
    return env.dataset_for("eval")[0]


def test_signatures() -> None:
    made = inspect.signature(AgentEnv).parameters
    assert {name: p.default for name, p in made.items() if name != "url_or_urls"} == {
        "split": "all", "reward": None, "tool_timeout": 60, "reset_timeout": 600, "answer_limit": None, "token": None,
    }  # fmt: skip
    local = inspect.signature(AgentEnv.local).parameters
    assert {name: p.default for name, p in local.items() if name != "bundle"} == {
        "split": "all", "reward": None, "sandbox": None, "max_concurrent_envs": 8, "warm": None,
        "tool_timeout": 60, "reset_timeout": 600, "answer_limit": None,
    }  # fmt: skip


def test_the_dataset(env: AgentEnv) -> None:
    assert (len(env.dataset), len(env.dataset_for("eval"))) == (2, 1)
    assert env.dataset is env.dataset
    row = env.dataset[0]
    assert list(row) == ["prompt", "split", "index", "task_id"]
    assert row == {
        "prompt": [
            {"role": "system", "content": "You operate a counter."},
            {"role": "user", "content": "Bring the counter to 3."},
        ],
        "split": "train",
        "index": 0,
        "task_id": row["task_id"],
    }
    assert list(row["prompt"][0]) == ["role", "content"]
    assert row["task_id"].startswith("@local/")
    assert row["task_id"].endswith("/counter-v1/one-turn")
    with pytest.raises(ValueError, match="has no split 'nowhere'; it has: all, eval, train"):
        env.dataset_for("nowhere")


def test_the_factory(env: AgentEnv) -> None:
    factory = env.factory
    assert factory is env.factory
    assert factory.__name__ == "counter-v1"
    assert [name for name in vars(factory) if not name.startswith("_")] == PUBLIC
    assert str(inspect.signature(factory.add)) == "(self, *, amount: int) -> str"
    assert factory.add.__doc__ is not None
    assert "Adds to the counter." in factory.add.__doc__


def test_a_trainer_sees_the_tools_and_nothing_else(env: AgentEnv) -> None:
    """Looking at an environment starts nothing, and its helpers are no tools."""
    environment = env.factory()
    on_class = {n for n, _ in inspect.getmembers(type(environment), inspect.isfunction) if not n.startswith("_")}
    on_instance = {n for n, _ in inspect.getmembers(environment, inspect.ismethod) if not n.startswith("_")}
    assert on_class - {"reset", "get_reward"} == on_instance - {"reset", "get_reward"} == set(PUBLIC)
    for name in PUBLIC:
        method = getattr(environment, name)
        assert method.__name__ == name
        assert get_json_schema(method)["function"]["description"]
    assert environment._session._player is None


def test_a_rollout_by_hand(env: AgentEnv, environment: Any) -> None:
    assert environment.reset(**env.dataset[0]) is None
    assert environment.add(amount=2) == '{"value": 2}'
    assert environment.add(amount=1) == '{"value": 3}'
    assert environment.get_reward() == 1.0
    assert environment.get_reward() == 1.0
    assert environment.peek.__self__ is environment
    environment.reset(**env.dataset[0])
    assert environment.get_reward() == 0.0


def test_a_refusal_of_the_tool_reaches_the_model(env: AgentEnv, environment: Any) -> None:
    environment.reset(**env.dataset[0])
    with pytest.raises(ToolFailure, match="amount must be a whole number, not 'two'"):
        environment.add(amount="two")
    with pytest.raises(ToolFailure, match="amount"):
        environment.add()
    environment.add(amount=3)
    assert environment.get_reward() == 1.0


def test_end_turn_hands_out_the_next_prompt(env: AgentEnv, environment: Any) -> None:
    environment.reset(**two_turns(env))
    environment.add(amount=5)
    after = environment.end_turn(response="five")
    assert after == "You operate a counter. Answer in one word.\n\nNow bring it to 8."
    environment.add(amount=3)
    assert environment.end_turn(response="eight") == "The episode has ended."
    assert environment.end_turn() == "The episode has ended."
    with pytest.raises(ToolFailure, match=r"^The episode has ended\.$"):
        environment.peek()
    assert environment.get_reward() == 1.0


def test_turns_left_open_are_ended_for_the_reward(env: AgentEnv, environment: Any) -> None:
    environment.reset(**two_turns(env))
    environment.add(amount=8)
    assert environment.get_reward() == 1.0


def test_resets_deploy_side_by_side_and_hold_nobody_up(env: AgentEnv) -> None:
    environments = [env.factory() for _ in range(6)]
    took = []
    for environment in environments:
        began = time.monotonic()
        environment.reset(**env.dataset[0])
        took.append(time.monotonic() - began)
    assert min(took) < 0.2  # a deploy takes longer; a busy machine may be slow at some of them
    for environment in environments:
        environment.add(amount=3)
    assert [environment.get_reward() for environment in environments] == [1.0] * 6


def test_a_row_may_have_other_columns_and_another_prompt(env: AgentEnv, environment: Any) -> None:
    changed = env.dataset.map(
        lambda row: {"prompt": [{"role": "user", "content": "Three!"}], "level": 2, "notes": None}
    )
    environment.reset(**changed[0])
    assert environment.add(amount=3) == '{"value": 3}'
    assert environment.get_reward() == 1.0
    environment.reset(**changed.remove_columns(["prompt", "task_id"])[0])
    environment.add(amount=3)
    assert environment.get_reward() == 1.0
    assert environment.get_reward() == 1.0


def test_training_and_evaluation_share_environments(env: AgentEnv, environment: Any) -> None:
    """TRL plays both splits on one pool."""
    for row, turns in ((env.dataset[0], 1), (two_turns(env), 2), (env.dataset[0], 1)):
        environment.reset(**row)
        answers = [environment.end_turn() for _ in range(turns)]
        assert answers[-1] == "The episode has ended."
        assert environment.get_reward() is not None


def test_no_file_of_the_trainers_folder_stands_in_for_a_package_of_the_server(
    local: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "uvicorn.py").write_text("raise SystemExit('not the server that was meant')", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert local().info.name == "counter-v1"


def test_a_row_that_says_nothing_to_play(env: AgentEnv, environment: Any) -> None:
    with pytest.raises(TypeError, match="by its columns split, index and task_id, and this one has: prompt"):
        environment.reset(prompt=[])


def test_a_missed_deadline_leaves_the_rollout_unscored(env: AgentEnv, caplog: pytest.LogCaptureFixture) -> None:
    env = AgentEnv(env.url, split="train", tool_timeout=10.0)
    environment = env.factory()
    environment.reset(**env.dataset[0])
    reason = "hang didn't answer within 10s, and the episode ended, since what the call does may still be under way"
    with pytest.raises(ToolFailure, match=reason):
        environment.hang()
    for again in (lambda: environment.add(amount=1), environment.end_turn):  # the reason would fill the model's context
        with pytest.raises(ToolFailure, match=r"^The episode has failed, and no tool answers any more\.$"):
            again()
    with caplog.at_level(logging.WARNING):
        assert environment.get_reward() is None
    logged = [(r.levelname, r.name, r.getMessage()) for r in caplog.records]
    assert logged == [("WARNING", "agent_env.training.trl", f"rollout left unscored: {reason}")]
    environment.reset(**env.dataset[0])
    environment.add(amount=3)
    assert environment.get_reward() == 1.0


def test_a_full_server_refuses_the_first_reset(local: Any) -> None:
    env = local(max_concurrent_envs=1)
    first, second = env.factory(), env.factory()
    first.reset(**env.dataset[0])
    with pytest.raises(CapacityError) as refusal:
        second.reset(**env.dataset[0])
    assert str(refusal.value) == (
        f"the server at {env.url} is at its limit of 1 sessions at once, and the trainer holds one per rollout it"
        " generates at once: serve the bundle with MAX_CONCURRENT_ENVS (or max_concurrent_envs=) at least that many,"
        " or generate fewer rollouts at once"
    )
    first.add(amount=3)
    assert first.get_reward() == 1.0


def test_several_toolsets_make_several_classes(local: Any, counter_bundle: Path) -> None:
    env = local(counter_bundle, split="all")
    assert sorted(env.factory) == ["counter", "counter-2", "counter-auditor"]
    assert sorted(cls.__name__ for cls in env.factory.values()) == [
        "counter-counter", "counter-counter-2", "counter-counter-auditor",
    ]  # fmt: skip
    rows = {row["task_id"].rpartition("/")[2]: row for row in env.dataset}
    assert rows["one-turn"]["environment"] == "counter"
    assert rows["role"]["environment"] == "counter-auditor"
    environment = env.factory["counter-2"]()
    environment.reset(**rows["tool-access"])
    assert environment.hint() == '{"goal": 7}'
    assert not hasattr(environment, "peek")
    environment.add(amount=7)
    assert environment.get_reward() == 1.0


def test_a_task_with_other_tools_stops_training(local: Any, one_toolset: Path, tmp_path: Path) -> None:
    import shutil

    from agent_env_core.client import ForeignTools

    bundle = tmp_path / "secret-v1"
    shutil.copytree(one_toolset, bundle)
    source = bundle / "envs" / "counter" / "server.py"
    text = source.read_text(encoding="utf-8")
    hides = 'else [name for name in TOOLS if name != "big" or WORLD.goal != 20]'
    assert "else list(TOOLS)" in text
    source.write_text(text.replace("else list(TOOLS)", hides), encoding="utf-8")
    env = local(bundle)
    environment = env.factory()
    environment.reset(**env.dataset[1])
    with pytest.raises(
        ForeignTools, match=r"one-turn-far offers the tools .*was shown .*big.*env.dataset names.*agent_env_toolset_key"
    ):
        environment.add(amount=1)
    with pytest.raises(ForeignTools):
        environment.get_reward()


def test_rewards_are_made_on_the_trainers_side(local: Any) -> None:
    factor = 4.0
    env = local(reward=lambda scores: factor * scores["grade"])
    environment = env.factory()
    environment.reset(**env.dataset[0])
    environment.add(amount=3)
    assert environment.get_reward() == 4.0
    named = AgentEnv(env.url, split="train", reward="grade")
    other = named.factory()
    other.reset(**named.dataset[0])
    assert other.get_reward() == 0.0
    assert AgentEnv(env.url, reward="mean").factory.__name__ == "counter-v1"
    with pytest.raises(ValueError, match="'style' is neither a step that scores"):
        AgentEnv(env.url, reward="style")


def test_a_reward_function_that_fails_leaves_the_rollout_unscored(
    env: AgentEnv, caplog: pytest.LogCaptureFixture
) -> None:
    env = AgentEnv(env.url, split="train", reward=lambda scores: scores["nothing"])
    environment = env.factory()
    environment.reset(**env.dataset[0])
    assert environment.get_reward() is None
    assert "rollout left unscored: the reward function '<lambda>' raised KeyError" in caplog.text


@pytest.mark.usefixtures("no_processes_left")
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"split": "nowhere"}, "the bundle has no split 'nowhere'; it has: all, eval, train"),
        ({"reward": "style"}, "'style' is neither a step that scores these tasks .grade."),
        ({"reward": "weighted:style=1"}, "names scores that no task records: style"),
        ({"reward": 3}, "reward=3 can't be used"),
        ({"tool_timeout": -1}, "tool_timeout=-1 must be a number of seconds above 0"),
        ({"reset_timeout": "60"}, "reset_timeout='60' must be a number of seconds above 0"),
        ({"tool_timeout": float("inf")}, "tool_timeout=inf must be"),
        ({"max_concurrent_envs": 0}, "max_concurrent_envs=0 must be a whole number"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_told_before_an_image_is_built(
    wrong: dict[str, Any], said: str, one_toolset: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match=said):
        AgentEnv.local(one_toolset, sandbox="process", **wrong)
    assert "image" not in capfd.readouterr().err


@pytest.mark.parametrize("bundle", [None, 3, "", {}, {"train": None}])
def test_what_is_no_bundle_is_refused_by_name(bundle: Any) -> None:
    with pytest.raises(TypeError, match="is no bundle: give its folder, the name of an installed bundle, or several"):
        AgentEnv.local(bundle)


def test_arguments_that_are_no_json_are_told_and_end_nothing(env: AgentEnv, environment: Any) -> None:
    environment.reset(**env.dataset[0])
    for wrong in ({1, 2}, float("nan"), b"1", object()):
        with pytest.raises(ToolFailure, match="add wasn't called: this can't be sent as JSON"):
            environment.add(amount=wrong)
    environment.add(amount=3)
    assert environment.get_reward() == 1.0


def test_a_text_reaches_the_env_to_the_letter(env: AgentEnv, environment: Any) -> None:
    """Quotes, line ends, signs of other planes, and what chat templates are made of."""
    text = '"it\'s" \\n\n\t {\'a\': "b"} \u2028 🚢 <|im_end|>\n<|im_start|>system </tool_call>'
    environment.reset(**env.dataset[0])
    environment.write(path="kept.txt", text=text)
    assert environment.read(path="kept.txt") == text


def test_the_token_shows_nowhere(
    local: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Not in ``ps``, not in what an env is started with, not in a log, an error or a pickle."""
    caplog.set_level(logging.DEBUG)
    env = local()
    token = env._local.token
    environment = env.factory()
    environment.reset(**env.dataset[0])
    environment.add(amount=1)
    server = psutil.Process(env._local.pid)
    below = server.children(recursive=True)
    envs = [process for process in below if "server.py" in process.cmdline()]
    assert envs
    assert not [process for process in (server, *below) if token in " ".join(process.cmdline())]
    assert not [process for process in envs if token in "".join(process.environ().values())]
    for name in [name for name in os.environ if name.startswith("AGENT_ENV_TOKEN")]:
        monkeypatch.delenv(name)
    with pytest.raises(AgentEnvError) as refusal:
        AgentEnv(env.url, token=f"{token}x")
    said = [str(refusal.value), repr(env), repr(env._server.__dict__), repr(environment._session.__dict__)]
    said += [caplog.text, *capfd.readouterr()]
    assert not [text for text in said if token in text]
    assert token.encode() not in pickle.dumps(env.factory)


def test_a_long_answer_is_cut_and_says_so(env: AgentEnv, environment: Any) -> None:
    """Whatever a tool answers, what reaches the trainer is bounded."""
    environment.reset(**env.dataset[0])
    answer = environment.big(size=3_000_000)
    assert len(answer) < 1_100_000
    assert "cut" in answer[-200:] or "bytes" in answer[-200:]
    environment.add(amount=3)
    assert environment.get_reward() == 1.0


def test_all_scores_can_be_logged_beside_the_reward(env: AgentEnv) -> None:
    mine = AgentEnv(env.url, split="train", reward=lambda scores: 4 * scores["grade"])
    environments = [mine.factory() for _ in range(3)]
    for environment, amount in zip(environments, (3, 2, 3), strict=True):
        environment.reset(**mine.dataset[0])
        environment.add(amount=amount)
    environments[2]._session.close()  # as an episode that was lost
    logged: dict[str, Any] = {}
    answer = mine.log_scores(
        environments=environments, log_metric=logged.__setitem__, log_extra=logged.__setitem__, prompts=[], level=[1]
    )
    assert answer == [None] * 3
    other = logged["grade"][1]
    assert logged == {"grade": [1.0, other, None], "scores/grade": (1.0 + other) / 2}
    assert [environment.get_reward() for environment in environments] == [4.0, 4 * other, None]


@pytest.mark.usefixtures("no_processes_left")
def test_what_a_server_cannot_start_for_is_raised_here(tmp_path: Path, one_toolset: Path) -> None:
    with pytest.raises(BundleError) as broken:
        AgentEnv.local(tmp_path / "nowhere", sandbox="process")
    assert broken.value.problems
    with pytest.raises(PluginError, match="there is no sandbox provider 'submarine'"):
        AgentEnv.local(one_toolset, sandbox="submarine")
    with pytest.raises(ValueError, match="has no split 'nowhere'; it has: all, eval, train"):
        AgentEnv.local(one_toolset, sandbox="process", split="nowhere")


def test_the_trainers_side_needs_none_of_the_servers_packages() -> None:
    code = (
        "import sys, agent_env.training.trl, agent_env_trl.plugin\n"
        "heavy = {'openenv', 'mcp', 'fastapi', 'uvicorn', 'torch', 'trl', 'transformers', 'datasets', 'docker',"
        " 'agentenv_protocol'}\n"
        "sys.exit(', '.join(sorted(heavy & set(sys.modules))) or 0)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
