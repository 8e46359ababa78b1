"""What can be checked of a training file before anything is started: fields, batches, folders."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterator, Mapping
from math import lcm
from pathlib import Path
from reprlib import repr as short
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from agent_env_core.errors import Problem
from agent_env_trl.train.settings import Settings, unknown

CHECKPOINT = re.compile(r"checkpoint-(\d+)")
PLAIN = {bool: "true or false", int: "a whole number", float: "a number"}
"""Types of fields whose values can be checked by sight, and what to call them."""
SPELT = {"no": "false", "off": "false", "yes": "true", "on": "true"}
"""Words that YAML 1.1 takes for booleans. Here they are texts, and any text counts as true."""


def fields(maker: Callable[..., Any], given: Mapping[str, Any], place: str) -> list[Problem]:
    """A problem for each key that ``maker`` has no parameter for, or whose value is plainly of another type.

    Configurations check few types themselves: ``bf16="no"`` would be on, and ``max_steps="ten"`` end a run that has
    loaded its model.

    Args:
        maker: A configuration's class.
        given: What the training file sets.
        place: The file's key that holds it.
    """
    parameters = inspect.signature(maker).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return []
    found = unknown(given, parameters, f"{place}.", getattr(maker, "__name__", place))
    try:
        hints = get_type_hints(maker)
    except (NameError, TypeError):  # a class whose types only a type checker can see
        return found
    for name, value in given.items():
        found += _mistyped(f"{place}.{name}", value, hints.get(name))
    return found


def _mistyped(place: str, value: Any, hint: Any) -> Iterator[Problem]:
    """Whether a value can't be one of a field that holds numbers or booleans and nothing else."""
    union = get_origin(hint) in (Union, UnionType)
    kinds = [kind for kind in (get_args(hint) if union else (hint,)) if kind is not NoneType]
    if value is None or not all(kind in PLAIN for kind in kinds):
        return
    if isinstance(value, bool):
        fits = bool in kinds
    elif isinstance(value, int):
        fits = int in kinds or float in kinds or value in (0, 1)  # a switch, as some write it
    else:
        fits = isinstance(value, float) and float in kinds
    if not fits:
        meant = SPELT.get(str(value).lower()) if bool in kinds else None
        wanted = " or ".join(PLAIN[kind] for kind in kinds)
        yield Problem(place, f"is {short(value)}, and must be {wanted}", f"write {meant}" if meant else "")


def batches(maker: Callable[..., Any], given: Mapping[str, Any], processes: int) -> Iterator[Problem]:
    """Generation batches that can't be cut into groups of one row's rollouts.

    GRPO compares the rollouts of a row with each other, so a batch holds whole groups (``GRPOConfig`` refuses others,
    one at a time and without the number that would do).
    """
    parameters = inspect.signature(maker).parameters
    if not {"num_generations", "per_device_train_batch_size"} <= parameters.keys():
        return
    values = {name: parameter.default for name, parameter in parameters.items()} | dict(given)
    group = values["num_generations"]
    sizes = [values["per_device_train_batch_size"], group]
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        return  # the configuration's class says it
    if group < 2:
        yield Problem(
            "arguments.num_generations", f"is {group}, and GRPO compares at least 2 rollouts of a row", "set 8"
        )
        return
    if values.get("generation_batch_size") is None:
        steps = values.get("steps_per_generation") or values.get("gradient_accumulation_steps") or 1
        batch = values["per_device_train_batch_size"] * steps * processes
        if batch % group:
            fitting = lcm(group, steps * processes) // (steps * processes)
            yield Problem(
                "arguments.per_device_train_batch_size",
                f"times {steps} steps times {processes} processes makes a batch of {batch}, which isn't a multiple of"
                f" num_generations, {group}",
                f"make it a multiple of {fitting}, or change num_generations",
            )
    evaluated = values.get("per_device_eval_batch_size")
    group = values.get("num_generations_eval") or group
    if str(values.get("eval_strategy", "no")) != "no" and evaluated and evaluated * processes % group:
        yield Problem(
            "arguments.per_device_eval_batch_size",
            f"times {processes} processes is {evaluated * processes}, which isn't a multiple of the {group} rollouts of"
            " a row",
            "make it one, or set num_generations_eval: 1",
        )


def precision(maker: Callable[..., Any], given: Mapping[str, Any]) -> Iterator[Problem]:
    """Training in bfloat16 where this machine has nothing that does it; TRL's configurations turn it on by themselves.

    transformers refuses it too, for a field that the file may not have, and names no other.
    """
    parameters = inspect.signature(maker).parameters
    if not {"bf16", "fp16", "use_cpu"} <= parameters.keys() or given.get("use_cpu"):
        return
    wanted = given.get("bf16", parameters["bf16"].default)
    if not (given.get("fp16") is not True if wanted is None else wanted):
        return
    from torch.cuda import is_available
    from transformers.utils import is_torch_bf16_gpu_available, is_torch_xla_available

    if is_torch_bf16_gpu_available() or is_torch_xla_available():
        return
    what = "is on" if wanted else "is on where it isn't set"
    if is_available():
        yield Problem("arguments.bf16", f"{what}, and this machine's GPU has none", "set bf16: false and fp16: true")
    else:
        yield Problem("arguments.bf16", f"{what}, and PyTorch sees no GPU", "set use_cpu: true to train without one")


def evaluation(settings: Settings, maker: Callable[..., Any]) -> Iterator[Problem]:
    """Whether there's both a split to evaluate on and a time to do it."""
    if "eval_strategy" not in inspect.signature(maker).parameters:
        if settings.eval_split is not None:
            yield Problem("eval_split", f"is set, and the trainer {settings.trainer} evaluates nothing", "leave it out")
        return
    strategy = settings.arguments.get("eval_strategy", "no")
    if strategy != "no" and settings.eval_split is None:
        yield Problem("eval_split", f"is missing, and arguments.eval_strategy is {strategy}", "name the split")
    if strategy == "no" and settings.eval_split is not None:
        yield Problem("arguments.eval_strategy", "isn't set, so nothing is played of eval_split", "set it to steps")


def checkpoint(settings: Settings, maker: Callable[..., Any]) -> tuple[str | None, list[Problem]]:
    """The checkpoint to go on from, and what stands against starting in the output folder.

    A fresh run in a folder that holds checkpoints would mix with what is there, and one day be resumed from the wrong
    one; so it's refused.
    """
    place = settings.arguments.get("output_dir")
    if isinstance(settings.resume, str):
        if (Path(settings.resume) / "trainer_state.json").is_file():
            return settings.resume, []
        return None, [
            Problem("resume", f"{settings.resume} is no checkpoint: it has no trainer_state.json", _few(place))
        ]
    if not isinstance(place, str):
        if "output_dir" not in inspect.signature(maker).parameters:
            return None, [Problem("resume", f"needs the path of a checkpoint for {settings.trainer}")] * settings.resume
        missing = Problem("arguments.output_dir", "is missing", "name a folder for checkpoints and the trained model")
        return None, [missing]
    if unwritable := _unwritable(Path(place)):
        fix = "name a folder that can be made and written to"
        return None, [Problem("arguments.output_dir", f"{place} can't hold checkpoints: {unwritable}", fix)]
    kept = _checkpoints(place)
    if settings.resume:
        return (kept[-1], []) if kept else (None, [Problem("resume", f"{place} holds no checkpoint", "leave it out")])
    if kept:
        fix = "set resume: true to go on with it, or another arguments.output_dir"
        return None, [Problem("arguments.output_dir", f"{place} holds the checkpoints of another run", fix)]
    return None, []


def _unwritable(folder: Path) -> str:
    """Why no file can be put into a folder that need not be there yet; empty where one can, as far as rights tell."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if os.path.exists(path))
    if not there.is_dir():
        return f"{there} is no folder"
    return "" if os.access(there, os.W_OK | os.X_OK) else f"{there} can't be written to"


def _checkpoints(folder: str) -> list[str]:
    """The checkpoints in a folder, oldest first."""
    found = [(int(match[1]), path) for path in Path(folder).glob("*") if (match := CHECKPOINT.fullmatch(path.name))]
    return [str(path) for _, path in sorted(found) if (path / "trainer_state.json").is_file()]


def _few(folder: Any) -> str:
    kept = _checkpoints(folder) if isinstance(folder, str) else []
    return f"the newest here is {kept[-1]}" if kept else ""
