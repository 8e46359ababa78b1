"""Allow-lists: what is a host, and what is said of what isn't."""

from __future__ import annotations

import pytest

from agent_env_core.errors import Unsupported
from agent_env_core.sandbox.allowed import problems
from agent_env_core.sandbox.contract import Capabilities, SandboxSpec, refuse_unsupported


@pytest.mark.parametrize(
    "host",
    [
        "pypi.org", "PyPI.org", "*.pypi.org", "localhost", "a-b.c_d.example", "xn--bcher-kva.example",
        "_dmarc.example.org", "192.0.2.7", "10.0.0.0/8", "10.1.2.3/8", "2001:db8::1", "2001:db8::/32",
    ],
)  # fmt: skip
def test_hosts(host: str) -> None:
    assert list(problems([host])) == []


@pytest.mark.parametrize(
    ("entry", "meant"),
    [
        ("https://pypi.org", "pypi.org"),
        ("https://user:word@pypi.org:8443/simple?x=1#y", "pypi.org"),
        ("pypi.org:443", "pypi.org"),
        ("pypi.org/simple", "pypi.org"),
        ("*.pypi.org:443", "*.pypi.org"),
        ("pypi.org.", "pypi.org"),
        (" pypi.org", "pypi.org"),
        ("pypi.org\n", "pypi.org"),
        (".pypi.org", "*.pypi.org"),
        ("http://192.0.2.7:80/", "192.0.2.7"),
        ("[2001:db8::1]:443", "2001:db8::1"),
        ("bücher.example", "xn--bcher-kva.example"),
    ],
)
def test_what_is_more_than_a_host_is_told_with_the_host(entry: str, meant: str) -> None:
    assert list(problems([entry])) == [f"{entry!r} is more than a host: write {meant!r}"]


@pytest.mark.parametrize(
    "entry",
    ["", " ", "10.0.0.0/33", "300.1.1.1", "1.2.3", "a b", "a..b", "*", "*.*.org", "p*.org", "[::1", "x" * 300],
)  # fmt: skip
def test_what_is_none_is_told_too(entry: str) -> None:
    (said,) = problems(["pypi.org", entry])
    assert repr(entry) in said
    assert "write 'open'" in said if entry == "*" else "an entry is a name" in said


def test_every_provider_refuses_them_all_at_once() -> None:
    spec = SandboxSpec("image", 60, network=("a.org:1", "b.org", "http://c.org"))
    with pytest.raises(
        Unsupported, match=r"^modal: .*'a\.org:1' .* write 'a\.org'; 'http://c\.org' .* write 'c\.org'$"
    ):
        refuse_unsupported("modal", Capabilities("vm", network=frozenset({"allow"})), spec)
