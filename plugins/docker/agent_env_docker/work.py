"""Builds and pulls: long, told of line by line, and cut off where their caller leaves."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import subprocess
import tarfile
import threading
import uuid
from collections import deque
from collections.abc import Iterable
from typing import IO, TYPE_CHECKING, Any

from agent_env_core.errors import ImageError, SandboxError, describe
from agent_env_docker import prereqs
from agent_env_docker.builders import Builder
from agent_env_docker.context import REPOSITORY, Context
from agent_env_docker.engine import Engine
from agent_env_docker.failure import image_id, inspect_image, plain, recognise, translated, words

if TYPE_CHECKING:
    from docker import APIClient

logger = logging.getLogger("agent_env_docker")

IMAGE_LABEL = "agent-env.image"
PASSING = ":building-"
"""What the names of images have in them until they are finished."""
_TAIL = 30
_CLASSIC = "the engine's classic builder can't: install BuildKit (the buildx plugin of the `docker` command) beside it"

_COMPILE = """
import compileall, os, re, sysconfig
places = {sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")} | {os.getcwd()} - {"/"}
for place in places:
    compileall.compile_dir(place, quiet=2, workers=0, rx=re.compile("/test/"))
"""
"""Official Python images come without bytecode, and each fresh container would compile what it imports."""


class Work:
    """A build or a pull.

    It has a connection of its own. When that closes, the engine drops the work and what it has left lying around.
    """

    def __init__(self, engine: Engine, what: str) -> None:
        self._engine = engine
        self._what = what
        self._tail: deque[str] = deque(maxlen=_TAIL)
        self._lock = threading.Lock()
        self._answers: list[Any] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._abandoned = False

    def run(self, _: APIClient) -> str:
        """Does it, in a thread; returns the image."""
        client = self._engine.connect(1)
        try:
            client.hooks["response"].append(self._answered)
            with translated(self._what):
                return self._work(client)
        finally:
            for answer in self._answers:  # one that was not read to its end holds its connection
                answer.close()
            client.close()

    def abandon(self) -> None:
        """Cuts it off, from another thread."""
        from docker.types import CancellableStream

        with self._lock:
            self._abandoned = True
            for answer in self._answers:
                CancellableStream(iter(()), answer).close()
            if self._process is not None:
                self._process.terminate()

    def _answered(self, answer: Any, **_: Any) -> None:
        with self._lock:
            self._answers = [answer]

    def _work(self, client: APIClient) -> str:
        raise NotImplementedError

    def _follow(self, events: Iterable[Any]) -> str | None:
        """Reports the engine's events; returns the error they end in, or None."""
        for event in events:
            if self._abandoned:
                break
            if "error" in event:
                return " ".join(str(event["error"]).split())
            for line in plain(str(event.get("stream") or "")).splitlines():
                self._report(line, step=line.lower().startswith("step "))
        return "it was given up" if self._abandoned else None

    def _report(self, line: str, *, step: bool) -> None:
        if line.strip():
            self._tail.append(line.rstrip())
            logger.log(logging.INFO if step else logging.DEBUG, "%s: %s", self._what, line.rstrip())


class Build(Work):
    """Builds an image of a context.

    Args:
        engine: Where.
        context: What.
        builder: By which builder.
        bytecode: Whether Python files are compiled in it.
    """

    def __init__(self, engine: Engine, context: Context, builder: Builder, *, bytecode: bool) -> None:
        super().__init__(engine, f"building {context.slug}")
        self._context, self._builder, self._bytecode = context, builder, bytecode

    def _work(self, client: APIClient) -> str:
        context = self._context
        # Under a passing name: the last one depends on the images it started from, which the build may pull.
        passing = f"{REPOSITORY}{context.slug}{PASSING}{uuid.uuid4().hex[:12]}"
        made = [passing]
        try:
            with context.packed() as (content, tar):
                logger.info("building an image of %s with %s", context.root, self._builder)
                error = (
                    self._by_command(tar, passing) if self._builder.command else self._by_engine(client, tar, passing)
                )
                if error is None and image_id(client, passing) is None:
                    error = "the engine stopped before its end"
                if error is not None:
                    raise self._failure(error)
            if self._bytecode:
                made.append(self._compiled(client, passing))
            tag = context.tag(content, bases(client, context), how(bytecode=self._bytecode))
            repository, _, name = tag.partition(":")
            client.tag(made[-1], repository, name)
            logger.info("built the image %s", tag)
            return tag
        finally:
            for name in dict.fromkeys(made):
                with contextlib.suppress(Exception):  # a failed build made none; the label finds what stays
                    client.remove_image(name, noprune=False)

    def _by_engine(self, client: APIClient, tar: IO[bytes], tag: str) -> str | None:
        return self._follow(
            client.build(
                fileobj=tar,
                custom_context=True,
                dockerfile=self._context.dockerfile,
                tag=tag,
                labels={IMAGE_LABEL: "1"},
                rm=True,
                forcerm=True,  # or a failed step leaves its container behind
                decode=True,
                use_config_proxy=True,
            )
        )

    def _by_command(self, tar: IO[bytes], tag: str) -> str | None:
        command = [*self._builder.command, "--progress=plain", "--label", f"{IMAGE_LABEL}=1", "--tag", tag]
        environment = {**os.environ, "DOCKER_BUILDKIT": "1"}
        if (through := prereqs.engine_tunnel()) is not None:
            environment["DOCKER_HOST"] = through.engine()
        with self._lock:
            self._process = subprocess.Popen(
                [*command, "--file", self._context.dockerfile, "-"],
                stdin=tar, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment,
            )  # fmt: skip
        with self._process as process:
            assert process.stdout is not None
            last = ""
            for raw in process.stdout:
                line = plain(raw.decode(errors="replace"))
                last = line.strip() or last
                self._report(line, step="] " in line and line.partition(" ")[2].startswith("["))
        if self._abandoned:
            return "it was given up"
        return None if process.returncode == 0 else last or f"it ended with code {process.returncode}"

    def _compiled(self, client: APIClient, image: str) -> str:
        """The image with its Python files compiled; the same image where it has no Python, or that fails."""
        user = str((inspect_image(client, image)["Config"] or {}).get("User") or "")
        lines = [f"FROM {image}", "USER 0", f"RUN {json.dumps(['python3', '-c', _COMPILE])}", f"USER {user or '0'}"]
        tag = f"{image}-compiled"
        kept = list(self._tail)
        with io.BytesIO() as archive:
            with tarfile.open(fileobj=archive, mode="w") as tar:
                text = "\n".join(lines).encode()
                entry = tarfile.TarInfo("Dockerfile")
                entry.size = len(text)
                tar.addfile(entry, io.BytesIO(text))
            archive.seek(0)
            try:
                error = self._follow(
                    client.build(fileobj=archive, custom_context=True, tag=tag, rm=True, forcerm=True, decode=True)
                )
            except Exception as exc:
                error = describe(exc)
        if self._abandoned:
            raise self._failure("it was given up")
        if error is not None:
            self._tail.clear()
            self._tail.extend(kept)
            logger.debug("%s: not compiled: %s", self._what, error)
            _remove_children(client, image)
            return image
        return tag

    def _failure(self, error: str) -> SandboxError:
        text = f"docker: {self._context.path} does not build: {error}"
        if not self._builder.command and ("buildkit" in error.lower() or "unknown flag" in error.lower()):
            text += f"; {_CLASSIC}"
        failure = recognise(text, ImageError)
        return ImageError("\n  ".join((text, *self._tail))) if isinstance(failure, ImageError) else failure


class Pull(Work):
    """Pulls an image.

    Args:
        engine: To where.
        ref: What.
    """

    def __init__(self, engine: Engine, ref: str) -> None:
        super().__init__(engine, f"pulling the image {ref}")
        self._ref = ref

    def _work(self, client: APIClient) -> str:
        from docker.errors import APIError
        from docker.utils import parse_repository_tag

        repository, tag = parse_repository_tag(self._ref)
        logger.info("pulling the image %s", self._ref)
        try:
            error = self._follow(client.pull(repository, tag=tag or "latest", stream=True, decode=True))
        except APIError as exc:
            error = words(exc)
        found = None if error else image_id(client, self._ref)
        if found is None:
            text = f"docker: the image {self._ref} is not on this engine and can't be pulled: {error or 'not found'}"
            raise recognise(text, ImageError)
        return found


def _remove_children(client: APIClient, image: str) -> None:
    """Removes what a failed build on top of an image has left there; the image could never be removed otherwise."""
    parent = image_id(client, image)
    for child in client.images(all=True):
        if child.get("ParentId") == parent and child.get("RepoTags") in (None, [], ["<none>:<none>"]):
            with contextlib.suppress(Exception):  # somebody builds on it
                client.remove_image(child["Id"])


def bases(client: APIClient, context: Context) -> dict[str, str | None]:
    """The images that a context starts from, by their ids on this engine."""
    return {name: image_id(client, name) for name in context.bases()}


def how(*, bytecode: bool) -> str:
    """What of the settings makes another image of the same content."""
    return "bytecode" if bytecode else "as it is"
