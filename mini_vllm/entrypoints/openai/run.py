"""Uvicorn around the app: the socket, the signals, the end.

Mirrors `vllm/entrypoints/launcher.py:26 serve_http`. There a signal shuts the engine down, which may
let requests finish; here the HTTP server waits for its responses, which comes to the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import importlib
import importlib.util
import ipaddress
import logging
import math
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType

import uvicorn
from fastapi import FastAPI

from mini_vllm.engine.async_llm import AsyncLLM
from mini_vllm.entrypoints.openai.connection import ConnectionLimits, HttpServerProtocol
from mini_vllm.spec_decode.metrics import log_stats_interval

logger = logging.getLogger("mini_vllm.entrypoints.openai")
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_WATCHDOG_SECONDS = 1.0
_OTHER_FILES = 64  # what is open beside connections: the log, the model, those just refused


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens as soon as it is served. Raises OSError naming host and port."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            if os.name == "posix":  # on Windows it would let two servers have one port
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
        except BaseException:
            sock.close()
            raise
    except (OSError, UnicodeError) as error:  # a name that is too long for one is a UnicodeError
        why = error.strerror or error if isinstance(error, OSError) else "no name of a host"
        raise OSError(f"cannot listen on {host}:{port}: {why}") from error
    return sock


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed: a write costs half there."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop]
    factory = importlib.import_module("uvloop").new_event_loop
    return factory


def raise_open_files_limit(wanted: int) -> int:
    """Ask the system for so many open files, and return how many it grants
    (`vllm/utils/system_utils.py:285 set_ulimit`).

    A connection is an open file. Where none is left, the loop cannot even refuse one.
    """
    if importlib.util.find_spec("resource") is None:  # Windows counts otherwise
        return wanted
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        except ValueError:  # macOS may name no limit, and have one
            soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if soft == resource.RLIM_INFINITY else min(soft, wanted)


def make_config(app: FastAPI, log_level: str) -> uvicorn.Config:
    """Uvicorn's settings for the application, with the limits of its `ServerSettings`.

    Where the system cannot open that many files, there may be fewer connections.
    """
    settings = app.state.serving.settings
    most = raise_open_files_limit(settings.max_connections + _OTHER_FILES) - _OTHER_FILES
    if most < settings.max_connections:
        logger.warning(
            "max_connections=%d is lowered to %d: the system allows too few open files (ulimit -n)",
            settings.max_connections,
            max(most, 1),
        )
        settings = dataclasses.replace(settings, max_connections=max(most, 1))
    return uvicorn.Config(
        app,
        http=partial(HttpServerProtocol, limits=ConnectionLimits(settings)),  # type: ignore[arg-type]
        log_level=log_level,
        access_log=log_level in ("info", "debug", "trace"),
        lifespan="off",
        ws="none",
        server_header=False,
        proxy_headers=False,
    )


class Server(uvicorn.Server):
    """Uvicorn that ends in order at the first signal, whichever it is, and at once at the second.

    Uvicorn itself raises the signal again at the end, so that the process seems killed, and takes a
    second SIGTERM for the first.

    Args:
        config: uvicorn's.
        shutdown_timeout: seconds that requests have after the first signal.
        end_requests: called when they are over.
    """

    should_exit: bool  # uvicorn's, where it is installed

    def __init__(
        self, config: uvicorn.Config, shutdown_timeout: float, end_requests: Callable[[], None]
    ) -> None:
        # Uvicorn's own end, without a word to the client, is for those that do not even read.
        config.timeout_graceful_shutdown = math.ceil(shutdown_timeout) + 5
        super().__init__(config)
        self._shutdown_timeout = shutdown_timeout
        self._end_requests = end_requests

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._shutdown_timeout, self._end_requests)
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self.handle_exit) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            os._exit(128 + sig)  # the engine may be in the middle of a step: no waiting for it
        self.should_exit = True


def _print_stats(text: str, *args: object) -> None:
    print(f"mini-vllm: {text % args}", file=sys.stderr, flush=True)


def serve(
    app: FastAPI,
    llm: AsyncLLM,
    sock: socket.socket,
    *,
    shutdown_timeout: float,
    log_level: str,
    started: Callable[[], None],
    log_stats: bool = True,
) -> int:
    """Serve until a signal comes or the engine dies. Returns the exit status.

    Args:
        shutdown_timeout: seconds that running requests have after the signal; then they are
            broken off with an error.
        started: called when requests are taken.
        log_stats: where there is speculation, a line every 10 seconds to stderr about its drafts.

    Raises ValueError if `VLLM_LOG_STATS_INTERVAL` is no number.
    """
    interval = log_stats_interval()
    config = make_config(app, log_level)
    server = Server(config, shutdown_timeout, app.state.serving.end_requests)

    async def watch() -> None:
        """Tell of the start; stop serving for an engine that is dead
        (`vllm/entrypoints/launcher.py:144 watchdog_loop`)."""
        while not server.started:
            await asyncio.sleep(0.01)
        # What is here stays. No request needs to wait while the collector looks it through again
        # (`vllm/utils/gc_utils.py:96 freeze_gc_heap`).
        gc.collect()
        gc.freeze()
        started()
        hung = False
        logged = time.monotonic()
        while not llm.errored:
            await asyncio.sleep(min(_WATCHDOG_SECONDS, interval))
            if log_stats and time.monotonic() - logged >= interval:
                logged = time.monotonic()
                app.state.metrics.log(_print_stats)
            before, hung = hung, app.state.serving.step_hangs()
            if hung and not before:
                logger.error("a step has run for %.0f s: /health says 503", llm.step_seconds)
        server.should_exit = True

    async def run() -> None:
        watchdog = asyncio.create_task(watch())
        try:
            await server.serve(sockets=[sock])
        finally:
            watchdog.cancel()

    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(run())
    return 1 if llm.errored else 0
