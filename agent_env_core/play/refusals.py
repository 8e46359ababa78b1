"""Why a task can't be played from outside, read off its steps as the file wrote them.

What a single step can't keep its own class says (:meth:`~agent_env_core.steps.base.TaskStep.refusals`); here is what
shows only between steps, or concerns step types by name, whoever brings their class.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from agent_env_core.steps.placed import DEFAULT_AGENT
from agent_env_core.steps.prompt_agent import DEFAULT_USER
from agent_env_core.steps.rubrics_verifier import MISTAKES_SUFFIX

Step = Mapping[str, Any]
Refusal = tuple[str, str, str]
"""The id of a step (empty for the task itself), what is wrong, and what to do about it."""

DEPLOYING = ("deploy_agent", "install_agent")
NAMES_THE_AGENT = ("deploy_human_agent", "register_agent_triggers", "snapshot_agent_state")


def prompted_agents(steps: Iterable[Step]) -> tuple[str, ...]:
    """The agents that a task prompts, in the order of their first prompts."""
    return tuple(dict.fromkeys(agent_of(step) for step in steps if step.get("type") == "prompt_agent"))


def agent_of(step: Step) -> str:
    """The agent that a step concerns, where it has one."""
    return str(step.get("agent_name") or DEFAULT_AGENT)


def simulated_users(steps: Iterable[Step]) -> tuple[str, ...]:
    """The agents that only stand for users, whom a model plays: they are deployed, and nobody prompts them."""
    steps = list(steps)
    users = (user_of(step) for step in steps if step.get("type") == "prompt_agent" and is_conversation(step))
    prompted = prompted_agents(steps)
    return tuple(dict.fromkeys(user for user in users if user not in prompted))


def idle_agents(steps: Iterable[Step]) -> tuple[str, ...]:
    """The agents that are deployed and never asked for anything: steps may still act in their sandboxes."""
    steps = list(steps)
    busy = {*prompted_agents(steps), *simulated_users(steps)}
    deployed = (agent_of(step) for step in steps if step.get("type") in DEPLOYING)
    return tuple(dict.fromkeys(agent for agent in deployed if agent not in busy))


def is_conversation(step: Step) -> bool:
    """Whether a prompt is a conversation with a simulated user."""
    turns = step.get("max_conversation_turns")
    return isinstance(turns, int) and turns > 1


def user_of(step: Step) -> str:
    """Who the user of a conversation is."""
    return str(step.get("user_agent_name") or DEFAULT_USER)


def choose_agents(steps: Sequence[Step], asked: Sequence[str] | None) -> tuple[tuple[str, ...], list[Refusal]]:
    """The agents that are played from outside, and what is wrong with the choice.

    Args:
        steps: The task's steps.
        asked: The agents to play; None for the only one that is prompted.
    """
    prompted = prompted_agents(steps)
    if asked is None:
        if not prompted:
            return (), [("", "prompts no agent, so there is nothing to play", "add a prompt_agent step")]
        if len(prompted) > 1:
            fix = "name those to play as trainer_agents"
            return prompted, [("", f"prompts several agents: {', '.join(prompted)}", fix)]
        return prompted, []
    if not asked:
        return (), [("", "trainer_agents is empty, so there is nothing to play", "name an agent, or leave it out")]
    strangers = [name for name in dict.fromkeys(asked) if name not in prompted]
    fix = f"it prompts: {', '.join(prompted) or 'nobody'}"
    return tuple(dict.fromkeys(asked)), [("", f"never prompts the agent {name!r}", fix) for name in strangers]


def between_steps(steps: Sequence[Step], played: Collection[str]) -> Iterator[Refusal]:
    """What keeps a task from being played that no step can say by itself."""
    yield from _deployed_once(steps, played)
    yield from _verifier_ids(steps)
    yield from _users(steps)
    yield from _aggregates(steps)
    outside = {step.get("id") for step in steps if step.get("type") == "prompt_agent" and agent_of(step) in played}
    for step in steps:
        yield from _by_type(step, played, outside)


def _deployed_once(steps: Sequence[Step], played: Collection[str]) -> Iterator[Refusal]:
    for agent in (*played, *idle_agents(steps)):
        found = [str(step.get("id")) for step in steps if step.get("type") in DEPLOYING and agent_of(step) == agent]
        if not found:
            yield "", f"never deploys the agent {agent!r} that it prompts", "add a deploy_agent step"
        elif len(found) > 1:
            yield "", f"deploys the agent {agent!r} more than once, by {', '.join(found)}", "keep one of these steps"


def _verifier_ids(steps: Sequence[Step]) -> Iterator[Refusal]:
    first: dict[str, str] = {}
    for step in steps:
        key = step.get("verifier_id")
        if isinstance(key, str) and (other := first.setdefault(key, str(step.get("id")))) != step.get("id"):
            yield str(step.get("id")), f"verifier_id={key!r} is also that of step {other!r}", "rename one of them"


def _users(steps: Sequence[Step]) -> Iterator[Refusal]:
    users = simulated_users(steps)
    for step in steps:
        if step.get("type") == "deploy_agent" and agent_of(step) in users and step.get("env_ids"):
            reason = f"env_ids: the agent {agent_of(step)!r} stands for the user, and a simulated user has no tools"
            yield str(step.get("id")), reason, "leave its env_ids out"


def _aggregates(steps: Sequence[Step]) -> Iterator[Refusal]:
    known: set[str] = set()
    for step in steps:
        if step.get("type") == "aggregate_verifiers" and isinstance(names := step.get("verifier_ids"), list):
            for name in (name for name in names if isinstance(name, str) and name not in known):
                fix = "set verifier_id on the step that is meant, which must come earlier"
                yield str(step.get("id")), f"verifier_ids names {name!r}, which no earlier step has", fix
        default = step.get("id") if step.get("type") == "run_container_unit_tests_verifier" else None
        if isinstance(key := step.get("verifier_id", default), str):
            known.add(key)
            if step.get("output_format") == "rubric_evidence_with_mistakes":
                known.add(key + MISTAKES_SUFFIX)


def _by_type(step: Step, played: Collection[str], outside: Collection[Any]) -> Iterator[Refusal]:
    kind, step_id = str(step.get("type")), str(step.get("id"))
    if kind.startswith("verify_a2a_"):
        yield step_id, f"{kind} examines a real agent, and this one is played from outside", ""
    if kind in NAMES_THE_AGENT and agent_of(step) in played:
        yield step_id, f"{kind} names the agent {agent_of(step)!r}, which is played from outside", ""
    if kind == "prompt_agent" and is_conversation(step) and (user := user_of(step)) in played:
        yield step_id, f"user_agent_name={user!r} makes an agent that is played from outside a simulated user", ""
    if kind == "collect_artifacts" and step.get("manifest_step_id") in outside:
        yield step_id, f"manifest_step_id={step['manifest_step_id']!r} is a prompt that is played from outside", ""
    if kind == "register_env_triggers" and step.get("executor_agent_name") in played:
        yield step_id, f"executor_agent_name={step['executor_agent_name']!r} is played from outside", ""
    if kind == "rubrics_verifier" and step.get("use_agent_judge", True) and step.get("agent_name") in played:
        yield step_id, f"agent_name={step['agent_name']!r} would judge, and is played from outside", ""
    if kind == "peer_agents" and (named := set(_texts(step)) & set(played)):
        yield step_id, f"peers the agent {sorted(named)[0]!r}, which is played from outside", ""


def by_reason(reasons: Iterable[tuple[str, str]]) -> Mapping[str, list[str]]:
    """Names of tasks by the reason that keeps them out, of pairs of both: one mistake may sit in 2,000 tasks."""
    found: dict[str, list[str]] = defaultdict(list)
    for name, reason in reasons:
        found[reason].append(name)
    return found


def few(names: Sequence[str]) -> str:
    """Some names, and how many more there are."""
    more = len(names) - 3
    return ", ".join(names[:3]) + (f" and {more} more" if more > 0 else "")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts(key)
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
