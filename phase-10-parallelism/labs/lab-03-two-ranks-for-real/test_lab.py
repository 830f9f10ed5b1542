"""Lab 10-03: the predictions, what each worker holds, what it sends in a step, and two ways to read that."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from course.learner.labs import load_support
from course.learner.predictions import wrong_in

support = load_support(__file__)
RUNS: dict[str, Any] = support.recorded()["runs"]
SPLITS = [
    name for name, one in RUNS.items() if not {"fault", "prompt_logprobs", "whole"} & one.keys()
]
Ints = dict[str, int]
THREE_STAGES: tuple[Ints, Ints] = (
    support.TINY | {"num_layers": 7, "num_heads": 8},
    {"tp": 4, "pp": 3},
)


def make(lab: ModuleType, sizes: dict[str, Any], split: dict[str, int]) -> tuple[Any, Any]:
    """A model and a split of the lab's."""
    return lab.Model(**sizes), support.make_split(lab, split)


def in_words(calls: Any) -> str:
    """A rank's calls, to be read."""
    lines = [
        f"{n} x {kind} {shape} of {size} bytes" for (kind, shape, size), n in sorted(calls.items())
    ]
    return "; ".join(lines) or "no calls"


def check_calls(lab: ModuleType, model: Any, split: Any, step: Any, calls: list[Any]) -> None:
    """Fails where a rank's calls in a step are not as predicted."""
    for rank, seen in enumerate(calls):
        said = lab.step_calls(model, split, rank, step)
        apart = f"only you say: {in_words(said - seen)}; you lack: {in_words(seen - said)}"
        assert said == seen, (
            f"tp {split.tp}, pp {split.pp}, {step.num_tokens} tokens, {step.num_logits} rows of logits, "
            f"rank {rank}: {apart}"
        )


def test_the_predictions_hold(lab: ModuleType) -> None:
    """Your answers to the six questions hold, before anything is run."""
    facts: dict[str, tuple[Any, str]] = {
        "sums": ([5, 4], "How many sums does a layer have, and what else is summed, on which stage?"),
        "a chunk": ([9, 921600], "What of a call changes with the number of tokens?"),
        "experts": ([9, 9], "What does a rank have of the layer's result, and who needs all of it?"),
        "capacity": (40960, "Whose blocks are they, and what of a block does each worker store?"),
        "answers": (2, "Which ranks have logits?"),
        "no power": ("about a minute", "What tells the first node, when no connection is closed?"),
    }  # fmt: skip
    said = lab.predictions()
    apart = sorted(facts.keys() ^ said.keys())
    assert not apart, (
        f"six questions; these are in one of the README and your answers only: {apart}"
    )
    for name, (fact, ask) in facts.items():
        wrong = wrong_in(said[name], fact)
        assert not wrong, f"{name}: {wrong}. {ask}"


# ---- what a worker holds -------------------------------------------------------------------------


@pytest.mark.parametrize("name", SPLITS)
def test_shapes_are_vllms(lab: ModuleType, name: str) -> None:
    """Your shapes are those of vLLM's workers, weights and cache alike."""
    one = RUNS[name]
    model, split = make(lab, support.MODELS[one["model"]][1], one["split"])
    for rank, worker in enumerate(one["workers"]):
        said, held = lab.weight_shapes(model, split, rank), support.held(worker)
        apart = sorted(said.keys() ^ held.keys())
        assert not apart, (
            f"{name}, rank {rank}: in one of vLLM's worker and your answer only: {apart}"
        )
        for weight, shape in held.items():
            got = tuple(said[weight])
            assert got == shape, f"{name}, rank {rank}: {weight} is {shape}, and you say {got}"
        layers, shape = worker["kv_caches"]
        assert layers == len(lab.layers_of(model, split, rank)), (
            f"{name}, rank {rank}: {layers} layers"
        )
        got = tuple(lab.kv_cache_shape(model, split, one["blocks"], support.BLOCK_SIZE))
        assert got == tuple(shape), f"{name}: a layer's cache is {tuple(shape)}, and you say {got}"


@pytest.mark.parametrize("name", [name for name in SPLITS if "memory" in RUNS[name]])
def test_blocks_are_vllms(lab: ModuleType, name: str) -> None:
    """From each worker's memory you find the number of blocks that vLLM's scheduler had."""
    one = RUNS[name]
    model, split = make(lab, support.MODELS[one["model"]][1], one["split"])
    memory = [mib << 20 for mib in one["memory"]]
    got = lab.num_blocks(model, split, memory, support.BLOCK_SIZE)
    assert got == one["blocks"], f"{name}: vLLM had {one['blocks']} blocks, and you say {got}"


@pytest.mark.parametrize(
    ("sizes", "split", "memory", "blocks"),
    [
        (support.NOORS, {"tp": 8}, [50 << 30] * 8, 81920),
        (support.NOORS, {"tp": 16}, [50 << 30] * 15 + [25 << 30], 40960),
        (
            support.NOORS,
            {"tp": 2, "pp": 3},
            [40 << 30] * 2 + [50 << 30] * 2 + [39 << 30] * 2,
            48545,
        ),
    ],
    ids=["8 ranks", "more ranks than KV heads", "3 stages"],
)
def test_blocks_of_noors_model(
    lab: ModuleType, sizes: Any, split: Ints, memory: list[int], blocks: int
) -> None:
    """Noor's 70B, in bf16: two bytes a number, and no more KV heads than it has."""
    model, parts = make(lab, sizes, split)
    got = lab.num_blocks(model, parts, memory, 16)
    assert got == blocks, (
        f"{split}, {[m >> 30 for m in memory]} GiB: {blocks} blocks, and you say {got}"
    )


def test_who_answers(lab: ModuleType) -> None:
    """One rank answers, the one that vLLM's executor waits for."""
    for name, one in RUNS.items():
        got = lab.output_rank(support.make_split(lab, one["split"]))
        assert got == one["output_rank"], (
            f"{name}: rank {one['output_rank']} answers, and you say {got}"
        )
    assert lab.output_rank(lab.Split(4, 3)) == 8, "tp 4, pp 3: which ranks are in the last stage?"


# ---- what it sends -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SPLITS)
def test_calls_are_vllms(lab: ModuleType, name: str) -> None:
    """In every step of vLLM's, each rank makes the calls that you predict: with chunks, mixed, decode."""
    one = RUNS[name]
    model, split = make(lab, support.MODELS[one["model"]][1], one["split"])
    for tokens, logits, calls in support.steps_of(one):
        check_calls(lab, model, split, lab.Step(tokens, logits), calls)


def test_calls_are_the_engines(lab: ModuleType) -> None:
    """The same with `mini_vllm`'s four ranks, which make no logits for a prompt that goes on."""
    model, split = make(lab, support.TINY, {"tp": 2, "pp": 2})
    played = support.played("tiny-llama", 2, 2, 1)
    for tokens, logits, calls in played:
        check_calls(lab, model, split, lab.Step(tokens, logits), calls)


def test_calls_of_noors_model(lab: ModuleType) -> None:
    """Noor's 70B on eight ranks: the bytes of a decode step of 32 requests and of a chunk of 8,192."""
    model, split = make(lab, support.NOORS, {"tp": 8})
    for tokens, logits, most in ((32, 32, 85_436_416), (8192, 1, 21_609_086_272)):
        got = support.nbytes(lab.step_calls(model, split, 3, lab.Step(tokens, logits)))
        assert got == most, (
            f"{tokens} tokens, {logits} rows of logits: {most:,} bytes, and you say {got:,}"
        )


@pytest.mark.parametrize(
    ("sizes", "split"),
    [
        (support.TINY, {"tp": 2}), (support.TINY, {"pp": 2}), (support.TINY, {"tp": 4, "pp": 2}),
        THREE_STAGES, (support.NOORS, {"tp": 8}), (support.TINY, {"pp": 4}),
    ],
    ids=lambda one: " ".join(f"{k} {v}" for k, v in one.items()) if len(one) < 3 else "",
)  # fmt: skip
def test_the_split_is_read_from_the_calls(lab: ModuleType, sizes: Any, split: Ints) -> None:
    """From the calls of all ranks you find tensor and pipeline size again."""
    model, parts = make(lab, sizes, split)
    for step in (lab.Step(1, 1), lab.Step(300, 4), lab.Step(48, 0)):
        calls = [lab.step_calls(model, parts, rank, step) for rank in range(parts.world_size)]
        got = lab.read_split(model, step, calls)
        assert (got.tp, got.pp) == (parts.tp, parts.pp), (
            f"tp {parts.tp}, pp {parts.pp} made these calls, and you read tp {got.tp}, pp {got.pp}"
        )


def test_vllms_split_is_read(lab: ModuleType) -> None:
    """You find the split of each record, but not whether experts were shared out: the calls are equal."""
    for name in SPLITS:
        one = RUNS[name]
        split = support.make_split(lab, one["split"])
        if split.world_size == 1:
            continue
        model = lab.Model(**support.MODELS[one["model"]][1])
        tokens, logits, calls = support.steps_of(one)[-1]
        got = lab.read_split(model, lab.Step(tokens, logits), calls)
        assert got == lab.Split(split.tp, split.pp), f"{name}: you read {got}"


def test_no_split_makes_these_calls(lab: ModuleType) -> None:
    """Calls of a step with other tokens are refused with a ValueError."""
    model, split = make(lab, support.TINY, {"tp": 2})
    calls = [lab.step_calls(model, split, rank, lab.Step(4, 4)) for rank in range(2)]
    try:
        got = lab.read_split(model, lab.Step(5, 4), calls)
    except ValueError:  # in words of its own
        got = None
    assert got is None, f"calls of 4 tokens in a step of 5: no split makes them, and you read {got}"


ODD = {
    "embedding not summed": "EMBEDDING", "o_proj not summed": "HALF_LAYERS",
    "prompt logprobs": "MORE_LOGITS", "handed over whole": "WHOLE",
}  # fmt: skip


@pytest.mark.parametrize("name", [*SPLITS, *ODD])
def test_what_vllms_calls_tell(lab: ModuleType, name: str) -> None:
    """You name what vLLM was told, or what was broken in it; and that nothing is odd where nothing is."""
    one = RUNS[name]
    model, split = make(lab, support.MODELS[one["model"]][1], one["split"])
    found = set()
    for tokens, logits, calls in support.steps_of(one):
        found.add(lab.diagnose(model, split, lab.Step(tokens, logits), calls))
    wanted = {getattr(lab, ODD.get(name, "AS_PREDICTED"))}
    if name == "prompt logprobs":  # steps without a prompt are as usual
        wanted.add(lab.AS_PREDICTED)
    assert found == wanted, f"{name}: {sorted(wanted)} is to be found, and you find {sorted(found)}"


def test_what_is_odd_in_a_pipeline(lab: ModuleType) -> None:
    """Each of the four, with three stages of four ranks, where a rank sees only a part of it."""
    model, split = make(lab, *THREE_STAGES)
    step = lab.Step(10, 3)
    ranks = range(split.world_size)
    plain = [lab.step_calls(model, split, rank, step) for rank in ranks]
    states = ("all_reduce", (10, 128), 10 * 128 * 4)

    def changed(rank: int, missing: dict[Any, int], extra: dict[Any, int]) -> Any:
        calls = plain[rank].copy()
        calls.subtract(missing)
        calls.update(extra)
        return +calls

    share = (320,), 1280
    cases = {
        "AS_PREDICTED": plain,
        "EMBEDDING": [changed(r, {states: int(r < 4)}, {}) for r in ranks],
        "HALF_LAYERS": [changed(r, {states: len(lab.layers_of(model, split, r))}, {}) for r in ranks],
        "MORE_LOGITS": [
            changed(r, {("all_gather", (3, 80), 960): 1}, {("all_gather", (10, 80), 3200): 1})
            if r >= 8 else plain[r] for r in ranks
        ],
        "WHOLE": [
            changed(
                r, {("all_gather", *share): 2 * int(r >= 4), ("send", *share): 2 * int(r < 8)},
                {("send", (10, 128), 5120): 2} if r < 8 else {},
            )
            for r in ranks
        ],
    }  # fmt: skip
    for name, calls in cases.items():
        got, wanted = lab.diagnose(model, split, step, calls), getattr(lab, name)
        assert got == wanted, f"{wanted!r} is what is odd, and you find {got!r}"
