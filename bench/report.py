"""What is shown and kept: tables for people, JSON for programs, a line of history; and the machine behind them."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import targets
from bench.calls import ROOT
from bench.figures import Crowd, Measured, Teardown, Times
from bench.phases import NAMES

VERSION = 4
"""Of the JSON's shape."""
HISTORY = Path(__file__).parent / "history.jsonl"
PAGE = ROOT / "docs" / "benchmarks.md"
BEGIN, END = "<!-- what follows is written by make bench -->", "<!-- what make bench writes ends here -->"
BUSY = 0.25
"""Load for each core at the start, above which the figures are said to be from a shared machine."""


def machine() -> dict[str, Any]:
    """The machine, as far as it explains the figures."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {
        "cores": cores,
        "load_at_start": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "docker": _docker(),
        "packages": {name: metadata.version(name) for name in ("agentenv-framework", "mcp", "httpx", "websockets")},
    }


def _docker() -> str | None:
    """The engine's version, and where it keeps layers; None where none answers."""
    import docker
    from docker.errors import DockerException

    try:
        client = docker.from_env(timeout=10)
    except DockerException:
        return None
    try:
        return f"{client.version()['Version']} ({client.info()['Driver']})"
    except DockerException:
        return None
    finally:
        client.close()


def commit() -> str:
    """The commit that is measured, with a ``+`` where files differ from it; empty outside a checkout."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no")
    return git("rev-parse", "--short=12", "HEAD") + ("+" if changed else "")


@dataclass
class Report:
    """One run of the benchmark.

    Attributes:
        options: What was asked for.
        machine: See :func:`machine`.
        commit: See :func:`commit`.
        at: When it started, UTC.
        imports: Starts of Python.
        measured: By bundle and provider.
        crowd: Many sessions in memory.
        teardown: Removals that take long, in memory.
        skipped: Provider to why it can't be used here.
    """

    options: Mapping[str, Any]
    machine: Mapping[str, Any] = field(default_factory=machine)
    commit: str = field(default_factory=commit)
    at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    imports: dict[str, Times] = field(default_factory=dict)
    measured: list[Measured] = field(default_factory=list)
    crowd: Crowd | None = None
    teardown: Teardown | None = None
    skipped: dict[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """All of it. Seconds everywhere, ratios beside what they are of."""
        told: dict[str, Any] = {"version": VERSION, "at": self.at, "commit": self.commit}
        told |= {"machine": dict(self.machine), "options": dict(self.options), "skipped": self.skipped}
        told["imports"] = {name: dataclasses.asdict(times) for name, times in self.imports.items()}
        told["measured"] = [_with_ratios(one) for one in self.measured]
        told |= {"crowd": _with_ratios(self.crowd), "teardown": _with_ratios(self.teardown)}
        told["targets"] = [dict(zip(TARGET_KEYS, row.cells, strict=True)) for row in self.rows]
        return told

    @property
    def rows(self) -> list[targets.Row]:
        """What was set out to be reached, and what came out."""
        return list(targets.rows(self.measured, self.crowd, self.teardown))

    def record(self, path: Path = HISTORY, page: Path = PAGE) -> None:
        """Adds a line to the history, and puts the table of targets into the documentation's page."""
        before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
        _, end, after = rest.partition(END)
        if not begin or not end:
            raise ValueError(f"{page} has no place for the figures: it needs the lines {BEGIN!r} and {END!r}")
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(self.as_json(), separators=(",", ":")) + "\n")
        page.write_text(f"{before}{BEGIN}\n\n{self.markdown()}\n{END}{after}", encoding="utf-8")

    def markdown(self) -> str:
        """The table of targets, and where it was measured."""
        facts = self.machine
        where = (
            f"{facts['cores']} cores, {facts['system']}, Python {facts['python']}, Docker {facts['docker'] or 'none'}"
        )
        lines = [f"Measured {self.at} at commit `{self.commit or 'unknown'}` on {where}; load at the start"
                 f" {facts['load_at_start']:.2f}.", ""]  # fmt: skip
        lines += [_markdown_row(targets.HEADINGS), _markdown_row(["---"] * len(targets.HEADINGS))]
        lines += [_markdown_row(row.cells) for row in self.rows]
        return "\n".join(lines) + "\n"

    def show(self, console: Console) -> None:
        """Prints the tables; what was set out to be reached comes last."""
        console.print(_machine_table(self))
        console.print(_start_table(self))
        if self.measured:
            for table in (_episodes_table, _warm_table, _phases_table, _calls_table, _batch_table):
                console.print(table(self.measured))
        console.print(_targets_table(self.rows))


def _with_ratios(thing: Any) -> Any:
    """A dataclass as a dict, with its properties, which are all ratios and differences."""
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        found = {each.name: _with_ratios(getattr(thing, each.name)) for each in dataclasses.fields(thing)}
        derived = [name for name, value in vars(type(thing)).items() if isinstance(value, property)]
        return found | {name: getattr(thing, name) for name in derived}
    return [_with_ratios(one) for one in thing] if isinstance(thing, tuple) else thing


TARGET_KEYS = ("what", "on", "n", "p50", "p95", "p99", "figure", "target", "verdict")


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


# -- tables


def _targets_table(found: Sequence[targets.Row]) -> Table:
    table = _table(
        "What was to be reached", *targets.HEADINGS, caption="Ratios are medians over rounds that took turns."
    )
    for row in found:
        table.add_row(*row.cells)
    return table


def _table(title: str, *columns: str, caption: str = "") -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", caption=caption, caption_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    return table


def _machine_table(report: Report) -> Table:
    facts = report.machine
    load = f"{facts['load_at_start']:.2f}"
    if facts["load_at_start"] > BUSY * facts["cores"]:
        load += "  (others were running too: read the ratios, not the seconds)"
    table = _table("Measured on", "fact", "value")
    rows = {"cores": facts["cores"], "load at start": load, "system": facts["system"], "python": facts["python"]}
    rows |= {"docker": facts["docker"] or "none", "commit": report.commit or "unknown", "at": report.at}
    rows |= {f"{name}: skipped": reason for name, reason in report.skipped.items()}
    for name, value in rows.items():
        table.add_row(name, str(value))
    return table


def _start_table(report: Report) -> Table:
    table = _table("Starting (medians)", "what", "time", caption="A first factory deploys one env for each toolset.")
    for name, times in report.imports.items():
        table.add_row(name, _ms(times.p50))
    for one in report.measured:
        table.add_row(f"AgentEnv.local, {one.bundle} on {one.provider}, image ready", _ms(one.local_start))
        table.add_row(f"first factory, {one.bundle} on {one.provider}", _ms(one.first_factory))
    return table


def _episodes_table(measured: Sequence[Measured]) -> Table:
    table = _table(
        "Cold reset → first tool answer, and episodes a minute: product / floor",
        "bundle, provider", "sessions", "n", "p50 s", "p95 s", "p99 s", "ratio", "episodes/min", "ratio", "server CPU",
        caption="The first ratio is the rounds' median: lower is better. Of the second, higher is. CPU: per episode.",
    )  # fmt: skip
    for one in measured:
        for at in one.episodes:
            ours, by_hand = at.product.first_answer, at.floor.first_answer
            table.add_row(
                f"{one.bundle}, {one.provider}", str(at.sessions), str(ours.n),
                *(f"{a:.2f} / {b:.2f}" for a, b in zip(_ranks(ours), _ranks(by_hand), strict=True)),
                f"{at.ratio:.2f}", f"{at.product.per_minute:.0f} / {at.floor.per_minute:.0f}", f"{at.rate_ratio:.2f}",
                _ms(at.server_cpu_per_episode),
            )  # fmt: skip
    return table


def _warm_table(measured: Sequence[Measured]) -> Table:
    table = _table(
        "Reset → first tool answer: with a deployment made ahead / cold",
        "bundle, provider", "sessions", "n", "p50 ms", "p95 ms", "p99 ms", "ratio",
        caption="As many are made ahead as there are sessions, and all are ready before a round.",
    )  # fmt: skip
    for one in measured:
        for at in one.warm:
            pairs = zip(_ranks(at.ahead), _ranks(at.cold), strict=True)
            table.add_row(
                f"{one.bundle}, {one.provider}", str(at.sessions), str(at.ahead.n),
                *(f"{1e3 * a:.0f} / {1e3 * b:.0f}" for a, b in pairs), f"{at.ratio:.1%}",
            )  # fmt: skip
    return table


def _phases_table(measured: Sequence[Measured]) -> Table:
    table = _table(
        "Where an episode's time goes, in ms: product / floor (medians)",
        "bundle, provider", "sessions", "n", *NAMES,
        caption="Without trainer and server. tool is a part of play; the verify of the floor only reads the data.",
    )  # fmt: skip
    for one in measured:
        for at in one.phases:
            cells = [f"{1e3 * at.product[name]:.0f} / {1e3 * at.floor[name]:.0f}" for name in NAMES]
            table.add_row(f"{one.bundle}, {one.provider}", str(at.sessions), str(at.n), *cells)
    return table


def _calls_table(measured: Sequence[Measured]) -> Table:
    table = _table(
        "One tool call: through trainer, server and MCP / directly",
        "bundle, provider", "n", "p50 ms", "p95 ms", "p99 ms", "ratio", "added", "server CPU", "MCP client's",
    )  # fmt: skip
    for one in measured:
        ours, direct = one.calls.product, one.calls.direct
        table.add_row(
            f"{one.bundle}, {one.provider}", str(ours.n),
            *(f"{1e3 * a:.2f} / {1e3 * b:.2f}" for a, b in zip(_ranks(ours), _ranks(direct), strict=True)),
            f"{one.calls.ratio:.2f}", _ms(one.calls.added), _ms(one.calls.server_cpu.p50), _ms(one.calls.mcp_cpu.p50),
        )  # fmt: skip
    return table


def _batch_table(measured: Sequence[Measured]) -> Table:
    table = _table(
        "How long a batch holds its trainer's one thread, as GRPOTrainer plays it",
        "bundle, provider", "rollouts", "batch", "resets: sum", "max", "first tools: sum", "all first answers",
        "of floor", "rewards: sum", "max", "all",
        caption="First: its resets open the sessions. One by one: each reset returns when its env is deployed, and each"
        " reward is asked for by itself.",
    )  # fmt: skip
    for one in measured:
        for held in one.batches:
            what = f"{one.bundle}, {one.provider}", str(held.size)
            for name, row in (("first", held.first), ("later", held.later), ("one by one", held.waiting)):
                table.add_row(
                    *what, name, f"{_ms(row.resets.sum)} ({row.resets_share:.1%})", _ms(row.resets.max),
                    _ms(row.tools.sum), f"{row.answered:.2f} s", f"{row.answered / held.floor_answered.p50:.2f}",
                    _ms(row.rewards.sum), _ms(row.rewards.max), f"{row.seconds:.2f} s",
                )  # fmt: skip
            table.add_row(*what, "floor, at once", "", "", "", f"{held.floor_answered.p50:.2f} s", "1.00", "", "", "")
    return table


def _ranks(times: Times) -> tuple[float, float, float]:
    return times.p50, times.p95, times.p99


def _ms(seconds: float) -> str:
    return (
        f"{1e3 * seconds:.1f} ms" if seconds < 0.1 else f"{1e3 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"
    )
