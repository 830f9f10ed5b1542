"""Lab 01-03, the proof: whole workloads, array for array and token for token against `LLMEngine`."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from course.learner.labs import load_support
from mini_vllm import EngineConfig, LLMEngine, SamplingParams
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.core.sched.output import SchedulerOutput
from mini_vllm.tokenizer import Tokenizer
from mini_vllm.worker.model_runner import ModelRunner

support = load_support(__file__)
LETTERS = [8 + b for b in b"abcdefghijklmnopqrstuvwxyz "]


@dataclass
class Arrival:
    step: int
    request_id: str
    prompt: Any
    params: SamplingParams
    priority: int = 0


@dataclass
class Workload:
    """Requests, when they arrive (before which step, from 0), and when clients go."""

    config: EngineConfig
    arrivals: list[Arrival]
    aborts: dict[int, str] = field(default_factory=dict)  # before this step
    aborts_in_pass: dict[int, str] = field(default_factory=dict)  # while the model runs this pass


def tokens(rng: random.Random, count: int) -> dict[str, list[int]]:
    return {"prompt_token_ids": [1, *rng.choices(range(8, 264), k=count - 1)]}


def workloads() -> dict[str, Workload]:
    rng = random.Random(0)
    roomy = EngineConfig(block_size=4, num_gpu_blocks=200, max_model_len=64, max_num_seqs=8)
    narrow = EngineConfig(
        block_size=4, num_gpu_blocks=60, max_model_len=64, max_num_seqs=6, max_num_batched_tokens=10
    )
    scarce = EngineConfig(
        block_size=4, num_gpu_blocks=13, max_model_len=48, max_num_seqs=4, max_num_batched_tokens=14
    )
    no_cache = EngineConfig(
        block_size=4, num_gpu_blocks=13, max_model_len=48, max_num_seqs=4,
        max_num_batched_tokens=14, enable_prefix_caching=False,
    )  # fmt: skip
    ranked = EngineConfig(
        block_size=4, num_gpu_blocks=13, max_model_len=48, max_num_seqs=4,
        max_num_batched_tokens=14, scheduling_policy="priority",
    )  # fmt: skip
    shared = tokens(rng, 17)["prompt_token_ids"]

    def mixture(temperature: float, count: int, most: int, **kwargs: Any) -> list[Arrival]:
        return [
            Arrival(
                i // 2,
                f"r{i}",
                tokens(rng, rng.randint(2, 18)),
                support.free(temperature, most, **kwargs),
            )
            for i in range(count)
        ]

    asks: list[dict[str, Any]] = [
        {"seed": 3}, {}, {"seed": 3, "top_p": 0.8}, {"top_k": 20, "presence_penalty": 0.5}, {}
    ]  # fmt: skip
    seeds = [
        Arrival(i % 3, f"r{i}", tokens(rng, 4 + 3 * i), support.free(0.9, 6 + i, **ask))
        for i, ask in enumerate(asks)
    ]
    text = SamplingParams(
        temperature=0.8, seed=1, max_tokens=24, allowed_token_ids=LETTERS, min_tokens=2
    )

    def stopping(**kwargs: Any) -> SamplingParams:
        params = text.clone()
        for name, value in kwargs.items():
            setattr(params, name, value)
        return params

    return {
        "one request": Workload(roomy, [Arrival(0, "r", "The KV cache", support.free(most=6))]),
        "chunks and decodes": Workload(narrow, mixture(0.0, 8, 9)),
        "prefix hits": Workload(
            narrow,
            [
                Arrival(4 * i, f"r{i}", {"prompt_token_ids": shared + [30 + i] * i}, support.free(most=7))
                for i in range(5)
            ],
        ),
        "preemption": Workload(scarce, mixture(0.0, 6, 12)),
        "preemption, no prefix cache": Workload(no_cache, mixture(0.7, 6, 12, seed=5)),
        "priority": Workload(
            ranked,
            [
                Arrival(i, f"r{i}", tokens(rng, 9), support.free(most=16), priority=p)
                for i, p in enumerate([5, 4, 3, 0, 1, 2])
            ],
        ),
        "seeds and one shared stream": Workload(narrow, seeds),
        "clients that go": Workload(
            scarce,
            [Arrival(0, f"r{i}", tokens(rng, 6 + 2 * i), support.free(most=12)) for i in range(6)]
            + [Arrival(6, "r0", tokens(rng, 5), support.free(most=6))],  # an id used again
            aborts={3: "r5", 5: "r0"},
            aborts_in_pass={2: "r1", 7: "r2"},
        ),
        "a silent row in front": Workload(
            EngineConfig(
                block_size=4, num_gpu_blocks=40, max_model_len=48, max_num_seqs=4,
                max_num_batched_tokens=32, long_prefill_token_threshold=8,
            ),
            [
                Arrival(
                    0, f"r{i}", {"prompt_token_ids": [1] + [50 + 7 * i] * n}, support.free(0.9, 6, seed=i)
                )
                for i, n in enumerate([37, 3, 21, 5])
            ],
        ),
        "stops": Workload(
            narrow,
            [
                Arrival(0, "eos", tokens(rng, 5), SamplingParams(temperature=0.9, seed=4, max_tokens=9)),
                Arrival(0, "token", tokens(rng, 7), stopping(stop_token_ids=LETTERS[::2])),
                Arrival(1, "string", "What stops it", stopping(stop=["a", "e", "t"])),
                Arrival(1, "include", "And this", stopping(stop=[" "], include_stop_str_in_output=True)),
                Arrival(2, "length", "And this one", stopping(stop=["#"])),
                Arrival(2, "window", tokens(rng, 50), support.free(most=None)),
            ],
        ),
    }  # fmt: skip


WORKLOADS = workloads()


@dataclass
class Run:
    """What an engine did with a workload: by step, its pass (None: no tokens) and its outputs."""

    steps: list[tuple[dict[str, np.ndarray] | None, list[Any]]]
    num_preemptions: int
    blocks_held: int

    @property
    def outputs(self) -> list[Any]:
        return [output for _, outputs in self.steps for output in outputs]

    @property
    def passes(self) -> list[dict[str, np.ndarray]]:
        return [arrays for arrays, _ in self.steps if arrays is not None]


def drive(engine: Any, watched: Any, work: Workload) -> Run:
    """Run `engine`, which is an LLMEngine or has its interface, on a workload."""
    processor = engine.output_processor

    def abort(request_id: str | None) -> None:
        if request_id is not None and processor.has_request(request_id):
            engine.abort_request(request_id)

    scheduler = getattr(engine, "scheduler", None) or engine.engine_core.scheduler
    schedule = scheduler.schedule

    def scheduled() -> SchedulerOutput:
        try:
            output: SchedulerOutput = schedule()
        except Exception as error:
            raise AssertionError(
                f"schedule() failed after your step {len(steps)}: a request was given a token too many or "
                f"too few before. It said {type(error).__name__}: {error}"
            ) from error
        return output

    scheduler.schedule = scheduled
    watched.during = lambda i: abort(work.aborts_in_pass.get(i))
    last_arrival = max(arrival.step for arrival in work.arrivals)
    steps: list[tuple[dict[str, np.ndarray] | None, list[Any]]] = []
    while engine.has_unfinished_requests() or len(steps) <= last_arrival:
        assert len(steps) < 300, (
            "after 300 steps the engine has not come to an end: a request that is neither finished "
            "nor aborted keeps it going"
        )
        for a in work.arrivals:
            if a.step == len(steps):
                engine.add_request(a.request_id, a.prompt, a.params, priority=a.priority)
        abort(work.aborts.get(len(steps)))
        before = len(watched.passes)
        outputs = engine.step()
        assert isinstance(outputs, list), (
            f"step returns a list of RequestOutput, got {type(outputs).__name__}"
        )
        ran = watched.passes[before:]
        assert len(ran) <= 1, (
            f"step {len(steps) + 1} ran the model {len(ran)} times: once is enough"
        )
        told = [
            (o.request_id, c.token_ids, c.text, c.finish_reason, c.stop_reason, o.num_cached_tokens)
            for o in outputs
            for c in o.outputs
        ]
        steps.append((ran[0] if ran else None, told))
    held = len(scheduler.kv_cache_manager.req_to_blocks)
    return Run(steps, scheduler.num_preemptions, held)


_references: dict[str, Run] = {}


def reference(name: str, model: Any, tokenizer: Tokenizer) -> Run:
    """What `LLMEngine` does with this workload."""
    if name not in _references:
        watched, work = support.Watched(model), WORKLOADS[name]
        engine = LLMEngine(watched, work.config, tokenizer=tokenizer)
        _references[name] = drive(engine, watched, work)
        check_workload(name, _references[name])
    return _references[name]


def check_workload(name: str, run: Run) -> None:
    """The workload still shows what it is named for; not about the learner's code."""
    spans = [np.diff(p["query_start_loc"]) for p in run.passes]
    if name == "chunks and decodes":
        assert any(1 in span and span.max() > 2 for span in spans), "no step holds both"
    elif name == "a silent row in front":
        assert list(spans[0]) == [8, 4, 8, 6], f"the first pass has {spans[0]}"
    elif name == "prefix hits":
        assert any(output[-1] for output in run.outputs), "no prefix hit"
    elif name.startswith(("preemption", "priority")):
        assert run.num_preemptions > 1, f"the workload {name!r} preempts nobody"
        if name == "priority":
            assert len(run.passes) < len(run.steps), "no empty step"
    elif name == "stops":
        reasons = {output[0]: output[3] for output in run.outputs}
        assert reasons["length"] == reasons["window"] == "length", f"they ended by {reasons}"


def by_hand(lab: ModuleType, name: str, model: Any, tokenizer: Tokenizer) -> Run:
    watched, work = support.Watched(model), WORKLOADS[name]
    return drive(lab.HandEngine(watched, work.config, tokenizer), watched, work)


def differences(mine: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> list[str]:
    """The arrays of two passes that are not the same, each with the first place where they part."""
    size, want = (len(arrays["seq_lens"]) for arrays in (mine, theirs))
    if size != want:
        return [
            f"{size} requests, the engine's {want}. Up to here your engine has told its clients the same, so "
            "the core holds somebody who has finished, or has lost one: see what it heard of aborts "
            "and stop strings"
        ]
    found = []
    for array in support.ARRAYS:
        a, b = mine[array], theirs[array]
        if array == "block_table":  # past a request's last block anything may stand
            width = -(-theirs["seq_lens"] // 4)
            a, b = (
                np.array([x for row, n in zip(t, width, strict=False) for x in row[:n]])
                for t in (a, b)
            )
        if a.shape != b.shape or (a != b).any():
            moved = array == "input_ids" and sorted(a.tolist()) == sorted(b.tolist())
            rule = (
                f"The same tokens in another order. {support.RULES['req_ids']}"
                if moved
                else support.RULES[array]
            )
            found.append(f"{support.first_difference(array, a, b)}. {rule}")
    return found


FIELDS = ("token ids", "text", "finish reason", "stop reason", "cached tokens")


def told_otherwise(mine: list[Any], theirs: list[Any]) -> str:
    """The first thing that two engines tell their clients differently in a step."""
    ids, wanted = ([told[0] for told in some] for some in (mine, theirs))
    if ids != wanted:
        return f"your engine tells {ids or 'nobody'} something, LLMEngine {wanted or 'nobody'}"
    for one, other in zip(mine, theirs, strict=True):
        for field_name, a, b in zip(FIELDS, one[1:], other[1:], strict=True):
            if a == b:
                continue
            if field_name == "token ids" and len(a) == len(b):
                at = next(i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y)
                return f"{one[0]!r} is told token {a[at]} as its output {at}, by LLMEngine {b[at]}"
            if field_name == "token ids":
                return f"{one[0]!r} has {len(a)} tokens by now, with LLMEngine {len(b)}"
            return f"{one[0]!r} is told the {field_name} {a!r}, by LLMEngine {b!r}"
    return "no difference"


@pytest.mark.parametrize("name", ["chunks and decodes", "prefix hits", "preemption", "priority"])
def test_the_arrays_are_the_model_runners(
    lab: ModuleType, model: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every step of a running engine, the arrays are those of `mini_vllm.ModelRunner`."""
    work, watched = WORKLOADS[name], support.Watched(model)
    requests: dict[str, Any] = {}
    steps: list[Any] = []
    execute_model, sample_tokens = ModelRunner.execute_model, ModelRunner.sample_tokens

    def execute_beside(runner: ModelRunner, output: SchedulerOutput) -> Any:
        lab.update_states(requests, output)
        if not output.num_scheduled_tokens:
            return execute_model(runner, output)
        inputs = lab.prepare_inputs(requests, output, work.config.block_size)
        result = execute_model(runner, output)
        wrong = differences({n: getattr(inputs, n) for n in support.ARRAYS}, watched.passes[-1])
        assert not wrong, f"pass {len(watched.passes)} of the workload {name!r}: {wrong[0]}"
        steps.append(inputs)
        return result

    def sample_beside(runner: ModelRunner, grammar_output: None = None) -> Any:
        inputs, result = steps.pop(), sample_tokens(runner, grammar_output)
        discarded = [not sampled for sampled in result.sampled_token_ids]
        support.check_array(
            "discard_request_mask", inputs.discard_request_mask, discarded,
            "A row is discarded where the request has more tokens than the cache after this step.",
        )  # fmt: skip
        for req_id, sampled in zip(result.req_ids, result.sampled_token_ids, strict=True):
            requests[req_id].output_token_ids.extend(sampled)
        return result

    monkeypatch.setattr(ModelRunner, "execute_model", execute_beside)
    monkeypatch.setattr(ModelRunner, "sample_tokens", sample_beside)
    tokenizer = Tokenizer.from_folder(DEFAULT_MODEL)
    drive(LLMEngine(watched, work.config, tokenizer=tokenizer), watched, work)


@pytest.mark.parametrize("name", list(WORKLOADS))
def test_token_for_token_the_engine(
    lab: ModuleType, model: Any, tokenizer: Tokenizer, name: str
) -> None:
    """A whole workload gives the engine's arrays, tokens, texts and finish reasons in every step."""
    theirs = reference(name, model, tokenizer)
    mine = by_hand(lab, name, model, tokenizer)
    for i, (a, b) in enumerate(zip(mine.steps, theirs.steps, strict=False), 1):
        assert (a[0] is None) == (b[0] is None), (
            f"workload {name!r}, step {i}: {'no' if a[0] is None else 'a'} forward pass, LLMEngine "
            f"runs {'none' if b[0] is None else 'one'}. Only a step without tokens has none"
        )
        wrong = differences(a[0], b[0]) if a[0] and b[0] else []
        assert not wrong, f"workload {name!r}, step {i}: {wrong[0]}"
        assert a[1] == b[1], (
            f"workload {name!r}, step {i}: {told_otherwise(a[1], b[1])}. The arrays of all passes "
            "so far were the same, so look at what came after them: which rows were sampled, in "
            "which order, and whom each token went to"
        )
    counts = (len(mine.steps), mine.num_preemptions, mine.blocks_held)
    assert counts == (len(theirs.steps), theirs.num_preemptions, 0), (
        f"workload {name!r}: steps, preemptions and requests that still hold blocks are {counts}, "
        f"should be {(len(theirs.steps), theirs.num_preemptions, 0)}"
    )
