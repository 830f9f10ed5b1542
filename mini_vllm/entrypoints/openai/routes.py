"""The endpoints: from a path to what answers it.

Mirrors the routers of `vllm/entrypoints/openai/`. Bodies are read and checked by hand, so that limits
hold and errors have OpenAI's shape; their schemas stand in `/openapi.json` all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, Request
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, choose_encoder, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from pydantic import BaseModel
from starlette.responses import Response

from mini_vllm.engine.core import EngineDeadError
from mini_vllm.entrypoints.openai.chat import ChatTemplate
from mini_vllm.entrypoints.openai.chat_completions import ChatCompletion
from mini_vllm.entrypoints.openai.completions import Completion
from mini_vllm.entrypoints.openai.errors import ApiError, JsonBytes
from mini_vllm.entrypoints.openai.models import (
    LoadLoRAAdapterRequest,
    ModelCard,
    UnloadLoRAAdapterRequest,
    allows_runtime_updating,
)
from mini_vllm.entrypoints.openai.protocol import ChatCompletionRequest, CompletionRequest
from mini_vllm.entrypoints.openai.serving import Serving, now
from mini_vllm.version import __version__


def generation_router(serving: Serving) -> APIRouter:
    """`/v1/completions` and `/v1/chat/completions`. Raises ValueError for a bad chat template."""
    router = APIRouter()
    settings = serving.settings
    template = ChatTemplate.from_folder(settings.model, settings.chat_template)

    @router.post("/v1/completions", **json_body(CompletionRequest), response_class=Response)
    async def create_completion(request: Request) -> Response:
        def make(body: CompletionRequest) -> Completion:
            return Completion(serving, body, request.headers.get("x-request-id")).prepare()

        answer = await serving.bodies.prepare(request, CompletionRequest, make)
        return answer.response()

    @router.post(
        "/v1/chat/completions", **json_body(ChatCompletionRequest), response_class=Response
    )
    async def create_chat_completion(request: Request) -> Response:
        def make(body: ChatCompletionRequest) -> ChatCompletion:
            header_id = request.headers.get("x-request-id")
            return ChatCompletion(serving, template, body, header_id).prepare()

        answer = await serving.bodies.prepare(request, ChatCompletionRequest, make)
        return answer.response()

    return router


def models_router(serving: Serving) -> APIRouter:
    """`/v1/models`, and one of them."""
    router = APIRouter()
    models = serving.models
    created = now()
    permission = {
        "object": "model_permission", "created": created, "allow_create_engine": False,
        "allow_sampling": True, "allow_logprobs": True, "allow_search_indices": False,
        "allow_view": True, "allow_fine_tuning": False, "organization": "*", "group": None,
        "is_blocking": False,
    }  # fmt: skip

    def show(card: ModelCard) -> dict[str, Any]:
        return {
            "id": card.id,
            "object": "model",
            "created": created,
            "owned_by": "mini-vllm",
            "root": card.root,
            "parent": card.parent,
            "max_model_len": card.max_model_len,
            "permission": [{"id": f"modelperm-{serving.random_id()}", **permission}],
        }

    @router.get("/v1/models")
    async def show_available_models() -> Response:
        return JsonBytes({"object": "list", "data": [show(card) for card in models.cards()]})

    @router.get("/v1/models/{name:path}", responses=error_responses(404))
    async def show_model(name: str) -> Response:
        models.check(name)
        return JsonBytes(show(next(card for card in models.cards() if card.id == name)))

    return router


def lora_router(serving: Serving) -> APIRouter:
    """`/v1/load_lora_adapter` and `/v1/unload_lora_adapter`. Where the server is not told to allow that, they
    are refused, and stand in no schema (`vllm/entrypoints/serve/lora/api_router.py:26 attach_router`)."""
    router = APIRouter()
    models, allowed = serving.models, allows_runtime_updating()

    def check() -> None:
        if not allowed:
            raise ApiError(
                404,
                "adapters are loaded and unloaded at run time only by a server that was started with "
                "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1",
            )

    @router.post(
        "/v1/load_lora_adapter",
        **json_body(LoadLoRAAdapterRequest),
        response_class=Response,
        include_in_schema=allowed,
    )
    async def load_lora_adapter(request: Request) -> Response:
        check()
        body = await serving.bodies.prepare(request, LoadLoRAAdapterRequest, lambda body: body)
        return Response(await models.load_lora_adapter(body))

    @router.post(
        "/v1/unload_lora_adapter",
        **json_body(UnloadLoRAAdapterRequest),
        response_class=Response,
        include_in_schema=allowed,
    )
    async def unload_lora_adapter(request: Request) -> Response:
        check()
        body = await serving.bodies.prepare(request, UnloadLoRAAdapterRequest, lambda body: body)
        return Response(await models.unload_lora_adapter(body))

    return router


def status_router(serving: Serving) -> APIRouter:
    """`/health`, `/ping`, `/version`, `/metrics`: for watching over the server."""
    router = APIRouter()
    llm, settings = serving.llm, serving.settings

    async def health() -> Response:
        try:
            await llm.check_health()
        except EngineDeadError as error:
            return ApiError(503, str(error)).response()
        if serving.step_hangs():
            return ApiError(
                503,
                f"a step has run for {llm.step_seconds:.0f} seconds, longer than "
                f"step_timeout={settings.step_timeout:g}",
            ).response()
        return Response(status_code=200)

    for path in ("/health", "/ping"):
        router.get(path, response_class=Response, responses=error_responses(503))(health)
    router.post("/ping", response_class=Response, responses=error_responses(503))(health)

    @router.get("/version")
    async def show_version() -> Response:
        return JsonBytes({"version": __version__})

    @router.get("/metrics", response_class=Response)
    async def show_metrics(request: Request) -> Response:
        encode, media_type = _find_encoder(request.headers.get("accept", ""))
        # `media_type` would get a second charset.
        headers = {"content-type": media_type}
        return Response(encode(serving.metrics.registry), headers=headers)

    return router


def _find_encoder(accept: str) -> tuple[Callable[[CollectorRegistry], bytes], str]:
    """Prometheus' text format, or OpenMetrics for a scraper that asks for it, as Prometheus itself does. At
    the pin `/metrics` is always the first, and `/metrics/` as asked."""
    if "application/openmetrics-text" in accept:
        try:
            _, media_type = choose_encoder(accept)
        except (ValueError, TypeError):
            media_type = ""  # the version that is asked for is none
        if media_type.startswith("application/openmetrics-text"):
            # Unescaped, whatever is asked for: every name here is one of old. For scrapers that do not know
            # of newer ones, prometheus-client 0.26 turns the colon of `vllm:` into an underscore.
            encode = partial(openmetrics.generate_latest, escaping=openmetrics.ALLOWUTF8)
            return encode, openmetrics.CONTENT_TYPE_LATEST
    return generate_latest, CONTENT_TYPE_LATEST


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


def error_responses(*codes: int) -> dict[int | str, dict[str, Any]]:
    content = {"application/json": {"schema": _ERROR_SCHEMA}}
    return {code: {"description": HTTPStatus(code).phrase, "content": content} for code in codes}


def json_body(model: type[BaseModel]) -> dict[str, Any]:
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
        "responses": {200: success} | error_responses(400, 401, 404, 413),
    }
