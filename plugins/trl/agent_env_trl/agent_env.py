"""A served bundle, as TRL takes it: a dataset, and the class its environments are of."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agent_env_core import integrity
from agent_env_core.adapters import Combiner
from agent_env_core.client import Address, Hosts, Info, close_all, hand_down_token, seconds, servers_at
from agent_env_core.errors import AgentEnvError
from agent_env_core.play.rewards import resolve_reward
from agent_env_core.server.limits import DEFAULT_SESSIONS
from agent_env_trl.dataset import check_rows, task_dataset
from agent_env_trl.environment import Environment
from agent_env_trl.factory import environment_class
from agent_env_trl.local import Bundle, LocalServer
from agent_env_trl.ranks import Meeting, SharedServer
from agent_env_trl.rollout_process import refuse_second_import

if TYPE_CHECKING:
    from datasets import Dataset

Factory = type[Environment] | dict[str, type[Environment]]


class NoSuchSplit(ValueError):
    """What is served hasn't got a split that was named."""


class AgentEnv:
    """Connects a trainer to a served bundle.

    Args:
        url_or_urls: The server, e.g. ``http://env-host:8000``; or several that serve the same bundle, over which the
            sessions are spread by each one's limit.
        split: The split that :attr:`dataset` holds: ``all``, or the name of an eval.
        reward: What to make of an episode's scores: None takes the server's reward, a string names a scoring step or
            a combiner (``"mean"``, ``"weighted:grade=0.8,style=0.2"``), a function gets ``{step id: score}``.
        tool_timeout: Seconds that one tool call may take; past it the episode ends unscored.
        reset_timeout: Seconds that a reset may take, through the deploy and the opening of the first turn, and each
            ``end_turn``.
        answer_limit: Characters of a tool's answer that the model is shown, of its beginning and its end; None shows it
            all. Without it a long answer may leave the conversation no room in the model's context.
        token: The token the servers ask for, or one for each URL; ``AGENT_ENV_TOKEN`` in the environment does as well.

    Raises:
        AgentEnvError: Nothing answers at a URL, it refuses us, or several servers don't serve the same; the message
            names the difference.
        ValueError: No URL is given, a server has no such split, ``reward`` doesn't fit each of its tasks, or a timeout
            is no number of seconds above 0, or ``answer_limit`` is below 1.
        TypeError: What is given is no URL, or no number.
    """

    def __init__(
        self,
        url_or_urls: str | Sequence[str],
        *,
        split: str = "all",
        reward: str | Combiner | None = None,
        tool_timeout: float = 60,
        reset_timeout: float = 600,
        answer_limit: int | None = None,
        token: str | Mapping[str, str] | None = None,
    ) -> None:
        integrity.check()
        refuse_second_import()
        self._local: LocalServer | SharedServer | None = None
        self._split = split
        self._limits = _limits(tool_timeout, reset_timeout, answer_limit)
        addresses = _addresses(url_or_urls, token)
        self._server = Hosts(servers_at(addresses, deploy_timeout=reset_timeout))
        self._info, self._hosts = self._server.info()
        self._check_split(split)
        self._combine = None if reward is None else resolve_reward(reward, self._info.score_ids)
        self._closed = False
        self._datasets: dict[str, Dataset] = {}
        self._factories: dict[bool, Factory] = {}
        for address in addresses:
            hand_down_token(address)
        if len(addresses) > 1:
            self.dataset_for(split)  # compares the rows

    @classmethod
    def local(
        cls,
        bundle: Bundle,
        *,
        split: str = "all",
        reward: str | Combiner | None = None,
        sandbox: str | None = None,
        max_concurrent_envs: int = DEFAULT_SESSIONS,
        warm: int | None = None,
        tool_timeout: float = 60,
        reset_timeout: float = 600,
        answer_limit: int | None = None,
    ) -> AgentEnv:
        """Serves a bundle on this machine, for as long as this process lives, and connects to it.

        Under torchrun or ``accelerate launch`` the ranks of a node share one server, which local rank 0 starts: call
        this in every rank. ``max_concurrent_envs`` counts the rollouts of all of them.

        Args:
            bundle: The bundle's folder, or the name of an installed bundle; or several, by split.
            split: As for the class.
            reward: As for the class.
            sandbox: Where envs are deployed: a sandbox provider's name, or several in the order of preference
                (``"docker,process"``); None is your Docker.
            max_concurrent_envs: Sessions to allow at once: one for each rollout in flight.
            warm: Deployments to make ahead, so that a reset needn't wait for one; 0 makes none. When it isn't given,
                ``AGENT_ENV_WARM`` sets it, else what suits the sessions and this machine.
            tool_timeout: As for the class.
            reset_timeout: As for the class.
            answer_limit: As for the class.

        Raises:
            BundleError: The bundle can't be used; it lists every problem.
            AgentEnvError: The server couldn't start; the message says why.
            ValueError: As for the class. It's raised before any image is built.
            TypeError: ``bundle`` is no bundle.
        """
        refuse_second_import()
        _limits(tool_timeout, reset_timeout, answer_limit)

        def check(told: Mapping[str, Any]) -> None:
            _check_split("the bundle", split, told["splits"])
            if reward is not None:
                resolve_reward(reward, told["score_ids"])

        meeting = Meeting.of_this_run()
        server = (
            SharedServer(meeting)
            if meeting and not meeting.first
            else LocalServer(
                bundle,
                sandbox=sandbox,
                max_concurrent_envs=max_concurrent_envs,
                warm=warm,
                scores_only=reward is not None,
                meeting=meeting,
                check=check,
            )
        )
        try:
            env = cls(
                server.url, split=split, reward=reward, tool_timeout=tool_timeout, reset_timeout=reset_timeout,
                answer_limit=answer_limit, token=server.token,
            )  # fmt: skip
        except BaseException:
            server.close()
            raise
        env._local = server
        return env

    @property
    def url(self) -> str:
        """The server's base URL; those of several, with commas between."""
        return ", ".join(host.url for host in self._hosts)

    @property
    def info(self) -> Info:
        """What the server said it serves, when this object was made; of several, with the sessions of all of them."""
        return self._info

    @property
    def dataset(self) -> Dataset:
        """A row for each task of the split: ``prompt``, ``split``, ``index``, ``task_id``.

        The prompt is yours to change; the other columns say what ``reset`` plays. With several toolsets there's a
        column ``environment`` too.
        """
        return self.dataset_for(self._split)

    def dataset_for(self, split: str) -> Dataset:
        """The rows of another split, e.g. for ``eval_dataset``.

        Raises:
            ValueError: The server has no such split; the message lists those it has.
        """
        self._check_split(split)
        if split not in self._datasets:
            rows = self._asked().rows(self._info, split)
            self._datasets[split] = task_dataset(split, rows, environments=len(self._info.toolsets) > 1)
        return self._datasets[split]

    def check_dataset(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Checks, before training, that each row of a dataset of your own can be played.

        Raises:
            ValueError: A row names a split, index, task or environment that isn't there; the message has its number.
        """
        check_rows(rows, self.dataset_for)

    def _asked(self) -> Hosts:
        """The servers, to be asked something.

        Raises:
            AgentEnvError: :meth:`close` has stopped the one there was.
        """
        if self._closed:
            raise AgentEnvError(f"this AgentEnv was closed, and its server at {self.url} with it: make a new one")
        return self._server

    def _check_split(self, split: str) -> None:
        _check_split(f"the server at {self.url}", split, self._info.splits)

    @property
    def factory(self) -> Any:  # TRL's own hints take no dict of classes, and a user's type checker would complain
        """What TRL builds environments from: a class; with several toolsets a dict of classes, by toolset.

        The first access has the server deploy one task of each toolset, to read its tools.

        Raises:
            EpisodeError: An env didn't deploy.
            AgentEnvError: A tool can't be a method of a class; the message says what to do.
        """
        return self._factory(together=False)

    def _factory(self, *, together: bool) -> Factory:
        """The factory; ``together`` is for a trainer known to ask for rewards once its whole batch is complete."""
        if together not in self._factories:
            toolsets = self._asked().toolsets()
            settings: dict[str, Any] = {
                "hosts": self._hosts, "combine": self._combine, "together": together, **self._limits,
            }  # fmt: skip
            if len(toolsets) == 1:
                self._factories[together] = environment_class(toolsets[0], name=self._info.name, **settings)
            else:
                self._factories[together] = {
                    toolset.name: environment_class(toolset, name=f"{self._info.name}-{toolset.name}", **settings)
                    for toolset in toolsets
                }
        return self._factories[together]

    def log_scores(
        self,
        *,
        environments: Sequence[Environment],
        log_metric: Callable[[str, float], None],
        log_extra: Callable[[str, list[float | None]], None],
        **batch: Any,
    ) -> list[None]:
        """Logs every score of a batch, beside the reward that is trained on. It rewards nothing itself.

        Pass it to ``GRPOTrainer`` as ``reward_funcs=env.log_scores``: the logs then have the mean of each score as
        ``scores/<step id>``, and the table of completions has a column for each. TRL lists it as one more reward, which
        is always NaN and so takes no part in the update.

        Args:
            environments: The batch's environments, one for each completion.
            log_metric: TRL's way to log a number.
            log_extra: TRL's way to add a column to the table of completions.
            **batch: What else TRL hands to reward functions.

        Returns:
            None for each completion, by which TRL knows that this gives no reward.
        """
        scores = [environment._scores() for environment in environments]
        for step_id in dict.fromkeys(step_id for found in scores for step_id in found):
            column = [found.get(step_id) for found in scores]
            known = [score for score in column if score is not None]
            log_metric(f"scores/{step_id}", sum(known) / len(known))
            log_extra(step_id, column)
        return [None] * len(scores)

    def close(self) -> None:
        """Ends the episodes that this process's environments hold, and stops a server that ``local`` started."""
        factories = [one.values() if isinstance(one, dict) else (one,) for one in self._factories.values()]
        classes = [cls for factory in factories for cls in factory]
        try:
            close_all([environment._session for cls in classes for environment in list(cls._instances)])
        except KeyboardInterrupt:  # a second Ctrl-C
            if isinstance(self._local, LocalServer):
                self._local.kill()
            raise
        if self._local is not None:
            self._closed = True
            for cls in classes:
                cls._server_closed = True
            self._local.close()

    def __enter__(self) -> AgentEnv:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"AgentEnv({self.url!r}, split={self._split!r})"


def _limits(tool_timeout: float, reset_timeout: float, answer_limit: int | None) -> dict[str, Any]:
    if answer_limit is not None and (isinstance(answer_limit, bool) or not isinstance(answer_limit, int)):
        raise TypeError(f"answer_limit={answer_limit!r} is no number of characters")
    if answer_limit is not None and answer_limit < 1:
        raise ValueError(f"answer_limit={answer_limit} leaves nothing of an answer: give characters, or None")
    return {
        "tool_timeout": seconds("tool_timeout", tool_timeout),
        "reset_timeout": seconds("reset_timeout", reset_timeout),
        "answer_limit": answer_limit,
    }


def _addresses(urls: str | Sequence[str], token: str | Mapping[str, str] | None) -> list[Address]:
    urls = list(urls) if isinstance(urls, Sequence) and not isinstance(urls, str) else [urls]
    for url in urls:
        if not isinstance(url, str):  # as of a variable of the environment that isn't set
            raise TypeError(f"{url!r} is no address of an env server: write it as http://host:port")
    tokens = token if isinstance(token, Mapping) else dict.fromkeys(urls, token)
    if strange := set(tokens) - set(urls):
        raise ValueError(f"token= names {', '.join(sorted(strange))}, which isn't one of the URLs: {', '.join(urls)}")
    addresses = [Address.of(url, tokens.get(url)) for url in urls]
    if not urls or len({address.url for address in addresses}) < len(urls):
        raise ValueError(f"the URLs {urls} must be one or more servers, each given once")
    return addresses


def _check_split(where: str, split: str, known: Collection[str]) -> None:
    if split not in known:
        raise NoSuchSplit(f"{where} has no split {split!r}; it has: {', '.join(known) or 'none'}")
