"""vLLM's own core, one request, call by call: the plain step, and two batches in flight.

    python phase-01-architecture/lanes.py step                     one batch at a time
    python phase-01-architecture/lanes.py step_with_batch_queue    two in flight
    python phase-01-architecture/lanes.py --draw                   both, and writes lanes.svg

Core, scheduler, worker and model are vLLM's, in this process, on a CPU. One thing is ours: the
executor hands the passes to a thread, so that there is a second lane as there is with a GPU. It
answers as vLLM's executor answers on one GPU: the result counts as not done until somebody asks for
it. So the calls come in the same order on every run. Needs vLLM.
"""

from __future__ import annotations

import os

os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_LOGGING_LEVEL="ERROR",
    VLLM_NO_USAGE_STATS="1",
    TORCH_COMPILE_DISABLE="1",
    HF_HUB_OFFLINE="1",
)

import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from vllm import LLM, SamplingParams
from vllm.v1.executor.uniproc_executor import AsyncOutputFuture, UniProcExecutor

from mini_vllm.config.engine import DEFAULT_MODEL

SVG = Path(__file__).with_name("lanes.svg")


class _Later:
    """What the thread will have computed: `get_output` waits for it."""

    def __init__(self, future: Future[Any]) -> None:
        self.get_output = future.result


class TwoLanes(UniProcExecutor):
    """vLLM's executor for one device, its passes run by a thread, with two batches in flight."""

    max_concurrent_batches = 2

    def _init_executor(self) -> None:
        super()._init_executor()
        self.device = ThreadPoolExecutor(1)
        # After the worker was built: its CPU runner knows only the plain form. The scheduler, which
        # is built next, is AsyncScheduler by this.
        self.scheduler_config.async_scheduling = True

    def collective_rpc(  # type: ignore[no-untyped-def]
        self, method, timeout=None, args=(), kwargs=None, non_block=False, single_value=False
    ):
        def work() -> Any:
            run = super(TwoLanes, self).collective_rpc
            return run(method, timeout, args, kwargs, False, single_value)

        if not non_block:
            return work()
        future = self.device.submit(work)
        if method == "sample_tokens":
            return AsyncOutputFuture(_Later(future), True)
        return future


@dataclass
class Call:
    """What one call of the core's step did. Passes are numbered in the order of their plans."""

    planned: int | None = None  # the number of the plan
    tokens: int = 0  # that it schedules
    finished: int = 0  # ids that it tells the worker to forget
    updated: int | None = None  # the number of the plan whose result was taken in
    rows: int = 0  # that this result had
    news: list[int] | None = field(
        default_factory=list
    )  # tokens that went out; None: returned at once


class Recorder:
    """Runs requests on a vLLM engine and writes down what its core calls.

    Args:
        executor: the class that runs the passes: `UniProcExecutor` for the plain step.
    """

    def __init__(self, executor: type[UniProcExecutor]) -> None:
        self.llm = LLM(
            model=str(DEFAULT_MODEL),
            dtype="float32",
            enforce_eager=True,
            block_size=16,
            max_model_len=128,
            num_gpu_blocks_override=64,
            distributed_executor_backend=executor,
        )
        self.core = self.llm.llm_engine.engine_core.engine_core
        self.loop = self.core.step_fn.__name__
        self.scheduler = type(self.core.scheduler).__name__
        self.calls: list[Call] = []
        self._plans: list[Any] = []
        self._wrap(self.core.scheduler, "schedule", self._planned)
        self._wrap(self.core.scheduler, "update_from_output", self._updated)
        self._wrap(self.core, "step_fn", self._returned)

    def _wrap(self, owner: Any, name: str, then: Callable[..., None]) -> None:
        original = getattr(owner, name)

        def wrapped(*args: Any) -> Any:
            if name == "step_fn":
                self.calls.append(Call())
            result = original(*args)
            then(result, *args)
            return result

        setattr(owner, name, wrapped)

    def _planned(self, plan: Any) -> None:
        self._plans.append(plan)
        call = self.calls[-1]
        call.planned, call.tokens = len(self._plans), plan.total_num_scheduled_tokens
        call.finished = len(plan.finished_req_ids)

    def _updated(self, result: Any, plan: Any, model_output: Any) -> None:
        call = self.calls[-1]
        call.updated = next(i for i, p in enumerate(self._plans, 1) if p is plan)
        call.rows = len(model_output.sampled_token_ids)

    def _returned(self, result: tuple[Any, bool]) -> None:
        outputs, _ = result
        if outputs is None:
            self.calls[-1].news = None
        else:
            each = [one for out in outputs.values() for one in out.outputs]
            self.calls[-1].news = [token for one in each for token in one.new_token_ids]

    def run(self, prompt: str, abort_before_call: int | None = None, **params: Any) -> list[Call]:
        """Step as the core's busy loop does, until no work is left. Returns the calls.

        `abort_before_call`: an abort lies ready when this call begins, from 1. The core finds it
        when the pass that this call waits for is over."""
        self.calls, self._plans = [], []
        engine, core = self.llm.llm_engine, self.core
        engine.add_request("0", prompt, SamplingParams(temperature=0, **params))
        while core.scheduler.has_requests() or core.batch_queue:
            if len(self.calls) + 1 == abort_before_call:
                core.aborts_queue.put_nowait(list(core.scheduler.requests))
            engine.step()
        if engine.has_unfinished_requests():  # aborted in the core alone: the front end waits
            engine.abort_request(list(engine.output_processor.request_states), internal=True)
        return self.calls


def table(calls: list[Call]) -> str:
    """The calls as lines of text."""
    lines = ["call  schedules                 waits for, updates    tokens out"]
    for number, call in enumerate(calls, 1):
        plan = "-"
        if call.planned is not None:
            plan = f"{call.planned}: {call.tokens} token{'s' * (call.tokens != 1)}"
            plan = f"{call.planned}: empty" if not call.tokens else plan
            plan += ", 1 id to forget" * bool(call.finished)
        update = "-" if call.updated is None else f"{call.updated}"
        update += ", its row dropped" * (call.rows > 0 and not call.news)
        news = "returned at once" if call.news is None else str(call.news or "none")
        lines.append(f"{number:4}  {plan:24}  {update:20}  {news}")
    return "\n".join(lines)


# -- the picture ----------------------------------------------------------------------------------

PLAN, PASS, UPDATE = 1.0, 3.0, 0.8
"""How long they are drawn. These three are not measured: the order is."""
UNIT, LANE, LEFT = 30, 34, 102


@dataclass
class Box:
    lane: int  # 0: processor, 1: device
    start: float
    length: float
    text: str
    kind: str


def boxes(calls: list[Call]) -> list[Box]:
    """The calls laid out in time: the processor does one thing after another and waits for results,
    the device runs the passes in the order in which they were launched."""
    drawn: list[Box] = []
    now = free = 0.0
    done: dict[int, float] = {}
    dropped = {c.updated for c in calls if c.updated and c.rows and not c.news}
    for call in calls:
        if call.planned is not None:
            kind = "plan" if call.tokens else "empty"
            drawn.append(Box(0, now, PLAN, f"s{call.planned}", kind))
            now += PLAN
            done[call.planned] = now
            if call.tokens:
                start = max(now, free)
                free = done[call.planned] = start + PASS
                kind = "dropped" if call.planned in dropped else "pass"
                drawn.append(Box(1, start, PASS, f"pass {call.planned}", kind))
        if call.updated is not None:
            now = max(now, done[call.updated])
            if call.rows:
                drawn.append(Box(0, now, UPDATE, f"u{call.updated}", "update"))
                now += UPDATE
    return drawn


FILL = {"plan": "#2563eb", "update": "#0f766e", "pass": "#b45309"}
STYLE = "font-family='system-ui, sans-serif'"


def svg(panels: list[tuple[str, list[Call]]]) -> str:
    """The panels below each other, on the same scale."""
    laid = [(title, boxes(calls)) for title, calls in panels]
    longest = max(box.start + box.length for _, drawn in laid for box in drawn)
    width, panel = int(LEFT + longest * UNIT + 14), 2 * LANE + 62
    height = panel * len(laid) + 8
    out = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' {STYLE}>",
        f"<rect width='{width}' height='{height}' rx='8' fill='#ffffff'/>",
        "<defs><pattern id='hatch' width='8' height='8' patternUnits='userSpaceOnUse' "
        "patternTransform='rotate(45)'><rect width='8' height='8' fill='#fde7c7'/>"
        "<rect width='3' height='8' fill='#d97706'/></pattern></defs>",
    ]
    for index, (title, drawn) in enumerate(laid):
        top = index * panel + 28
        out.append(f"<text x='12' y='{top}' font-size='17' fill='#111827'>{title}</text>")
        for lane, name in enumerate(("processor", "GPU")):
            y = top + 12 + lane * (LANE + 4)
            right = width - LEFT - 14
            out.append(
                f"<rect x='{LEFT}' y='{y}' width='{right}' height='{LANE}' fill='#f3f4f6'/>"
                f"<text x='12' y='{y + 22}' font-size='16' fill='#374151'>{name}</text>"
            )
            out += [_box(box, y) for box in drawn if box.lane == lane]
    return "\n".join([*out, "</svg>", ""])


def _box(box: Box, y: int) -> str:
    x, length = LEFT + box.start * UNIT, box.length * UNIT - 1.5
    fill, ink, edge = FILL.get(box.kind, "#ffffff"), "#ffffff", ""
    if box.kind == "empty":
        ink, edge = "#1d4ed8", " stroke='#2563eb' stroke-width='1.5' stroke-dasharray='4 3'"
    if box.kind == "dropped":
        fill, ink = "url(#hatch)", "#111827"
    return (
        f"<rect x='{x:.1f}' y='{y}' width='{length:.1f}' height='{LANE}' rx='3' fill='{fill}'{edge}/>"
        f"<text x='{x + length / 2:.1f}' y='{y + 22}' font-size='15' text-anchor='middle' "
        f"fill='{ink}'>{box.text}</text>"
    )


# -- what is shown --------------------------------------------------------------------------------


class Scene(NamedTuple):
    what: str
    title: str  # of its panel
    ahead: bool  # two batches in flight
    params: dict[str, Any]


PROMPT = "The KV cache"
LENGTH = {"max_tokens": 4, "ignore_eos": True}
FOURTH = 119  # the 4th token that the shipped model answers with
SHOWN = (
    Scene("4 tokens, the end by length", "step: the GPU waits for each schedule", False, LENGTH),
    Scene(
        "the same",
        "step_with_batch_queue: schedules run ahead; the end by length",
        True,
        LENGTH,
    ),
    Scene(
        "the 4th token is a stop token",
        "the same; the 4th token ends it, and pass 5 was for nothing",
        True,
        {"max_tokens": 64, "stop_token_ids": [FOURTH]},
    ),
)


def show(engines: dict[bool, Recorder]) -> tuple[list[str], str]:
    """Run the scenes that the engines are for. Returns their texts, and a picture of them all."""
    texts, panels = [], []
    for scene in SHOWN:
        if scene.ahead not in engines:
            continue
        engine = engines[scene.ahead]
        calls = engine.run(PROMPT, **scene.params)
        texts.append(f"{engine.loop}, {engine.scheduler}: {scene.what}\n{table(calls)}")
        panels.append((scene.title, calls))
    return texts, svg(panels)


def main() -> None:
    wanted = set(sys.argv[1:])
    engines = {}
    if "step_with_batch_queue" not in wanted:
        engines[False] = Recorder(UniProcExecutor)
    if "step" not in wanted:
        engines[True] = Recorder(TwoLanes)
    texts, picture = show(engines)
    print("\n\n".join(texts))
    if "--draw" in wanted:
        SVG.write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
