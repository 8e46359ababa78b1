"""Envs and agents: their images, names and settings."""

import pytest

CARD = '@environment_card(name="{}")\nclass Server: ...\n'
TOML = "envs/arbor/env.toml"
NAMED = 'environment_name = "arbor"\n'


@pytest.mark.parametrize(
    ("files", "want"),
    [
        ({"Dockerfile": "", "env.toml": NAMED}, ("arbor", "Dockerfile", None)),
        (
            {"Dockerfile": "", "env.toml": NAMED + 'type = "mcp_server"\nenv_provider_type = "server"'},
            ("arbor", "Dockerfile", None),
        ),
        (
            {"d/Dockerfile": "", "env.toml": NAMED + 'image = { dockerfile = "./d/Dockerfile" }'},
            ("arbor", "d/Dockerfile", None),
        ),
        ({"env.toml": NAMED + 'image = { ref = "docker.io/library/x:1" }'}, ("arbor", None, "docker.io/library/x:1")),
        ({"env.toml": NAMED + 'image = { ref = "localhost:5000/x" }'}, ("arbor", None, "localhost:5000/x")),
        ({"Dockerfile": "", "a.py": CARD.format("lib")}, ("lib", "Dockerfile", None)),
        ({"Dockerfile": "", "src/deep/a.py": CARD.format("lib"), "b.py": "x = 1"}, ("lib", "Dockerfile", None)),
        ({"Dockerfile": "", "a.py": CARD.format("near"), "src/b.py": CARD.format("far")}, ("near", "Dockerfile", None)),
        ({"Dockerfile": "", "a.py": CARD.format("one"), "b.py": CARD.format("one")}, ("one", "Dockerfile", None)),
        ({"Dockerfile": "", "a.py": CARD.format("one"), "b.py": "@environment_card(\n(("}, ("one", "Dockerfile", None)),
        (
            {
                "d/Dockerfile": "",
                "d/a.py": CARD.format("d"),
                "a.py": CARD.format("top"),
                "env.toml": 'image = {dockerfile="d/Dockerfile"}',
            },
            ("d", "d/Dockerfile", None),
        ),
        (
            {"Dockerfile": "", "a.py": "import p\n@p.environment_card(version='1', name='dotted')\nclass A: ...\n"},
            ("dotted", "Dockerfile", None),
        ),
    ],
)
def test_an_env(garden, files, want):
    garden.fill({f"envs/arbor/{path}": text for path, text in files.items()})
    bundle = garden.load()
    env = bundle.envs[f"{bundle.id_root}/arbor"]
    image = env.image
    assert (env.environment_name, image.dockerfile if image.context else None, image.ref) == want


@pytest.mark.parametrize(
    ("files", "place", "message"),
    [
        ({"x.py": ""}, "envs/arbor", "has no Dockerfile"),
        ({"env.toml": NAMED}, "envs/arbor", "has no Dockerfile"),
        ({"Dockerfile/x": "", "env.toml": NAMED}, "envs/arbor", "has no Dockerfile"),
        ({"dockerfile": "", "env.toml": NAMED}, "envs/arbor/dockerfile", "another case than Dockerfile"),
        ({"Dockerfile": "", "dockerfile": "", "env.toml": NAMED}, "envs/arbor/dockerfile", "stands beside Dockerfile"),
        ({"Dockerfile": "", "Env.toml": NAMED}, "envs/arbor/Env.toml", "another case than env.toml"),
        ({"Dockerfile": "", "env.toml": "a ="}, TOML, "is not TOML"),
        ({"Dockerfile": "", "env.toml": NAMED + "nme = 1"}, TOML, "unknown key 'nme'"),
        ({"Dockerfile": "", "env.toml": 'type = "website"'}, TOML, "type 'website' can't be deployed by this version"),
        (
            {"Dockerfile": "", "env.toml": 'type = "gateway_server"'},
            TOML,
            "type 'gateway_server' can't stand in a bundle",
        ),
        ({"Dockerfile": "", "env.toml": 'type = "boat"'}, TOML, "type 'boat' is unknown"),
        ({"Dockerfile": "", "env.toml": NAMED + 'env_provider_type = "x"'}, TOML, "env_provider_type 'x' is unknown"),
        ({"Dockerfile": "", "env.toml": 'environment_name = "pgweb"'}, TOML, "'pgweb' is a name of the gateway's own"),
        (
            {"Dockerfile": "", "env.toml": "environment_name = 3"},
            TOML,
            "environment_name must be a non-empty text, not 3",
        ),
        ({"Dockerfile": "", "env.toml": NAMED + 'id = "arbor"'}, TOML, "id 'arbor' must start with @local/"),
        ({"Dockerfile": "", "env.toml": NAMED + 'id = "@local/a//b"'}, TOML, "id '@local/a//b' has a part ''"),
        ({"Dockerfile": "", "env.toml": NAMED + f'id = "@local/{"a" * 4080}"'}, TOML, "4087 bytes long, and 4071"),
        ({"Dockerfile": "", "env.toml": NAMED + "image = 3"}, TOML, "image can't be 3"),
        ({"Dockerfile": "", "env.toml": NAMED + "image = {}"}, TOML, "image can't be {}"),
        ({"env.toml": NAMED + "image = { version = 1 }"}, TOML, "image can't be"),
        (
            {"Dockerfile": "", "env.toml": NAMED + 'image = { dockerfile = "Dockerfile", ref = "a.b/c" }'},
            TOML,
            "image can't be",
        ),
        (
            {"env.toml": NAMED + 'image = { dockerfile = "../garden/Dockerfile" }'},
            TOML,
            "must be a file of this folder, not '../g",
        ),
        ({"env.toml": NAMED + 'image = { dockerfile = "/etc/passwd" }'}, TOML, "must be a file of this folder"),
        ({"env.toml": NAMED + 'image = { dockerfile = "a\\u0000b" }'}, TOML, "must be a file of this folder"),
        ({"env.toml": NAMED + "image = { dockerfile = 3 }"}, TOML, "must be a file of this folder, not 3"),
        (
            {"env.toml": NAMED + 'image = { ref = "python:3.12" }'},
            TOML,
            "image.ref 'python:3.12' doesn't begin with its registry",
        ),
        ({"env.toml": NAMED + 'image = { ref = "library/python:3.12" }'}, TOML, "doesn't begin with its registry"),
        ({"env.toml": NAMED + 'image = { ref = "docker.io/Python" }'}, TOML, "isn't an image reference"),
        ({"env.toml": NAMED + "image = { ref = 3 }"}, TOML, "image.ref 3 isn't a text"),
        ({"env.toml": NAMED + 'image = "nothing"'}, TOML, "image: artifact 'nothing' is not in this bundle"),
        (
            {"env.toml": NAMED + 'image = "garden-judge"'},
            TOML,
            "of type docker_image, and 'garden-judge' is of type file",
        ),
        (
            {"env.toml": 'image = { ref = "docker.io/x" }'},
            "envs/arbor",
            "has no sources here to read its environment_name",
        ),
        ({"Dockerfile": "", "x.py": "y = 1"}, "envs/arbor", "no source has it"),
        ({"Dockerfile": "", "x.py": "@environment_card(name=NAME)\nclass A: ..."}, "envs/arbor", "no source has it"),
        (
            {"Dockerfile": "", "x.py": CARD.format("a") + CARD.format("b")},
            "envs/arbor",
            "its sources have several: a, b",
        ),
    ],
)
def test_a_wrong_env_is_one_problem(garden, files, place, message):
    garden.fill({f"envs/arbor/{path}": text for path, text in files.items()})
    (problem,) = garden.problems()
    assert problem.place == place
    assert message in problem.message


def test_an_image_from_an_artifact(garden):
    garden.fill(
        {
            "artifacts/built/Dockerfile": "",
            "artifacts/pulled/artifact.toml": 'type = "docker_image"\nref = "ghcr.io/garden/x:1"',
            "envs/a/env.toml": 'environment_name = "a"\nimage = "built"',
            "envs/b/env.toml": 'environment_name = "b"\nimage = { artifact = "pulled" }',
            "agents/c/agent.toml": 'image = "pulled"',
        }
    )
    bundle = garden.load()
    images = [bundle.envs[f"{bundle.id_root}/{name}"].image for name in "ab"]
    assert (images[0].context, images[1].ref) == (garden.root / "artifacts/built", "ghcr.io/garden/x:1")
    assert bundle.agents[f"{bundle.id_root}/c"].image.ref == "ghcr.io/garden/x:1"


def test_a_version_of_the_bundles_own_artifact(garden):
    garden.fill(
        {
            "artifacts/built/Dockerfile": "",
            "envs/a/env.toml": 'environment_name = "a"\nimage = {artifact="built",version=1}',
        }
    )
    (problem,) = garden.problems()
    assert problem.message == "image pins a version, and 'built' belongs to this bundle"


def test_a_large_source_is_passed_over(garden):
    garden.write("envs/garden/data.py", "x = 1\n" * 1_500_000)
    assert not garden.problems()


def test_an_agent(garden):
    garden.fill(
        {
            "agents/gardener/Dockerfile": "",
            "agents/gardener/agent.toml": 'default_env_vars = { STYLE = "terse" }\n[metadata]\ndefault_model = "m"\n'
            "min_disk_size_gb = 20\ntakes_credentials = false\n",
        }
    )
    (agent,) = garden.load().agents.values()
    assert (agent.name, agent.type, agent.image.dockerfile) == ("gardener", "a2a_agent", "Dockerfile")
    assert agent.default_env_vars == {"STYLE": "terse"}
    assert agent.metadata == {"default_model": "m", "min_disk_size_gb": 20, "takes_credentials": False}


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ('type = "robot"', "type 'robot' is unknown"),
        ("default_env_vars = 3", "default_env_vars must be a table, not 3"),
        ("default_env_vars = { A = 1 }", "default_env_vars.A must be a text, not 1"),
        ("[metadata]\nmodel = 1", "unknown key 'metadata.model'"),
        ("[metadata]\ndefault_model = 1", "metadata.default_model must be a non-empty text, not 1"),
        ("[metadata]\nmin_disk_size_gb = nan", "metadata.min_disk_size_gb must be a number above 0, not NaN"),
        ('[metadata]\ntakes_credentials = "no"', "metadata.takes_credentials must be true or false, not 'no'"),
        ('environment_name = "x"', "unknown key 'environment_name'"),
    ],
)
def test_a_wrong_agent_is_one_problem(garden, toml, message):
    garden.fill({"agents/gardener/Dockerfile": "", "agents/gardener/agent.toml": toml})
    (problem,) = garden.problems()
    assert problem.place == "agents/gardener/agent.toml"
    assert message in problem.message
