"""Python environments, each made once for all images that need the same one.

An environment is named by what it was made from: the Python, and each ``pip install`` with what that can see. Where
that is an index and requirement files, their text is all that counts. So a change of an env's own code, which is nearly
every change, installs nothing again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from agent_env_core.errors import ImageError
from agent_env_process.commands import end_of, run
from agent_env_process.files import remove_tree
from agent_env_process.plan import Copy, Pip, Plan
from agent_env_process.replay import Replay

FORMAT = 1
"""Part of every environment's name: raised when the same steps are to give another one."""

_INTO_FILES = ("-t", "--target", "--prefix", "--root", "--src", "-d", "--dest")
_FILES = ("-r", "--requirement", "-c", "--constraint")


def into_tree(step: Pip) -> bool:
    """Whether a step installs among the image's files, and not into the environment."""
    return any(part.partition("=")[0] in _INTO_FILES for part in step.arguments)


def environment_key(plan: Plan) -> str:
    """Names the environment of a plan: equal for plans that need the same one."""
    facts: list[object] = [FORMAT, plan.python.version, str(plan.python.path)]
    for at, step in enumerate(plan.steps):
        if isinstance(step, Pip) and not into_tree(step):
            facts.append([step.arguments, sorted(step.env.items()), _seen(plan, at, step)])
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]


async def make_environment(plan: Plan, place: Path) -> Path:
    """Makes the environment of a plan in ``place``, where it stays: an environment can't be moved.

    Returns:
        Its folder.

    Raises:
        ImageError: A step failed.
    """
    venv, python = place / "venv", place / "venv" / "bin" / "python"
    with_pip = any(isinstance(step, Pip) for step in plan.steps)
    command = [str(plan.python.path), "-m", "venv", *([] if with_pip else ["--without-pip"]), str(venv)]
    output, code = await run(command, place, {}, "python -m venv")
    if code:
        hint = "on Debian and Ubuntu: apt install python3-venv" if b"ensurepip" in output else "is it complete?"
        raise ImageError(f"process: {plan.python.path} can't make a virtual environment ({hint}):\n{end_of(output)}")
    installs = [at for at, step in enumerate(plan.steps) if isinstance(step, Pip) and not into_tree(step)]
    if installs:
        steps = [step for step in plan.steps[: installs[-1] + 1] if not (isinstance(step, Pip) and into_tree(step))]
        scratch = place / "scratch"
        await Replay(plan, scratch, python).take(steps)
        remove_tree(scratch)
    if with_pip:
        await run([str(python), "-m", "compileall", "-q", str(venv / "lib")], place, {}, "compiling packages")
    return venv


def _seen(plan: Plan, at: int, step: Pip) -> object:
    """What a step can see of the context: requirement files, where it names nothing else; otherwise all of it."""
    files = requirement_files(step)
    if files is not None:
        sources = _sources(plan, at)
        texts: dict[str, str] = {}
        for name in files:
            source = sources.get(os.path.normpath(os.path.join(step.workdir, name)))
            text = _text(plan.context.root / source) if source is not None else None
            if text is None or not _plain(text):
                break
            texts[name] = text
        else:
            return texts
    before = [step for step in plan.steps[:at] if isinstance(step, Copy)]
    return [[one.target, one.mode, [plan.context.digest(source) for source in one.sources]] for one in before]


def requirement_files(step: Pip) -> list[str] | None:
    """The requirement files that a step reads; None where it may read anything of the image."""
    found, words = [], list(step.arguments)
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        short = word[:2] if word[:2] in _FILES and len(word) > 2 and not word.startswith("--") else ""
        if short:
            found.append(word[2:])
        elif name in _FILES:
            found.append(value if equals else words.pop(0) if words else "")
        elif _may_be_file(word):
            return None
    return None if any("://" in name for name in found) else found


def _may_be_file(word: str) -> bool:
    if word.startswith("file:") or "@ file:" in word or "@file:" in word:
        return True
    if "://" in word:
        return False
    return "/" in word or word.startswith(".") or word.endswith((".whl", ".gz", ".zip", ".bz2")) or "*" in word


def _plain(text: str) -> bool:
    """Whether a requirement file names nothing but packages of an index."""
    lines = (line.partition(" #")[0].strip() for line in text.replace("\\\n", " ").splitlines())
    for line in lines:
        if not line or line.startswith("#"):
            continue
        words = line.split()
        if words[0].startswith("-"):
            if words[0].partition("=")[0] in (*_FILES, "-e", "--editable", "-f", "--find-links"):
                return False
            continue
        if _may_be_file(words[0]) or "file:" in line:
            return False
    return True


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def _sources(plan: Plan, before: int) -> Mapping[str, str]:
    """The container path of every file that the steps before one copy, to its path in the context."""
    found: dict[str, str] = {}
    for step in plan.steps[:before]:
        if not isinstance(step, Copy):
            continue
        for source in step.sources:
            if not (plan.context.root / source).is_dir():
                found[step.target + Path(source).name if step.target.endswith("/") else step.target] = source
                continue
            for file in plan.context.files(source):
                found[os.path.normpath(os.path.join(step.target, os.path.relpath(file, source)))] = file
    return found
