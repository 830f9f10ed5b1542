"""What the lab's tests and scripts share: a server in this process, the morning's calls, a memory."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mini_vllm.config.engine import DEFAULT_MODEL

RECORDED = Path(__file__).resolve().parent / "recorded.json"
SHIPPED = DEFAULT_MODEL.parent / "tiny-llama-lora"
BASE = "tiny-llama"
FOLDERS = {"ada": "snake", "bo": "telegram", "cy": "questions", "eve": "snake", "gil": "telegram"}
"""Eve and Gil have copies of two of the shipped adapters, under names of their own."""
PROMPT = "The scheduler decides which requests run in a step, and the KV cache holds their keys and values. "
ALLOW = "VLLM_ALLOW_RUNTIME_LORA_UPDATING"
Call = dict[str, Any]
Note = dict[str, Any]

MORNING: tuple[Call, ...] = (
    {"call": "a", "load": "ada"},
    {"call": "b", "load": "bo"},
    {"call": "c", "load": "cy"},
    {"call": "d", "models": True},
    {"call": "e", "ask": "ada", "tokens": 3},
    {"call": "f", "ask": "ada", "tokens": 3},
    {"call": "g", "ask": BASE, "tokens": 3},
    {"call": "h", "ask": "bo", "tokens": 3, "while": "cy"},
    {"call": "i", "ask": "ada", "tokens": 3},
    {"call": "j", "load": "bo", "folder": "questions", "in_place": True},
    {"call": "k", "ask": "bo", "tokens": 4},
    {"call": "l", "unload": "ada"},
    {"call": "m", "ask": "ada", "tokens": 3},
)
"""The README's calls."""
LONG = 250  # tokens of the request that runs in call h


# ---- a client ------------------------------------------------------------------------------------


class Client:
    """Calls an application (ASGI) in this process, without a socket.

    Args:
        app: vLLM's or `mini_vllm`'s.
    """

    def __init__(self, app: Any) -> None:
        self.app = app

    async def send(
        self, path: str, body: Any = None, started: asyncio.Event | None = None
    ) -> tuple[int, str]:
        """A request, GET without a body. `started` is set when the first of the answer comes."""
        left = [
            {"type": "http.request", "body": json.dumps(body or {}).encode(), "more_body": False}
        ]
        parts: list[bytes] = []
        status = 0

        async def receive() -> Any:
            return left.pop() if left else await asyncio.Event().wait()

        async def send(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)
            parts.append(message.get("body", b""))
            if started is not None and parts[-1]:
                started.set()

        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http",
            "method": "GET" if body is None else "POST", "path": path, "raw_path": path.encode(),
            "root_path": "", "query_string": b"", "client": ("here", 1), "server": ("here", 80),
            "headers": [(b"host", b"here"), (b"content-type", b"application/json")],
        }  # fmt: skip
        await self.app(scope, receive, send)
        return status, b"".join(parts).decode()

    async def load(self, name: str, folder: str | None = None, in_place: bool = False) -> int:
        path = str(SHIPPED / (folder or FOLDERS[name]))
        body = {"lora_name": name, "lora_path": path, "load_inplace": in_place}
        return (await self.send("/v1/load_lora_adapter", body))[0]

    async def unload(self, name: str) -> int:
        return (await self.send("/v1/unload_lora_adapter", {"lora_name": name}))[0]

    async def ask(
        self, model: str, tokens: int, prompt: str = PROMPT, started: asyncio.Event | None = None
    ) -> tuple[int, Any]:
        """A completion; None in the place of its body where it is streamed, as it is with `started`."""
        body = {
            "model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True,
            "stream": started is not None,
        }  # fmt: skip
        status, text = await self.send("/v1/completions", body, started)
        return status, json.loads(text) if started is None else None

    async def models(self) -> Any:
        return json.loads((await self.send("/v1/models"))[1])

    async def lora_metrics(self) -> str:
        """The lines of `/metrics` about `lora_requests_info`."""
        text = (await self.send("/metrics"))[1]
        return "".join(line + "\n" for line in text.splitlines() if "lora_requests_info" in line)


async def play(client: Client, new_notes: Callable[[], list[Note]]) -> list[Note]:
    """The morning's calls, one after the other.

    Args:
        new_notes: what has been read since it was asked last: for each time `name`, and `step`, the tenants
            whose requests were in the step that read, None where no step did.

    Returns, a call, `call`, `status`, `reads`, and what else its answer holds: `models`, `answer`,
    `metrics` while another request is running.
    """
    found: list[Note] = []
    for call in MORNING:
        note: Note = {"call": call["call"]}
        if "load" in call:
            note["status"] = await client.load(
                call["load"], call.get("folder"), call.get("in_place", False)
            )
        elif "unload" in call:
            note["status"] = await client.unload(call["unload"])
        elif "models" in call:
            note |= {"status": 200, "models": await client.models()}
        else:
            running = None
            if "while" in call:
                started = asyncio.Event()
                running = asyncio.create_task(client.ask(call["while"], LONG, started=started))
                await started.wait()
                note["reads before"] = new_notes()
            note["status"], note["answer"] = await client.ask(call["ask"], call["tokens"])
            if running is not None:
                note["metrics"] = await client.lora_metrics()
                await running
        found.append(note | {"reads": new_notes()})
    found.append(
        {"call": "end", "status": 200, "metrics": await client.lora_metrics(), "reads": []}
    )
    return found


async def play_week(
    client: Client,
    forecast: Sequence[Sequence[str]],
    touches: Sequence[Sequence[str]],
    new_notes: Callable[[], list[Note]],
) -> list[list[int]]:
    """Bursts of requests, and what is touched before each: how often a file was read, before and in each."""
    for name in FOLDERS:
        await client.load(name)
        await client.unload(name)
    for name in FOLDERS:
        await client.load(name)
    new_notes()
    found = []
    for burst, before in zip(forecast, touches, strict=True):
        for name in before:
            await client.ask(name, 1, "a")
        quiet = len(new_notes())
        await asyncio.gather(*(client.ask(name, 12, "a") for name in burst))
        found.append([quiet, len(new_notes())])
    return found


# ---- mini_vllm's server --------------------------------------------------------------------------


@contextmanager
def mini_client(capacity: int = 2) -> Iterator[tuple[Client, Callable[[], list[Note]]]]:
    """`mini-vllm serve --enable-lora --max-loras N --max-cpu-loras N` in this process, and its notes."""
    from mini_vllm import AsyncLLM, EngineConfig
    from mini_vllm.entrypoints.openai.app import build_app
    from mini_vllm.entrypoints.openai.settings import ServerSettings

    config = EngineConfig(
        enable_lora=True,
        max_loras=capacity,
        max_cpu_loras=capacity,
        max_model_len=512,
        num_gpu_blocks=128,
    )
    before = os.environ.get(ALLOW)
    os.environ[ALLOW] = "1"
    llm = AsyncLLM(config=config)
    try:
        settings = ServerSettings(
            served_model_names=(BASE,), enable_prompt_tokens_details=True, max_connections=64
        )
        app = build_app(llm, settings)
        loras = llm.engine.input_processor.loras
        assert loras is not None, "the engine was made with enable_lora"
        notes: list[Note] = []
        load = loras.load

        def noted(lora_request: Any) -> Any:
            count = loras.num_loads
            loaded = load(lora_request)
            if loras.num_loads > count:
                inside = threading.current_thread().name == "mini-vllm-engine"
                notes.append({"name": lora_request.lora_name, "step": [] if inside else None})
            return loaded

        loras.load = noted  # type: ignore[method-assign]

        def new_notes() -> list[Note]:
            found = notes[:]
            notes.clear()
            return found

        yield Client(app), new_notes
    finally:
        llm.shutdown(30)
        if before is None:
            del os.environ[ALLOW]
        else:
            os.environ[ALLOW] = before


def play_here() -> list[Note]:
    """The morning on `mini_vllm`."""
    with mini_client() as (client, new_notes):
        return asyncio.run(play(client, new_notes))


def play_week_here(
    forecast: Sequence[Sequence[str]], touches: Sequence[Sequence[str]], capacity: int
) -> list[list[int]]:
    """The week on `mini_vllm`."""
    with mini_client(capacity) as (client, new_notes):
        return asyncio.run(play_week(client, forecast, touches, new_notes))


def recorded() -> dict[str, Any]:
    """What vLLM's server did: `morning`, as `play` gives it, and `weeks`."""
    found: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return found


def by_call(notes: Sequence[Note]) -> dict[str, Note]:
    return {note["call"]: note for note in notes}


# ---- memory --------------------------------------------------------------------------------------

CAPACITY = 3
WEEK = (
    ("ada", "bo", "ada"), ("cy", "bo"), ("ada", "eve"), ("cy", "ada", "cy"), ("gil",), ("ada", "cy", "eve"),
    ("bo", "ada"), ("gil", "bo"), ("ada",), ("cy", "ada", "bo"),
)  # fmt: skip
"""A forecast: the tenants that ask in each burst, in the order of their requests."""


class Memory:
    """Adapters in memory, as `--max-cpu-loras` has them: whoever is unused the longest goes out.

    Attributes:
        reads: names, in the order in which they were read.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.held: OrderedDict[str, None] = OrderedDict()
        self.reads: list[str] = []

    def touch(self, name: str) -> None:
        if name not in self.held:
            self.reads.append(name)
            if len(self.held) == self.capacity:
                self.held.popitem(last=False)
            self.held[name] = None
        self.held.move_to_end(name)


def count_reads(
    forecast: Sequence[Sequence[str]],
    touches: Sequence[Sequence[str]],
    capacity: int,
    turned: bool = False,
) -> list[list[int]]:
    """How often a file is read before each burst and in it. `turned`: its requests come in turned order."""
    memory, found = Memory(capacity), []
    for burst, before in zip(forecast, touches, strict=True):
        counts = [len(memory.reads)]
        for names in (before, burst[::-1] if turned else burst):
            for name in names:
                memory.touch(name)
            counts.append(len(memory.reads))
        found.append([after - first for first, after in itertools.pairwise(counts)])
    return found


def fewest_reads(forecast: Sequence[Sequence[str]], capacity: int) -> int:
    """The fewest reads with which every burst finds its adapters in memory: all ways are tried."""
    names = sorted({name for burst in forecast for name in burst})
    sets = [
        frozenset(some)
        for size in range(min(capacity, len(names)) + 1)
        for some in itertools.combinations(names, size)
    ]
    cost: dict[frozenset[str], int] = {frozenset(): 0}
    for burst in forecast:
        cost = {
            after: min(paid + len(after - before) for before, paid in cost.items())
            for after in sets
            if after.issuperset(burst)
        }
    return min(cost.values())


def samples(metrics: str) -> list[tuple[str, float]]:
    """Labels and value of each sample of the metric, in the order of the text."""
    found = re.findall(r"^vllm:lora_requests_info\{(.*)\} (\S+)$", metrics, re.MULTILINE)
    return [(labels, float(value)) for labels, value in found]
