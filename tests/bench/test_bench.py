from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOGGING = """
def noted(method):
    def handle(self):
        found = method(self)
        asked = found.get("method", "") if self.path in ("/mcp", "/agentenv") and found else ""
        with open(f"FOLDER/{os.getpid()}", "a", encoding="utf-8") as file:
            print(self.command, self.path, asked, file=file)
        return found
    return handle


Handler.do_GET, Handler.do_DELETE, Handler.body = noted(Handler.do_GET), noted(Handler.do_DELETE), noted(Handler.body)
"""


@pytest.mark.slow
@pytest.mark.timeout(600)  # it starts some ten interpreters that import it all, one after another
def test_a_quick_run_measures_everything_and_leaves_nothing(tmp_path, no_processes_left):
    history = _history()
    command = [sys.executable, "-m", "bench", "--quick", "--provider", "process", "--bundle", "counter"]
    command += ["--sessions", "2", "--batch", "2", "--calls", "10", "--json", str(tmp_path / "figures.json")]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "counter, process" in ran.stdout
    told = json.loads((tmp_path / "figures.json").read_text())
    assert told["version"] == 4
    assert {"cores", "load_at_start", "system", "python", "docker", "packages"} == set(told["machine"])
    assert set(told["imports"]) == {"python", "import agent_env_core", "agent-env --help"}
    [measured] = told["measured"]
    assert (measured["bundle"], measured["provider"]) == ("counter", "process")
    assert [at["sessions"] for at in measured["episodes"]] == [2]
    assert [at["product"]["first_answer"]["n"] for at in measured["episodes"]] == [4]
    assert [at["floor"]["first_answer"]["n"] for at in measured["episodes"]] == [4]
    for at in measured["episodes"]:
        times = at["product"]["first_answer"]
        assert 0 < times["p50"] <= times["p95"] <= times["p99"] <= times["max"] <= times["sum"]
        assert len(at["ratios"]) == 2
        assert at["ratio"] == pytest.approx(sum(at["ratios"]) / 2)
        assert at["failed"] == 0
        assert at["product"]["per_minute"] > 0
    [parts] = measured["phases"]
    assert set(parts["product"]) == set(parts["floor"]) > {"deploy", "verify", "teardown"}
    assert all(parts["product"][name] > 0 for name in parts["product"])
    assert measured["calls"]["product"]["n"] == measured["calls"]["direct"]["n"] == 10
    assert [batch["size"] for batch in measured["batches"]] == [2]
    for batch in measured["batches"]:
        for kind in ("first", "later", "waiting"):
            held = batch[kind]
            assert held["resets"]["n"] == held["tools"]["n"] == held["rewards"]["n"] == batch["size"]
            assert held["resets"]["sum"] + held["tools"]["sum"] <= held["answered"]
        assert batch["answered"]["n"] == batch["floor_answered"]["n"] == len(batch["ratios"]) == 2
    assert measured["calls"]["server_cpu"]["n"] == measured["calls"]["mcp_cpu"]["n"] == 1
    assert told["crowd"]["calls"]["n"] == 32 * 8
    assert told["crowd"]["problems"] == []
    assert told["teardown"]["slow"]["n"] == told["teardown"]["instant"]["n"] == 3
    assert _history() == history
    assert list((tmp_path / "tmp").iterdir()) == []
    assert [path.name for path in (tmp_path / "state").rglob("*") if path.is_file()] == ["lock"]


@pytest.mark.slow
def test_a_stopped_run_leaves_nothing(tmp_path, no_processes_left):
    command = [sys.executable, "-m", "bench", "--quick", "--provider", "process", "--bundle", "counter"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        said = []
        try:
            for line in running.stderr:
                said.append(line)
                if "rounds of 4 sessions" in line:
                    running.terminate()
            assert running.wait() == 128 + signal.SIGTERM, "".join(said)
        finally:
            running.kill()  # where it doesn't end: this test is to fail then, not to wait for it
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_round_that_is_broken_off_ends():
    from bench.measure import _round, _Rounds

    class Broken(list):
        def __iter__(self):
            yield self[0]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _round(_Rounds(), Broken([float, float]), lambda: None)


def _history() -> str:
    """What is recorded, which only ``--record`` adds to."""
    file = ROOT / "bench" / "history.jsonl"
    return file.read_text() if file.exists() else ""


@pytest.fixture
def one_task(tmp_path, counter_bundle):
    """The counter's bundle with one task of it, so that there is one toolset to deploy."""
    folder = tmp_path / "counter"
    shutil.copytree(counter_bundle, folder, ignore=shutil.ignore_patterns("evals"))
    for task in (folder / "tasks").iterdir():
        if task.stem != "one-turn":
            task.unlink()
    return folder


@pytest.mark.slow
def test_the_floor_makes_the_calls_that_the_product_makes(tmp_path, one_task, monkeypatch, no_processes_left):
    monkeypatch.setenv("AGENT_ENV_PROCESS_ISOLATION", "none")  # the env writes its log where this test reads it
    from bench.calls import BUNDLES
    from bench.floor import Floor
    from bench.product import Product, prepare

    log = tmp_path / "log"
    server = one_task / "envs" / "counter" / "server.py"
    code, start, rest = server.read_text().partition('\nif __name__ == "__main__":')
    assert start
    server.write_text(code + LOGGING.replace("FOLDER", str(log)) + start + rest)

    log.mkdir()
    prepared = prepare(replace(BUNDLES["counter"], path=one_task), "process")
    floor = Floor("process", prepared.image, prepared.script)
    floor.play(1)
    floor.close()
    [by_hand] = _requests(log)
    shutil.rmtree(log)
    log.mkdir()
    with Product(prepared, 1) as product:
        [environment] = product.environments(1)
        product.play(environment)
        product.close_sessions([environment])
        product.wait_until_quiet()
    # another one was deployed to read the tools, and no tool of it was called
    [ours] = [asked for asked in _requests(log) if "POST /mcp tools/call" in asked]
    assert Counter(ours) == Counter(by_hand)
    assert "POST /agentenv data/get" in by_hand


def _requests(log: Path) -> list[list[str]]:
    """What each server was asked, server by server."""
    return [[line.strip() for line in path.read_text().splitlines()] for path in log.iterdir()]


@pytest.mark.docker
async def test_the_floors_container_is_the_products(one_task):
    import docker

    from agent_env_core.bundle import load_bundle
    from agent_env_core.envs.deployment import DeployOptions, sandbox_spec
    from agent_env_core.envs.images import prepare_image
    from agent_env_core.sandbox.choose import open_host
    from agent_env_core.steps.base import declaration
    from bench.calls import BUNDLES, PORT
    from bench.floor import Containers
    from bench.product import read_script

    [task] = load_bundle(one_task, declaration).tasks
    [env] = task.bundle.envs.values()
    client = docker.from_env()
    async with open_host("docker") as host:
        prepared = await prepare_image(env, host)
        sandbox = await host.create(sandbox_spec(env, prepared, DeployOptions(900.0)))
        floor = Containers(prepared.ref, read_script(task, BUNDLES["counter"]))
        with floor.started() as url:
            port = url.rpartition(":")[2]
            [by_hand] = [c for c in client.containers.list() if c.ports.get(f"{PORT}/tcp", [{}])[0]["HostPort"] == port]
            ours = client.containers.get(sandbox.id)
            assert by_hand.attrs["HostConfig"] == ours.attrs["HostConfig"]
            for key in ("Path", "Args", "Mounts"):
                assert by_hand.attrs[key] == ours.attrs[key]
            for key in ("Image", "User", "WorkingDir", "ExposedPorts", "Healthcheck"):
                assert by_hand.attrs["Config"].get(key) == ours.attrs["Config"].get(key)
            assert set(by_hand.attrs["Config"]["Env"]) == set(ours.attrs["Config"]["Env"])
        floor.close()
        assert not client.containers.list(all=True, filters={"id": by_hand.id})
    client.close()


def test_percentiles_lie_between_the_nearest_ranks():
    from bench.figures import Times

    assert Times.of([3.0, 1.0, 2.0]) == Times(
        n=3, p50=2.0, p95=pytest.approx(2.9), p99=pytest.approx(2.98), max=3.0, sum=6.0
    )
    assert Times.of([0.5]) == Times(1, 0.5, 0.5, 0.5, 0.5, 0.5)


def test_a_task_that_the_floor_cannot_play_is_refused(counter_bundle):
    from bench.calls import BUNDLES
    from bench.product import prepare

    with pytest.raises(ValueError, match="can't be played by hand"):
        prepare(replace(BUNDLES["counter"], task="two-turns"), "process")


@pytest.mark.parametrize("wrong", [["--sessions", "0"], ["--sessions", "few"], ["--bundle", "none"], ["--batch", "0"]])
def test_wrong_options_are_refused(wrong):
    from click.testing import CliRunner

    from bench.__main__ import main

    assert CliRunner().invoke(main, wrong).exit_code == 2


def test_each_bundle_takes_the_first_provider_that_works(monkeypatch):
    from click.testing import CliRunner

    from agent_env_core.errors import ConfigError
    from bench import __main__ as command
    from bench import measure, product

    def prepare(bundle, provider):
        if provider == "docker":
            raise ConfigError("there is no engine")
        return f"{bundle.name} on {provider}"

    taken = []
    monkeypatch.setattr(product, "prepare", prepare)
    monkeypatch.setattr(measure, "imports", lambda count: {})
    monkeypatch.setattr(measure, "everything", lambda prepared, amounts, say: taken.append(prepared))
    monkeypatch.setattr(command, "_in_memory", lambda *_: None)
    monkeypatch.setattr(command.Report, "show", lambda *_: None)
    done = CliRunner().invoke(command.main, ["--bundle", "both", "--quick"])
    assert (done.exit_code, taken) == (0, ["counter on process", "gridsim on process"]), done.output


MACHINE = {"cores": 2, "load_at_start": 0.1, "system": "Linux", "python": "3.11", "docker": None, "packages": {}}


def test_a_record_is_a_line_of_its_own_and_the_pages_table(tmp_path):
    from bench.figures import Crowd, Teardown, Times
    from bench.report import BEGIN, END, PAGE, Report

    assert PAGE.read_text().count(BEGIN) == PAGE.read_text().count(END) == 1
    report = Report({"quick": True}, machine=MACHINE, commit="abc", at="2026-01-01T00:00:00+00:00")
    report.crowd = Crowd(256, Times.of([0.1, 0.2]), (2.0, 11.0, 3.0), ("one failed",))
    report.teardown = Teardown(1.0, Times.of([0.03]), Times.of([0.02]))
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    for _ in range(2):
        report.record(tmp_path / "history.jsonl", page)
    lines = (tmp_path / "history.jsonl").read_text().splitlines()
    assert [json.loads(line)["commit"] for line in lines] == ["abc", "abc"]
    told = page.read_text()
    assert told.startswith(f"before\n{BEGIN}\n")
    assert told.endswith(f"{END}\nafter\n")
    assert "old" not in told
    assert told.count("Measured 2026") == 1
    assert "| 3.0x, 1 failed | < 10x, 0 failed | not met |" in told
    assert "| 1% of a removal waited for | none (< 5 %) | met |" in told


def test_each_target_has_its_row(tmp_path):
    """The documentation's table: what is compared, how much it may be, and which figure decides."""
    from bench import targets
    from bench.figures import Batch, Calls, Episodes, Held, Measured, Side, Times, Warm

    one, two = Times.of([1.0]), Times.of([2.0])
    side, held = Side(one, 60.0), Held(Times.of([0.001] * 32), one, 4.0, one)
    measured = Measured(
        "gridsim", "docker", 1.0, 1.0,
        (Episodes(1, side, side, (1.2, 1.3, 1.1), 0, 0.1), Episodes(32, side, side, (1.2,), 1, 0.1)),
        (),
        (Warm(1, one, two, (0.04,)),),
        Calls(one, two, Times.of([0.002]), Times.of([0.0016])),
        tuple(Batch(size, held, held, held, one, two, (1.4, 1.2)) for size in (8, 32)),
    )  # fmt: skip
    rows = list(targets.rows([measured], None, None))
    assert [(row.target, row.figure, row.met) for row in rows if row.target] == [
        ("≤ 1.25x, 0 failed", "1.20x, 0 failed", True),
        ("≤ 1.3x, 0 failed", "1.20x, 1 failed", False),
        ("< 5 %", "4.0%", True),
        ("≤ 2x", "0.50x", True),
        ("< +0.5 ms", "+0.40 ms", True),
        ("≤ 1.3x", "1.30x", True),
        ("< 1 %", "0.80%", True),
        ("< 1 %", "0.80%", True),
    ]
    assert all(len(row.cells) == len(targets.HEADINGS) for row in rows)
    assert rows[0].cells[2:6] == ("1", "1000 / 1000 ms", "1000 / 1000 ms", "1000 / 1000 ms")


def test_an_episode_that_fails_is_counted():
    from bench.measure import _round, _Rounds
    from bench.product import Unscored

    def fails():
        raise Unscored("no reward")

    rounds = _Rounds()
    _round(rounds, [lambda: 2.0, fails], lambda: None)
    assert (rounds.first, rounds.medians, rounds.failed) == ([2.0], [2.0], 2)
    with pytest.raises(Unscored, match="no episode of a round"):
        _round(rounds, [fails], lambda: None)
