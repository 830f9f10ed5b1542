"""The application: routes, authentication, error handlers.

Mirrors `vllm/entrypoints/openai/api_server.py:157 build_app`. Bodies are read and checked by hand, so
that limits hold and errors have OpenAI's shape; their schemas stand in `/openapi.json` all the same.
"""

from __future__ import annotations

import hashlib
import secrets
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from mini_vllm import __version__
from mini_vllm.async_llm import AsyncLLM
from mini_vllm.engine import EngineDeadError
from mini_vllm.server.body import read_request
from mini_vllm.server.chat import ChatTemplate
from mini_vllm.server.chat_completions import ChatCompletion
from mini_vllm.server.completions import Completion
from mini_vllm.server.errors import ApiError, JsonBytes, as_api_error, short
from mini_vllm.server.metrics import EngineMetrics
from mini_vllm.server.protocol import ChatCompletionRequest, CompletionRequest
from mini_vllm.server.serving import Serving, now
from mini_vllm.server.settings import ServerSettings

_GUARDED_PREFIX = "/v1"


class AuthenticationMiddleware:
    """Asks for `Authorization: Bearer KEY` below `/v1`
    (`vllm/entrypoints/openai/server_utils.py:41 AuthenticationMiddleware`)."""

    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self.app = app
        self._digest = _digest(api_key)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(_GUARDED_PREFIX):
            scheme, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
            # Digests, so that the time to compare says nothing about the key.
            known = secrets.compare_digest(_digest(key.strip()), self._digest)
            if scheme.lower() != "bearer" or not known:
                error = ApiError(
                    401,
                    "this server asks for an API key, in the header 'Authorization: Bearer KEY'",
                    None,
                    {"www-authenticate": "Bearer"},
                )
                await error.response()(scope, receive, send)
                return
        await self.app(scope, receive, send)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "replace")).digest()


def build_app(llm: AsyncLLM, settings: ServerSettings) -> FastAPI:
    """The application over a running engine.

    Args:
        llm: the engine; the caller shuts it down.
        settings: the server's.

    Raises ValueError where the checkpoint's settings or its chat template are not usable.
    """
    metrics = EngineMetrics(llm, settings.model_names[0])
    serving = Serving(llm, settings, metrics)
    template = ChatTemplate.from_folder(settings.model, settings.chat_template)
    app = FastAPI(
        title="mini-vllm", version=__version__, docs_url=None, redoc_url=None,
        redirect_slashes=False,
    )  # fmt: skip
    app.state.llm, app.state.serving, app.state.metrics = llm, serving, metrics
    if settings.api_key is not None:
        app.add_middleware(AuthenticationMiddleware, api_key=settings.api_key)

    async def on_error(_: Request, error: Exception) -> Response:
        serving.failed(error)
        return as_api_error(error).response()

    async def on_http_error(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        headers = dict(error.headers or {})
        return ApiError(error.status_code, str(error.detail), None, headers).response()

    for kind in (ApiError, ValueError, TypeError, OverflowError, EngineDeadError, Exception):
        app.add_exception_handler(kind, on_error)
    app.add_exception_handler(HTTPException, on_http_error)

    @app.post("/v1/completions", **_body(CompletionRequest), response_class=Response)
    async def create_completion(request: Request) -> Response:
        body = await read_request(request, CompletionRequest, settings.max_body_bytes)
        return Completion(serving, body, request.headers.get("x-request-id")).response()

    @app.post("/v1/chat/completions", **_body(ChatCompletionRequest), response_class=Response)
    async def create_chat_completion(request: Request) -> Response:
        body = await read_request(request, ChatCompletionRequest, settings.max_body_bytes)
        header = request.headers.get("x-request-id")
        return ChatCompletion(serving, template, body, header).response()

    created = now()

    def card(name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": created,
            "owned_by": "mini-vllm",
            "root": str(settings.model),
            "parent": None,
            "max_model_len": serving.max_model_len,
        }

    @app.get("/v1/models")
    async def show_available_models() -> Response:
        return JsonBytes({"object": "list", "data": [card(n) for n in settings.model_names]})

    @app.get("/v1/models/{name:path}", responses=_errors(404))
    async def show_model(name: str) -> Response:
        if name not in settings.model_names:
            raise ApiError(404, f"The model {short(name)} does not exist.", "model")
        return JsonBytes(card(name))

    async def health() -> Response:
        try:
            await llm.check_health()
        except EngineDeadError:
            return Response(status_code=503)
        return Response(status_code=200)

    for path in ("/health", "/ping"):
        responses: dict[int | str, dict[str, Any]] = {503: {"description": "The engine died"}}
        app.get(path, response_class=Response, responses=responses)(health)

    @app.get("/version")
    async def show_version() -> Response:
        return JsonBytes({"version": __version__})

    @app.get("/metrics", response_class=Response)
    async def show_metrics() -> Response:
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    _hoist_definitions(app)
    return app


# -- the schema in /openapi.json ------------------------------------------------------------------

_ERROR_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "code": {"type": "integer"},
            },
        }
    },
}


def _errors(*codes: int) -> dict[int | str, dict[str, Any]]:
    content = {"application/json": {"schema": _ERROR_SCHEMA}}
    return {code: {"description": HTTPStatus(code).phrase, "content": content} for code in codes}


def _body(model: type[BaseModel]) -> dict[str, Any]:
    """Arguments for a route whose body is read by hand."""
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    success = {
        "description": "The answer; server-sent events if `stream` is true",
        "content": {
            "application/json": {"schema": {"type": "object"}},
            "text/event-stream": {"schema": {"type": "string"}},
        },
    }
    return {
        "openapi_extra": {
            "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}
        },
        "responses": {200: success} | _errors(400, 401, 404, 413),
    }


def _hoist_definitions(app: FastAPI) -> None:
    """Put the bodies' schemas where `_body` refers to."""
    make = app.openapi

    def openapi() -> dict[str, Any]:
        document = make()
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        for model in (CompletionRequest, ChatCompletionRequest):
            if model.__name__ not in schemas:
                schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
                schemas.update(schema.pop("$defs", {}))
                schemas[model.__name__] = schema
        return document

    app.openapi = openapi  # type: ignore[method-assign]
