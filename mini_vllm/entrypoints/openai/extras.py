"""The endpoints beside completions, chat and models: tokenize, detokenize, render, the prefix cache.

Mirrors the routers of `vllm/entrypoints/serve/` (`tokenize/`, `render/`, `cache/`). As upstream,
`/reset_prefix_cache` is there only with `VLLM_SERVER_DEV_MODE=1`, and what does not begin with `/v1` asks
for no key.
"""

from __future__ import annotations

import os

from fastapi import APIRouter, Request
from starlette.responses import Response

from mini_vllm.entrypoints.openai.beams import refuse_beams
from mini_vllm.entrypoints.openai.chat import ChatTemplate
from mini_vllm.entrypoints.openai.chat_completions import ChatCompletion
from mini_vllm.entrypoints.openai.completions import Completion
from mini_vllm.entrypoints.openai.errors import JsonBytes, bad_request
from mini_vllm.entrypoints.openai.protocol import ChatCompletionRequest, CompletionRequest
from mini_vllm.entrypoints.openai.render import rendered
from mini_vllm.entrypoints.openai.routes import error_responses, json_body
from mini_vllm.entrypoints.openai.serving import Serving
from mini_vllm.entrypoints.openai.tokenize import (
    DetokenizeRequest,
    TokenizeRequest,
    create_detokenize,
    create_tokenize,
)
from mini_vllm.utils.untrusted import shorten_repr

_TRUE, _FALSE = {"true", "1", "yes", "on", "t", "y"}, {"false", "0", "no", "off", "f", "n"}


def tokenize_router(serving: Serving) -> APIRouter:
    """`/tokenize` and `/detokenize`."""
    router = APIRouter()
    settings = serving.settings
    template = ChatTemplate.from_folder(settings.model, settings.chat_template)

    @router.post("/tokenize", **json_body(TokenizeRequest), response_class=Response)
    async def tokenize(request: Request) -> Response:
        def make(body: TokenizeRequest) -> Response:
            return create_tokenize(serving, template, body)

        return await serving.bodies.prepare(request, TokenizeRequest, make)

    @router.post("/detokenize", **json_body(DetokenizeRequest), response_class=Response)
    async def detokenize(request: Request) -> Response:
        def make(body: DetokenizeRequest) -> Response:
            return JsonBytes(create_detokenize(serving, body))

        return await serving.bodies.prepare(request, DetokenizeRequest, make)

    return router


def render_router(serving: Serving) -> APIRouter:
    """`/v1/chat/completions/render` and `/v1/completions/render`."""
    router = APIRouter()
    settings = serving.settings
    template = ChatTemplate.from_folder(settings.model, settings.chat_template)

    @router.post(
        "/v1/chat/completions/render", **json_body(ChatCompletionRequest), response_class=Response
    )
    async def render_chat_completion(request: Request) -> Response:
        def make(body: ChatCompletionRequest) -> Response:
            refuse_beams(body)
            entry = ChatCompletion(serving, template, body, None).entry
            return JsonBytes(rendered(body, entry))

        return await serving.bodies.prepare(request, ChatCompletionRequest, make)

    @router.post("/v1/completions/render", **json_body(CompletionRequest), response_class=Response)
    async def render_completion(request: Request) -> Response:
        def make(body: CompletionRequest) -> Response:
            refuse_beams(body)
            entries = Completion(serving, body, None).entries
            return JsonBytes([rendered(body, entry) for entry in entries])

        return await serving.bodies.prepare(request, CompletionRequest, make)

    return router


def dev_mode() -> bool:
    """Whether endpoints for development are there (`vllm/envs.py:142 VLLM_SERVER_DEV_MODE`)."""
    return bool(int(os.environ.get("VLLM_SERVER_DEV_MODE", "0")))


def cache_router(serving: Serving) -> APIRouter:
    """`/reset_prefix_cache`, in development mode."""
    router = APIRouter()
    if not dev_mode():
        return router

    @router.post("/reset_prefix_cache", response_class=Response, responses=error_responses(400))
    async def reset_prefix_cache(request: Request) -> Response:
        asked = {}
        for name in ("reset_running_requests", "reset_external"):
            value = request.query_params.get(name, "false").lower()
            if value not in _TRUE and value not in _FALSE:
                raise bad_request(f"{name} must be true or false, got {shorten_repr(value)}", name)
            asked[name] = value in _TRUE
        if asked["reset_external"]:
            raise bad_request(
                "reset_external=true: vLLM 0.22.1 has this; mini_vllm has not, because no cache lies "
                "outside the process.",
                "reset_external",
            )
        # As upstream, the client is not told whether it could.
        await serving.llm.reset_prefix_cache(asked["reset_running_requests"])
        return Response(status_code=200)

    return router
