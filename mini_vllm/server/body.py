"""A request's body: read within its limit, then JSON, then a checked object.

The limit holds while the body is read, so a client that sends no Content-Length, or a wrong one,
gains nothing. vLLM has no such limit; the JSON rules are those of
`vllm/entrypoints/openai/utils.py:43 validate_json_request`.
"""

from __future__ import annotations

import json
from typing import Any, TypeVar

from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request

from mini_vllm.server.errors import ApiError, bad_request, short

ModelT = TypeVar("ModelT", bound=BaseModel)


async def read_request(request: Request, model: type[ModelT], max_body_bytes: int) -> ModelT:
    """The body as a `model`.

    Raises ApiError: 413 for a body that is too long, 400 for a media type other than JSON and for
    what is no JSON object; pydantic's ValidationError for an object that does not fit.
    """
    media_type = request.headers.get("content-type", "").split(";", 1)[0].strip().lower()
    if media_type != "application/json":
        # Also what keeps web pages of other origins from calling a server on this machine.
        raise bad_request(f"Content-Type must be application/json, got {short(media_type)}")
    return model.model_validate(parse_json(await read_body(request, max_body_bytes)))


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body. Raises ApiError 413 as soon as it is known to be longer than `limit`."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > limit:
        raise _too_long(f"{short(int(declared[:20]))} bytes", limit)
    parts: list[bytes] = []
    size = 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > limit:
                raise _too_long("more", limit)
            parts.append(part)
    except ClientDisconnect as error:
        raise bad_request("the client left before its request was complete") from error
    return b"".join(parts)


def _too_long(got: str, limit: int) -> ApiError:
    # What is still to come is not read: the connection cannot be used again.
    return ApiError(
        413, f"the request body may have {limit} bytes, got {got}", None, {"connection": "close"}
    )


def parse_json(body: bytes) -> Any:
    """The JSON value of a body. Raises ApiError 400 where it is none, or holds text that is none."""
    try:
        value = json.loads(body)
        # Half of a surrogate pair passes as JSON, but is no text that could be tokenized or sent.
        if b"\\ud" in body or b"\\uD" in body:
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError as error:
        raise bad_request("the request body is nested too deeply") from error
    except UnicodeEncodeError as error:
        raise bad_request(f"the request body is not valid Unicode text: {error.reason}") from error
    except ValueError as error:  # malformed, not UTF-8, or a number of thousands of digits
        raise bad_request(f"the request body is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise bad_request(f"the request body must be a JSON object, got {short(value)}")
    return value
