from __future__ import annotations

import socket
import subprocess
import sys

import agent_env_process.ports as ports_module
import pytest
from agent_env_process.ports import SYSTEM_RANGE, HeldPorts

SERVER = """
import http.server, sys
class Server(http.server.HTTPServer):
    address_family = int(sys.argv[3])
server = Server((sys.argv[1], int(sys.argv[2])), http.server.SimpleHTTPRequestHandler)
print("listening", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("host", "family"), [("127.0.0.1", socket.AF_INET), ("0.0.0.0", socket.AF_INET), ("::", socket.AF_INET6)]
)
def test_a_server_can_listen_on_a_held_port_as_often_as_it_likes(host, family):
    held = HeldPorts([80])
    argv = [sys.executable, "-c", SERVER, host, str(held.numbers[80]), str(int(family))]
    for _ in range(2):  # a server that crashed starts again on the same port
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
            assert server.stdout.readline() == b"listening\n"
            with socket.create_connection(("127.0.0.1", held.numbers[80]), 5):
                pass
            server.kill()
    held.release()


def test_nobody_else_is_given_a_held_port():
    held = [HeldPorts([1, 2, 3]) for _ in range(60)]
    numbers = [number for ports in held for number in ports.numbers.values()]
    others = [socket.create_server(("127.0.0.1", 0)) for _ in range(60)]
    numbers += [server.getsockname()[1] for server in others]
    assert len(set(numbers)) == 240
    for server in others:
        server.close()
    for ports in held:
        ports.release()


def test_a_held_port_is_none_that_others_pick_for_themselves():
    # As Docker does when it publishes a port: it counts through the system's range, and binds with SO_REUSEADDR.
    first, last = map(int, SYSTEM_RANGE.read_text().split())
    held = HeldPorts([1, 2, 3])
    assert not [number for number in held.numbers.values() if first <= number <= last]
    held.release()


@pytest.mark.parametrize(
    ("system", "own"),
    [
        ("32768\t60999\n", range(10_000, 32_768)),
        ("10000 50000", range(50_001, 65_536)),
        ("1024 65535", range(0)),
        ("", range(0)),
    ],
)
def test_ports_come_from_outside_the_systems_range(tmp_path, monkeypatch, system, own):
    (tmp_path / "range").write_text(system)
    monkeypatch.setattr(ports_module, "SYSTEM_RANGE", tmp_path / "range")
    assert ports_module._own_range.__wrapped__() == own


def test_without_such_ports_the_system_is_asked(monkeypatch):
    monkeypatch.setattr(ports_module, "_own_range", lambda: range(0))
    held = [HeldPorts([1]) for _ in range(50)]
    assert len({number for ports in held for number in ports.numbers.values()}) == 50
    for one in held:
        one.release()


def test_a_port_in_use_is_passed_over(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as busy:
        taken = busy.getsockname()[1]
        monkeypatch.setattr(ports_module, "_own_range", lambda: range(taken, taken + 1))
        held = HeldPorts([1])
        assert held.numbers[1] != taken
        held.release()


def test_a_held_port_answers_nobody():
    held = HeldPorts([80])
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", held.numbers[80]), 5)
    held.release()
    held.release()


def test_when_one_cannot_be_had_none_is_kept(monkeypatch):
    made = []

    class Scarce(socket.socket):
        def __init__(self, *args):
            if len(made) == 2:
                raise OSError(24, "Too many open files")
            super().__init__(*args)
            made.append(self)

    monkeypatch.setattr(socket, "socket", Scarce)
    with pytest.raises(OSError, match="Too many"):
        HeldPorts([1, 2, 3])
    assert [held.fileno() for held in made] == [-1, -1]
