"""What the lab's tests and scripts share: adapters on a server, a trace of its steps, the key in use."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np

from mini_vllm import EngineConfig, LLMEngine, SamplingParams
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.lora.request import LoadedLoRARequest, LoRARequest
from mini_vllm.model_loader import get_model
from mini_vllm.model_loader.safetensors_file import open_safetensors
from mini_vllm.tokenizer import Tokenizer

HERE = Path(__file__).resolve().parent
RECORDED = HERE / "recorded.json"
ADAPTERS = Path(DEFAULT_MODEL).parent / "tiny-llama-lora"
BLOCK_SIZE = 16
SETTINGS: dict[str, Any] = {
    "block_size": BLOCK_SIZE, "max_model_len": 256, "max_num_seqs": 8, "max_num_batched_tokens": 512,
    "enable_lora": True, "max_loras": 6, "max_lora_rank": 16,
}  # fmt: skip
"""Of both engines. A slot stays spare: vLLM's CPU build gives rows without an adapter the last slot's."""
NUM_BLOCKS = 128
PROMPT = (
    "The scheduler decides which requests run. A request that waits needs blocks, and blocks are freed "
    "when another ends. When a request ends, "
)
LONGER = PROMPT + "its blocks are free. "
WORDS = 28


@dataclass(frozen=True)
class Row:
    """One request in one step of a run.

    Attributes:
        step: from 0 on.
        request: its id.
        weights: the folder of the adapter that it was computed with in this step; "base" without one.
        computed: positions 0 to `computed - 1` were in the cache before the step, its own or others'.
        scheduled: how many positions from there on this step computes, and writes.
        blocks: the numbers of its blocks. Position p is row p % 16 of block `blocks[p // 16]`.
    """

    step: int
    request: str
    weights: str
    computed: int
    scheduled: int
    blocks: tuple[int, ...]


# ---- a server, on mini_vllm or on vLLM -----------------------------------------------------------


class Server:
    """An engine with tenants' adapters. A name that is loaded again gets a new number, as in vLLM's server.

    Args:
        engine: `LLMEngine`, of `mini_vllm` or of vLLM.
        scheduler: the engine's.
        make_params, make_lora: `SamplingParams` and `LoRARequest`, of the same.
        told: of each adapter, when it is loaded.
        last_number: that an adapter on this engine got before.

    Attributes:
        rows: the trace.
        answers, cached: by request, its tokens and how many prompt tokens came from the cache.
    """

    def __init__(
        self,
        engine: Any,
        scheduler: Any,
        make_params: Callable[..., Any],
        make_lora: Callable[..., Any],
        told: Callable[[Any], Any],
        last_number: int = 0,
    ) -> None:
        self.engine, self.scheduler = engine, scheduler
        self.make_params, self.make_lora, self.told = make_params, make_lora, told
        self.rows: list[Row] = []
        self.answers: dict[str, list[int]] = {}
        self.cached: dict[str, int] = {}
        self.adapters: dict[str, Any] = {}
        self.folders: dict[int, str] = {}
        self.steps = 0
        self.last_number = last_number
        self._mine: dict[str, str] = {}
        self._name_of: dict[str, str | None] = {}
        self._schedule = scheduler.schedule
        scheduler.schedule = self._note

    def load(self, name: str, folder: str) -> None:
        """From now on new requests under this name use this folder's weights. Those under way keep theirs."""
        self.last_number += 1
        self.folders[self.last_number] = folder
        self.adapters[name] = self.make_lora(name, self.last_number, str(ADAPTERS / folder))
        self.told(self.adapters[name])

    def ask(
        self,
        request: str,
        name: str | None,
        prompt: str = PROMPT,
        max_tokens: int = WORDS,
        cache_salt: str | None = None,
    ) -> None:
        """Queue a request for an adapter, None for the base model."""
        ids: dict[str, Any] = {"prompt_token_ids": encode(prompt)}
        if cache_salt:
            ids["cache_salt"] = cache_salt
        params = self.make_params(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        self._name_of[request] = name
        lora = {} if name is None else {"lora_request": self.adapters[name]}
        self._mine[self.engine.add_request(request, ids, params, **lora)] = request

    def step(self) -> None:
        """One step of the engine."""
        for output in self.engine.step():
            self.answers[output.request_id] = list(output.outputs[0].token_ids)
            if output.finished:
                self.cached[output.request_id] = output.num_cached_tokens
                del self._name_of[output.request_id]
        self.steps += 1

    def run(self) -> None:
        """Steps until all requests have finished."""
        while self._name_of:
            self.step()

    def unfinished(self, name: str | None) -> list[str]:
        """The ids of the requests for this adapter that have not finished."""
        return [request for request, of in self._name_of.items() if of == name]

    def reset(self, reset_running_requests: bool = False) -> bool:
        """Empty the prefix cache. While requests hold blocks it says False and does nothing, unless they may
        be preempted: then they lose their blocks, and are computed again with their own weights."""
        return bool(self.engine.reset_prefix_cache(reset_running_requests))

    def _note(self, *args: Any) -> Any:
        scheduled = self._schedule(*args)
        for internal, count in scheduled.num_scheduled_tokens.items():
            request = self.scheduler.requests[internal]
            lora = request.lora_request
            self.rows.append(
                Row(
                    self.steps,
                    self._mine[internal],
                    "base" if lora is None else self.folders[lora.lora_int_id],
                    request.num_computed_tokens - count,
                    count,
                    tuple(self.scheduler.kv_cache_manager.get_block_ids(internal)[0]),
                )
            )
        return scheduled


@cache
def _tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(str(DEFAULT_MODEL))


def encode(text: str) -> list[int]:
    """Its tokens, the first of them the one that begins a text."""
    return list(_tokenizer().encode(text))


def decode(tokens: list[int]) -> str:
    """The text of an answer."""
    return _tokenizer().decode(tokens)


@cache
def _model() -> Any:
    return get_model(str(DEFAULT_MODEL), EngineConfig().attention, None)


Key = Callable[[str, str], bytes]
"""The key of an adapter: for its name and folder, what the hash of each of its blocks holds."""


def by_name(name: str, folder: str) -> bytes:
    """vLLM's: the name."""
    return name.encode()


def as_usual(name: str, folder: str) -> bytes:
    """Nothing is swapped: `mini_vllm`'s own key."""
    raise NotImplementedError


def by_lab(lab: Any) -> Key:
    """A learner's."""

    def key(name: str, folder: str) -> bytes:
        return cast(bytes, lab.hash_key(name, lab.version(*read_adapter(folder))))

    return key


@contextmanager
def mini_server(key: Key) -> Iterator[Server]:
    """A server on `mini_vllm` with a key of one's own, in the place of `LoadedLoRARequest.hash_key`."""
    usual = LoadedLoRARequest.hash_key
    keys: dict[int, bytes] = {}

    def told(lora: LoRARequest) -> None:
        if key is not as_usual:
            keys[lora.lora_int_id] = key(lora.lora_name, Path(lora.lora_path).name)

    engine = LLMEngine(_model(), EngineConfig(num_gpu_blocks=NUM_BLOCKS, **SETTINGS))
    try:
        if key is not as_usual:
            LoadedLoRARequest.hash_key = property(  # type: ignore[method-assign, assignment]
                lambda request: keys[request.lora_int_id]
            )
        scheduler = engine.engine_core.scheduler
        yield Server(engine, scheduler, SamplingParams, LoRARequest, told)
    finally:
        LoadedLoRARequest.hash_key = usual  # type: ignore[method-assign]


@cache
def read_adapter(folder: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What a folder's two files hold: the settings, and the tensors by name."""
    path = ADAPTERS / folder
    config = json.loads((path / "adapter_config.json").read_text(encoding="utf-8"))
    tensors = open_safetensors(path / "adapter_model.safetensors")
    return config, {name: np.asarray(stored.read()) for name, stored in tensors.items()}


# ---- the scenes ----------------------------------------------------------------------------------


def begin(server: Server) -> None:
    """Ada's adapter and Cy's are loaded, and both have asked."""
    server.load("ada", "snake")
    server.load("cy", "questions")
    for name in ("ada", "cy"):
        server.ask(f"{name} 1", name)
        server.run()


def play_reload(server: Server) -> None:
    """Ada's adapter is replaced by another. Then she asks as before, and goes on from there."""
    begin(server)
    server.load("ada", "telegram")
    for request, name, prompt in (
        ("ada 2", "ada", PROMPT),
        ("ada 3", "ada", LONGER),
        ("ada 4", "ada", LONGER),
        ("cy 2", "cy", PROMPT),
    ):
        server.ask(request, name, prompt)
        server.run()


def play_fresh_name(server: Server) -> None:
    """The same, but the new weights get a name of their own."""
    begin(server)
    server.load("ada-new", "telegram")
    for request, prompt in (("ada 2", PROMPT), ("ada 3", LONGER), ("ada 4", LONGER)):
        server.ask(request, "ada-new", prompt)
        server.run()


def start_two(server: Server) -> None:
    """As `begin`; then Ada and Cy have requests under way."""
    begin(server)
    server.ask("ada long", "ada", LONGER, max_tokens=20)
    server.ask("cy long", "cy", LONGER, max_tokens=40)
    for _ in range(8):
        server.step()


def play_refused(server: Server) -> bool:
    """A reset while requests are under way, not by force. What it says."""
    start_two(server)
    server.load("ada", "telegram")
    done = server.reset()
    server.ask("ada 2", "ada")
    server.run()
    return done


def play_forced(server: Server) -> bool:
    """The same by force, at once."""
    start_two(server)
    server.load("ada", "telegram")
    done = server.reset(reset_running_requests=True)
    server.ask("ada 2", "ada", LONGER)
    server.run()
    return done


def play_salt(server: Server) -> None:
    """Ada's prompt once more, for the base model, with the salt `ada`."""
    begin(server)
    server.ask("noor 1", None, cache_salt="ada")
    server.run()


SCENES: dict[str, Callable[[Server], Any]] = {
    "reload": play_reload,
    "fresh name": play_fresh_name,
    "refused": play_refused,
    "forced": play_forced,
    "salt": play_salt,
}


def told_of(server: Server, said: Any) -> dict[str, Any]:
    """What `recorded.json` has of a scene."""
    rows = [list(asdict(row).values()) for row in server.rows]
    return {"said": said, "answers": server.answers, "cached": server.cached, "rows": rows}


@cache
def play(scene: str, key: Key) -> dict[str, Any]:
    """A scene on `mini_vllm`."""
    with mini_server(key) as server:
        return told_of(server, SCENES[scene](server))


@cache
def recorded() -> dict[str, dict[str, Any]]:
    """What vLLM did in each scene."""
    found = json.loads(RECORDED.read_text(encoding="utf-8"))
    return dict(found["scenes"])


def rows_of(scene: dict[str, Any]) -> list[Row]:
    """A scene's trace."""
    return [Row(*row[:5], blocks=tuple(row[5])) for row in scene["rows"]]


# ---- what a mend costs, measured -----------------------------------------------------------------

MEASURED: dict[str, dict[str | None, tuple[int, int]]] = {
    "nothing under way": {"ada": (100, 0), "cy": (60, 0), None: (139, 0)},
    "two under way": {"ada": (100, 20), "cy": (60, 40), None: (80, 0)},
    "two end meanwhile": {"ada": (40, 20), "cy": (139, 14), None: (100, 20)},
    "only others": {"ada": (80, 0), "cy": (139, 9), None: (20, 40)},
}
"""By tenant: tokens of a prompt that is answered before the reload, and of the answer that is under way."""


@cache
def measure(lab: Any, situation: str, mend: str) -> tuple[list[Any], Any]:
    """The tenants before Ada's reload, and what the engine then had to do, as the lab's `Bill`."""
    of = MEASURED[situation]
    with mini_server(as_usual if mend == "key" else by_name) as server:
        server.load("ada", "snake")
        server.load("cy", "questions")
        for name, (length, _) in of.items():
            server.ask(f"{name} 1", name, PROMPT[: length - 1], max_tokens=1)
        server.run()
        before = {name: (length - 1) // BLOCK_SIZE for name, (length, _) in of.items()}
        for name, (_, answer) in of.items():
            if answer:
                server.ask(f"{name} long", name, "Noon. " + PROMPT[:40], max_tokens=answer)
        for _ in range(6):
            server.step()
        computed = {row.request: row.computed + row.scheduled for row in server.rows}
        tenants = [
            lab.Tenant(name, before[name], computed[f"{name} long"], answer - 6)
            if answer
            else lab.Tenant(name, before[name])
            for name, (_, answer) in of.items()
        ]
        steps, seen = server.steps, len(server.rows)
        if mend == "key":
            server.load("ada", "telegram")
        else:
            lab.reload_with_reset(server, "ada", "telegram")
        steps = server.steps - steps
        for name, (length, _) in of.items():
            server.ask(f"{name} 2", name, PROMPT[: length - 1], max_tokens=1)
        server.run()
        again = dict.fromkeys(of, 0)
        for row in server.rows[seen:]:
            name, which = row.request.split()
            if which == "long" and row.scheduled > 1:
                again[None if name == "None" else name] += row.scheduled - 1
    blocks = {name: before[name] - server.cached[f"{name} 2"] // BLOCK_SIZE for name in of}
    return tenants, lab.Bill(blocks, again, steps)
