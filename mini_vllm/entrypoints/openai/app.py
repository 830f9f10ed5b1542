"""The application: routers, authentication, error handlers.

Mirrors `vllm/entrypoints/openai/api_server.py:157 build_app`. To add endpoints, write a function from
`Serving` to a router, as in `routes.py`, and list it in `ROUTERS`; a model of a body goes into `BODIES`.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from prometheus_fastapi_instrumentator import Instrumentator
from pydantic import BaseModel
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from mini_vllm.engine.async_llm import AsyncLLM
from mini_vllm.engine.core import EngineDeadError
from mini_vllm.entrypoints.openai.errors import ApiError, as_api_error
from mini_vllm.entrypoints.openai.extras import cache_router, render_router, tokenize_router
from mini_vllm.entrypoints.openai.metrics import EngineMetrics
from mini_vllm.entrypoints.openai.models import LoadLoRAAdapterRequest, UnloadLoRAAdapterRequest
from mini_vllm.entrypoints.openai.protocol import ChatCompletionRequest, CompletionRequest
from mini_vllm.entrypoints.openai.routes import (
    generation_router,
    lora_router,
    models_router,
    status_router,
)
from mini_vllm.entrypoints.openai.serving import Serving
from mini_vllm.entrypoints.openai.settings import ServerSettings
from mini_vllm.entrypoints.openai.tokenize import DetokenizeRequest, TokenizeRequest
from mini_vllm.utils.surface import find_endpoint
from mini_vllm.version import __version__

ROUTERS: tuple[Callable[[Serving], APIRouter], ...] = (
    generation_router,
    models_router,
    lora_router,
    status_router,
    tokenize_router,
    render_router,
    cache_router,
)
BODIES: tuple[type[BaseModel], ...] = (
    CompletionRequest,
    ChatCompletionRequest,
    TokenizeRequest,
    DetokenizeRequest,
    LoadLoRAAdapterRequest,
    UnloadLoRAAdapterRequest,
)
NOT_COUNTED = ["/metrics", "/health", "/load", "/ping", "/version", "/server_info"]
"""Paths that the HTTP metrics leave out
(`vllm/entrypoints/serve/instrumentator/metrics.py:19 attach_router`)."""
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
    app = FastAPI(
        title="mini-vllm", version=__version__, docs_url=None, redoc_url=None,
        redirect_slashes=False,
    )  # fmt: skip
    app.state.llm, app.state.serving, app.state.metrics = llm, serving, metrics
    # The one that is added last is outermost. As upstream, a request without its key is not counted.
    instrumentator = Instrumentator(excluded_handlers=NOT_COUNTED, registry=metrics.registry)
    instrumentator.add().instrument(app)
    if settings.api_key is not None:
        app.add_middleware(AuthenticationMiddleware, api_key=settings.api_key)
    if settings.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.allowed_origins,
            allow_credentials=settings.allow_credentials,
            allow_methods=settings.allowed_methods,
            allow_headers=settings.allowed_headers,
        )

    async def on_error(_: Request, error: Exception) -> Response:
        serving.failed(error)
        return as_api_error(error).response()

    async def on_http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        message = str(error.detail)
        if error.status_code == 404:
            message = find_endpoint(request.url.path) or message
        headers = dict(error.headers or {})
        return ApiError(error.status_code, message, None, headers).response()

    for kind in (ApiError, ValueError, TypeError, OverflowError, EngineDeadError, Exception):
        app.add_exception_handler(kind, on_error)
    app.add_exception_handler(HTTPException, on_http_error)

    for make_router in ROUTERS:
        app.include_router(make_router(serving))
    _hoist_definitions(app)
    return app


def _hoist_definitions(app: FastAPI) -> None:
    """Put the bodies' schemas where `routes.json_body` refers to."""
    make = app.openapi

    def openapi() -> dict[str, Any]:
        document = make()
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        for model in BODIES:
            if model.__name__ not in schemas:
                schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
                schemas.update(schema.pop("$defs", {}))
                schemas[model.__name__] = schema
        return document

    app.openapi = openapi  # type: ignore[method-assign]
