"""An answer that takes time, to a client that may leave: the wire side of every endpoint.

`EngineResponse` runs the work and watches the connection. Whichever ends first ends the other, so a
client that goes away cancels its work, which leaves `AsyncLLM.generate`, which aborts the request
and frees its blocks. Mirrors `vllm/entrypoints/utils.py:57 with_cancellation` and starlette's
`StreamingResponse`.

Server-sent events are ASCII: a U+2028 in a token would end the line for some readers.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from json.encoder import encode_basestring_ascii
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mini_vllm.entrypoints.openai.errors import ApiError, to_json

T = TypeVar("T")
_AT_A_TIME = 32  # jobs to begin
_TURN = 64 * 1024  # bytes of JSON to encode before others have theirs
DONE = b"data: [DONE]\n\n"
quote: Callable[[str], str] = encode_basestring_ascii
"""A string as a JSON literal, in ASCII."""


def sse(value: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


class Channel:
    """The way to one client: either one JSON body, or server-sent events.

    Events begin with the first one, not before: what turns out to be wrong until then can still be
    answered with a status of its own.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False

    async def json(
        self, content: Any, status: int = 200, headers: dict[str, str] | None = None
    ) -> None:
        """Send a whole response."""
        body = to_json(content)
        fields = {"content-type": "application/json", "content-length": str(len(body))}
        await self._start(status, fields | (headers or {}))
        await self._send({"type": "http.response.body", "body": body})

    async def json_list(
        self,
        make_content: Callable[[], dict[str, Any]],
        name: str,
        items: Iterable[Any],
        is_big: bool,
    ) -> None:
        """Send a whole response in which `content[name]` is a list that may be long.

        Its items are made and encoded one after the other, and others get their turns in between.

        Args:
            is_big: whether a single item may be so big that it is made in a thread beside the loop.
        """

        def encode_content() -> bytes:
            return to_json({**make_content(), name: []})

        def encode_next() -> bytes | None:
            item = next(left, None)
            return None if item is None else to_json(item)

        left = iter(items)
        encoded = await asyncio.to_thread(encode_content) if is_big else encode_content()
        before, after = encoded.split(to_json(name) + b":[]")
        pieces = [before + to_json(name) + b":["]
        size = 0
        while True:
            item = await asyncio.to_thread(encode_next) if is_big else encode_next()
            if item is None:
                break
            piece = b"," * (len(pieces) > 1) + item
            pieces.append(piece)
            size += len(piece)
            if size > _TURN:
                size = 0
                await asyncio.sleep(0)
        pieces.append(b"]" + after)
        length = sum(map(len, pieces))
        await self._start(200, {"content-type": "application/json", "content-length": str(length)})
        if length <= _TURN:
            pieces = [b"".join(pieces)]
        for number, piece in enumerate(pieces, 1):
            more = number < len(pieces)
            await self._send({"type": "http.response.body", "body": piece, "more_body": more})

    async def events(self, events: bytes, last: bool = False) -> None:
        """Send events, as many as are ready. Waits while the client's connection is full."""
        if not self.started:
            await self._start(
                200,
                {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"},
            )
        await self._send({"type": "http.response.body", "body": events, "more_body": not last})

    async def _start(self, status: int, headers: dict[str, str]) -> None:
        self.started = True
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})


class EngineResponse(Response):
    """A response made while the client waits.

    Args:
        work: sends the whole response; what it raises is answered with an error.
        failed: told of the exception when the work fails.
        explain: makes the answer to it.
        in_flight: holds the response while it runs, for `end`.
    """

    def __init__(
        self,
        work: Callable[[Channel], Awaitable[None]],
        failed: Callable[[BaseException], None],
        explain: Callable[[BaseException], ApiError],
        in_flight: set[EngineResponse],
    ) -> None:
        super().__init__()
        self._work = work
        self._failed = failed
        self._explain = explain
        self._in_flight = in_flight
        self._task: asyncio.Future[None] | None = None
        self._ending: ApiError | None = None

    def end(self, error: ApiError) -> None:
        """Break off, and answer with an error."""
        self._ending = error
        if self._task is not None:
            self._task.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._task = work = asyncio.ensure_future(self._answer(Channel(send)))
        watch = asyncio.ensure_future(_disconnected(receive))
        self._in_flight.add(self)
        try:
            await asyncio.wait((work, watch), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._in_flight.discard(self)
            work.cancel()
            watch.cancel()
            await asyncio.gather(work, watch, return_exceptions=True)

    async def _answer(self, channel: Channel) -> None:
        try:
            await self._work(channel)
            return
        except asyncio.CancelledError:
            if self._ending is None:
                raise
            answer = self._ending
        except Exception as raised:
            error = raised
            while isinstance(error, ExceptionGroup):
                error = error.exceptions[0]
            self._failed(error)
            answer = self._explain(error)
        if channel.started:  # the status is gone: the error is the last event
            await channel.events(sse(answer.body()) + DONE, last=True)
        else:
            await channel.json(answer.body(), answer.status, answer.headers)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def run_all(jobs: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Run jobs together and return what they return; the first that fails cancels the others."""
    if len(jobs) == 1:
        return [await jobs[0]]
    tasks: list[asyncio.Task[T]] = []
    try:
        async with asyncio.TaskGroup() as group:
            for job in jobs:
                tasks.append(group.create_task(job))
                if not len(tasks) % _AT_A_TIME:
                    await asyncio.sleep(0)  # or all of a thousand begin before others have a turn
    finally:
        for job in jobs[len(tasks) :]:
            job.close()
    return [task.result() for task in tasks]
