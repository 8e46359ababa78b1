"""Commands in a sandbox of a run: what an agent left running is told from what was there, and can be ended.

Everything goes through :meth:`Sandbox.exec`, so it works on every provider. The scripts use what a POSIX shell has
built in and nothing else: programs may be missing, and an agent may have replaced them.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping

from agent_env_core.errors import EpisodeError
from agent_env_core.sandbox.contract import ExecResult
from agent_env_core.steps.placed import PlacedSandbox

MARK = "AGENT_AT_WORK"
"""Holds :attr:`PlacedSandbox.mark` in the environment of everything that an agent starts."""
NO_FILE = 66
SCRIPT_SECONDS = 60.0
"""Seconds that one of the scripts here may take."""

# The name of a process may hold anything, blanks and brackets and line ends too: the numbers stand behind the last ")".
_STAT = r"""
stat() {
  line=
  while IFS= read -r part || [ -n "$part" ]; do line="$line $part"; done <"$1/stat"
} 2>/dev/null
"""

_PROBE = (
    _STAT
    + r"""
shell=$(command -v bash) || shell=$(command -v sh)
echo "$shell"
readlink /proc/self/ns/pid || echo none
for folder in /proc/[0-9]*; do
  stat "$folder"
  [ -n "$line" ] || continue
  set -- ${line##*) }
  shift 19
  echo "${folder#/proc/}:$1"
done
"""
)

# Arguments: "all" or "marked", the mark, and the processes that stay in any case. Says how many it ended.
# This shell and what it was started by stay too, up to the first process of all.
_END = (
    _STAT
    + r"""
mode=$1 mark=$2
shift 2
stay=" $* " self=" 1 " pid=$$
while [ "$pid" -gt 1 ] 2>/dev/null; do
  self="$self$pid "
  stat "/proc/$pid"
  set -- ${line##*) }
  pid=$2
done
ended=' ' count=0 round=0
while :; do
  found=
  for folder in /proc/[0-9]*; do
    pid=${folder#/proc/}
    case $self in *" $pid "*) continue ;; esac
    stat "$folder"
    [ -n "$line" ] || continue
    set -- ${line##*) }
    case $1 in Z | X) continue ;; esac
    shift 19
    if [ "$mode" = all ]; then
      case $stay in *" $pid:$1 "*) continue ;; esac
    else
      all=
      while IFS= read -r part || [ -n "$part" ]; do all="$all$part"; done <"$folder/environ"
      case $all in *"$mark"*) ;; *) continue ;; esac
    fi 2>/dev/null
    found="$found $pid"
    case $ended in *" $pid:$1 "*) ;; *) ended="$ended$pid:$1 " count=$((count + 1)) ;; esac
  done
  [ -n "$found" ] || break
  kill -9 $found 2>/dev/null
  round=$((round + 1))
  [ $round -lt 1000 ] || exit 1
done
echo $count
"""
)


async def probe(placed: PlacedSandbox) -> None:
    """Looks at a sandbox before an agent is let in: its shell, and the processes that are none of the agent's.

    Where the processes inside are the sandbox's own, all others are the agent's from then on.

    Raises:
        EpisodeError: It has no shell.
        SandboxError: It is gone.
    """
    if placed.probed:
        return
    looked = await placed.sandbox.exec(["sh", "-c", _PROBE], timeout=SCRIPT_SECONDS)
    lines = looked.stdout.decode(errors="replace").splitlines()
    if looked.exit_code != 0 or len(lines) < 2 or not lines[0].startswith("/"):
        raise EpisodeError("setup", f"the sandbox {placed.name!r} can't be worked in: {said(looked)}")
    placed.shell = lines[0]
    if _are_its_own(placed, lines[1]):
        placed.settled = frozenset(lines[2:])
    placed.probed = True


def _are_its_own(placed: PlacedSandbox, namespace: str) -> bool:
    """Whether no process but the sandbox's own can be seen in it; in doubt they can, and nothing of others is ended."""
    if placed.capabilities.remote:
        return True
    if placed.capabilities.isolation == "none" or not namespace.startswith("pid:"):
        return False
    try:
        return os.readlink("/proc/self/ns/pid") != namespace
    except OSError:  # another system: then the sandbox is on a machine of its own
        return True


async def end_processes(placed: PlacedSandbox) -> int:
    """Ends everything that an agent left running in a sandbox.

    Where the sandbox has its processes to itself, that is every process that wasn't there when the agent came.
    Elsewhere it is what still carries the mark of the agent's commands; what dropped its environment is not found.

    Returns:
        How many there were.

    Raises:
        EpisodeError: They would not end.
        SandboxError: The sandbox is gone.
    """
    if not placed.turns:
        return 0
    mode, stay = ("all", sorted(placed.settled)) if placed.settled is not None else ("marked", [])
    done = await placed.sandbox.exec(
        ["sh", "-c", _END, "sh", mode, f"{MARK}={placed.mark}", *stay], timeout=SCRIPT_SECONDS
    )
    if done.exit_code != 0 or not done.stdout.strip().isdigit():
        reason = f"what the agent left running in the sandbox {placed.name!r} can't be ended: {said(done)}"
        raise EpisodeError("verify", reason)
    return int(done.stdout)


async def shell(
    placed: PlacedSandbox,
    line: str,
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    timeout: float | None = None,
) -> ExecResult:
    """Runs a line of shell in a sandbox, with ``bash`` where it has one; its folder is ``cwd``, else the agent's."""
    await probe(placed)
    return await placed.sandbox.exec([placed.shell, "-c", line], env=env, cwd=cwd or placed.workdir, timeout=timeout)


async def as_seen_inside(placed: PlacedSandbox, path: str) -> str:
    """What a path of the sandbox is for the commands that run in it.

    A provider without private files gives the sandbox a folder of the machine and rewrites the paths of its image in
    commands. A path that it would not rewrite is the machine's own, which nothing here may touch.

    Raises:
        EpisodeError: It is the machine's own.
        SandboxError: The sandbox is gone.
    """
    if placed.capabilities.private_files:
        return path
    shown = await placed.sandbox.exec(["sh", "-c", f"printf %s {shlex.quote(path)}"], timeout=SCRIPT_SECONDS)
    seen = shown.stdout.decode(errors="surrogateescape")
    if seen == path:
        fix = "use a folder that its Dockerfile makes, or another sandbox provider"
        raise EpisodeError(
            "setup", f"{path} in the sandbox {placed.name!r} is the machine's own, shared by all sandboxes: {fix}"
        )
    return seen


async def read_start(placed: PlacedSandbox, path: str, limit: int) -> bytes:
    """The beginning of a file, whatever an agent made of it: no more than ``limit`` bytes ever leave the sandbox.

    Raises:
        FileNotFoundError: It is no regular file; a link to one is none either.
        EpisodeError: It can't be read.
        SandboxError: The sandbox is gone.
    """
    script = '[ -f "$1" ] && [ ! -L "$1" ] || exit 66; exec head -c "$2" <"$1"'
    done = await placed.sandbox.exec(["sh", "-c", script, "sh", path, str(limit)], timeout=SCRIPT_SECONDS)
    if done.exit_code == NO_FILE:
        raise FileNotFoundError(f"there is no file {path}")
    if done.exit_code != 0:
        raise EpisodeError("verify", f"{path} in the sandbox {placed.name!r} can't be read: {said(done)}")
    return done.stdout


def said(result: ExecResult) -> str:
    """How a command ended and the last it said, in one line."""
    words = " ".join((result.stdout + b"\n" + result.stderr).decode(errors="replace").split())[-2000:]
    how = "it took too long and was ended" if result.timed_out else f"exit code {result.exit_code}"
    return f"{how}: {words}" if words else how
