"""Lab 10-03: the predictions, what each worker holds, what it sends in a step, and two ways to read that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
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
    return "; ".join(lines)


def calls_apart(lab: ModuleType, model: Any, split: Any, step: Any, calls: Iterable[Any]) -> str:
    """The first rank whose calls in a step are not as predicted, and how they differ; or nothing."""
    for rank, seen in enumerate(calls):
        said = lab.step_calls(model, split, rank, step)
        sides = (("only you say: ", said - seen), ("you lack: ", seen - said))
        apart = "; ".join(f"{begin}{in_words(some)}" for begin, some in sides if some)
        if apart:
            return (
                f"tp {split.tp}, pp {split.pp}, {step.num_tokens} tokens, {step.num_logits} rows of "
                f"logits, rank {rank}: {apart}"
            )
    return ""


def check_step_calls_first(lab: ModuleType, name: str) -> None:
    """Fails where `step_calls` is wrong about a run of vLLM's: what builds on it cannot be right then."""
    one = RUNS[name]
    model, split = make(lab, support.MODELS[one["model"]][1], one["split"])
    for tokens, logits, calls in support.steps_of(one):
        apart = calls_apart(lab, model, split, lab.Step(tokens, logits), calls)
        assert not apart, f"this builds on step_calls, which differs from vLLM: {apart}"


def names_apart(owner: str, right: Iterable[str], said: Iterable[str]) -> str:
    """Names that only one side has; or nothing."""
    sides = ((f"only {owner} has", {*right} - {*said}), ("only you have", {*said} - {*right}))
    return "; ".join(
        f"{begin} {', '.join(sorted(map(repr, some)))}" for begin, some in sides if some
    )


def test_the_predictions_hold(lab: ModuleType) -> None:
    """Your answers to the six questions hold, before anything is run."""
    facts: dict[str, tuple[Any, str]] = {
        "sums": ([5, 4], "How many sums does a layer have, and what else is summed, on which stage?"),
        "a chunk": ([9, 921600], "Count as for one stage of four layers. Only bytes grow with the tokens."),
        "experts": ([9, 9], "What does a rank have of the layer's result, and who needs all of it?"),
        "capacity": (40960, "Whose blocks are they, and what of a block does each worker store?"),
        "answers": (2, "Which stage has logits, and which is its first rank?"),
        "no power": ("about a minute", "How long is it until Ray has missed several answers?"),
    }  # fmt: skip
    said = lab.predictions()
    apart = names_apart("the README", facts, said)
    assert not apart, f"six questions: {apart}"
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
        apart = names_apart("vLLM's worker", held, said)
        assert not apart, f"{name}, rank {rank}, stage {split.stage(rank)} of {split.pp}: {apart}"
        for weight, shape in held.items():
            got = tuple(said[weight])
            assert got == shape, f"{name}, rank {rank}: {weight} is {shape}, and you say {got}"
        layers, shape = worker["kv_caches"]
        assert layers == len(lab.layers_of(model, split, rank)), (
            f"{name}, rank {rank}: {layers} layers"
        )
        got = tuple(lab.kv_cache_shape(model, split, one["blocks"], support.BLOCK_SIZE))
        assert got == tuple(shape), f"{name}: a layer's cache is {tuple(shape)}, and you say {got}"


def test_shapes_of_wide_heads(lab: ModuleType) -> None:
    """A head's size need not be the hidden size divided by the heads: here 4 heads of 48, hidden size 128."""
    model, split = make(lab, support.TINY | {"head_dim": 48}, {"tp": 2})
    said = lab.weight_shapes(model, split, 1)
    for weight, shape in (("qkv_proj", (192, 128)), ("o_proj", (128, 96))):
        got = tuple(said[weight])
        assert got == shape, f"head_dim 48, tp 2: {weight} is {shape}, and you say {got}"
    shape = (2, 10, 1, 16, 48)
    got = tuple(lab.kv_cache_shape(model, split, 10, 16))
    assert got == shape, f"head_dim 48, tp 2: a layer's cache is {shape}, and you say {got}"


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
    got = lab.output_rank(lab.Split(4, 3))
    assert got == 8, f"tp 4, pp 3: rank 8 answers, and you say {got}"


# ---- what it sends -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SPLITS)
def test_calls_are_vllms(lab: ModuleType, name: str) -> None:
    """In every step of vLLM's, each rank makes the calls that you predict: with chunks, mixed, decode."""
    one = RUNS[name]
    model, split = make(lab, support.MODELS[one["model"]][1], one["split"])
    for tokens, logits, calls in support.steps_of(one):
        apart = calls_apart(lab, model, split, lab.Step(tokens, logits), calls)
        assert not apart, apart


def test_calls_are_the_engines(lab: ModuleType) -> None:
    """The same with `mini_vllm`'s four ranks, which make no logits for a prompt that goes on."""
    model, split = make(lab, support.TINY, {"tp": 2, "pp": 2})
    played = support.played("tiny-llama", 2, 2, 2)
    assert min(logits for _, logits, _ in played) == 0, (
        "the lab's own run has no step without logits"
    )
    for tokens, logits, calls in played:
        apart = calls_apart(lab, model, split, lab.Step(tokens, logits), calls)
        assert not apart, apart


@pytest.mark.parametrize("logits", [3, 0], ids=["3 rows of logits", "no logits"])
def test_calls_of_uneven_stages(lab: ModuleType, logits: int) -> None:
    """Stages of 2, 3 and 2 layers, with four ranks each; where R is 0, no logits are gathered."""
    model, split = make(lab, *THREE_STAGES)
    sums, shares = ("all_reduce", (10, 128), 5120), ((320,), 1280)
    send, gather = ("send", *shares), ("all_gather", *shares)
    stages = [{sums: 5, send: 2}, {sums: 6, gather: 2, send: 2}, {sums: 4, gather: 2}]
    if logits:
        stages[2]["all_gather", (3, 80), 960] = 1
    calls = [Counter(stages[split.stage(rank)]) for rank in range(split.world_size)]
    apart = calls_apart(lab, model, split, lab.Step(10, logits), calls)
    assert not apart, f"7 layers, {apart}"


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
        check_step_calls_first(lab, name)
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


def test_every_call_of_every_rank_counts(lab: ModuleType) -> None:
    """Where one rank makes one call fewer than any split says, that is refused with a ValueError, too."""
    model, split = make(lab, support.TINY, {"tp": 2, "pp": 2})
    step = lab.Step(4, 3)
    plain = [lab.step_calls(model, split, rank, step) for rank in range(4)]
    for rank, mine in enumerate(plain):
        for call in mine:
            calls = [each.copy() for each in plain]
            calls[rank].subtract([call])
            try:
                got = lab.read_split(model, step, [+each for each in calls])
            except ValueError:  # in words of its own
                got = None
            assert got is None, (
                f"tp 2, pp 2, but rank {rank} lacks one {call[0]} of shape {call[1]}: "
                f"no split makes these calls, and you read {got}"
            )


ODD = {
    "embedding not summed": "EMBEDDING", "o_proj not summed": "HALF_LAYERS",
    "prompt logprobs": "MORE_LOGITS", "handed over whole": "WHOLE",
}  # fmt: skip


def quoted(texts: Iterable[str]) -> str:
    """Some of the five texts, to be read."""
    return " and ".join(sorted(map(repr, texts)))


@pytest.mark.parametrize("name", [*SPLITS, *ODD])
def test_what_vllms_calls_tell(lab: ModuleType, name: str) -> None:
    """You name what vLLM was told, or what was broken in it; and that nothing is odd where nothing is."""
    one = RUNS[name]
    plain = next(other for other in SPLITS if (RUNS[other]["split"], RUNS[other]["model"])
                 == (one["split"], one["model"]))  # fmt: skip
    check_step_calls_first(lab, plain)
    model, split = make(lab, support.MODELS[one["model"]][1], one["split"])
    found = set()
    for tokens, logits, calls in support.steps_of(one):
        found.add(lab.diagnose(model, split, lab.Step(tokens, logits), calls))
    wanted = {getattr(lab, ODD.get(name, "AS_PREDICTED"))}
    if name == "prompt logprobs":  # steps without a prompt are as usual
        wanted.add(lab.AS_PREDICTED)
    got, expected = quoted(found), quoted(wanted)
    assert got == expected, f"{name}: {expected}, and you find {got}"


@pytest.mark.parametrize(
    ("sizes", "parts"),
    [THREE_STAGES, (support.TINY, {"tp": 2, "pp": 3})],
    ids=["stages of 2, 3 and 2 layers", "stages of 1, 2 and 1 layers"],
)
def test_what_is_odd_in_a_pipeline(lab: ModuleType, sizes: Any, parts: Ints) -> None:
    """Each of the four, with three stages, where a rank sees only a part of it."""
    model, split = make(lab, sizes, parts)
    step = lab.Step(10, 3)
    tp, rows = split.tp, 320 // split.tp
    last = split.world_size - tp
    ranks = range(split.world_size)
    plain = [lab.step_calls(model, split, rank, step) for rank in ranks]
    states = ("all_reduce", (10, 128), 10 * 128 * 4)

    def changed(rank: int, missing: dict[Any, int], extra: dict[Any, int]) -> Any:
        calls = plain[rank].copy()
        calls.subtract(missing)
        calls.update(extra)
        return +calls

    share = (1280 // tp,), 5120 // tp
    cases = {
        "AS_PREDICTED": plain,
        "EMBEDDING": [changed(r, {states: int(r < tp)}, {}) for r in ranks],
        "HALF_LAYERS": [changed(r, {states: len(lab.layers_of(model, split, r))}, {}) for r in ranks],
        "MORE_LOGITS": [
            changed(
                r, {("all_gather", (3, rows), 12 * rows): 1}, {("all_gather", (10, rows), 40 * rows): 1},
            )
            if r >= last else plain[r] for r in ranks
        ],
        "WHOLE": [
            changed(
                r, {("all_gather", *share): 2 * int(r >= tp), ("send", *share): 2 * int(r < last)},
                {("send", (10, 128), 5120): 2} if r < last else {},
            )
            for r in ranks
        ],
    }  # fmt: skip
    for name, calls in cases.items():
        got, wanted = lab.diagnose(model, split, step, calls), getattr(lab, name)
        assert got == wanted, f"tp {tp}, pp {split.pp}: {wanted!r}, and you find {got!r}"
