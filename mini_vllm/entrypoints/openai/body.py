"""A request's body: read within its limit, then JSON, then a checked object.

The limit holds while the body is read, so a client that sends no Content-Length, or a wrong one,
gains nothing. vLLM has no such limit; the JSON rules are those of
`vllm/entrypoints/openai/utils.py:43 validate_json_request`.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mini_vllm.entrypoints.openai.errors import ApiError, JsonBytes, bad_request, short

T = TypeVar("T")
ModelT = TypeVar("ModelT", bound=BaseModel)
_BIG = 64 * 1024
_MAX_VALUES = 2**20  # 1024 prompts of 1024 token ids
_MAX_CONTAINERS = 2**17  # lists and objects: 65536 messages, each with a list of parts
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_MOST_BIG = 4


class BodyReader:
    """Reads the bodies of one server's requests.

    Bodies of more than 64 KiB are big. A few of them are read at a time, and one of them is parsed,
    checked and tokenized at a time, in a thread beside the loop: the interpreter still runs one
    thread at a time, but others get their turns. Small ones never wait for big ones.

    Args:
        max_body_bytes: the longest body.
    """

    def __init__(self, max_body_bytes: int) -> None:
        self.max_body_bytes = max_body_bytes
        self._places = asyncio.Semaphore(_MOST_BIG)
        self._beside = ThreadPoolExecutor(1, "mini-vllm-bodies")

    async def prepare(
        self, request: Request, model: type[ModelT], make: Callable[[ModelT], T]
    ) -> T:
        """What `make` makes of the body as a `model`: all that a request needs before it runs.

        Raises ApiError: 413 for a body that is too long, 415 for one that is compressed, 400 for a
        media type other than JSON and for what is no JSON object; pydantic's ValidationError for an
        object that does not fit; and what `make` raises.
        """
        coding = request.headers.get("content-encoding", "").strip().lower()
        if coding not in ("", "identity"):
            # vLLM does not look at the field, and calls what is compressed malformed JSON.
            message = (
                f"a request body may not be compressed, its Content-Encoding is {short(coding)}"
            )
            raise ApiError(415, message, None, {"accept-encoding": "identity"})
        media_type = request.headers.get("content-type", "").split(";", 1)[0].strip().lower()
        if media_type != "application/json":
            # Also what keeps web pages of other origins from calling a server on this machine.
            raise bad_request(f"Content-Type must be application/json, got {short(media_type)}")
        async with AsyncExitStack() as stack:
            body = await self._read(request, stack)

            def work() -> T:
                return make(model.model_validate(parse_json(body)))

            if len(body) <= _BIG:
                return work()
            return await asyncio.get_running_loop().run_in_executor(self._beside, work)

    async def _read(self, request: Request, stack: AsyncExitStack) -> bytes:
        """The whole body; a big one holds a place in `stack`, and waits for it.

        Raises ApiError 413 as soon as the body is known to be too long.
        """
        limit = self.max_body_bytes
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared[:20]) > limit:
            raise _TooLong(f"{short(int(declared[:20]))} bytes", limit)
        parts: list[bytes] = []
        size, big = 0, False
        try:
            async for part in request.stream():
                size += len(part)
                if size > limit:
                    raise _TooLong("more", limit, size)
                parts.append(part)
                if size > _BIG and not big:
                    big = True  # and the client waits too: nobody takes what it sends
                    await stack.enter_async_context(self._places)
        except ClientDisconnect as error:
            raise bad_request("the client left before its request was complete") from error
        return b"".join(parts)


class _TooLong(ApiError):
    """413: said at once, while the client may still be sending.

    To close a connection on what has not been read resets it, and a client that sends its whole body
    before it reads an answer never sees this one. So what comes is taken and thrown away, to twice
    the limit together with what was read, and only then is the connection closed.
    """

    def __init__(self, got: str, limit: int, read: int = 0) -> None:
        message = f"the request body may have {limit} bytes, got {got}"
        super().__init__(413, message, None, {"connection": "close"})
        self._most = 2 * limit - read

    def response(self) -> Response:
        return _AnswerFirst(self.body(), self.status, self.headers, self._most)


class _AnswerFirst(JsonBytes):
    """Sent whole, though not yet ended; the end comes when the request's has, or after `most` bytes."""

    def __init__(
        self, content: Any, status_code: int, headers: dict[str, str] | None, most: int
    ) -> None:
        super().__init__(content, status_code, headers)
        self._most = most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {
            "type": "http.response.start",
            "status": self.status_code,
            "headers": self.raw_headers,
        }
        await send(start)
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        left, more = self._most, True
        while more and left > 0:
            message = await receive()
            left -= len(message.get("body", b""))
            more = message.get("more_body", False)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _check_size(text: str) -> None:
    """Refuse what would take many times its own length once it is parsed: `[{},{},{},…`."""
    for most, what, marks in ((_MAX_VALUES, "values", ","), (_MAX_CONTAINERS, "containers", "[{")):
        if sum(map(text.count, marks)) <= most:
            continue
        outside = _STRING.sub("", text)  # a prompt may hold as many of these characters as it likes
        if (count := sum(map(outside.count, marks))) > most:
            raise bad_request(f"the request body may hold {most} {what}, these are {count} or more")


def parse_json(body: bytes) -> Any:
    """The JSON object of a body in UTF-8, 16 or 32.

    Raises ApiError 400 where it is none, or holds text that is none: half of a surrogate pair could
    not be tokenized or sent.
    """
    try:
        # `json.loads` takes bytes too, but lets halves of pairs pass, in every encoding.
        text = body.decode(json.detect_encoding(body))
        _check_size(text)
        value = json.loads(text)
        if "\\ud" in text or "\\uD" in text:
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
