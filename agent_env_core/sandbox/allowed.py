"""What may stand in an allow-list of hosts: the same for all providers, checked before any of them sees it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from ipaddress import ip_network
from urllib.parse import urlsplit

_NAME = re.compile(
    r"(?=.{1,253}\Z)(?:\*\.)?(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?\Z", re.I
)
"""A host's name (RFC 1123, with the underscores that occur), or all names below one. The last part begins with a
letter, so that no broken address passes for a name."""

MEANT = "an entry is a name (pypi.org), all names below one (*.pypi.org), an address, or a block of them (10.0.0.0/8)"


def problems(hosts: Iterable[str]) -> Iterator[str]:
    """What is wrong with each entry that is no host, with what to write instead where that is plain."""
    for host in hosts:
        if _is_host(host):
            continue
        if host == "*":
            yield "'*' is every host: write 'open' in the list's place"
        elif (inner := _host_in(host)) is not None:
            yield f"{host!r} is more than a host: write {inner!r}"
        else:
            yield f"{host!r} is no host: {MEANT}"


def _is_host(text: str) -> bool:
    return _is_block(text) or _NAME.match(text) is not None


def _is_block(text: str) -> bool:
    try:
        ip_network(text, strict=False)
    except ValueError:
        return False
    return True


def _host_in(text: str) -> str | None:
    """The host of an address of the web, or of a host with a port or a path; None where none is found."""
    text = text.strip()
    try:
        found = urlsplit(text if "://" in text else f"//{text}").hostname or ""
        name = f"*{found}" if found.startswith(".") else found.rstrip(".")
        name = name if name.isascii() else name.encode("idna").decode("ascii")
    except ValueError:  # a bracket without its other, a part too long: not for us to guess
        return None
    broken = "://" not in text and "/" in text and _is_block(name)  # a block whose width is wrong
    return name if _is_host(name) and not broken else None
