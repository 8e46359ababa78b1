"""Addresses of servers, and the way their tokens take."""

from __future__ import annotations

import os

import pytest

from agent_env_core.client import Address, hand_down_token


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {key: v for key, v in os.environ.items() if "AGENT_ENV_TOKEN" not in key})


@pytest.mark.parametrize(
    ("written", "url", "socket"),
    [
        ("http://env-host:8000", "http://env-host:8000", "ws://env-host:8000/ws"),
        ("http://env-host:8000/", "http://env-host:8000", "ws://env-host:8000/ws"),
        ("https://env.example/bundles/", "https://env.example/bundles", "wss://env.example/bundles/ws"),
        ("ws://env-host:8000", "http://env-host:8000", "ws://env-host:8000/ws"),
        ("wss://env-host", "https://env-host", "wss://env-host/ws"),
        (" http://[::1]:8000 ", "http://[::1]:8000", "ws://[::1]:8000/ws"),
    ],
)
def test_what_users_write(written: str, url: str, socket: str) -> None:
    address = Address.of(written)
    assert (address.url, address.socket_url) == (url, socket)


@pytest.mark.parametrize("written", ["env-host:8000", "ftp://env-host", "http://", "", "http://host/?a=b"])
def test_what_is_no_address(written: str) -> None:
    with pytest.raises(ValueError, match="write it as http://host:port"):
        Address.of(written)


@pytest.mark.parametrize("token", ["sésame", "two\nlines"])
def test_a_token_that_no_header_carries_is_refused_without_showing_it(token: str) -> None:
    with pytest.raises(ValueError, match="printable ASCII") as refusal:
        Address.of("http://host:8000", token)
    assert token not in str(refusal.value)


def test_a_password_in_the_address_is_refused_without_showing_it() -> None:
    with pytest.raises(ValueError, match="pass host's token as token=") as refusal:
        Address.of("http://user:hunter2@host:8000")
    assert "hunter2" not in str(refusal.value)


@pytest.mark.parametrize(
    ("url", "loopback"),
    [("http://127.0.0.1:1", True), ("http://[::1]:1", True), ("http://localhost:1", True), ("http://10.0.0.1", False)],
)
def test_loopback_needs_no_proxy(url: str, loopback: bool) -> None:
    assert Address.of(url).loopback is loopback


def test_a_token_is_shown_nowhere_and_sent_with_every_request() -> None:
    address = Address.of("http://host:1", "hunter2")
    assert "hunter2" not in repr(address)
    assert address.headers == {"Authorization": "Bearer hunter2"}
    assert Address.of("http://host:1").headers == {}


def test_tokens_reach_processes_that_are_spawned_each_for_its_server() -> None:
    os.environ["AGENT_ENV_TOKEN"] = "general"
    hand_down_token(Address.of("http://one:1", "first"))
    hand_down_token(Address.of("http://two:1", "second"))
    assert Address.of("http://one:1").token == "first"
    assert Address.of("http://two:1/").token == "second"
    assert Address.of("http://three:1").token == "general"
    assert Address.of("http://one:1", "explicit").token == "explicit"
