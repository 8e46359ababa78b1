"""The command router of the double of Modal: commands and files of a sandbox."""

from __future__ import annotations

import asyncio
from typing import Any

from grpclib import GRPCError, Status
from grpclib.server import Stream
from modal_proto import task_command_router_grpc as router_grpc
from modal_proto import task_command_router_pb2 as router
from modal_wire import Fault, complete, only, streaming, unary
from modal_world import Running, World


@complete
class Router(router_grpc.TaskCommandRouterBase):
    """See :mod:`modal_double`."""

    def __init__(self, world: World) -> None:
        self.world, self.faults = world, world.router

    def admit(self, stream: Stream[Any, Any]) -> None:
        """Refuses a call without a token."""
        given = (stream.metadata or {}).get("authorization")
        if not isinstance(given, str) or not given.startswith("Bearer "):
            raise GRPCError(Status.UNAUTHENTICATED, "a token is needed")

    def _running(self, task_id: str, exec_id: str) -> Running:
        sandbox = self.world.find(task_id)
        if sandbox.result is not None:
            raise GRPCError(Status.NOT_FOUND, "the task has ended")
        if exec_id not in sandbox.execs:
            raise GRPCError(Status.NOT_FOUND, f"there is no command {exec_id}")
        return sandbox.execs[exec_id]

    @unary
    async def TaskExecStart(self, asked: router.TaskExecStartRequest) -> router.TaskExecStartResponse:
        only(
            self.faults, asked, "task_id", "exec_id", "command_args", "timeout_secs", "workdir", "secret_sources",
            "stdout_config", "stderr_config",
        )  # fmt: skip
        sandbox = self.world.find(asked.task_id)
        if sandbox.result is not None:
            raise GRPCError(Status.NOT_FOUND, "the task has ended")
        if asked.exec_id not in sandbox.execs:
            env = {name: value for source in asked.secret_sources for name, value in source.env.contents.items()}
            argv = list(asked.command_args)
            sandbox.execs[asked.exec_id] = await self.world.exec(sandbox, argv, env, asked.workdir)
        return router.TaskExecStartResponse()

    @streaming
    async def TaskExecStdioRead(self, stream: Stream[Any, Any], fault: Fault) -> None:
        asked = await stream.recv_message()
        running = self._running(asked.task_id, asked.exec_id)
        fd = 1 if asked.file_descriptor == router.TASK_EXEC_STDIO_FILE_DESCRIPTOR_STDOUT else 2
        offset, room = asked.offset, fault.cut
        while data := await running.read(fd, offset):
            data = data if room is None else data[:room]
            await stream.send_message(router.TaskExecStdioReadResponse(data=data))
            offset += len(data)
            if room is not None and (room := room - len(data)) == 0:
                return

    @unary
    async def TaskExecWait(self, asked: router.TaskExecWaitRequest) -> router.TaskExecWaitResponse:
        code = await asyncio.shield(self._running(asked.task_id, asked.exec_id).code)
        return router.TaskExecWaitResponse(signal=-code) if code < 0 else router.TaskExecWaitResponse(code=code)

    @unary
    async def TaskExecPoll(self, asked: router.TaskExecPollRequest) -> router.TaskExecPollResponse:
        running = self._running(asked.task_id, asked.exec_id)
        if not running.code.done():
            return router.TaskExecPollResponse()
        code = running.code.result()
        return router.TaskExecPollResponse(signal=-code) if code < 0 else router.TaskExecPollResponse(code=code)

    @unary
    async def TaskExecStdinWrite(self, asked: router.TaskExecStdinWriteRequest) -> router.TaskExecStdinWriteResponse:
        running = self._running(asked.task_id, asked.exec_id)
        await running.feed(asked.offset, asked.data, eof=asked.eof)
        return router.TaskExecStdinWriteResponse()

    @streaming
    async def TaskExecStdinWriteStream(self, stream: Stream[Any, Any], fault: Fault) -> None:
        start = (await stream.recv_message()).start
        running, offset = self._running(start.task_id, start.exec_id), start.offset
        async for message in stream:
            if message.WhichOneof("payload") == "end":
                await running.feed(offset, b"", eof=True)
                break
            await running.feed(offset, message.data, eof=False)
            offset += len(message.data)
            if fault.cut is not None and offset >= fault.cut:
                return
        await stream.send_message(router.TaskExecStdinWriteStreamResponse())

    @unary
    async def TaskExecStdinStatus(self, asked: router.TaskExecStdinStatusRequest) -> router.TaskExecStdinStatusResponse:
        running = self._running(asked.task_id, asked.exec_id)
        return router.TaskExecStdinStatusResponse(num_bytes_written=running.taken, closed=running.closed)
