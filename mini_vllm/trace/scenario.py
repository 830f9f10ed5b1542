"""A scenario: a small workload in a file, with arrivals, run by the real engine and recorded.

    {"scenario": 1, "title": "…", "about": "…",
     "config": {"block_size": 16, "num_gpu_blocks": 24, "max_num_batched_tokens": 32, "max_num_seqs": 4},
     "requests": [{"id": "A", "prompt": "The KV cache", "max_tokens": 12},
                  {"id": "B", "prompt": 90, "step": 3, "priority": 0, "abort": 9},
                  {"id": "C", "prompt": 40, "shared": 32, "step": 4}]}

`prompt` is text, token ids, or a number of tokens that share no prefix with any other request's, but for
the first `shared` of them, which are the same in every request that has `shared`. A request is added
just before `step`, and aborted just before `abort`; the first step is 1. If the engine has nothing
to do before that, the next request comes at once. `config` has fields of `EngineConfig`, any other
key of a request is a field of `SamplingParams`. Greedy, and `ignore_eos` unless told otherwise: the
decisions then depend on lengths, not on what the model says.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from mini_vllm.config.engine import DEFAULT_MODEL, EngineConfig
from mini_vllm.core import kv_cache_utils
from mini_vllm.engine.llm_engine import LLMEngine
from mini_vllm.sampling_params import PARAMETERS, SamplingParams
from mini_vllm.trace.recorder import TraceRecorder
from mini_vllm.trace.types import Trace
from mini_vllm.utils.untrusted import is_text, shorten_repr

VERSION = 1
_TOP = ("scenario", "title", "about", "config", "requests")
_OWN = ("id", "prompt", "shared", "step", "abort", "priority")
_FIRST_BYTE = 8  # of the shipped vocabulary: the ids before it are special tokens
_BOS = 1
MOST_TOKENS = 1_000_000
"""Of all prompts that a scenario gives as numbers: each of them is made, and goes into the page."""


class ScenarioError(ValueError):
    """A scenario that cannot be run; says which key of which request."""


@dataclass
class Arrival:
    """One request of a scenario."""

    request_id: str
    prompt: str | list[int]
    params: SamplingParams
    step: int = 1
    abort: int | None = None
    priority: int = 0


@dataclass
class Scenario:
    """A workload, checked. `read_scenario` makes it."""

    title: str
    about: str
    config: EngineConfig
    requests: list[Arrival] = field(default_factory=list)


def is_scenario(value: Any) -> bool:
    return isinstance(value, dict) and "scenario" in value


def read_scenario(value: Any) -> Scenario:
    """The scenario that a JSON object describes. Raises ScenarioError naming what is wrong."""
    if not is_scenario(value):
        raise ScenarioError(f"not a scenario: no object with the key 'scenario': {VERSION}")
    if value["scenario"] != VERSION:
        raise ScenarioError(f"scenario {shorten_repr(value['scenario'])}; this reads {VERSION}")
    _known("the scenario", value, _TOP)
    for key in ("title", "about"):
        if not isinstance(value.get(key, ""), str) or not is_text(value.get(key, "")):
            raise ScenarioError(f"{key} must be text, got {shorten_repr(value[key])}")
    settings = value.get("config", {})
    if not isinstance(settings, dict):
        raise ScenarioError(f"config must be an object, got {shorten_repr(settings)}")
    _known("config", settings, tuple(f.name for f in fields(EngineConfig)))
    try:
        config = EngineConfig(**settings)
    except ValueError as error:
        raise ScenarioError(f"config: {error}") from error
    requests = value.get("requests")
    if not isinstance(requests, list) or not requests:
        raise ScenarioError("requests must be a list of at least one request")
    scenario = Scenario(value.get("title", ""), value.get("about", ""), config)
    ids: set[str] = set()
    left = MOST_TOKENS
    for place, request in enumerate(requests):
        arrival = _arrival(request, place, left)
        if arrival.request_id in ids:
            raise ScenarioError(f"the id {shorten_repr(arrival.request_id)} stands twice")
        ids.add(arrival.request_id)
        left -= len(arrival.prompt) if type(request["prompt"]) is int else 0
        scenario.requests.append(arrival)
    return scenario


def _known(where: str, value: dict[str, Any], names: tuple[str, ...]) -> None:
    if unknown := sorted(set(value) - set(names)):
        raise ScenarioError(
            f"{where}: unknown key {shorten_repr(unknown[0])}; known are {', '.join(names)}"
        )


def _arrival(request: Any, place: int, most: int) -> Arrival:
    if not isinstance(request, dict) or not isinstance(request.get("id"), str) or not request["id"]:
        raise ScenarioError(
            f"request {place}: expected an object with an 'id', got {shorten_repr(request)}"
        )
    if not is_text(request["id"]):
        raise ScenarioError(f"request {place}: id must be text, got {shorten_repr(request['id'])}")
    where = f"request {shorten_repr(request['id'])}"
    sampling = set(PARAMETERS) - {"n"}
    if unknown := sorted(set(request) - {*_OWN, *sampling}):
        raise ScenarioError(
            f"{where}: unknown key {shorten_repr(unknown[0])}; known are {', '.join(_OWN)} and the fields of "
            "SamplingParams but n"
        )
    for key, least in (("step", 1), ("abort", 1), ("shared", 0), ("priority", None)):
        number = request.get(key, least or 0)
        if isinstance(number, bool) or not isinstance(number, int):
            raise ScenarioError(f"{where}: {key} must be an integer, got {shorten_repr(number)}")
        if least is not None and number < least:
            raise ScenarioError(
                f"{where}: {key} must be at least {least}, got {shorten_repr(number)}"
            )
        if abs(number) >= 2**53:  # past this, the page's numbers are no integers any more
            raise ScenarioError(f"{where}: {key} must be below 2**53, got {shorten_repr(number)}")
    given = {key: request[key] for key in request if key not in _OWN}
    defaults = {"temperature": 0.0, "max_tokens": 16, "ignore_eos": True}
    try:
        params = SamplingParams(**(defaults | given))
    except (TypeError, ValueError) as error:
        raise ScenarioError(f"{where}: {error}") from error
    prompt = _prompt(request.get("prompt"), request.get("shared", 0), place, where, most)
    return Arrival(
        request["id"], prompt, params,
        request.get("step", 1), request.get("abort"), request.get("priority", 0),
    )  # fmt: skip


def _prompt(prompt: Any, shared: int, place: int, where: str, most: int) -> str | list[int]:
    if isinstance(prompt, str | list) and not shared:
        return prompt
    if isinstance(prompt, bool) or not isinstance(prompt, int):
        rule = "a number, to have 'shared'" if shared else "text, token ids or a number"
        raise ScenarioError(f"{where}: prompt must be {rule}, got {shorten_repr(prompt)}")
    if not 0 <= shared <= prompt or not prompt:
        raise ScenarioError(
            f"{where}: a prompt of {shorten_repr(prompt)} tokens, {shorten_repr(shared)} of them shared"
        )
    if prompt > most:
        raise ScenarioError(
            f"{where}: a prompt of {shorten_repr(prompt)} tokens; all prompts of a scenario together may "
            f"have {MOST_TOKENS}"
        )
    # The first token of its own tells it from all others; letters follow, so that it can be read.
    common = [_BOS, *(_FIRST_BYTE + ord("a") + i % 26 for i in range(shared - 1))][:shared]
    own = [_FIRST_BYTE + (ord("A") + place) % 256]
    own += [_FIRST_BYTE + ord("a") + (place + i) % 26 for i in range(prompt - shared - 1)]
    return (common + own)[:prompt]


def run_scenario(
    scenario: Scenario, model: str | Path = DEFAULT_MODEL, timed: bool = True
) -> Trace:
    """Run the scenario to its end and return what happened.

    Args:
        model: a checkpoint folder with the shipped vocabulary.
        timed: keep the times, which are different each time; without them the trace is always the
            same.

    Raises ScenarioError where the engine refuses a request.
    """
    with _hashes_of_seed_0():
        trace = _run(scenario, model)
    if not timed:
        for step in trace.steps:
            step.start = step.schedule_time = step.execute_time = step.update_time = 0.0
    return trace


@contextmanager
def _hashes_of_seed_0() -> Iterator[None]:
    """Hash blocks as under PYTHONHASHSEED=0, so that every run of a scenario shows the same hashes."""
    before = kv_cache_utils.NONE_HASH
    kv_cache_utils.NONE_HASH = kv_cache_utils.BlockHash(hashlib.sha256(b"0").digest())
    try:
        yield
    finally:
        kv_cache_utils.NONE_HASH = before


def _run(scenario: Scenario, model: str | Path) -> Trace:
    engine = LLMEngine(model, scenario.config)
    recorder = TraceRecorder(engine, scenario.title, scenario.about)
    order = enumerate(scenario.requests)
    pending = sorted(order, key=lambda pair: (pair[1].step, pair[0]))[::-1]
    aborts = sorted(
        ((a.abort, a.request_id) for a in scenario.requests if a.abort is not None), reverse=True
    )
    core, known = engine.engine_core, engine.output_processor
    while pending or engine.has_unfinished_requests():
        number = core.num_steps + 1
        if not engine.has_unfinished_requests():
            number = max(number, pending[-1][1].step)
        while pending and pending[-1][1].step <= number:
            place, arrival = pending.pop()
            prompt: Any = arrival.prompt
            try:
                engine.add_request(
                    arrival.request_id, prompt, arrival.params, float(place), arrival.priority
                )
            except (TypeError, ValueError) as error:
                raise ScenarioError(
                    f"request {shorten_repr(arrival.request_id)}: {error}"
                ) from error
        while aborts and aborts[-1][0] <= number:
            request_id = aborts.pop()[1]
            if known.has_request(request_id):
                engine.abort_request(request_id)
        engine.step()
    recorder.detach()
    return recorder.trace
