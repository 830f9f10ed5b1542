"""Lab 01-03: each array, each stage, and whole workloads token for token against `LLMEngine`."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from mini_vllm import EngineConfig, LLMEngine, SamplingParams
from mini_vllm.checkpoint import load_model
from mini_vllm.engine import DEFAULT_MODEL
from mini_vllm.model_runner import ModelRunner
from mini_vllm.sampler import Sampler
from mini_vllm.sched_output import CachedRequestData, NewRequestData, SchedulerOutput
from mini_vllm.scheduler import Scheduler
from mini_vllm.tokenizer import Tokenizer

ARRAYS = ("input_ids", "positions", "slot_mapping", "query_start_loc", "seq_lens", "block_table")
LETTERS = [8 + b for b in b"abcdefghijklmnopqrstuvwxyz "]
GREEDY = SamplingParams(temperature=0, max_tokens=8)


# ---- tools ---------------------------------------------------------------------------------------


def decisions(
    scheduled: dict[str, int],
    new: list[NewRequestData] | None = None,
    cached: dict[str, tuple[list[int] | None, int]] | None = None,
    resumed: tuple[str, ...] = (),
    finished: tuple[str, ...] = (),
) -> SchedulerOutput:
    """A SchedulerOutput; `cached` has, by request id, its new block ids and its computed tokens."""
    cached = cached or {}
    changes = CachedRequestData(
        list(cached), set(resumed), [b for b, _ in cached.values()], [n for _, n in cached.values()]
    )
    total = sum(scheduled.values())
    return SchedulerOutput(new or [], changes, scheduled, total, set(), set(finished))


def state(
    lab: ModuleType, req_id: str, prompt: list[int], blocks: list[int], computed: int,
    outputs: tuple[int, ...] = (),
) -> Any:  # fmt: skip
    made = lab.CachedRequestState(req_id, prompt, GREEDY, blocks, computed)
    made.output_token_ids.extend(outputs)
    return made


class Watched:
    """The shipped model, noting the arrays of every pass. `during(i)` runs inside of pass i."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.passes: list[dict[str, np.ndarray]] = []
        self.rows_of_logits: list[int] = []
        self.during: Callable[[int], None] = lambda i: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward(self, input_ids: Any, positions: Any, kv_caches: Any, metadata: Any) -> Any:
        taken = {"input_ids": input_ids, "positions": positions}
        taken |= {name: getattr(metadata, name) for name in ARRAYS[2:]}
        self.passes.append({name: np.array(value) for name, value in taken.items()})
        self.during(len(self.passes) - 1)
        return self._model.forward(input_ids, positions, kv_caches, metadata)

    def compute_logits(self, hidden: Any) -> Any:
        self.rows_of_logits.append(len(hidden))
        return self._model.compute_logits(hidden)


@pytest.fixture(scope="module")
def model() -> Any:
    return load_model(DEFAULT_MODEL)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(DEFAULT_MODEL)


def check_array(name: str, got: Any, want: Any, rule: str) -> None:
    got, want = np.asarray(got), np.asarray(want)
    assert got.tolist() == want.tolist(), (
        f"{name} is {got.tolist()}, should be {want.tolist()}. {rule}"
    )


# ---- the worker's memory -------------------------------------------------------------------------


def test_new_requests_are_remembered(lab: ModuleType) -> None:
    """A request that the worker has not seen comes with all that it must know."""
    requests: dict[str, Any] = {}
    params = SamplingParams(temperature=1.0, seed=7, max_tokens=4)
    new = NewRequestData("a", [1, 50, 51], params, [3, 4], 2)
    lab.update_states(requests, decisions({"a": 1}, new=[new]))
    assert list(requests) == ["a"], (
        f"after a step that admits request 'a' the worker knows {list(requests)}: enter each of "
        "scheduled_new_reqs under its req_id"
    )
    got = requests["a"]
    assert (got.req_id, got.prompt_token_ids, got.block_ids, got.num_computed_tokens) == (
        "a", [1, 50, 51], [3, 4], 2
    ), (
        f"the worker remembers {got}. Take over prompt, block ids and num_computed_tokens as the "
        "scheduler sent them; the count is not 0 where a prefix was found in the cache"
    )  # fmt: skip
    assert got.sampling_params is params, "the request's own sampling_params belong to its state"


def test_new_blocks_are_appended(lab: ModuleType) -> None:
    """A running request's new blocks go behind those it has; None brings none."""
    requests = {
        "a": state(lab, "a", [1] * 9, [3], 0),
        "b": state(lab, "b", [1] * 3, [5], 0),
        "c": state(lab, "c", [1] * 3, [6], 2),
    }
    cached: dict[str, tuple[list[int] | None, int]] = {"a": ([8, 2], 4), "b": (None, 3)}
    lab.update_states(requests, decisions({"a": 5, "b": 1}, cached=cached))
    tables = {req_id: list(s.block_ids) for req_id, s in requests.items()}
    assert tables == {"a": [3, 8, 2], "b": [5], "c": [6]}, (
        f"the block tables are {tables}, should be a: [3, 8, 2], b: [5], c: [6]. A running request "
        "is told its new blocks only, to be appended in the order given; None means there are none; "
        "who is not in the step keeps what it has"
    )
    counts = {req_id: s.num_computed_tokens for req_id, s in requests.items()}
    assert counts == {"a": 4, "b": 3, "c": 2}, (
        f"num_computed_tokens is {counts}, should be a: 4, b: 3, c: 2. Set it to what the scheduler "
        "says for each request of scheduled_cached_reqs, with new blocks or without"
    )


def test_a_resumed_request_gets_its_table_replaced(lab: ModuleType) -> None:
    """After a preemption the block ids sent are the whole table."""
    requests = {
        "a": state(lab, "a", [1] * 9, [3, 4], 6, (40,)),
        "b": state(lab, "b", [1] * 9, [5], 4),
    }
    cached: dict[str, tuple[list[int] | None, int]] = {"b": ([7], 5), "a": ([9, 2], 4)}
    lab.update_states(requests, decisions({"b": 1, "a": 6}, cached=cached, resumed=("a",)))
    assert list(requests["a"].block_ids) == [9, 2], (
        f"the resumed request's table is {requests['a'].block_ids}, should be [9, 2]. Its old blocks "
        "went back to the pool when it was preempted and belong to somebody else by now: for ids "
        "in resumed_req_ids, replace the table"
    )
    assert requests["a"].num_computed_tokens == 4, (
        f"num_computed_tokens of the resumed request is {requests['a'].num_computed_tokens}, should "
        "be 4: whatever the prefix cache still had of it. The rest is computed again"
    )
    assert requests["a"].output_token_ids == [40], "a resumed request keeps what it has sampled"
    assert list(requests["b"].block_ids) == [5, 7], (
        f"'b' was not preempted, its table is {requests['b'].block_ids}: new blocks are appended, "
        "also in a step in which somebody else is resumed"
    )


def test_finished_requests_are_forgotten_first(lab: ModuleType) -> None:
    """Ids that have finished go before new requests come: an id may be used again at once."""
    requests = {"a": state(lab, "a", [1] * 3, [3], 3, (9,)), "b": state(lab, "b", [1], [4], 0)}
    again = NewRequestData("a", [1, 60], GREEDY, [8], 0)
    try:
        lab.update_states(requests, decisions({"a": 2}, new=[again], finished=("a", "never-ran")))
    except KeyError as error:
        raise AssertionError(
            f"KeyError {error}: a request that is aborted while it waits is among finished_req_ids, "
            "and the worker has never seen it. Pass over ids that are not there"
        ) from error
    assert sorted(requests) == ["a", "b"], (
        f"the worker knows {sorted(requests)}, should be ['a', 'b']: forget finished_req_ids, before "
        "you add the new requests. Here 'a' was aborted and its id given to a new request"
    )
    assert requests["a"].prompt_token_ids == [1, 60], (
        "'a' is a new request now, with a new prompt: the old state must not survive under its id"
    )
    lab.update_states(requests, decisions({}, finished=("b",)))
    assert sorted(requests) == ["a"], (
        f"'b' has finished, and the worker still knows {sorted(requests)}: states that are never "
        "dropped are a memory leak"
    )


def test_the_schedulers_output_is_left_alone(lab: ModuleType) -> None:
    """The scheduler's lists are not appended to: others read them after the worker."""
    requests: dict[str, Any] = {}
    first = decisions({"a": 4}, new=[NewRequestData("a", [1] * 30, GREEDY, [3], 0)])
    again = decisions({"a": 4}, cached={"a": ([5], 0)}, resumed=("a",))
    before = copy.deepcopy((first, again))
    lab.update_states(requests, first)
    lab.update_states(requests, decisions({"a": 4}, cached={"a": ([4], 4)}))
    lab.update_states(requests, again)
    lab.update_states(requests, decisions({"a": 4}, cached={"a": ([6], 4)}))
    assert (first, again) == before, (
        "update_states has changed a SchedulerOutput: the state's block_ids is the scheduler's own "
        "list, and appending to one appends to the other. Whoever logs the step later sees blocks "
        "that it did not have. Keep a copy"
    )


# ---- the arrays ----------------------------------------------------------------------------------

RULES = {
    "req_ids": "Rows come in the order of num_scheduled_tokens, and nobody else is in them.",
    "input_ids": "The token at position p is token_ids[p], prompt and output in one list.",
    "positions": "A request goes on where it stopped: num_computed_tokens, num_computed_tokens + 1, "
    "…. RoPE turns by the place in the sequence, not in the step.",
    "slot_mapping": "Position p goes to slot block_ids[p // 4] * 4 + p % 4 (block size 4), with the "
    "request's own table.",
    "query_start_loc": "It starts with 0 and then has the running sum of the requests' tokens.",
    "seq_lens": "Tokens in the cache after the step: num_computed_tokens plus those of this step.",
    "block_table": "Row i is the table of request i, filled up with 0.",
    "logits_indices": "The last row of each request: one less than where the next one begins.",
    "discard_request_mask": "True where seq_lens < num_tokens: tokens are left to compute, so that "
    "what the last row predicts is known already.",
}
NOTES = {
    "input_ids": "A decodes: its token at position 7 is its second output. B and C begin at 4.",
    "slot_mapping": "A's token at position 7 lies in the second block of its table, block 2.",
    "discard_request_mask": "B has 10 tokens, 7 of them computed when the step is over.",
}
WORKED: dict[str, list[Any]] = {
    "req_ids": ["A", "B", "C"],
    "input_ids": [71, 104, 105, 106, 204, 205, 206, 207, 208],
    "positions": [7, 4, 5, 6, 4, 5, 6, 7, 8],
    "slot_mapping": [11, 4, 5, 6, 24, 25, 26, 27, 16],
    "query_start_loc": [0, 1, 4, 9],
    "seq_lens": [8, 7, 9],
    "block_table": [[5, 2, 0], [7, 1, 0], [3, 6, 4]],
    "logits_indices": [0, 3, 8],
    "discard_request_mask": [False, True, False],
}


def worked_example(lab: ModuleType) -> Any:
    """The example of the README: A decodes, B is in mid-prompt, C has hits and comes to its end."""
    requests = {
        "C": state(lab, "C", list(range(200, 209)), [3, 6, 4], 4),
        "out": state(lab, "out", [1] * 20, [9, 10, 11, 12, 13], 17),  # preempted: not in the step
        "B": state(lab, "B", list(range(100, 110)), [7, 1], 4),
        "A": state(lab, "A", [1, 50, 51, 52, 53, 54], [5, 2], 7, (70, 71)),
    }
    return lab.prepare_inputs(requests, decisions({"A": 1, "B": 3, "C": 5}), 4)


@pytest.mark.parametrize("name", list(WORKED))
def test_the_worked_example(lab: ModuleType, name: str) -> None:
    """Every array of the README's step: a decode, a chunk, the end of a prompt with prefix hits."""
    inputs = worked_example(lab)
    assert list(inputs.req_ids) == WORKED["req_ids"], (
        f"the rows are {list(inputs.req_ids)}, should be A, B, C. {RULES['req_ids']} The scheduler's "
        "order is the contract between all stages"
    )
    check_array(name, getattr(inputs, name), WORKED[name], f"{RULES[name]} {NOTES.get(name, '')}")


def test_the_arrays_have_the_kernels_types(lab: ModuleType) -> None:
    """int32 throughout, int64 for slots, bool for the mask."""
    inputs = worked_example(lab)
    types = {name: str(np.asarray(getattr(inputs, name)).dtype) for name in WORKED}
    types.pop("req_ids")
    want = dict.fromkeys(types, "int32") | {"slot_mapping": "int64", "discard_request_mask": "bool"}
    wrong = {name: got for name, got in types.items() if got != want[name]}
    assert not wrong, (
        f"of another type than the kernels read: {wrong}. They take int32, but int64 for "
        "slot_mapping: blocks times block size can pass 2**31. On a GPU the bytes are read as what "
        "they are taken for, with no error"
    )


def test_a_resumed_request_computes_its_outputs_again(lab: ModuleType) -> None:
    """What it had sampled before the preemption is input like a prompt, and not sampled anew."""
    requests = {"a": state(lab, "a", [1, 50, 51], [7, 2], 0, (60, 61, 62))}
    part = lab.prepare_inputs(requests, decisions({"a": 5}), 4)
    check_array(
        "input_ids", part.input_ids, [1, 50, 51, 60, 61],
        "The request was preempted after 3 outputs: their K and V are gone too, and are computed "
        "again from the tokens themselves.",
    )  # fmt: skip
    check_array(
        "discard_request_mask", part.discard_request_mask, [True],
        "5 of its 6 tokens are computed. Its last row predicts token 5, which it has: 62. The rule "
        "asks for all its tokens, not for the prompt's.",
    )  # fmt: skip
    whole = lab.prepare_inputs(requests, decisions({"a": 6}), 4)
    check_array(
        "discard_request_mask", whole.discard_request_mask, [False],
        "With all 6 tokens computed it has caught up and samples the 7th.",
    )  # fmt: skip


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


def free(temperature: float = 0.0, most: int | None = 8, **kwargs: Any) -> SamplingParams:
    """Parameters under which a request runs to `most` tokens, whatever it says."""
    return SamplingParams(temperature=temperature, max_tokens=most, ignore_eos=True, **kwargs)


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
                i // 2, f"r{i}", tokens(rng, rng.randint(2, 18)), free(temperature, most, **kwargs)
            )
            for i in range(count)
        ]

    asks: list[dict[str, Any]] = [
        {"seed": 3}, {}, {"seed": 3, "top_p": 0.8}, {"top_k": 20, "presence_penalty": 0.5}, {}
    ]  # fmt: skip
    seeds = [
        Arrival(i % 3, f"r{i}", tokens(rng, 4 + 3 * i), free(0.9, 6 + i, **ask))
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
        "one request": Workload(roomy, [Arrival(0, "r", "The KV cache", free(most=6))]),
        "chunks and decodes": Workload(narrow, mixture(0.0, 8, 9)),
        "prefix hits": Workload(
            narrow,
            [
                Arrival(4 * i, f"r{i}", {"prompt_token_ids": shared + [30 + i] * i}, free(most=7))
                for i in range(5)
            ],
        ),
        "preemption": Workload(scarce, mixture(0.0, 6, 16)),
        "preemption, no prefix cache": Workload(no_cache, mixture(0.7, 6, 16, seed=5)),
        "priority": Workload(
            ranked,
            [
                Arrival(i, f"r{i}", tokens(rng, 9), free(most=22), priority=p)
                for i, p in enumerate([5, 4, 3, 0, 1, 2])
            ],
        ),
        "seeds and one shared stream": Workload(narrow, seeds),
        "clients that go": Workload(
            scarce,
            [Arrival(0, f"r{i}", tokens(rng, 6 + 2 * i), free(most=12)) for i in range(6)]
            + [Arrival(6, "r0", tokens(rng, 5), free(most=6))],  # an id used again
            aborts={3: "r5", 5: "r0"},
            aborts_in_pass={2: "r1", 7: "r2"},
        ),
        "a silent row in front": Workload(
            EngineConfig(
                block_size=4, num_gpu_blocks=40, max_model_len=48, max_num_seqs=4,
                max_num_batched_tokens=32, long_prefill_token_threshold=8,
            ),
            [
                Arrival(0, f"r{i}", {"prompt_token_ids": [1] + [50 + 7 * i] * n}, free(0.9, 6, seed=i))
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
                Arrival(2, "window", tokens(rng, 50), free(most=None)),
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


def drive(engine: Any, watched: Watched, work: Workload) -> Run:
    """Run `engine`, which is an LLMEngine or has its interface, on a workload."""
    processor = engine.output_processor

    def abort(request_id: str | None) -> None:
        if request_id is not None and processor.has_request(request_id):
            engine.abort_request(request_id)

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
        assert isinstance(outputs, list), f"step returns a list of RequestOutput, got {outputs!r}"
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
    scheduler = getattr(engine, "scheduler", None) or engine.engine_core.scheduler
    held = len(scheduler.kv_cache_manager.req_to_blocks)
    return Run(steps, scheduler.num_preemptions, held)


_references: dict[str, Run] = {}


def reference(name: str, model: Any, tokenizer: Tokenizer) -> Run:
    """What `LLMEngine` does with this workload."""
    if name not in _references:
        watched, work = Watched(model), WORKLOADS[name]
        engine = LLMEngine(watched, work.config, tokenizer=tokenizer)  # type: ignore[arg-type]
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
    watched, work = Watched(model), WORKLOADS[name]
    return drive(lab.HandEngine(watched, work.config, tokenizer), watched, work)


def differences(mine: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> list[str]:
    """The arrays of two passes that are not the same, with both contents."""
    size, want = (len(arrays["seq_lens"]) for arrays in (mine, theirs))
    if size != want:
        return [
            f"{size} requests, the engine's {want}. Up to here your engine has told its clients the same, so "
            "the core holds somebody who has finished, or has lost one: see what it heard of aborts "
            "and stop strings"
        ]
    found = []
    for array in ARRAYS:
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
                f"The same tokens in another order. {RULES['req_ids']}" if moved else RULES[array]
            )
            found.append(f"{array} {a.tolist()}, the engine's {b.tolist()}. {rule}")
    return found


@pytest.mark.parametrize("name", ["chunks and decodes", "prefix hits", "preemption", "priority"])
def test_the_arrays_are_the_model_runners(
    lab: ModuleType, model: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a running engine, step by step: what `mini_vllm.ModelRunner` gives the model."""
    work, watched = WORKLOADS[name], Watched(model)
    requests: dict[str, Any] = {}
    execute_model = ModelRunner.execute_model

    def beside(runner: ModelRunner, output: SchedulerOutput) -> Any:
        lab.update_states(requests, output)
        inputs = None
        if output.num_scheduled_tokens:
            inputs = lab.prepare_inputs(requests, output, work.config.block_size)
        result = execute_model(runner, output)
        if inputs is None:
            return result
        wrong = differences({n: getattr(inputs, n) for n in ARRAYS}, watched.passes[-1])
        assert not wrong, f"pass {len(watched.passes)} of the workload {name!r}: {wrong[0]}"
        discarded = [not sampled for sampled in result.sampled_token_ids]
        check_array(
            "discard_request_mask", inputs.discard_request_mask, discarded,
            "A row is discarded where the request has more tokens than the cache after this step.",
        )  # fmt: skip
        for req_id, sampled in zip(result.req_ids, result.sampled_token_ids, strict=True):
            requests[req_id].output_token_ids.extend(sampled)
        return result

    monkeypatch.setattr(ModelRunner, "execute_model", beside)
    drive(LLMEngine(watched, work.config, tokenizer=Tokenizer.from_folder(DEFAULT_MODEL)), watched, work)  # type: ignore[arg-type]  # fmt: skip


# ---- the stages ----------------------------------------------------------------------------------


def small_engine(lab: ModuleType, model: Any, **kwargs: Any) -> tuple[Any, Watched]:
    settings: dict[str, Any] = {
        "block_size": 4, "num_gpu_blocks": 40, "max_model_len": 48, "max_num_seqs": 4,
        "max_num_batched_tokens": 8,
    }  # fmt: skip
    watched = Watched(model)
    return lab.HandEngine(watched, EngineConfig(**settings | kwargs)), watched


def test_the_stages_come_in_order(
    lab: ModuleType, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Schedule, forward, sample, aborts, update; each once a step."""
    calls: list[str] = []

    def noted(owner: Any, name: str, label: str) -> None:
        method = getattr(owner, name)

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            calls.append(label)
            return method(*args, **kwargs)

        monkeypatch.setattr(owner, name, wrapper)

    engine, watched = small_engine(lab, model)
    noted(Scheduler, "schedule", "schedule")
    noted(Watched, "forward", "forward")
    noted(Sampler, "__call__", "sample")
    noted(engine, "process_aborts_queue", "aborts")
    noted(Scheduler, "update_from_output", "update")
    for name in "ab":
        engine.add_request(name, {"prompt_token_ids": [1, 50, 51]}, free(most=2))
    engine.step()
    want = ["aborts", "schedule", "forward", "sample", "aborts", "update"]
    assert calls == want, (
        f"the step went {' > '.join(calls)}, should go {' > '.join(want)}. One forward pass serves "
        "all requests of the step. Aborts are looked at before scheduling, and again before the "
        "update, for clients that went while the model ran"
    )
    assert watched.rows_of_logits == [2], (
        f"the step made {watched.rows_of_logits} rows of logits, should be [2]: one a request that "
        "samples, not one a token"
    )


def test_a_chunk_in_mid_prompt_emits_no_token(lab: ModuleType, model: Any) -> None:
    """A prompt of 20 under a budget of 8: two silent steps, the first token in the third."""
    engine, watched = small_engine(lab, model)
    engine.add_request("r", {"prompt_token_ids": list(range(1, 21))}, free(most=1))
    told, counters = [], []
    request = engine.scheduler.requests["r"]
    for _ in range(3):
        told.append([list(o.outputs[0].token_ids) for o in engine.step()])
        counters.append(request.num_computed_tokens)
    assert [len(outputs) for outputs in told] == [0, 0, 1], (
        f"outputs in the three steps: {told}. After 8 tokens of 20 the last row predicts token 8, "
        "which the prompt has. Sampling it tells the client the answer to another prompt"
    )
    assert counters == [8, 16, 20], f"the prompt advances by 8, 8 and 4 tokens, not {counters}"
    assert sum(watched.rows_of_logits) == 1, (
        f"rows of logits in the three steps: {watched.rows_of_logits}. Rows that are discarded are "
        "not sampled here: each would cost numbers of the random stream that others share"
    )


def test_the_output_says_who_sampled(lab: ModuleType, model: Any) -> None:
    """`ModelRunnerOutput` has a row for every request of the step, empty in mid-prompt."""
    engine, _ = small_engine(lab, model)
    engine.add_request("short", {"prompt_token_ids": [1, 50, 51]}, free(most=4))
    engine.add_request("long", {"prompt_token_ids": list(range(1, 21))}, free(most=4))
    output = engine.scheduler.schedule()
    result = engine.sample_tokens(engine.execute_model(output))
    assert (result.req_ids, result.req_id_to_index) == (
        ["short", "long"],
        {"short": 0, "long": 1},
    ), (
        f"req_ids {result.req_ids}, req_id_to_index {result.req_id_to_index}: every request of the "
        "step has an index, sampled or not"
    )
    counts = [len(row) for row in result.sampled_token_ids]
    assert counts == [1, 0], (
        f"sampled_token_ids is {result.sampled_token_ids}: one list a request, with one token for "
        "'short', which has caught up, and none for 'long', which has 5 of its 20 tokens computed"
    )
    token = result.sampled_token_ids[0][0]
    assert type(token) is int, (
        f"a sampled token is a Python int, got {type(token).__name__}: it goes into lists, hashes "
        "and JSON from here"
    )
    remembered = {req_id: s.output_token_ids for req_id, s in engine.requests.items()}
    assert remembered == {"short": [token], "long": []}, (
        f"the worker remembers the outputs {remembered}: append what a request sampled to its own "
        "state. The scheduler never sends it, and it is the next step's input"
    )


def test_an_empty_step_computes_nothing(lab: ModuleType, model: Any) -> None:
    """A step with no tokens skips the model, but not the memory and not the update."""
    engine, watched = small_engine(lab, model)
    engine.requests["gone"] = state(lab, "gone", [1, 2], [3], 2)
    executed = engine.execute_model(decisions({}, finished=("gone",)))
    assert executed is None, f"nothing was scheduled: execute_model returns None, got {executed!r}"
    assert not watched.passes, "nothing was scheduled, and still the model ran"
    assert not engine.requests, (
        "an empty step can say who has finished: update the memory before you look for tokens"
    )
    result = engine.sample_tokens(None)
    assert (result.req_ids, result.req_id_to_index, result.sampled_token_ids) == ([], {}, []), (
        f"after an empty step the output is empty, got {result}"
    )


def test_an_idle_engine_returns_at_once(lab: ModuleType, model: Any) -> None:
    """No request, no step: an empty list, and the scheduler is not asked."""
    engine, watched = small_engine(lab, model)
    scheduled: list[int] = []
    engine.scheduler.schedule = lambda: scheduled.append(1)
    assert engine.step() == [], "a step with nobody to serve returns an empty list"
    assert not scheduled, "nobody is there: return before schedule()"
    assert not watched.passes, "nobody is there, and still the model ran"


def test_a_client_that_goes_during_the_pass_gets_nothing(lab: ModuleType, model: Any) -> None:
    """An abort while the model runs takes effect before the tokens are taken in."""
    engine, watched = small_engine(lab, model)
    for name in ("stays", "goes"):
        engine.add_request(name, {"prompt_token_ids": [1, 50, 51]}, free(most=5))
    request = engine.scheduler.requests["goes"]
    watched.during = lambda i: engine.abort_request("goes") if i == 1 else None
    engine.step()
    engine.step()
    assert request.num_output_tokens == 1, (
        f"the client went during the second pass, and the request has {request.num_output_tokens} "
        "outputs, should be 1. Look at the aborts after sampling and before update_from_output: "
        "update skips requests that are gone"
    )
    assert "goes" not in engine.scheduler.requests, (
        "the request still holds its blocks after the step in which its client went"
    )
    assert len(engine.run()["stays"].outputs[0].token_ids) == 5, "the other request is unharmed"


def test_an_abort_between_steps_comes_before_the_schedule(lab: ModuleType, model: Any) -> None:
    """A request whose client left between two steps is not scheduled again."""
    engine, watched = small_engine(lab, model)
    for name in ("stays", "goes"):
        engine.add_request(name, {"prompt_token_ids": [1, 50, 51]}, free(most=5))
    engine.step()
    engine.abort_request("goes")
    engine.step()
    size = len(watched.passes[1]["seq_lens"])
    assert size == 1, (
        f"the pass after the abort has {size} requests, should have 1: process the aborts before "
        "you schedule, or a pass is spent on a client that has gone"
    )
    engine.abort_request("stays")
    assert engine.step() == [], "the last client has gone: there is nothing to do"
    assert len(watched.passes) == 2, "the last client has gone, and still the model ran"


def test_a_stop_string_ends_the_request_in_the_core(
    lab: ModuleType, model: Any, tokenizer: Tokenizer
) -> None:
    """The front end sees a stop string; the core has to be told, or it runs on."""
    engine = lab.HandEngine(model, EngineConfig(), tokenizer)
    bias = SamplingParams(
        temperature=0, max_tokens=50, stop=["aaa"], allowed_token_ids=[8 + ord("a")]
    )
    engine.add_request("r", "Say a", bias)
    outputs = [output for _ in range(3) for output in engine.step()]
    assert [o.finished for o in outputs] == [False, False, True], (
        f"three steps, three outputs of a request that can only say 'a' and stops at 'aaa': "
        f"{[(o.outputs[0].text, o.finished) for o in outputs]}"
    )
    last = outputs[-1].outputs[0]
    assert (last.text, last.finish_reason, last.stop_reason) == ("", "stop", "aaa"), (
        f"the last output is {last}: return process_outputs(...).request_outputs as they are"
    )
    assert not engine.has_unfinished_requests(), (
        "the client has its answer, and the core still runs the request, to its 50 tokens and with "
        "its blocks: pass process_outputs(...).reqs_to_abort on to scheduler.finish_requests"
    )


def test_run_ends_with_the_last_request(lab: ModuleType, model: Any) -> None:
    """`run` gives the finished outputs by id, and only those."""
    engine, _ = small_engine(lab, model)
    for name, most in (("a", 3), ("b", 1), ("c", 5)):
        engine.add_request(name, {"prompt_token_ids": [1, 50, 51]}, free(most=most))
    done = engine.run()
    lengths = {name: len(o.outputs[0].token_ids) for name, o in done.items()}
    assert lengths == {"b": 1, "a": 3, "c": 5}, (
        f"tokens by request: {lengths}, should be a: 3, b: 1, c: 5. Keep each request's finished "
        "output, which has all its tokens, and step until nobody is left"
    )
    assert all(o.finished for o in done.values()), "run returns the outputs that say finished"
    engine.add_request("long", {"prompt_token_ids": [1] + [60] * 20}, free(most=2))
    done = engine.run()
    assert list(done) == ["long"], (
        "a prompt of 21 tokens and a budget of 8: the first steps bring no output at all, and the "
        f"request is not over. run returned {list(done)}; step for as long as requests are left"
    )
    assert engine.run() == {}, "with nobody there, run returns an empty dict"


# ---- the proof -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(WORKLOADS))
def test_token_for_token_the_engine(
    lab: ModuleType, model: Any, tokenizer: Tokenizer, name: str
) -> None:
    """A whole workload: the same arrays, tokens, texts and finish reasons in every step."""
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
            f"workload {name!r}, step {i}: your engine tells its clients {a[1]}, LLMEngine {b[1]}. The "
            "arrays of all passes so far were the same, so look at what came after them: which rows "
            "were sampled, in which order, and whom each token went to"
        )
    counts = (len(mine.steps), mine.num_preemptions, mine.blocks_held)
    assert counts == (len(theirs.steps), theirs.num_preemptions, 0), (
        f"workload {name!r}: steps, preemptions and requests that still hold blocks are {counts}, "
        f"should be {(len(theirs.steps), theirs.num_preemptions, 0)}"
    )
