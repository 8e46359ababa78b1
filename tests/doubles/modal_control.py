"""The control plane of the double of Modal."""

from __future__ import annotations

import asyncio
from typing import Any

from google.protobuf.empty_pb2 import Empty
from google.protobuf.timestamp_pb2 import Timestamp
from grpclib import GRPCError, Status
from grpclib.server import Stream
from modal_images import BuildFailed
from modal_proto import api_grpc
from modal_proto import api_pb2 as api
from modal_wire import Fault, complete, named, only, streaming, token, unary
from modal_world import Ended, Sandbox, World

PAGE = 10
"""Sandboxes in one answer of a listing: few, so that paging is tried."""


@complete
class Control(api_grpc.ModalClientBase):
    """See :mod:`modal_double`."""

    def __init__(self, world: World) -> None:
        self.world, self.faults = world, world.control

    def admit(self, stream: Stream[Any, Any]) -> None:
        """Refuses a call without the right token."""
        metadata = stream.metadata or {}
        given = (metadata.get("x-modal-token-id"), metadata.get("x-modal-token-secret"))
        if given != self.world.credentials:
            raise GRPCError(Status.UNAUTHENTICATED, "Token ID is malformed or unknown")

    # -- the account

    @unary
    async def ClientHello(self, asked: Empty) -> api.ClientHelloResponse:
        return api.ClientHelloResponse()

    @unary
    async def AuthTokenGet(self, asked: api.AuthTokenGetRequest) -> api.AuthTokenGetResponse:
        return api.AuthTokenGetResponse(token=token())

    @unary
    async def EnvironmentGetOrCreate(
        self, asked: api.EnvironmentGetOrCreateRequest
    ) -> api.EnvironmentGetOrCreateResponse:
        settings = api.EnvironmentSettings(image_builder_version="2025.06")
        name = asked.deployment_name or "main"
        metadata = api.EnvironmentMetadata(name=name, settings=settings)
        return api.EnvironmentGetOrCreateResponse(environment_id=f"en-{name}", metadata=metadata)

    @unary
    async def AppGetOrCreate(self, asked: api.AppGetOrCreateRequest) -> api.AppGetOrCreateResponse:
        key = (asked.environment_name, asked.app_name)
        if key not in self.world.apps:
            if asked.object_creation_type != api.OBJECT_CREATION_TYPE_CREATE_IF_MISSING:
                raise GRPCError(Status.NOT_FOUND, f"there is no app {asked.app_name!r}")
            self.world.apps[key] = f"ap-{len(self.world.apps) + 1}"
        return api.AppGetOrCreateResponse(app_id=self.world.apps[key])

    # -- images

    @unary
    async def MountBatchedCheckExistence(
        self, asked: api.MountBatchedCheckExistenceRequest
    ) -> api.MountBatchedCheckExistenceResponse:
        missing = [each for each in asked.sha256_hex_hashes if each not in self.world.images.files]
        return api.MountBatchedCheckExistenceResponse(missing_sha256_hex_hashes=missing)

    @unary
    async def MountPutFile(self, asked: api.MountPutFileRequest) -> api.MountPutFileResponse:
        only(self.faults, asked, "sha256_hex", "data")
        files = self.world.images.files
        if asked.WhichOneof("data_oneof"):
            files[asked.sha256_hex] = asked.data
        return api.MountPutFileResponse(exists=asked.sha256_hex in files)

    @unary
    async def MountGetOrCreate(self, asked: api.MountGetOrCreateRequest) -> api.MountGetOrCreateResponse:
        mount_id = self.world.images.mount(asked)
        return api.MountGetOrCreateResponse(mount_id=mount_id, handle_metadata=api.MountHandleMetadata())

    @unary
    async def ImageGetOrCreate(self, asked: api.ImageGetOrCreateRequest) -> api.ImageGetOrCreateResponse:
        known = ("base_images", "dockerfile_commands", "context_mount_id", "image_registry_config")
        only(self.faults, asked.image, *known)
        image_id = self.world.images.image(asked.image)
        done = self.world.images.known[image_id].root
        if done is None or not done.done() or done.exception() is not None:
            return api.ImageGetOrCreateResponse(image_id=image_id)
        result = api.GenericResult(status=Ended.GENERIC_STATUS_SUCCESS)
        return api.ImageGetOrCreateResponse(image_id=image_id, result=result, metadata=api.ImageMetadata())

    @streaming
    async def ImageJoinStreaming(self, stream: Stream[Any, Any], fault: Fault) -> None:
        asked = await stream.recv_message()
        result = api.GenericResult(status=Ended.GENERIC_STATUS_SUCCESS)
        try:
            await self.world.images.root(asked.image_id)
        except BuildFailed:
            result = api.GenericResult(status=Ended.GENERIC_STATUS_FAILURE)
        answer = api.ImageJoinStreamingResponse(result=result, eof=True, metadata=api.ImageMetadata())
        await stream.send_message(answer)

    @unary
    async def ImageFromId(self, asked: api.ImageFromIdRequest) -> api.ImageFromIdResponse:
        if asked.image_id not in self.world.images.known:
            raise GRPCError(Status.NOT_FOUND, f"there is no image {asked.image_id}")
        return api.ImageFromIdResponse(image_id=asked.image_id, metadata=api.ImageMetadata())

    @unary
    async def ImageBuildChainGet(self, asked: api.ImageBuildChainGetRequest) -> api.ImageBuildChainGetResponse:
        at, name = Timestamp(), asked.image_id
        at.GetCurrentTime()
        step = api.ImageBuildStep(
            image_id=name, started_at=at, finished_at=at, builder_app_id="ap-b", builder_task_id=name
        )
        return api.ImageBuildChainGetResponse(build_steps=[step])

    @unary
    async def AppFetchLogs(self, asked: api.AppFetchLogsRequest) -> api.AppFetchLogsResponse:
        lines = self.world.images.known[asked.task_id].log
        items = [api.TaskLogs(data=line, file_descriptor=api.FILE_DESCRIPTOR_STDOUT) for line in lines]
        batch = api.TaskLogsBatch(task_id=asked.task_id, items=items)
        return api.AppFetchLogsResponse(batches=[batch])

    # -- sandboxes

    @unary
    async def SandboxCreateV2(
        self, asked: api.SandboxCreateV2Request, stream: Stream[Any, Any]
    ) -> api.SandboxCreateV2Response:
        sandbox = await self._made(asked, stream)
        return api.SandboxCreateV2Response(
            sandbox_id=sandbox.id,
            task_id=sandbox.task_id,
            metadata=sandbox.metadata,
            tunnels=await self._tunnels(sandbox),
            command_router_access=api.CommandRouterAccess(url=self.world.router_url, jwt=token()),
            sandbox_token=f"st-{sandbox.id}",
        )

    async def _made(
        self, asked: api.SandboxCreateV2Request, stream: Stream[Any, Any], *, first: bool = False
    ) -> Sandbox:
        """The sandbox of this request, made once however often it's sent."""
        only(self.faults, asked, "app_id", "definition", "tags", "secret_sources")
        only(
            self.faults, asked.definition, "entrypoint_args", "image_id", "resources", "timeout_secs", "workdir",
            "open_ports", "network_access", "scheduler_placement", "runtime",
        )  # fmt: skip
        key = (stream.metadata or {})["x-idempotency-key"]
        assert isinstance(key, str)
        made = self.world.created.get(key)
        if made is None or (made.done() and made.exception() is not None):
            made = self.world.created[key] = asyncio.create_task(self.world.create(asked, first=first))
        return await asyncio.shield(made)

    async def _tunnels(self, sandbox: Sandbox) -> list[api.TunnelData]:
        for port in (each.port for each in sandbox.asked.open_ports.ports if not sandbox.tunnels):
            host = await sandbox.box.forward(port)
            sandbox.tunnels.append(api.TunnelData(container_port=port, host="127.0.0.1", port=host))
        return sandbox.tunnels

    @unary
    async def SandboxGetTunnelsV2(self, asked: api.SandboxGetTunnelsRequest) -> api.SandboxGetTunnelsResponse:
        result = api.GenericResult(status=Ended.GENERIC_STATUS_SUCCESS)
        tunnels = await self._tunnels(self.world.find(asked.sandbox_id))
        return api.SandboxGetTunnelsResponse(result=result, tunnels=tunnels)

    @unary
    async def SandboxCreateConnectTokenV2(
        self, asked: api.SandboxCreateConnectTokenRequest
    ) -> api.SandboxCreateConnectTokenResponse:
        sandbox = self.world.find(asked.sandbox_id)
        secret = f"ct-{sandbox.id}".lower()
        port = asked.port or 8080
        if port not in sandbox.connect_ports:
            head = f"authorization: bearer {secret}".encode()
            sandbox.connect_ports[port] = await sandbox.box.forward(port, head=head)
        url = f"http://127.0.0.1:{sandbox.connect_ports[port]}"
        return api.SandboxCreateConnectTokenResponse(url=url, token=secret)

    @unary
    async def SandboxWaitV2(self, asked: api.SandboxWaitRequest) -> api.SandboxWaitResponse:
        sandbox = self.world.find(asked.sandbox_id)
        try:
            async with asyncio.timeout(asked.timeout):
                await sandbox.over.wait()
        except TimeoutError:
            pass
        return api.SandboxWaitResponse(metadata=sandbox.metadata, result=sandbox.result)

    @unary
    async def SandboxTerminateV2(self, asked: api.SandboxTerminateRequest) -> api.SandboxTerminateResponse:
        sandbox = self.world.find(asked.sandbox_id)
        before = sandbox.result
        await sandbox.finish(Ended.GENERIC_STATUS_TERMINATED)
        return api.SandboxTerminateResponse(existing_result=before)

    @unary
    async def SandboxGetTaskIdV2(self, asked: api.SandboxGetTaskIdRequest) -> api.SandboxGetTaskIdResponse:
        sandbox = self.world.find(asked.sandbox_id)
        if sandbox.result is not None:
            return api.SandboxGetTaskIdResponse(task_result=sandbox.result)
        return api.SandboxGetTaskIdResponse(task_id=sandbox.task_id)

    @unary
    async def SandboxGetCommandRouterAccess(
        self, asked: api.SandboxGetCommandRouterAccessRequest
    ) -> api.SandboxGetCommandRouterAccessResponse:
        if self.world.find(asked.sandbox_id or asked.task_id).result is not None:
            raise GRPCError(Status.FAILED_PRECONDITION, "the sandbox has finished")
        return api.SandboxGetCommandRouterAccessResponse(url=self.world.router_url, jwt=token())

    @unary
    async def SandboxTagsGetV2(self, asked: api.SandboxTagsGetRequest) -> api.SandboxTagsGetResponse:
        return api.SandboxTagsGetResponse(tags=_tags(self.world.find(asked.sandbox_id)))

    @unary
    async def SandboxListV2(self, asked: api.SandboxListRequest) -> api.SandboxListResponse:
        found = self.world.running({each.tag_name: each.tag_value for each in asked.tags})
        page = [
            each
            for each in found
            if each.app_id == asked.app_id and not 0 < asked.before_timestamp <= each.created
        ][:PAGE]  # fmt: skip
        infos = [
            api.SandboxInfo(
                id=each.id, created_at=each.created, tags=_tags(each), metadata=each.metadata, app_id=each.app_id
            )
            for each in page
        ]
        return api.SandboxListResponse(sandboxes=infos)

    # -- sandboxes of the first backend, which the SDK takes for those with a GPU

    @unary
    async def SecretGetOrCreate(self, asked: api.SecretGetOrCreateRequest) -> api.SecretGetOrCreateResponse:
        if asked.deployment_name:
            if asked.deployment_name not in self.world.secrets:
                raise GRPCError(Status.NOT_FOUND, f"there is no secret {asked.deployment_name!r}")
            keys = self.world.secrets[asked.deployment_name]
            metadata = api.SecretMetadata(name=asked.deployment_name, keys=keys)
            return api.SecretGetOrCreateResponse(secret_id=f"st-{asked.deployment_name}", metadata=metadata)
        secret_id = f"st-{len(self.world.secrets)}"
        self.world.secrets[secret_id] = dict(asked.env_dict)
        return api.SecretGetOrCreateResponse(secret_id=secret_id)

    @unary
    async def SandboxCreate(
        self, asked: api.SandboxCreateRequest, stream: Stream[Any, Any]
    ) -> api.SandboxCreateResponse:
        env = {name: value for key in asked.definition.secret_ids for name, value in self.world.secrets[key].items()}
        sources = [api.SecretSource(env=api.StringMap(contents=env))]
        del asked.definition.secret_ids[:]
        whole = api.SandboxCreateV2Request(
            app_id=asked.app_id, definition=asked.definition, tags=asked.tags, secret_sources=sources
        )
        sandbox = await self._made(whole, stream, first=True)
        return api.SandboxCreateResponse(sandbox_id=sandbox.id, metadata=sandbox.metadata)

    @unary
    async def TaskGetCommandRouterAccess(
        self, asked: api.TaskGetCommandRouterAccessRequest
    ) -> api.TaskGetCommandRouterAccessResponse:
        self.world.find(asked.task_id)
        return api.TaskGetCommandRouterAccessResponse(url=self.world.router_url, jwt=token())

    SandboxWait = named("SandboxWait", SandboxWaitV2)
    SandboxTerminate = named("SandboxTerminate", SandboxTerminateV2)
    SandboxGetTaskId = named("SandboxGetTaskId", SandboxGetTaskIdV2)
    SandboxTagsGet = named("SandboxTagsGet", SandboxTagsGetV2)
    SandboxGetTunnels = named("SandboxGetTunnels", SandboxGetTunnelsV2)
    SandboxCreateConnectToken = named("SandboxCreateConnectToken", SandboxCreateConnectTokenV2)


def _tags(sandbox: Sandbox) -> list[api.SandboxTag]:
    return [api.SandboxTag(tag_name=name, tag_value=value) for name, value in sandbox.tags.items()]
