"""The store map: what bare ids stand for on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent_env_core.bundle.store import store_file

CARD = '@environment_card(name="harbour")\nclass Harbour: ...\n'


def deploys(env_id: str, **more: Any) -> list[dict[str, Any]]:
    return [{"id": "env", "type": "deploy_env", "env_id": env_id, **more}]


@pytest.fixture
def put(tmp_path, monkeypatch):
    """Writes the map, and files beside it."""

    def write(text: str, files: dict[str, str] | None = None) -> Path:
        file = tmp_path / "settings" / "store.toml"
        for path, content in {"store.toml": text, **(files or {})}.items():
            (file.parent / path).parent.mkdir(parents=True, exist_ok=True)
            (file.parent / path).write_text(content)
        monkeypatch.setenv("AGENT_ENV_STORE", str(file))
        return file

    return write


@pytest.mark.parametrize(
    ("text", "files", "want"),
    [
        (
            'image = "ghcr.io/acme/portsim:2"\nenvironment_name = "port"\nenv_provider_type = "server"',
            {},
            ("port", "server", "ghcr.io/acme/portsim:2", None),
        ),
        ('path = "sim"', {"sim/Dockerfile": "", "sim/server.py": CARD}, ("harbour", "gateway", None, "Dockerfile")),
        (
            'path = "./sim/../sim"\nenvironment_name = "pier"\nenv_provider_type = "server"',
            {"sim/Dockerfile": "", "sim/server.py": CARD, "sim/env.toml": 'environment_name = "x"'},
            ("pier", "server", None, "Dockerfile"),
        ),
        (
            'path = "sim"',
            {"sim/d/Dockerfile": "", "sim/env.toml": 'environment_name = "x"\nimage = { dockerfile = "d/Dockerfile" }'},
            ("x", "gateway", None, "d/Dockerfile"),
        ),
    ],
)
def test_an_env(garden, put, text, files, want):
    file = put(f"[envs.portsim]\n{text}\n", files)
    garden.write("tasks/t.json", deploys("portsim", env_version=3))
    bundle = garden.load()
    env = bundle.envs["portsim"]
    image = env.image
    assert (env.id, env.name, env.type) == ("portsim", "portsim", "mcp_server")
    name, provider, ref, dockerfile = want
    assert (env.environment_name, env.env_provider_type, image.ref) == (name, provider, ref)
    if dockerfile:
        assert (image.context, image.dockerfile) == (file.parent / "sim", dockerfile)
    assert bundle.tasks[1].steps[0]["env_id"] == "portsim"


def test_artifacts(garden, put):
    file = put(
        '[artifacts."teams/judge"]\npath = "judge"\n[artifacts.base]\nimage = "ghcr.io/acme/base:1"\n',
        {"judge/verify.py": ""},
    )
    garden.write("tasks/t.json", [{"id": "g", "type": "env_outcome_verifier", "file_artifact_id": "teams/judge"}])
    garden.write("envs/other/env.toml", 'environment_name = "o"\nimage = { artifact = "base", version = 2 }')
    bundle = garden.load()
    assert bundle.artifacts["teams/judge"].file == file.parent / "judge/verify.py"
    assert bundle.artifacts["teams/judge"].name == "judge"
    assert bundle.envs[f"{bundle.id_root}/other"].image.ref == "ghcr.io/acme/base:1"


def test_a_universe_comes_with_its_seeds(garden, put):
    text = '[artifacts.world]\npath = "w"\n'
    file = put(text, {"w/port/s.json": "{}", "w/artifact.toml": 'type = "environment_universe"'})
    garden.write("tasks/t.json", [{"id": "load", "type": "load_artifact", "artifact_id": "world"}])
    assert garden.load().seeds("world") == {"port": file.parent / "w/port/s.json"}


def test_a_home_folder(garden, put, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    put('[envs.portsim]\npath = "~/sim"\nenvironment_name = "p"\n', {"../me/sim/Dockerfile": ""})
    garden.write("tasks/t.json", deploys("portsim"))
    assert garden.load().envs["portsim"].path == tmp_path / "me/sim"


def test_only_what_tasks_name_is_taken_from_the_map(garden, put):
    put('[envs.portsim]\nimage = "ghcr.io/acme/portsim:2"\nenvironment_name = "p"\n[envs.wrong]\nx = 1\n')
    assert [env.name for env in garden.load().envs.values()] == ["garden"]


def test_the_bundles_own_names_come_first(garden, put):
    put('[envs.garden]\nimage = "ghcr.io/acme/portsim:2"\nenvironment_name = "p"\n')
    assert garden.load().tasks[0].steps[0]["env_id"].startswith("@local/")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "env 'portsim' is not in this bundle"),
        ("[envs]\nother = 3", "env 'portsim' is not in this bundle"),
        ("[envs", "store.toml is not TOML"),
        ("[agents.x]\n", "store.toml: unknown key 'agents'"),
        ("envs = 3", "store.toml: envs must be a table, not 3"),
        ("[envs]\nportsim = 3", "store.toml: envs.portsim must be a table, not 3"),
        ("[envs.portsim]\n", "envs.portsim.path or image has to be set, and not both"),
        ('[envs.portsim]\npath = "a"\nimage = "b"', "envs.portsim.path or image has to be set, and not both"),
        ('[envs.portsim]\npaht = "a"', "unknown key 'envs.portsim.paht' (did you mean 'path'?)"),
        ("[envs.portsim]\npath = 3", "envs.portsim.path must be a non-empty text, not 3"),
        ('[envs.portsim]\npath = "nowhere"', "envs.portsim can't be used: envs.portsim: path 'nowhere' is no folder"),
        ('[envs.portsim]\npath = "~nobody-of-that-name/x"', "path '~nobody-of-that-name/x' is no folder"),
        ('[envs.portsim]\npath = "a\\u0000b"', "is no folder"),
        ('[envs.portsim]\npath = "store.toml"', "path 'store.toml' is no folder"),
        ('[envs.portsim]\npath = "empty"', "/empty: has no Dockerfile"),
        ('[envs.portsim]\npath = "nameless"', "/nameless: has no environment_name, and it can't be read from"),
        ('[envs.portsim]\nimage = "python"\nenvironment_name = "x"', "'python' doesn't begin with its registry"),
        ('[envs.portsim]\nimage = "docker.io/a/b"', "has no sources here to read its environment_name from"),
        ('[envs.portsim]\nimage = "docker.io/a/b"\nenvironment_name = 3', "environment_name must be a non-empty text"),
        ('[envs.portsim]\npath = "site"', "type 'website' can't be deployed by this version"),
    ],
)
def test_an_id_that_does_not_resolve_is_a_problem_of_the_tasks_that_use_it(garden, put, text, message):
    put(
        text,
        {
            "empty/x": "",
            "nameless/Dockerfile": "",
            "site/env.toml": 'type = "website"',
        },
    )
    garden.fill({f"tasks/{name}.json": deploys("portsim") for name in ("t", "u")})
    bundle = garden.read()
    assert [task.name for task in bundle.tasks] == ["spring"]
    assert [one.name for one in bundle.left_out] == ["t", "u"]
    for one in bundle.left_out:
        (problem,) = one.problems
        assert problem.message.startswith("env_id: ")
        assert message in problem.message


def test_a_task_that_names_what_is_not_mapped_is_told_where_to_map_it(garden, put):
    file = put("")
    garden.write("tasks/t.json", deploys("openciv3"))
    (problem,) = garden.problems()
    assert problem.fix == f"add it under envs/, which has: garden; or map it in {file} under [envs.openciv3]"


def test_a_map_that_is_named_and_not_there(garden, monkeypatch, tmp_path):
    monkeypatch.setenv("AGENT_ENV_STORE", str(tmp_path / "none.toml"))
    assert not garden.problems()  # nobody asks for it
    garden.write("tasks/t.json", deploys("portsim"))
    (problem,) = garden.problems()
    assert problem.message == f"env_id: AGENT_ENV_STORE names {tmp_path}/none.toml, which isn't there"


def test_where_the_map_is(monkeypatch, tmp_path):
    monkeypatch.setenv("AGENT_ENV_STORE", "")
    assert store_file() is None
    monkeypatch.delenv("AGENT_ENV_STORE")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    assert store_file() == tmp_path / ".config/agent-env/store.toml"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "x"))
    assert store_file() == tmp_path / "x/agent-env/store.toml"
    monkeypatch.setenv("AGENT_ENV_STORE", "~/my.toml")
    assert store_file() == tmp_path / "my.toml"


def test_no_map_where_one_may_be(garden, monkeypatch, tmp_path):
    monkeypatch.delenv("AGENT_ENV_STORE")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    garden.write("tasks/t.json", deploys("portsim"))
    (problem,) = garden.problems()
    assert problem.message == "env_id: env 'portsim' is not in this bundle"
    assert f"map it in {tmp_path}/agent-env/store.toml" in problem.fix
