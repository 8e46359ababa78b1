"""Children on an event loop: every one is collected, also one that outlives the handle on it."""

from __future__ import annotations

import gc
import os
import shutil
import threading
from pathlib import Path

import psutil
from agent_env_process.spawn import Child


async def test_a_child_that_dies_after_it_was_let_go_is_collected(tmp_path: Path):
    sleep = shutil.which("sleep")
    assert sleep is not None
    child = Child([sleep, "600"], env={"PATH": os.environ["PATH"]}, cwd=tmp_path, stdout=lambda _: None)
    process = psutil.Process(child.known.pid)
    child.close()
    collector = next(thread for thread in threading.enumerate() if thread.name == f"collect {process.pid}")
    del child
    gc.collect()  # a process that is dropped while it runs is a warning, and warnings are errors
    process.kill()
    collector.join(10)
    assert not process.is_running()  # not even as a zombie
