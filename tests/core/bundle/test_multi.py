"""Envs that are made of others."""

from __future__ import annotations

import pytest

TOML = "envs/both/env.toml"


@pytest.fixture
def garden(garden):
    return garden.fill(
        {
            "envs/arbor/Dockerfile": "",
            "envs/arbor/env.toml": 'environment_name = "arbor"',
            "envs/twin/Dockerfile": "",
            "envs/twin/env.toml": 'environment_name = "arbor"',
        }
    )


@pytest.mark.parametrize(
    ("toml", "name", "provider", "children"),
    [
        ('mcp_server_envs = ["garden", "arbor"]', "both", "gateway", ["garden", "arbor"]),
        ('mcp_server_envs = [{ env = "@ROOT@/arbor" }]\nname = "all-of-it"', "all-of-it", "gateway", ["arbor"]),
        (
            'mcp_server_envs = ["arbor"]\nwebsite_envs = []\nenv_provider_type = "server"',
            "both",
            "server",
            ["arbor"],
        ),
    ],
)
def test_an_env_made_of_others(garden, toml, name, provider, children):
    root = garden.load().id_root
    garden.write(TOML, 'type = "multi"\n' + toml.replace("@ROOT@", root))
    garden.write("tasks/t.json", [{"id": "env", "type": "deploy_env", "env_id": "both"}])
    bundle = garden.load()
    env = bundle.envs[f"{root}/both"]
    assert (env.type, env.environment_name, env.env_provider_type, env.image) == ("multi", name, provider, None)
    assert env.children == env.servers == tuple(bundle.envs[f"{root}/{child}"] for child in children)
    assert bundle.envs[f"{root}/arbor"].servers == (bundle.envs[f"{root}/arbor"],)


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("", "mcp_server_envs is missing, or empty"),
        ("mcp_server_envs = []", "mcp_server_envs is missing, or empty"),
        ('mcp_server_envs = "garden"', "mcp_server_envs must be a list of envs, not 'garden'"),
        ("website_envs = 3", "website_envs must be a list of envs, not 3"),
        ("mcp_server_envs = [3]", "mcp_server_envs[0] must be the name of an env or { env = "),
        ('mcp_server_envs = ["gardem"]', "mcp_server_envs[0]: env 'gardem' is not in this bundle"),
        (
            'mcp_server_envs = [{env="garden",version=1}]',
            "mcp_server_envs[0] pins a version, and 'garden' belongs to th",
        ),
        ('mcp_server_envs = ["twin", "arbor"]', "'arbor' and 'twin' have one environment_name, 'arbor'"),
        ('mcp_server_envs = ["garden", "garden"]', "mcp_server_envs[1] names 'garden' again"),
        ('mcp_server_envs = ["both"]', "mcp_server_envs[0] 'both' is made of others itself"),
        ('mcp_server_envs = ["garden", "nested"]', "'nested' is made of others itself"),
        ('mcp_server_envs = ["garden"]\nname = "a b"', "name 'a b' has a blank in it"),
        ('mcp_server_envs = ["garden"]\nname = 3', "name must be a non-empty text, not 3"),
        ('mcp_server_envs = ["garden"]\nimage = "x"', "unknown key 'image'"),
        ('mcp_server_envs = ["garden"]\nenvironment_name = "x"', "unknown key 'environment_name'"),
        ('mcp_server_envs = ["garden"]\nenv_provider_type = "x"', "env_provider_type 'x' is unknown"),
    ],
)
def test_a_wrong_one_is_one_problem(garden, toml, message):
    garden.write("envs/nested/env.toml", 'type = "multi"\nmcp_server_envs = ["garden"]')
    garden.write(TOML, 'type = "multi"\n' + toml)
    (problem,) = garden.problems()
    assert problem.place == TOML
    assert message in problem.message


def test_a_wrong_child_is_told_once(garden):
    garden.write("envs/arbor/env.toml", "x = 1")
    garden.write(TOML, 'type = "multi"\nmcp_server_envs = ["arbor", "garden"]')
    assert {problem.place for problem in garden.problems()} <= {"envs/arbor", "envs/arbor/env.toml"}


def test_a_child_from_the_store_map(garden, tmp_path, monkeypatch):
    map_ = tmp_path / "store.toml"
    map_.write_text('[envs.tides]\nimage = "ghcr.io/acme/tides:1"\nenvironment_name = "tides"\n')
    monkeypatch.setenv("AGENT_ENV_STORE", str(map_))
    garden.write(TOML, 'type = "multi"\nmcp_server_envs = ["garden", { env = "tides", version = 2 }]')
    bundle = garden.load()
    env = bundle.envs[f"{bundle.id_root}/both"]
    assert [child.environment_name for child in env.children] == ["garden", "tides"]
