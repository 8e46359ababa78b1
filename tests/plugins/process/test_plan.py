from __future__ import annotations

import sys

import pytest
from agent_env_process import pythons
from agent_env_process.plan import Copy, Folder, Pip, read_plan
from agent_env_process.pythons import choose

from agent_env_core.errors import ImageError

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture
def plan(tmp_path):
    for name in ("server.py", "requirements.txt", "data/x.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)

    def plan(*lines, base=f"FROM python:{HERE}-slim"):
        (tmp_path / "Dockerfile").write_text("\n".join((base, *lines, "")))
        return read_plan(tmp_path, "Dockerfile")

    return plan


def test_a_usual_dockerfile_becomes_steps(plan):
    made = plan(
        "ARG VERSION=1.2",
        "WORKDIR /app",
        "ENV PYTHONUNBUFFERED=1 HOME_OF=/app",
        "COPY --chown=app:app requirements.txt .",
        "RUN --mount=type=cache,target=/root/.cache pip install --no-cache-dir -r requirements.txt mcp==$VERSION \\",
        " && python3 -m pip install 'uvicorn[standard]>=0.30' && python -m compileall -q /app",
        "RUN useradd -m app && mkdir -p data /srv/out",
        "COPY server.py data ./",
        "LABEL a=b",
        "EXPOSE 8000",
        "USER app",
        "HEALTHCHECK CMD true",
        'ENTRYPOINT ["python"]',
        'CMD ["server.py"]',
    )
    variables = {"VERSION": "1.2", "PYTHONUNBUFFERED": "1", "HOME_OF": "/app"}
    assert made.steps == (
        Folder(3, "/app"),
        Copy(5, ("requirements.txt",), "/app/"),
        Pip(6, ("install", "--no-cache-dir", "-r", "requirements.txt", "mcp==1.2"), "/app", variables),
        Pip(6, ("install", "uvicorn[standard]>=0.30"), "/app", variables),
        Folder(8, "/app/data"),
        Folder(8, "/srv/out"),
        Copy(9, ("server.py", "data"), "/app/"),
    )
    assert made.command == ("python", "server.py")
    assert made.workdir == "/app"
    assert made.env == {"PYTHONUNBUFFERED": "1", "HOME_OF": "/app"}
    assert len(made.notes) == 3
    assert "line 12: USER is not kept" in made.notes[-1]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("RUN apt-get update", "'apt-get update' is none of them"),
        ("RUN pip install x; rm y", "needs a shell"),
        ("RUN pip install x || true", "needs a shell"),
        ("RUN pip install x > log", "needs a shell"),
        ("RUN pip install x>=1", "needs a shell"),
        ("RUN pip install `cat x`", "needs a shell"),
        ("RUN pip install $(cat x)", "needs a shell"),
        ("RUN pip install $UNSET", r"value of \$UNSET"),
        ("RUN pip install '$X'", "needs a shell"),
        ("RUN pip install 'x", "can't be read"),
        ("RUN pip install x &&", "a command is missing"),
        ("RUN pip uninstall -y x", "is none of them"),
        ("RUN pip install -e .", "editable"),
        ("RUN pip install --editable=.", "editable"),
        ("RUN uv pip install --system x", "is none of them"),
        ('RUN ["make"]', "'make' is none of them"),
        ("RUN --mount=type=secret,id=x pip install x", "--mount"),
        ("RUN --network=none pip install x", "--network"),
        ("RUN <<EOF\npip install x\nEOF", "here-document"),
        ("COPY --from=builder /x /y", "--from"),
        ("COPY --chmod=u+x server.py /x", "--chmod"),
        ("COPY nothing /x", "is not in the build context"),
        ("COPY ../x /x", "outside the build context"),
        ("COPY server.py data /x", "slash behind it"),
        ("ADD server.py /x", "ADD is not among"),
        ("VOLUME /data", "VOLUME is not among"),
        ('SHELL ["/bin/bash", "-c"]', "SHELL is not among"),
        ("ONBUILD RUN true", "ONBUILD is not among"),
        ("STOPSIGNAL SIGINT", "STOPSIGNAL is not among"),
    ],
)
def test_what_it_cant_do_is_refused_by_its_line(plan, tmp_path, line, why):
    with pytest.raises(ImageError, match=why) as caught:
        plan("WORKDIR /app", line)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'Dockerfile'}:3: {line.split()[0]} ")
    assert "the process provider can't do this" in message
    assert "docker provider can" in message


@pytest.mark.parametrize(
    "base", ["FROM debian:12", "FROM node:22", "FROM pypy:3.10", "FROM mypython:3", "FROM scratch"]
)
def test_only_a_python_image_can_be_stood_for(plan, base):
    with pytest.raises(ImageError, match=r"Dockerfile:1: .*only a python image"):
        plan(base=base)


@pytest.mark.parametrize(
    "base",
    [
        "FROM python",
        "FROM python:3",
        "FROM python:slim",
        "FROM docker.io/library/python:3.12-slim-bookworm",
        "FROM localhost:5000/mirror/python:3.11",
        "FROM public.ecr.aws/docker/library/python:3.11-alpine AS base",
        "FROM python:3.11@sha256:0123456789abcdef",
        "ARG TAG=3.11\nFROM python:${TAG}-slim",
    ],
)
def test_python_images_are_known_by_any_address(plan, base):
    assert plan(base=base).python.version.startswith("3.")


def test_a_second_stage_is_refused(plan):
    with pytest.raises(ImageError, match=r"Dockerfile:2: .*a second stage"):
        plan("FROM python:3.12", "COPY server.py /")


def test_the_name_follows_the_content(plan, tmp_path):
    lines = ("COPY server.py /app/", "COPY data /data")
    before = plan(*lines).ref
    (tmp_path / "unused.txt").write_text("not copied")
    assert plan(*lines).ref == before
    (tmp_path / "data/x.csv").write_text("changed")
    assert plan(*lines).ref != before
    assert plan(*lines, "ENV A=1").ref != plan(*lines).ref


class TestPython:
    @pytest.fixture(autouse=True)
    def forget(self):
        pythons._on_path.cache_clear()
        pythons._say_once.cache_clear()

    def test_the_current_one_is_taken_where_it_fits(self):
        assert choose(f"{HERE}-slim").version == sys.version.split()[0]
        assert choose("slim").version == sys.version.split()[0]

    def test_another_one_is_taken_from_the_search_path(self, tmp_path, monkeypatch):
        broken, good = tmp_path / "a", tmp_path / "b"
        for folder, script in ((broken, "exit 127"), (good, 'echo \'["3.99.1", "/opt/python3.99", "/opt"]\'')):
            folder.mkdir()
            (folder / "python3.99").write_text(f"#!/bin/sh\n{script}\n")
            (folder / "python3.99").chmod(0o755)
        monkeypatch.setenv("PATH", f"{broken}:{good}")
        found = choose("3.99-slim")
        assert (str(found.path), found.version, found.prefix, found.minor) == (
            "/opt/python3.99",
            "3.99.1",
            "/opt",
            "3.99",
        )

    def test_without_one_the_current_one_is_taken_and_said(self, monkeypatch, caplog):
        monkeypatch.setenv("PATH", "/nowhere")
        assert choose("3.98-slim").version == choose("3.98-slim").version == sys.version.split()[0]
        said = [record.getMessage() for record in caplog.records]
        current = sys.version.split()[0]
        assert said == [f"no python3.98 on this machine's PATH: python:3.98-slim is stood for by Python {current}"]
