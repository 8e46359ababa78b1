"""Bundles that distributions bring: found without importing, with ids of their own, named by others."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agent_env_core.bundle import find_bundle, installed_bundles
from agent_env_core.errors import BundleError

EXPLODES = "raise RuntimeError('a bundle is found without importing its package')"


def deploys(env_id: str, **more: Any) -> list[dict[str, Any]]:
    return [{"id": "env", "type": "deploy_env", "env_id": env_id, **more}]


@pytest.fixture
def install(tmp_path, monkeypatch, folder):
    """Puts a distribution on the path, as pip would: ``install("Dist.Name", {"bundle": {path: text}})``."""
    installed_bundles.cache_clear()

    def put(
        distribution: str, bundles: Mapping[str, Mapping[str, Any]], package: str = "", points: str | None = None
    ) -> Path:
        package = package or f"{distribution.replace('-', '_').replace('.', '_').lower()}_pkg"
        site = tmp_path / f"site-{distribution}"
        home = site / package.replace(".", "/")
        home.mkdir(parents=True, exist_ok=True)
        for place in [home, *home.parents[: package.count(".")]]:
            (place / "__init__.py").write_text(EXPLODES)
        info = site / f"{package.partition('.')[0]}-1.0.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        listed = "\n".join(f"{name} = {package}" for name in bundles) if points is None else points
        (info / "entry_points.txt").write_text(f"[agent_env.bundles]\n{listed}\n")
        for name, files in bundles.items():
            type(folder)(home / name).fill(files)
        monkeypatch.syspath_prepend(str(site))
        installed_bundles.cache_clear()
        return home

    yield put
    installed_bundles.cache_clear()


YARD = {
    "envs/yard/Dockerfile": "FROM scratch\n",
    "envs/yard/env.toml": 'environment_name = "yard"\n',
    "agents/raker/Dockerfile": "FROM scratch\n",
    "artifacts/yard-judge/verify.py": "",
    "artifacts/seeds/yard/s.json": "{}",
    "artifacts/seeds/metadata/day/d.txt": "",
    "artifacts/seeds/artifact.toml": 'type = "environment_universe"\n',
    "skills/raking/SKILL.md": "---\nname: raking\ndescription: x\n---\n",
    "aliases.toml": '[envs]\nyard = ["backyard"]\n[agents]\nraker = ["rake-bot"]\n',
    "tasks/tidy.json": deploys("yard"),
}
ROOT = "@local/acme-games/yards"


def test_a_bundle_is_found_by_its_name_and_nothing_is_imported(install, folder):
    home = install("Acme_Games", {"yards": YARD})
    found = find_bundle("yards")
    assert (found.root, found.id_root) == (home / "yards", ROOT)
    assert find_bundle("acme-games/yards") == found
    bundle = folder.load("yards")
    assert (bundle.name, bundle.id_root) == ("yards", ROOT)
    assert [task.id for task in bundle.tasks] == [f"{ROOT}/tidy"]
    assert bundle.tasks[0].steps[0]["env_id"] == f"{ROOT}/yard"
    assert not [name for name in sys.modules if name.startswith("acme_games")]


def test_a_bundle_in_a_package_within_packages(install, folder):
    install("acme", {"yards": YARD}, "acme.games.bundles")
    assert folder.load("yards").id_root == "@local/acme/yards"
    assert "acme" not in sys.modules


def test_a_folder_wins_over_an_installed_bundle(install, folder, monkeypatch, tmp_path):
    install("acme", {folder.root.name: YARD})
    monkeypatch.chdir(tmp_path)
    folder.garden()
    assert find_bundle(folder.root.name).root == folder.root
    assert folder.load(Path(folder.root.name)).id_root == f"@local{folder.root}"


def test_an_installed_bundle_read_from_its_folder_has_the_ids_of_the_folder(install, folder):
    home = install("acme", {"yards": YARD})
    assert folder.load(home / "yards").id_root == f"@local{home}/yards"


@pytest.mark.parametrize(
    ("given", "message", "fix"),
    [
        ("nowhere", "there is no such folder", "name the bundle's folder, or an installed bundle: gone, "),
        ("yard", "there is no such folder and no installed bundle 'yard'", "did you mean 'yards'?"),
        ("yards", "several distributions bring a bundle of this name: write acme/yards or zeta/yards", ""),
        ("gone", "the distribution acme brings it as acme_pkg/gone/, which isn't there", ""),
    ],
)
def test_a_name_that_means_no_bundle_or_several(install, given, message, fix):
    install("acme", {"yards": YARD}, points="yards = acme_pkg\ngone = acme_pkg")
    install("zeta", {"yards": YARD})
    with pytest.raises(BundleError) as caught:
        find_bundle(given)
    (problem,) = caught.value.problems
    assert problem.message == message
    assert problem.fix.startswith(fix)
    assert bool(problem.fix) == bool(fix)


@pytest.mark.parametrize("package", ["no_such_package_here", "json.decoder", "sys"])
def test_a_package_that_is_none(install, package):
    install("acme", {}, points=f"yards = {package}")
    with pytest.raises(BundleError, match="which isn't there"):
        find_bundle("yards")


def test_two_bundles_of_one_distribution_and_name(install, garden):
    install("acme", {"yards": YARD}, points="yards = acme_pkg\nyards = other_pkg")
    with pytest.raises(BundleError, match="the distribution acme registers two bundles named 'yards', in acme_pkg, o"):
        find_bundle("yards")
    garden.write("tasks/t.json", deploys("@local/acme/yards/yard"))
    (problem,) = garden.problems()
    assert "registers two bundles named 'yards'" in problem.message


# -- entities of installed bundles, named by another bundle


def step_of(garden, *steps):
    """The bundle with those steps as a task, and the last of them as it was read."""
    garden.write("tasks/t.json", list(steps))
    bundle = garden.load()
    return bundle, next(task for task in bundle.tasks if task.name == "t").steps[-1]


def test_what_a_task_names_is_pulled_in(install, garden):
    home = install("Acme.Games", {"yards": YARD})
    bundle, step = step_of(garden, *deploys(f"{ROOT}/yard"))
    assert step["env_id"] == f"{ROOT}/yard"
    env = bundle.envs[f"{ROOT}/yard"]
    assert (env.name, env.environment_name, env.path) == ("yard", "yard", home / "yards/envs/yard")
    assert f"{ROOT}/yard-judge" not in bundle.artifacts
    assert not bundle.agents

    grade = {"id": "grade", "type": "env_outcome_verifier", "file_artifact_id": f"{ROOT}/yard-judge"}
    bundle, _ = step_of(garden, grade)
    assert bundle.artifacts[f"{ROOT}/yard-judge"].file == home / "yards/artifacts/yard-judge/verify.py"

    bundle, _ = step_of(garden, {"id": "skill", "type": "add_skills", "skill_ids": [f"{ROOT}/raking"]})
    assert bundle.skills[f"{ROOT}/raking"].description == "x"


def test_a_universe_is_pulled_in_with_its_seeds(install, garden):
    home = install("acme-games", {"yards": YARD})
    bundle, _ = step_of(garden, {"id": "load", "type": "load_artifact", "artifact_id": f"{ROOT}/seeds"})
    assert bundle.seeds(f"{ROOT}/seeds") == {"yard": home / "yards/artifacts/seeds/yard/s.json"}


def test_an_alias_names_the_env_or_agent_of_an_installed_bundle(install, garden):
    install("acme-games", {"yards": YARD})
    bundle, step = step_of(garden, *deploys("backyard"))
    assert step["env_id"] == f"{ROOT}/yard"
    assert bundle.envs[f"{ROOT}/yard"].environment_name == "yard"
    _, step = step_of(garden, {"id": "a", "type": "deploy_agent", "a2a_agent_id": "rake-bot"})
    assert step["a2a_agent_id"] == f"{ROOT}/raker"


def test_an_installed_bundles_own_aliases_work_in_it(install, folder):
    install("acme-games", {"yards": {**YARD, "tasks/alias.json": deploys("backyard")}})
    bundle = folder.load("yards")
    assert bundle.tasks[0].steps[0]["env_id"] == f"{ROOT}/yard"
    assert list(bundle.envs) == [f"{ROOT}/yard"]


def test_an_alias_of_a_folder_names_nothing(folder):
    folder.fill({**YARD, "tasks/alias.json": deploys("backyard")})
    (problem,) = folder.problems()
    assert problem.message == "env_id: env 'backyard' is not in this bundle"


def test_a_name_of_the_bundle_wins_over_an_alias_and_so_does_the_store_map(install, garden, monkeypatch, tmp_path):
    install("acme-games", {"yards": {**YARD, "aliases.toml": '[envs]\nyard = ["garden", "patio"]\n'}})
    bundle, step = step_of(garden, *deploys("garden"))
    assert step["env_id"] == f"{bundle.id_root}/garden"
    (tmp_path / "store.toml").write_text('[envs.patio]\nimage = "ghcr.io/a/patio:1"\nenvironment_name = "patio"\n')
    monkeypatch.setenv("AGENT_ENV_STORE", str(tmp_path / "store.toml"))
    bundle, step = step_of(garden, *deploys("patio"))
    assert step["env_id"] == "patio"


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (deploys(f"{ROOT}/yar"), f"the installed bundle acme-games/yards has no env '{ROOT}/yar'"),
        (
            deploys(f"{ROOT}/yard", env_version=1),
            "pins a version of '@local/acme-games/yards/yard', which belongs to the ",
        ),
        (
            deploys("backyard", env_version=1),
            "env_version pins a version of 'backyard', which belongs to the installed",
        ),
        (deploys("patio"), "'patio' is an alias in several installed bundles: acme-games/yards and zeta/yards"),
        (deploys("@local/zeta/yards/yard"), None),
        (
            deploys("@local/broken/yards/yard"),
            "the env 'yard' of broken/yards can't be used",
        ),
        (deploys("@local/gone/yards/yard"), "the installed bundle gone/yards can't be used: .: its folder isn't there"),
        (deploys("@local/nobody/yards/yard"), "env '@local/nobody/yards/yard' is not in this bundle"),
        (
            deploys(f"{ROOT}/shop"),
            "the env 'shop' of acme-games/yards is of type website, which can't be deployed by th",
        ),
        (
            [{"id": "g", "type": "env_outcome_verifier", "file_artifact_id": f"{ROOT}/seeds"}],
            "is of type environment_universe, and file is needed",
        ),
    ],
)
def test_an_id_of_an_installed_bundle_that_cannot_be_had(install, garden, steps, message):
    aliases = {"aliases.toml": '[envs]\nyard = ["backyard", "patio"]\n', "envs/shop/env.toml": 'type = "website"'}
    install("acme-games", {"yards": {**YARD, **aliases}})
    install("zeta", {"yards": {**YARD, "aliases.toml": '[envs]\nyard = ["patio"]\n'}})
    install("broken", {"yards": {**YARD, "envs/yard/env.toml": "x = 1"}})
    install("gone", {}, points="yards = gone_pkg")
    garden.write("tasks/t.json", steps)
    assert [problem.message for problem in garden.problems() if (message or "") not in problem.message] == []
    assert len(garden.problems()) == (message is not None)


def test_an_eval_lists_tasks_of_its_own_bundle_only(install, garden):
    install("acme-games", {"yards": YARD})
    garden.write("evals/far.toml", f'tasks = ["{ROOT}/tidy"]')
    (problem,) = garden.problems()
    assert problem.message == f"tasks[0]: task '{ROOT}/tidy' is not in this bundle"


def test_bundles_that_name_each_other_do_not_loop(install, garden):
    for one, other in (("acme", "zeta"), ("zeta", "acme")):
        image = {"artifacts/i/Dockerfile": "", "envs/yard/env.toml": f'image = "@local/{other}/yards/i"'}
        install(one, {"yards": {**YARD, **image}})
    garden.write("tasks/t.json", deploys("@local/acme/yards/yard"))
    (problem,) = garden.problems()
    assert "can't be used" in problem.message


def test_an_id_of_another_place_is_not_to_be_mapped(garden):
    garden.write("tasks/t.json", deploys("@local/nobody/yards/yard"))
    (problem,) = garden.problems()
    assert problem.fix == "install the distribution that brings it, or name an env of this bundle: garden"
