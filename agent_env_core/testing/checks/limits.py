"""Checks of limits: what is claimed is kept, what isn't is refused."""

from __future__ import annotations

from agent_env_core.errors import Gone, Unsupported
from agent_env_core.testing.checks.base import ENOUGH, Skipped, Subject, Trial, same, true

SUBJECT = Subject("limits")

MEMORY = 256
"""MiB."""

TAKE = f"data = bytearray(b'x') * ({MEMORY} << 21); print(len(data))"
"""Takes, and touches, twice as much."""

BURN = """
import time
began, used = time.monotonic(), time.process_time()
while time.monotonic() - began < 2:
    pass
print((time.process_time() - used) / (time.monotonic() - began))
"""
"""Says what part of a core it was given."""


@SUBJECT.check()
async def memory_is_kept_or_refused(trial: Trial) -> None:
    if "memory_mb" not in trial.can.limits:
        await trial.refuses(Unsupported, says="memory_mb", memory_mb=MEMORY)
        return
    box = await trial.make(memory_mb=MEMORY)
    same((await box.exec(["true"], timeout=ENOUGH)).exit_code, 0)
    try:
        done = await box.exec(["python3", "-c", TAKE], timeout=ENOUGH)
    except Gone:
        return
    true(done.exit_code != 0, f"a command took {2 * MEMORY} MiB in a sandbox that was given {MEMORY}")


@SUBJECT.check()
async def cores_are_kept_or_refused(trial: Trial) -> None:
    if "cpu" not in trial.can.limits:
        await trial.refuses(Unsupported, says="cpu", cpu=0.5)
        return
    box = await trial.make(cpu=0.5)
    used = float((await box.exec(["python3", "-c", BURN], timeout=ENOUGH)).stdout)
    true(used < 0.8, f"a command was given {used:.2f} of a core in a sandbox that was given 0.5")


@SUBJECT.check()
async def a_gpu_is_there_or_refused(trial: Trial) -> None:
    if not trial.can.gpu:
        await trial.refuses(Unsupported, says="T4", gpu="T4")
        return
    if trial.tested.gpu is None:
        raise Skipped("the provider claims GPUs, and no type of one was named to ask for")
    box = await trial.make(gpu=trial.tested.gpu)
    done = await box.exec(["nvidia-smi", "-L"], timeout=ENOUGH)
    same(done.exit_code, 0, f"nvidia-smi in a sandbox with gpu={trial.tested.gpu!r}: {done.stderr!r}")
