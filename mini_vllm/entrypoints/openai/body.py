"""A request's body: read within its limit, then JSON, then a checked object.

The limit holds while the body is read, so a client that sends no Content-Length, or a wrong one,
gains nothing. vLLM has no such limit; the JSON rules are those of
`vllm/entrypoints/openai/utils.py:43 validate_json_request`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mini_vllm.entrypoints.openai.errors import ApiError, JsonBytes, bad_request
from mini_vllm.utils.timed_calls import TimedCalls
from mini_vllm.utils.untrusted import is_text, one_line, shorten_repr

T = TypeVar("T")
ModelT = TypeVar("ModelT", bound=BaseModel)
_SMALL = 8 * 1024  # bytes: what comes out of one costs the loop a few milliseconds
_BIG = 64 * 1024
_MAX_VALUES = 2**20  # 1024 prompts of 1024 token ids
_MAX_CONTAINERS = 2**17  # lists and objects: 16384 messages, each with a list of parts
_MAX_KEYS = 70_000  # of objects: a `logit_bias` of 65536 tokens, or 16384 messages with a part each
_MOST_BIG = 4
_LONG_ONES = 2
CHECK_SECONDS = 10
"""How long a library may look at a rule before it is compiled."""
_LIMITS = (
    (_MAX_VALUES, "values", ","),
    (_MAX_CONTAINERS, "containers", "[{"),
    (_MAX_KEYS, "keys", ":"),
)


class BodyReader:
    """Reads the bodies of one server's requests.

    Bodies of more than 64 KiB are big, and a few of them are read at a time. What is longer than 8 KiB is
    parsed, checked and tokenized in a thread beside the loop, one at a time of the big ones, and of the
    others: the interpreter still runs one thread at a time, but others get their turns. It gives them none
    within one call of C, so no such call may take long: hence the limits on what a body holds. A small one
    whose adapter must be read is dealt with there, too. What may take long to check, however short it is,
    has threads and a limit of time of its own.

    Args:
        max_body_bytes: the longest body.
        must_read: whether what `make` does for a body of this `model` has to wait for a file.
        too_long: of a body that may take long to check, the answer where it takes too long; else None.
        before_long: called once before the first such body.
    """

    def __init__(
        self,
        max_body_bytes: int,
        must_read: Callable[[str | None], bool] = lambda model: False,
        too_long: Callable[[object], ApiError | None] = lambda body: None,
        before_long: Callable[[], None] = lambda: None,
    ) -> None:
        self.max_body_bytes = max_body_bytes
        self.must_read = must_read
        self.too_long = too_long
        self._before_long: Callable[[], None] | None = before_long
        self._places = asyncio.Semaphore(_MOST_BIG)
        self._beside = ThreadPoolExecutor(1, "mini-vllm-bodies")
        self._beside_big = ThreadPoolExecutor(1, "mini-vllm-big-bodies")
        self._beside_long = TimedCalls(
            _LONG_ONES, CHECK_SECONDS, _LONG_ONES, "mini-vllm-long-checks"
        )

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
            message = f"a request body may not be compressed, its Content-Encoding is {shorten_repr(coding)}"
            raise ApiError(415, message, None, {"accept-encoding": "identity"})
        media_type = request.headers.get("content-type", "").split(";", 1)[0].strip().lower()
        if media_type != "application/json":
            # Also what keeps web pages of other origins from calling a server on this machine.
            raise bad_request(
                f"Content-Type must be application/json, got {shorten_repr(media_type)}"
            )
        async with AsyncExitStack() as stack:
            body = await self._read(request, stack)

            def read() -> ModelT:
                return model.model_validate(parse_json(body))

            beside = asyncio.get_running_loop().run_in_executor
            thread: ThreadPoolExecutor | None = None
            if len(body) > _SMALL:
                thread = self._beside if len(body) <= _BIG else self._beside_big
            checked = read() if thread is None else await beside(thread, read)
            if (too_long := self.too_long(checked)) is not None:
                if self._before_long is not None:
                    await beside(None, self._before_long)
                    self._before_long = None
                return await asyncio.wrap_future(
                    self._beside_long.submit(lambda: make(checked), too_long)
                )
            if thread is None and self.must_read(getattr(checked, "model", None)):
                thread = self._beside
            return make(checked) if thread is None else await beside(thread, make, checked)

    async def _read(self, request: Request, stack: AsyncExitStack) -> bytes:
        """The whole body; a big one holds a place in `stack`, and waits for it.

        Raises ApiError 413 as soon as the body is known to be too long.
        """
        limit = self.max_body_bytes
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared[:20]) > limit:
            raise _TooLong(f"{shorten_repr(int(declared[:20]))} bytes", limit)
        parts: list[bytes] = []
        size, big = 0, False
        try:
            async for part in request.stream():
                size += len(part)
                if size > limit:
                    raise _TooLong("more", limit, size)
                parts.append(part)
                if size > _BIG and not big:
                    big = True  # and the client waits too: nothing takes what it sends
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
        return _RejectBeforeBody(self.body(), self.status, self.headers, self._most)


class _RejectBeforeBody(JsonBytes):
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
    outside = None
    for most, what, marks in _LIMITS:
        if sum(map(text.count, marks)) <= most:
            continue
        if outside is None:  # a prompt may hold as many of these characters as it likes
            outside = _without_strings(text)
        if (count := sum(map(outside.count, marks))) > most:
            raise bad_request(f"the request body may hold {most} {what}, these are {count} or more")


def _without_strings(text: str) -> str:
    """JSON without its strings. No regular expression: in one call it would pass over millions of them."""
    pieces, end = [], 0
    while (start := text.find('"', end)) >= 0:
        pieces.append(text[end:start])
        close = text.find('"', start + 1)
        while close >= 0 and _is_escaped(text, close):
            close = text.find('"', close + 1)
        if close < 0:
            return "".join(pieces)  # the rest is one string, and no JSON
        end = close + 1
    return "".join([*pieces, text[end:]])


def _is_escaped(text: str, place: int) -> bool:
    backslashes = 0
    while text[place - backslashes - 1] == "\\":
        backslashes += 1
    return backslashes % 2 == 1


# Functions of Python's, so that a million numbers are a million turns.
def _parse_float(text: str) -> float:
    return float(text)


def _parse_int(text: str) -> int:
    return int(text)


def find_half_character(value: Any, place: str = "") -> str | None:
    """Where JSON data holds half of a surrogate pair: `prompt`, `messages[0].content`; None: nowhere."""
    left = [(place, value)]
    while left:
        place, value = left.pop()
        if isinstance(value, str):
            if not is_text(value):
                return place
        elif isinstance(value, dict):
            for name, one in reversed(value.items()):
                if not is_text(name):
                    return place or shorten_repr(name)
                left.append((f"{place}.{name}" if place else name, one))
        elif isinstance(value, list):
            left += [(f"{place}[{i}]", one) for i, one in reversed([*enumerate(value)])]
    return None


def parse_json(body: bytes) -> Any:
    """The JSON object of a body in UTF-8, 16 or 32.

    Raises ApiError 400 where it is none, or holds text that is none: half of a surrogate pair could
    not be tokenized or sent.
    """
    try:
        # `json.loads` takes bytes too, but lets halves of pairs pass, in every encoding.
        encoding = json.detect_encoding(body)
        try:
            text = body.decode(encoding)
            halves = "\\ud" in text or "\\uD" in text
        except UnicodeDecodeError:
            text = body.decode(encoding, "surrogatepass")
            halves = True
        _check_size(text)
        value = json.loads(text, parse_float=_parse_float, parse_int=_parse_int)
        place = find_half_character(value) if halves else None
    except RecursionError as error:
        raise bad_request("the request body is nested too deeply") from error
    except ValueError as error:  # malformed, not UTF-8, or a number of thousands of digits
        raise bad_request(f"the request body is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise bad_request(f"the request body must be a JSON object, got {shorten_repr(value)}")
    if place is not None:
        message = "is not valid Unicode text: it holds half of a surrogate pair"
        raise bad_request(f"{one_line(place, 80)} {message}", one_line(place, 80))
    return value
