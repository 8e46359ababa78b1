"""Keeps code of bundles from looking into other processes of the same user, by what Linux offers for it.

A verifier is a process of the server's user. Without more it could read the server's environment (its token, the keys
of models) and memory below ``/proc``, and those of a verifier of another episode. This is no sandbox: files of the
user, and the network, stay within its reach.
"""

from __future__ import annotations

import ctypes
import sys

PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 4, 24, 38
CAPABILITY_VERSION = 0x20080522
"""``_LINUX_CAPABILITY_VERSION_3``: sets of 64 bits, in two halves."""
DROPPED = {
    "CAP_NET_ADMIN": 12,
    "CAP_SYS_MODULE": 16,
    "CAP_SYS_RAWIO": 17,
    "CAP_SYS_PTRACE": 19,
    "CAP_SYS_ADMIN": 21,
    "CAP_SYS_BOOT": 22,
    "CAP_MKNOD": 27,
    "CAP_PERFMON": 38,
    "CAP_BPF": 39,
    "CAP_CHECKPOINT_RESTORE": 40,
}
"""Powers of root with which a process could get at others, or past this (linux/capability.h)."""


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Half(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def hide() -> None:
    """Has the kernel keep this process's memory, environment and descriptors from others of the same user.

    It is inherited by forks and ends with the next ``exec``. There are no core dumps then, and debuggers need root.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def give_up_powers() -> None:
    """Gives up what root could get at other processes by, for good and for all that this process starts."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    for number in DROPPED.values():
        libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0)
    header, halves = _Header(CAPABILITY_VERSION, 0), (_Half * 2)()
    if libc.capget(ctypes.byref(header), halves) != 0:
        return
    for number in DROPPED.values():
        half, kept = halves[number // 32], ~(1 << number % 32) & 0xFFFFFFFF
        half.effective &= kept
        half.permitted &= kept
        half.inheritable &= kept
    libc.capset(ctypes.byref(header), halves)
