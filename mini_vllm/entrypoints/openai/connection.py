"""One client's connection: what it may cost before it has sent a request, and how it ends.

Uvicorn's protocol reads a head of any length, waits for the rest of it for ever, and holds a client
that has said all it has to say (`shutdown(SHUT_WR)`) for one that has left. Its one limit,
`limit_concurrency`, counts connections that have sent nothing: they would shut all clients out, and
`/health` first. So the limits stand here:

* a head, or anything else that is not yet part of a request, has `max_header_bytes` (414, 431);
* a request must be whole, and an answer taken, within `client_timeout` seconds (408);
* the connection over `max_connections` takes the place of the one that has been without a whole
  request the longest. Where every other one is being answered it may ask how the server is, and
  nothing else (503).

vLLM sets h11's limits (`vllm/entrypoints/openai/cli_args.py:293 FrontendArgs.h11_max_incomplete_event_size`)
and leaves the rest to the proxy in front of it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from mini_vllm.entrypoints.openai.errors import ApiError, to_json
from mini_vllm.entrypoints.openai.settings import ServerSettings

_MAX_PIPELINED = 16
_ALWAYS = (b"/health", b"/ping", b"/metrics")
_FIRST_PROBE = 0.1  # seconds


@dataclass
class ConnectionLimits:
    """What the connections of one server share.

    Attributes:
        settings: the limits.
        waiting: connections that have no whole request to be answered, in the order in which they
            began to wait.
    """

    settings: ServerSettings
    waiting: dict[HttpServerProtocol, None] = field(default_factory=dict)


class HttpServerProtocol(HttpToolsProtocol):
    """Uvicorn's protocol, with limits.

    Args:
        limits: shared by the server's connections.
        others: uvicorn's.
    """

    def __init__(self, *others: Any, limits: ConnectionLimits, **more: Any) -> None:
        super().__init__(*others, **more)
        self.url = b""
        self._limits = limits
        self._running: RequestResponseCycle | None = None  # `cycle` is the one that was read last
        self._is_extra = False  # came when all others were busy
        self._loose_bytes = 0  # read, and not yet part of a request's head or body
        self._refusal: ApiError | None = None
        self._read_enough = False  # what still comes is not looked at
        self._request_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._probe_timer: asyncio.TimerHandle | None = None

    # -- coming and going -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        waiting, most = self._limits.waiting, self._limits.settings.max_connections
        waiting[self] = None
        self._expect_request()
        if len(self.connections) > most:
            longest = next(iter(waiting))
            self._is_extra = longest is self
            if not self._is_extra:
                longest._refuse(self._too_many())

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._request_timer, self._write_timer, self._probe_timer):
            if timer is not None:
                timer.cancel()
        self._limits.waiting.pop(self, None)
        self.pipeline.clear()
        self._disconnect()  # uvicorn tells the last of several requests only
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends no more. Whether it still reads, only writing to it can tell."""
        if not self._is_answering():
            return False  # closes
        self._stop_reading()
        self._probe_timer = self.loop.call_later(_FIRST_PROBE, self._probe, _FIRST_PROBE)
        return True

    def _probe(self, pause: float) -> None:
        """Send an interim answer. A client that waits passes over it; of one that has left, the
        system says so, and the next write closes the connection."""
        cycle = self._running
        if cycle is None or cycle.response_started or self.transport.is_closing():
            return  # the answer itself is the probe
        if cycle.scope["http_version"] != "1.1":
            return  # this client does not know interim answers
        self.transport.write(STATUS_LINE[100] + b"\r\n")
        self._probe_timer = self.loop.call_later(2 * pause, self._probe, 2 * pause)

    def _disconnect(self) -> None:
        """Let the request that is being answered know that its client has gone."""
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()

    # -- reading ----------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._read_enough:
            return
        self._unset_keepalive_if_required()
        self._expect_request()
        self._loose_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._stop_reading()  # it is answered as if it had not asked, and then this ends
        except httptools.HttpParserError:
            self._refuse(self._refusal or ApiError(400, "this is not a valid HTTP request"))
        else:
            if self._loose_bytes > self._limits.settings.max_header_bytes:
                self._refuse(self._too_long())

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._expect_request()

    def on_headers_complete(self) -> None:
        length = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if length > self._limits.settings.max_header_bytes:
            self._refusal = self._too_long()
        elif len(self.pipeline) >= _MAX_PIPELINED:
            self._refusal = ApiError(503, f"more than {_MAX_PIPELINED} requests wait in this line")
        elif self._is_extra and self.url.partition(b"?")[0] not in _ALWAYS:
            self._refusal = self._too_many()
        if self._refusal is not None:
            raise self._refusal  # the parser stops, and `data_received` refuses
        self._loose_bytes = 0
        super().on_headers_complete()
        if not (self.pipeline and self.pipeline[0][0] is self.cycle):
            self._running = self.cycle

    def on_body(self, body: bytes) -> None:
        self._loose_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._loose_bytes = 0
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None
        super().on_message_complete()
        if self._is_answering():
            self._limits.waiting.pop(self, None)

    def on_response_complete(self) -> None:
        self._running = self.pipeline[-1][0] if self.pipeline else None
        super().on_response_complete()
        if not self._is_answering() and not self.transport.is_closing():
            self._limits.waiting[self] = None

    def _is_answering(self) -> bool:
        """Whether there is a whole request whose answer is not complete."""
        return self._running is not None and not self._running.more_body

    def _expect_request(self) -> None:
        """Start the clock for a request, unless it runs."""
        if self._request_timer is None:
            seconds = self._limits.settings.client_timeout
            self._request_timer = self.loop.call_later(seconds, self._too_slow)

    def _too_slow(self) -> None:
        seconds = self._limits.settings.client_timeout
        self._refuse(ApiError(408, f"the request was not complete within {seconds:g} seconds"))

    def _too_long(self) -> ApiError:
        most = self._limits.settings.max_header_bytes
        if 2 * len(self.url) > most:
            return ApiError(414, f"a request's URL and headers may have {most} bytes together")
        return ApiError(431, f"a request's headers may have {most} bytes")

    def _too_many(self) -> ApiError:
        most = self._limits.settings.max_connections
        return ApiError(503, f"this server has {most} connections open, and no more")

    # -- ending -----------------------------------------------------------------------------------

    def _stop_reading(self) -> None:
        """Answer the requests that are whole, and end the connection with the last of them."""
        self._read_enough = True
        if self.pipeline and self.pipeline[0][0].more_body:
            self.pipeline.popleft()
        last = self.pipeline[0][0] if self.pipeline else self._running
        if last is not None:
            last.keep_alive = False

    def _refuse(self, error: ApiError) -> None:
        """Read no further: after the answers that are under way, or with this one, it is over."""
        self._stop_reading()
        if self._is_answering() or self.transport.is_closing():
            return
        self._limits.waiting.pop(self, None)  # the next one is to take another's place
        if self._running is None or not self._running.response_started:
            body = to_json(error.body())
            fields = (b"content-type: application/json", b"content-length: %d" % len(body))
            lines = [*fields, b"connection: close", b"", body]
            self.transport.write(STATUS_LINE[error.status] + b"\r\n".join(lines))
        self._disconnect()
        self.transport.close()

    # -- writing ----------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        seconds = self._limits.settings.client_timeout
        self._write_timer = self.loop.call_later(seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
