"""Run as a program, never imported: opens a sandbox's namespaces, or starts a command in them.

Its first argument names control groups that it joins, a line each. Then:

``run PROGRAM [ARGUMENT]…`` becomes a program, without namespaces.
``hold ROOT USER NET HOSTNAME WAIT [KIND SOURCE TARGET]…`` makes namespaces with these mounts, and keeps them by the
shell's line ``WAIT``.
``enter PID START FOLDER PIDS PROGRAM [ARGUMENT]…`` runs a program in those of process ``PID``.
``tell PROGRAM [ARGUMENT]…`` becomes a program that makes namespaces by itself, and tells about them on descriptor 3.

It runs with the Python of the server in isolated mode, knows the system calls it needs and imports little, since every
command pays for that. A process that enters a user namespace holds all capabilities there, for a moment. So they are
given up here, by code of the host, before the first file of the sandbox is looked at as a program.
"""

import ctypes
import os
import sys

NEW_NAMESPACES = {
    "user": 0x10000000, "mnt": 0x00020000, "pid": 0x20000000, "ipc": 0x08000000, "uts": 0x04000000, "net": 0x40000000,
}  # fmt: skip
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "riscv64": 41, "ppc64le": 203, "s390x": 217}
MOUNT_SETATTR = 442  # the same on every architecture; Linux 5.12

READ_ONLY, NO_SUID, NO_DEV, REMOUNT, BIND, RECURSIVE, PRIVATE, SLAVE = 1, 2, 4, 32, 4096, 16384, 1 << 18, 1 << 19
DETACH = 2
LOCKED = 2 | 4 | 8 | 1024 | 2048
"""Of the flags of a mount those that a user namespace may not take away; statvfs and mount number them alike."""
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")

NOT_RUNNABLE, NOT_FOUND = 126, 127

KEY_CALLS = {
    0xC000003E: (248, 249, 250, 0x400000F8, 0x400000F9, 0x400000FA),  # x86_64, and its x32
    0x40000003: (286, 287, 288),  # i386
    0xC00000B7: (217, 218, 219),  # aarch64
    0x40000028: (309, 310, 311),  # arm
    0xC00000F3: (217, 218, 219),  # riscv64
    0xC0000015: (269, 270, 271),  # ppc64le
    0x80000016: (278, 279, 280),  # s390x
}
"""Numbers of add_key, request_key and keyctl, by what linux/audit.h calls the architecture."""
SOCKET_CALLS = {
    0xC000003E: (41, 0x40000029), 0x40000003: (359,), 0xC00000B7: (198,), 0x40000028: (281,), 0xC00000F3: (198,),
    0xC0000015: (326,), 0x80000016: (359,),
}  # fmt: skip
"""Numbers of socket, likewise."""
BLIND_CALLS = {0xC000003E: (425, 0x400001A9), 0x40000003: (102, 425), 0xC0000015: (102, 425)}
"""Calls that open sockets where no filter sees of what kind: io_uring_setup (425 nearly everywhere, and the fallback
here), and socketcall, where programs have another way. On s390x they have none, so there it is left."""
NAMESPACED = (1, 2, 10, 16)
"""Kinds of sockets that belong to a network namespace: UNIX, INET, INET6, NETLINK. Others may lead past it: VSOCK goes
to the host of a virtual machine."""
LOAD, IF_EQUAL, ANSWER, GO_ON, NOT_THERE, NO_SUCH_KIND = 0x20, 0x15, 0x06, 0x7FFF0000, 0x00050026, 0x00050061
"""Words of a seccomp filter (linux/filter.h, linux/seccomp.h); the last two are the errors ENOSYS and EAFNOSUPPORT."""
CALL, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16 if sys.byteorder == "little" else 20
"""Where a filter finds them (struct seccomp_data); of the argument its lower half, which is all that socket takes."""

libc = ctypes.CDLL(None, use_errno=True)


def check(code: int, doing: str) -> int:
    """Raises what the system call before it left in errno."""
    if code < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{doing}: {os.strerror(number)}")
    return code


def die_with_parent(parent: int) -> None:
    """Asks the kernel to kill this process when its parent ends, and ends where that has happened already."""
    check(libc.prctl(1, 9, 0, 0, 0), "prctl")
    if os.getppid() != parent:
        os._exit(1)


def join(groups: str) -> None:
    """Moves this process, which has one thread, to control groups, and with it all that it starts."""
    for group in groups.splitlines():
        # Threads are moved at once, and processes in some ten milliseconds; version 2 takes only these.
        with open(group + ("/tasks" if os.path.exists(f"{group}/tasks") else "/cgroup.procs"), "w") as file:
            file.write("0")


def volunteer(*, last: bool) -> None:
    """Short of memory, the kernel ends this process and what it starts before any that did not say so; or only then."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("900" if last else "1000")
    except OSError:  # another system
        pass


def forget_coercion() -> None:
    """Takes out of the environment what Python put there for itself, where ``LANG`` asks for C."""
    if os.path.exists("/proc/self/environ"):
        with open("/proc/self/environ", "rb") as file:
            if b"\0LC_CTYPE=" not in b"\0" + file.read():
                os.environ.pop("LC_CTYPE", None)


def drop_privileges() -> None:
    """No capabilities from here on, and no program that gives any back."""
    check(libc.prctl(38, 1, 0, 0, 0), "no_new_privs")
    libc.prctl(47, 4, 0, 0, 0)  # the ambient set
    for capability in range(64):
        if libc.prctl(23, capability, 0, 0, 0) < 0:
            break
        libc.prctl(24, capability, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    check(libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")


def close_gaps(*, cut_off: bool) -> None:
    """From here on there is nothing of the kernel's that no namespace keeps apart.

    Keyrings: what a login keeps in its session's (Kerberos tickets, keys of file systems) can be read by all that it
    starts. A keyring of their own would count against a user's quota, one for each command.

    Args:
        cut_off: There is a network of its own, so also no sockets that lead past it.
    """
    lines = [(LOAD, 0, 0, ARCHITECTURE)]
    for architecture, calls in KEY_CALLS.items():
        missing = calls + (BLIND_CALLS.get(architecture, (425,)) if cut_off else ())
        block = [(LOAD, 0, 0, CALL)]
        for call in missing:
            block += [(IF_EQUAL, 0, 1, call), (ANSWER, 0, 0, NOT_THERE)]
        for call in SOCKET_CALLS[architecture] if cut_off else ():
            kinds = [line for kind in NAMESPACED for line in ((IF_EQUAL, 0, 1, kind), (ANSWER, 0, 0, GO_ON))]
            kinds = [(LOAD, 0, 0, FIRST_ARGUMENT), *kinds, (ANSWER, 0, 0, NO_SUCH_KIND)]
            block += [(IF_EQUAL, 0, len(kinds), call), *kinds]
        block += [(ANSWER, 0, 0, GO_ON)]
        lines += [(IF_EQUAL, 0, len(block), architecture), *block]
    lines += [(ANSWER, 0, 0, GO_ON)]
    order = sys.byteorder
    packed = b"".join(
        code.to_bytes(2, order) + bytes((yes, no)) + word.to_bytes(4, order) for code, yes, no, word in lines
    )

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("lines", ctypes.c_char_p))

    check(libc.prctl(38, 1, 0, 0, 0), "no_new_privs")
    code = libc.prctl(22, 2, ctypes.byref(Program(len(lines), packed)), 0, 0)
    if cut_off:  # without it a promise would be broken; keys are no worse than they were
        check(code, "a filter of system calls")


# -- enter


def enter(pid: str, start: str, folder: str, pids: int, program: list[str]) -> None:
    """Joins the namespaces of a process, and becomes the parent of ``program`` there."""
    names = [name for name in NEW_NAMESPACES if namespace(pid, name) != namespace("self", name)]
    handles = [(os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC), name) for name in names]
    with open(f"/proc/{pid}/stat", "rb") as file:
        if file.read().rpartition(b")")[2].split()[19].decode() != start:
            raise OSError(f"process {pid} is another one by now")
    for handle, name in handles:  # the user namespace first: it gives the right to join the others
        check(libc.setns(handle, NEW_NAMESPACES[name]), f"joining the {name} namespace")
        if name == "user":
            forbid_more()
    drop_privileges()  # nothing was imported or run since the files are the sandbox's, and nothing may be before this
    close_gaps(cut_off="net" in names)
    # Until it has become the program, the child runs one of this machine's, and /proc would lead the sandbox to that
    # file: as this machine has mounted it, so that its owner, who may be the sandbox's root, could change its mode.
    check(libc.prctl(4, 0, 0, 0, 0), "prctl")
    child = os.fork()
    if child == 0:
        # Its parent is in another PID namespace and can't be asked for. Should it be dead already, then what this
        # starts ends with the sandbox.
        check(libc.prctl(1, 9, 0, 0, 0), "prctl")
        os.setsid()
        limit_processes(pids)
        become(folder, program)
    check(libc.prctl(4, 1, 0, 0, 0), "prctl")  # a mark in the environment is how this process is found
    for stream in range(3):  # they are the child's alone, so that their other ends see when it lets go
        os.dup2(NOTHING, stream)
    pass_on(os.waitpid(child, 0)[1])


def forbid_more() -> None:
    """No user namespaces below this process's own: in one a program may mount its control group's hierarchy."""
    with open("/proc/sys/user/max_user_namespaces", "w") as file:
        file.write("0")


def limit_processes(count: int) -> None:
    """Sets how many processes and threads there may be, which the kernel counts in each user namespace; 0 sets none."""
    limits = (ctypes.c_ulong * 2)()
    if count and libc.getrlimit(6, ctypes.byref(limits)) == 0:
        limits[0], limits[1] = min(count, limits[0]), min(count, limits[1])
        check(libc.setrlimit(6, ctypes.byref(limits)), "a limit of processes")


def namespace(pid: str, name: str) -> str:
    """Names a namespace of a process."""
    return os.readlink(f"/proc/{pid}/ns/{name}")


def become(folder: str, program: list[str]) -> None:
    """Runs the program in this process's place; what keeps it from running is said as a shell says it."""
    try:
        os.chdir(folder)
    except OSError as exc:
        give_up(NOT_RUNNABLE, f"there is no folder {folder}: {exc.strerror}")
    for number in (13, 25):  # Python ignores SIGPIPE and SIGXFSZ, and a program would inherit that
        libc.signal(number, None)
    name, problem = program[0], ""
    # Not `os.execvp`: it would import a module, from the sandbox's files.
    folders = (
        [""] if "/" in name else [part + "/" for part in os.environ.get("PATH", "/usr/bin:/bin").split(":") if part]
    )
    for part in folders:
        try:
            os.execv(part + name, program)  # noqa: S606 - a shell is not wanted
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as exc:
            problem = exc.strerror or str(exc)
            if exc.errno == 7:  # the arguments are too long, whichever the program
                break
    if problem:
        give_up(NOT_RUNNABLE, f"{name} can't be run: {problem}")
    give_up(NOT_FOUND, f"there is no program {name}")


def give_up(code: int, why: str) -> None:
    """Ends, and says why."""
    os.write(2, f"agent-env: {why}\n".encode(errors="surrogateescape"))
    os._exit(code)


def pass_on(status: int) -> None:
    """Ends as the child did."""
    if os.WIFSIGNALED(status):
        libc.prctl(4, 0, 0, 0, 0)  # not dumpable: one core file of a crash is enough
        libc.signal(os.WTERMSIG(status), None)
        os.kill(os.getpid(), os.WTERMSIG(status))
        os._exit(128 + os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status))


# -- hold


def hold(root: str, user: bool, net: bool, hostname: str, wait: str, mounts: list[tuple[str, str, str]]) -> None:
    """Makes the namespaces, says the number of the process that holds them, and waits for its end."""
    parent = os.getppid()
    new_namespaces([name for name in NEW_NAMESPACES if (name != "user" or user) and (name != "net" or net)])
    die_with_parent(parent)
    close_gaps(cut_off=net)
    child = os.fork()
    if child == 0:
        check(libc.prctl(1, 9, 0, 0, 0), "prctl")
        if net:
            loopback_up()
        check(libc.sethostname(hostname.encode(), len(hostname)), "sethostname")
        build(root, mounts)
        os.setsid()
        drop_privileges()
        os.execv("/bin/sh", ["sh", "-c", wait])  # noqa: S606 - it is the shell
    os.write(1, f'{{"child-pid": {child}}}\n'.encode())
    for stream in range(3):
        os.dup2(NOTHING, stream)
    pass_on(os.waitpid(child, 0)[1])


def new_namespaces(kinds: list[str]) -> None:
    """Moves this process to namespaces of its own; in one of users it is root, and nobody else is anybody."""
    uid, gid = os.geteuid(), os.getegid()
    check(libc.unshare(sum(NEW_NAMESPACES[name] for name in kinds)), "new namespaces")
    if "user" in kinds:
        for name, line in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(line)


def loopback_up() -> None:
    """A new network has a loopback, which is down."""
    import fcntl
    import socket
    import struct

    with socket.socket() as any_socket:
        request = struct.pack("16sh14x", b"lo", 0x1 | 0x40)  # up, running
        fcntl.ioctl(any_socket, 0x8914, request)


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """Mounts something, as the system call of that name does."""
    words = [word.encode(errors="surrogateescape") if word else None for word in (source, target, kind)]
    check(libc.mount(*words, ctypes.c_ulong(flags), data.encode() or None), f"mount {target}")


def make_read_only(target: str) -> None:
    """A mount and all below it."""
    wanted = (ctypes.c_uint64 * 4)(READ_ONLY | NO_SUID | NO_DEV, 0, 0, 0)
    path = target.encode(errors="surrogateescape")
    code = libc.syscall(MOUNT_SETATTR, AT_FDCWD, path, AT_RECURSIVE, ctypes.byref(wanted), ctypes.sizeof(wanted))
    check(code, f"mount {target} read-only")


def keep_rights(device: str) -> None:
    """Makes a mounted device read-only: it works as before, but its owner, root, can't change its mode."""
    flags = os.statvfs(device).f_flag & LOCKED
    mount("", device, flags=REMOUNT | BIND | READ_ONLY | flags)


def keep_rights_here() -> None:
    """The same for this machine's devices, in this process's view, for a program that mounts them from there."""
    if os.geteuid() != 0:
        return
    try:
        new_namespaces(["mnt"])
    except PermissionError:  # a root with few rights, in a container
        new_namespaces(["user", "mnt"])
    mount("", "/", flags=RECURSIVE | SLAVE)
    for device in (f"/dev/{name}" for name in DEVICES):
        mount(device, device, flags=BIND)
        keep_rights(device)


def build(root: str, mounts: list[tuple[str, str, str]]) -> None:
    """Mounts what the sandbox sees below ``root``, and makes that the root of all."""
    mount("", "/", flags=RECURSIVE | PRIVATE)
    mount(root, root, flags=BIND)
    for kind, source, target in mounts:
        place = root + target
        if kind == "symlink":
            os.symlink(source, place)
            continue
        make_place(place, folder=kind not in ("bind", "readonly") or os.path.isdir(source))
        if kind in ("bind", "readonly"):
            mount(source, place, flags=BIND | RECURSIVE)
            if kind == "readonly":
                make_read_only(place)
        elif kind == "proc":
            mount("proc", place, "proc", NO_SUID | NO_DEV)
            make_read_only(place)
        elif kind == "dev":
            devices(place)
    os.chdir(root)
    check(libc.syscall(PIVOT_ROOT[os.uname().machine], b".", b"."), "pivot_root")
    check(libc.umount2(b".", DETACH), "umount of the old root")
    os.chdir("/")


def make_place(place: str, *, folder: bool) -> None:
    """Something to mount on."""
    if os.path.lexists(place):
        return
    os.makedirs(place if folder else os.path.dirname(place), exist_ok=True)
    if not folder:
        os.close(os.open(place, os.O_CREAT | os.O_WRONLY, 0o644))


def devices(place: str) -> None:
    """The devices that any program may have, terminals and shared memory of the sandbox's own."""
    mount("tmpfs", place, "tmpfs", NO_SUID, "mode=0755")
    for name in DEVICES:
        make_place(f"{place}/{name}", folder=False)
        mount(f"/dev/{name}", f"{place}/{name}", flags=BIND)
        keep_rights(f"{place}/{name}")
    for name, target in {"fd": "self/fd", "stdin": "self/fd/0", "stdout": "self/fd/1", "stderr": "self/fd/2"}.items():
        os.symlink(f"/proc/{target}", f"{place}/{name}")
    for name in ("pts", "shm"):
        os.mkdir(f"{place}/{name}")
    mount("devpts", f"{place}/pts", "devpts", NO_SUID, "newinstance,ptmxmode=0666,mode=620")
    os.symlink("pts/ptmx", f"{place}/ptmx")
    mount("tmpfs", f"{place}/shm", "tmpfs", NO_SUID | NO_DEV, "mode=1777")


if __name__ == "__main__":
    NOTHING = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    groups, verb, *words = sys.argv[1:]
    volunteer(last=verb in ("hold", "tell"))  # with what holds the namespaces all the others would end
    forget_coercion()
    try:
        join(groups)
        if verb == "run":
            become(".", words)
        elif verb == "enter":
            enter(words[0], words[1], words[2], int(words[3]), words[4:])
        elif verb == "tell":
            keep_rights_here()
            close_gaps(cut_off="--unshare-net" in words)
            os.dup2(1, 3)  # since bubblewrap closes the one that it tells the process's number on
            os.execvp(words[0], words)  # noqa: S606 - a shell is not wanted
        else:
            triples = [(words[at], words[at + 1], words[at + 2]) for at in range(5, len(words), 3)]
            hold(words[0], words[1] == "1", words[2] == "1", words[3], words[4], triples)
    except OSError as failed:
        give_up(125, failed.strerror or str(failed))
