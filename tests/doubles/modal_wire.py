"""What both services of the double of Modal share: how a call is answered, recorded, and made to fail."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message
from grpclib import GRPCError, Status
from grpclib.server import Stream
from modal_proto import api_pb2 as api

EVERY = "*"


@dataclass(frozen=True)
class Fault:
    """What happens to a call.

    Attributes:
        status: What it is answered with.
        message: The words of the answer.
        retry_after: Seconds the answer says to wait.
        after: It does its work first, and only its answer is lost.
        delay: Seconds it takes longer; with ``status`` OK that is all.
        until: It is answered once this is set.
        cut: Bytes of a stream after which it breaks off.
    """

    status: Status = Status.OK
    message: str = "injected"
    retry_after: float | None = None
    after: bool = False
    delay: float = 0.0
    until: threading.Event | None = None
    cut: int | None = None

    async def hold_up(self) -> None:
        """Lets pass what comes before the answer."""
        await asyncio.sleep(self.delay)
        if self.until is not None:
            await asyncio.to_thread(self.until.wait)

    def strike(self) -> None:
        """Raises what the fault is."""
        if self.status is not Status.OK:
            said = None if self.retry_after is None else [api.RPCRetryPolicy(retry_after_secs=self.retry_after)]
            raise GRPCError(self.status, self.message, said)


class Faults:
    """The faults of one service, and a record of its calls.

    Attributes:
        calls: How often each method was called.
        unknown: Methods, and fields of messages, that the double doesn't have: a test that met one has failed.
        always: A fault of every call of a method, or of all of them under ``EVERY``.
    """

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.unknown: list[str] = []
        self.always: dict[str, Fault] = {}
        self._next: dict[str, deque[Fault]] = {}

    def add(self, method: str, *faults: Fault) -> None:
        """Makes the next calls of ``method`` go wrong, one after another."""
        self._next.setdefault(method, deque()).extend(faults)

    def take(self, method: str) -> Fault:
        """Counts a call and says what happens to it."""
        self.calls[method] += 1
        if waiting := self._next.get(method):
            return waiting.popleft()
        return self.always.get(method) or self.always.get(EVERY) or Fault()


Handler = Callable[[Any, Any], Awaitable[Message]]


def unary(work: Handler, name: str = "") -> Any:
    """A method of one request and one answer."""

    async def method(service: Any, stream: Stream[Any, Any]) -> None:
        asked = await stream.recv_message()
        fault: Fault = service.faults.take(name or work.__name__)
        await fault.hold_up()
        if not fault.after:
            fault.strike()
        service.admit(stream)
        answer = await work(service, asked) if not _wants_stream(work) else await work(service, asked, stream)  # type: ignore[call-arg]
        fault.strike()
        await stream.send_message(answer)

    method.__name__ = name or work.__name__
    method.work = work  # type: ignore[attr-defined]
    return method


def named(name: str, method: Any) -> Any:
    """The same method under another name, which is counted and can fail by itself."""
    return unary(method.work, name)


def _wants_stream(work: Handler) -> bool:
    return work.__code__.co_argcount == 3  # type: ignore[attr-defined]


def streaming(work: Any) -> Any:
    """A method that reads or writes several messages."""

    async def method(service: Any, stream: Stream[Any, Any]) -> None:
        fault: Fault = service.faults.take(work.__name__)
        await fault.hold_up()
        if not fault.after and fault.cut is None:
            fault.strike()
        service.admit(stream)
        await work(service, stream, fault)
        fault.strike()

    method.__name__ = work.__name__
    return method


def complete(service: type) -> Any:
    """Lets a service be made that has only some of the published methods; calling another one is remembered."""
    for name in service.__abstractmethods__:  # type: ignore[attr-defined]

        async def unknown(self: Any, stream: Stream[Any, Any], name: str = name) -> None:
            self.faults.unknown.append(name)
            raise GRPCError(Status.UNIMPLEMENTED, f"the double has no {name}")

        setattr(service, name, unknown)
    service.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]
    return service


def only(faults: Faults, message: Message, *fields: str) -> None:
    """Refuses a message in which anything but ``fields`` is set, since the double would ignore it."""
    for field, value in message.ListFields():
        empty = isinstance(value, Message) and not value.ByteSize()
        if field.name not in fields and not empty:
            faults.unknown.append(f"{message.DESCRIPTOR.name}.{field.name}")
            raise GRPCError(Status.UNIMPLEMENTED, f"the double has no {message.DESCRIPTOR.name}.{field.name}")


def token() -> str:
    """A token in the form that the SDK takes an expiry from."""

    def part(value: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    return f"{part({'alg': 'none'})}.{part({'exp': time.time() + 3600})}.x"
