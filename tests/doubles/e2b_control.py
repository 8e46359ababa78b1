"""E2B's REST API, as far as the SDK is used here. Bodies are read and written with the SDK's own models."""

from __future__ import annotations

import asyncio
import datetime as dt
import uuid
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qsl

from e2b.api.client import models
from e2b.api.client.types import UNSET
from e2b_world import ENVD, Sandbox, Template, World
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route


def refused(status: int, message: str, **headers: str) -> Response:
    """An answer as E2B's API says no."""
    return JSONResponse({"code": status, "message": message}, status, headers=headers)


async def body_of(request: Request, model: Any) -> dict[str, Any]:
    """A request's body, which must be what the SDK's model describes and no more."""
    raw = await request.json()
    read = model.from_dict(raw)
    stray = getattr(read, "additional_properties", {})
    if stray:
        raise AssertionError(f"{request.url.path}: {model.__name__} has no {sorted(stray)}")
    return raw


def created(sandbox: Sandbox) -> dict[str, Any]:
    """The answer to a create or a connect."""
    return models.Sandbox(
        template_id=sandbox.template.id,
        sandbox_id=sandbox.id,
        client_id="c1",
        envd_version=ENVD,
        envd_access_token=sandbox.token,
        traffic_access_token=UNSET if sandbox.open_ports else sandbox.traffic,
        domain=None,
    ).to_dict()


def described(sandbox: Sandbox, model: Any = models.ListedSandbox, **more: Any) -> dict[str, Any]:
    """A sandbox as list and get tell of it."""
    return model(
        template_id=sandbox.template.id, sandbox_id=sandbox.id, client_id="c1", started_at=sandbox.started,
        end_at=sandbox.ends, cpu_count=sandbox.template.cpu, memory_mb=sandbox.template.memory, disk_size_mb=1024,
        state=models.SandboxState(sandbox.state), envd_version=ENVD, metadata=sandbox.metadata, **more,
    ).to_dict()  # fmt: skip


class Control:
    """The routes."""

    def __init__(self, world: World) -> None:
        self.world = world
        routes: list[tuple[str, str, Callable[[Request], Awaitable[Response]]]] = [
            ("POST", "/v2/sandboxes", self.create),
            ("GET", "/v2/sandboxes", self.list),
            ("GET", "/sandboxes/{id}", self.get),
            ("DELETE", "/sandboxes/{id}", self.delete),
            ("POST", "/sandboxes/{id}/timeout", self.timeout),
            ("POST", "/sandboxes/{id}/pause", self.pause),
            ("POST", "/v2/sandboxes/{id}/connect", self.connect),
            ("POST", "/v3/templates", self.template),
            ("GET", "/templates/{t}/files/{hash}", self.link),
            ("PUT", "/upload/{hash}", self.upload),
            ("POST", "/v2/templates/{t}/builds/{b}", self.build),
            ("GET", "/templates/{t}/builds/{b}/status", self.status),
            ("GET", "/templates/aliases/{name}", self.alias),
            ("POST", "/templates/tags", self.tag),
            ("GET", "/templates/{name}/tags", self.tags),
        ]
        self.app = Starlette(routes=[Route(path, work, methods=[method]) for method, path, work in routes])

    # -- sandboxes

    async def create(self, request: Request) -> Response:
        asked = await body_of(request, models.NewSandboxV2)
        self.world.bodies.append(asked)
        template = self.world.find(asked["templateID"])
        if template is None or template.root is None:
            return refused(404, f"template '{asked['templateID']}' not found")
        if asked.get("timeout", 300) > self.world.longest:
            return refused(400, f"timeout cannot be greater than {self.world.longest / 3600:g} hours")
        if (no := self.world.refusal()) is not None:
            return refused(*no)
        # It goes on where its caller hangs up, as the real one does.
        return JSONResponse(created(await asyncio.shield(self.world.create(asked, template))), 201)

    async def list(self, request: Request) -> Response:
        query = request.query_params
        wanted = dict(parse_qsl(query.get("metadata", ""), keep_blank_values=True))
        states = query["state"].split(",") if "state" in query else ["running", "paused"]
        rows = [
            sandbox
            for sandbox in self.world.sandboxes.values()
            if wanted.items() <= sandbox.metadata.items() and sandbox.state in states
        ]
        begin, size = int(query.get("nextToken") or 0), int(query.get("limit") or 100)
        more = {"x-next-token": str(begin + size)} if len(rows) > begin + size else {}
        return JSONResponse([described(row) for row in rows[begin : begin + size]], headers=more)

    def _sandbox(self, request: Request) -> Sandbox | None:
        return self.world.sandboxes.get(request.path_params["id"])

    async def get(self, request: Request) -> Response:
        if (sandbox := self._sandbox(request)) is None:
            return refused(404, "sandbox not found")
        more = {"envd_access_token": sandbox.token, "domain": None}
        return JSONResponse(described(sandbox, models.SandboxDetail, **more))

    async def delete(self, request: Request) -> Response:
        if (sandbox := self._sandbox(request)) is None:
            return refused(404, "sandbox not found")
        await asyncio.shield(self.world.end(sandbox))
        return Response(status_code=204)

    async def timeout(self, request: Request) -> Response:
        asked = await body_of(request, models.SandboxTimeoutRequest)
        if (sandbox := self._sandbox(request)) is None:
            return refused(404, "sandbox not found")
        ends = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=asked["timeout"])
        if (ends - sandbox.started).total_seconds() > self.world.longest + 1:
            return refused(400, f"a sandbox can't live longer than {self.world.longest / 3600:g} hours")
        sandbox.ends = ends
        return Response(status_code=204)

    async def pause(self, request: Request) -> Response:
        if (sandbox := self._sandbox(request)) is None:
            return refused(404, "sandbox not found")
        sandbox.state = "paused"
        return Response(status_code=204)

    async def connect(self, request: Request) -> Response:
        asked = await body_of(request, models.ConnectSandboxV2)
        if (sandbox := self._sandbox(request)) is None:
            return refused(404, "sandbox not found")
        resumed, sandbox.state = sandbox.state == "paused", "running"
        ends = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=asked["timeout"])
        sandbox.ends = ends if resumed else max(sandbox.ends, ends)
        return JSONResponse(created(sandbox), 201 if resumed else 200)

    # -- templates

    async def template(self, request: Request) -> Response:
        asked = await body_of(request, models.TemplateBuildRequestV3)
        made = self.world.request(asked["name"], asked.get("cpuCount", 2), asked.get("memoryMB", 1024))
        answer = models.TemplateRequestResponseV3(
            template_id=made.id, build_id=made.build, public=False, names=[made.name], tags=["default"], aliases=[]
        )
        return JSONResponse(answer.to_dict(), 202)

    async def link(self, request: Request) -> Response:
        key = request.path_params["hash"]
        answer = models.TemplateBuildFileUpload(present=key in self.world.files, url=f"{request.base_url}upload/{key}")
        return JSONResponse(answer.to_dict(), 201)

    async def upload(self, request: Request) -> Response:
        self.world.files[request.path_params["hash"]] = await request.body()
        return Response()

    def _template(self, request: Request) -> Template | None:
        return self.world.find(request.path_params["t"])

    async def build(self, request: Request) -> Response:
        asked = await body_of(request, models.TemplateBuildStartV2)
        template = self._template(request)
        if template is None or template.build != request.path_params["b"]:
            return refused(404, "build not found")
        self.world.start_build(template, asked)
        return Response(status_code=202)

    async def status(self, request: Request) -> Response:
        template = self._template(request)
        if template is None:
            return refused(404, "template not found")
        if template.build != request.path_params["b"]:
            status, why, log = "error", "build was cancelled", []
        else:
            status, why = template.status, template.why
            log = template.log[int(request.query_params.get("logsOffset") or 0) :][:100]
        info = models.TemplateBuildInfo(
            logs=[],
            log_entries=[
                models.BuildLogEntry(timestamp=moment, message=line, level=models.LogLevel("info"))
                for moment, line in log
            ],
            template_id=template.id,
            build_id=request.path_params["b"],
            status=models.TemplateBuildStatus(status),
            reason=models.BuildStatusReason(message=why) if status == "error" else UNSET,
        )
        return JSONResponse(info.to_dict())

    async def alias(self, request: Request) -> Response:
        if (template := self.world.find(request.path_params["name"])) is None:
            return refused(404, "template not found")
        return JSONResponse(models.TemplateAliasResponse(template_id=template.id, public=False).to_dict())

    async def tag(self, request: Request) -> Response:
        asked = await body_of(request, models.AssignTemplateTagsRequest)
        template = self.world.find(asked["target"])
        if template is None or "default" not in template.tags:
            return refused(404, "tag 'default' does not exist")
        template.tags |= dict.fromkeys(asked["tags"], template.build)
        answer = models.AssignedTemplateTags(tags=asked["tags"], build_id=uuid.UUID(template.build))
        return JSONResponse(answer.to_dict(), 201)

    async def tags(self, request: Request) -> Response:
        if (template := self.world.find(request.path_params["name"])) is None:
            return refused(404, "template not found")
        moment = dt.datetime.now(dt.UTC)
        rows = [models.TemplateTag(tag, uuid.UUID(build), moment) for tag, build in template.tags.items()]
        return JSONResponse([row.to_dict() for row in rows])
