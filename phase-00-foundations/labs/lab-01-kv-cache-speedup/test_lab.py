"""Lab 00-01: what both loops must do, token by token and pass by pass."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.model_loader import load_model
from mini_vllm.models.llama import LlamaForCausalLM

PROMPT = b"The scheduler"
CASES = [(1, 1), (1, 5), (5, 10), (7, 3), (16, 18), (17, 2)]
"""(prompt length, new tokens): one token, within a block, both odd, over the ends of blocks of 16."""
EOS = 2


@dataclass
class Pass:
    """One call of `forward`, and the logits made from it."""

    input_ids: list[int]
    positions: list[int]
    seq_len: int
    slots: list[int]
    kv_caches: list[np.ndarray]
    empty: bool
    logits: list[np.ndarray] = field(default_factory=list)


class Watched:
    """The shipped model, noting every pass that runs through it."""

    def __init__(self, model: LlamaForCausalLM) -> None:
        self._model = model
        self._hidden: np.ndarray | None = None
        self.passes: list[Pass] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward(self, input_ids: Any, positions: Any, kv_caches: Any, attn_metadata: Any) -> Any:
        for name, value in (("input_ids", input_ids), ("positions", positions)):
            array = np.asarray(value)
            assert value is array, f"forward takes {name} as a numpy array, got {value!r}"
            assert (array.ndim, array.dtype.kind) == (1, "i"), (
                f"forward takes {name} as integers with one axis, got {value!r}"
            )
        vocab_size = self._model.config.vocab_size
        assert max(input_ids, default=0) < vocab_size, (
            f"input_ids holds {max(input_ids)}, but the vocabulary ends at {vocab_size - 1}: an argmax over "
            "several rows of logits at once gives such ids"
        )
        assert len(input_ids) == len(positions) == len(attn_metadata.slot_mapping), (
            f"one pass, three counts of its tokens: {len(input_ids)} input_ids, {len(positions)} "
            f"positions, and attention_metadata for {len(attn_metadata.slot_mapping)}. They are the "
            "same tokens."
        )
        self.passes.append(
            Pass(
                input_ids.tolist(),
                positions.tolist(),
                int(attn_metadata.seq_lens[0]),
                attn_metadata.slot_mapping.tolist(),
                kv_caches,
                all(np.isnan(cache).all() for cache in kv_caches),
            )
        )
        room = kv_caches[0].shape[0] * kv_caches[0].shape[1]
        assert self.passes[-1].seq_len <= room, (
            f"the caches have {room} slots and this pass wants token {self.passes[-1].seq_len}: make "
            "room for every token that is ever run"
        )
        self._hidden = self._model.forward(input_ids, positions, kv_caches, attn_metadata)
        return self._hidden

    def compute_logits(self, hidden: Any) -> Any:
        assert np.ndim(hidden) == 2, (
            "compute_logits takes rows, [n, hidden_size]. hidden[-1:] is one row; hidden[-1] has lost "
            "that axis"
        )
        rows = self._hidden
        assert rows is not None, "compute_logits was called before any forward"
        assert np.array_equal(hidden[-1], rows[-1], equal_nan=True), (
            f"pass {len(self.passes) - 1} ran {len(rows)} tokens, and the row of hidden states that you made "
            f"logits of is not the last. Row i predicts what follows token i, so only row "
            f"{len(rows) - 1}, hidden[-1:], predicts a new token. (hidden[:1] is the first row.)"
        )
        logits = self._model.compute_logits(hidden)
        self.passes[-1].logits.append(logits)
        return logits


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return load_model(DEFAULT_MODEL)


def prompt_of(length: int) -> list[int]:
    """`length` token ids: <bos> and bytes of a text."""
    return ([1] + [8 + b for b in PROMPT * 3])[:length]


class AlwaysEos(Watched):
    """The shipped model, with EOS as the likeliest token of every row."""

    def compute_logits(self, hidden: Any) -> Any:
        logits = super().compute_logits(hidden)
        logits[:, EOS] = logits.max() + 1
        return logits


@functools.cache  # several tests look at the same run
def run(lab: ModuleType, name: str, model: LlamaForCausalLM, length: int, new: int) -> Any:
    """(generation, passes) of one loop on a prompt of `length` tokens."""
    watched = Watched(model)
    generation = getattr(lab, name)(watched, prompt_of(length), new)
    assert isinstance(generation, lab.Generation), (
        f"{name} returns a Generation, got a {type(generation).__name__}"
    )
    return generation, watched.passes


def first_apart(a: list[int], b: list[int]) -> int:
    """The first place at which two lists differ, or the length of the shorter."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))


def both(lab: ModuleType, model: LlamaForCausalLM, length: int, new: int) -> Any:
    return (
        run(lab, "generate_without_cache", model, length, new),
        run(lab, "generate_with_cache", model, length, new),
    )


@pytest.mark.parametrize(("length", "new"), CASES)
def test_without_cache_runs_everything_every_time(
    lab: ModuleType, model: LlamaForCausalLM, length: int, new: int
) -> None:
    """Without the cache, pass i runs the prompt and all i new tokens, from position 0, in empty caches."""
    generation, passes = run(lab, "generate_without_cache", model, length, new)
    assert len(passes) == new, (
        f"{new} new tokens take {new} passes, not {len(passes)}: each pass predicts one token, and "
        "the last token predicted is not run"
    )
    sequence = prompt_of(length) + generation.token_ids
    for i, step in enumerate(passes):
        assert len(step.input_ids) == length + i, (
            f"pass {i} runs the prompt and the {i} tokens made so far, {length + i} in all; yours ran "
            f"{len(step.input_ids)}"
        )
        at = first_apart(step.input_ids, sequence)
        assert at == length + i, (
            f"pass {i} runs the sequence so far; token {at} of it is {sequence[at]}, yours is "
            f"{step.input_ids[at]}"
        )
        assert step.positions == list(range(length + i)), (
            f"pass {i} runs the sequence from its start: positions 0 to {length + i - 1}, got "
            f"{step.positions[0]} to {step.positions[-1]}"
        )
        assert step.seq_len == length + i, (
            f"after pass {i} the caches hold {length + i} tokens; attention_metadata was told "
            f"{step.seq_len}"
        )
        assert step.empty, (
            f"pass {i} found K and V of an earlier pass in its caches. The loop without a cache keeps "
            "nothing: give every pass new, empty caches"
        )


@pytest.mark.parametrize(("length", "new"), CASES)
def test_with_cache_runs_each_token_once(
    lab: ModuleType, model: LlamaForCausalLM, length: int, new: int
) -> None:
    """With the cache, the first pass runs the prompt, and every later pass only the newest
    token, at its place."""
    generation, passes = run(lab, "generate_with_cache", model, length, new)
    ran = [len(step.input_ids) for step in passes]
    due = [length] + [1] * (new - 1)
    at = first_apart(ran, due)
    assert ran == due, (
        f"for {new} new tokens after a prompt of {length} the passes run {length} tokens and then "
        f"{new - 1} times one; your {len(ran)} passes ran {sum(ran)} tokens, and pass {at} "
        f"{ran[at] if at < len(ran) else 'is missing'}. K and V in the cache need no second run, and the "
        "last token made is not run at all"
    )
    sequence = prompt_of(length) + generation.token_ids
    done = 0
    for i, step in enumerate(passes):
        count = len(step.input_ids)
        at = first_apart(step.input_ids, sequence[done : done + count])
        assert at == count, (
            f"pass {i} runs the tokens that have no K and V yet; token {done + at} of the sequence is "
            f"{sequence[done + at]}, and you ran {step.input_ids[at]}"
        )
        assert step.positions == list(range(done, done + count)), (
            f"pass {i} runs the tokens at positions {done} to {done + count - 1} of the sequence, "
            f"yours said {step.positions[0]} to {step.positions[-1]}. "
            "RoPE turns Q and K by their position: a token keeps its "
            "place in the sequence, however few tokens the pass has"
        )
        done += count
        assert step.seq_len == done, (
            f"after pass {i} the caches hold {done} tokens, the new one included; attention_metadata "
            f"was told {step.seq_len}. One too few, and the new K and V overwrite the last token's"
        )
        assert step.slots == step.positions, (
            f"in pass {i} token {step.positions[-1]} of the sequence went to slot {step.slots[-1]}"
        )


@pytest.mark.parametrize(("length", "new"), [(5, 10), (16, 18)])
def test_the_cache_stays_from_pass_to_pass(
    lab: ModuleType, model: LlamaForCausalLM, length: int, new: int
) -> None:
    """Every pass gets the first pass's caches, which at the end hold K and V of P + n - 1 tokens."""
    _, passes = run(lab, "generate_with_cache", model, length, new)
    for i, step in enumerate(passes):
        assert all(a is b for a, b in zip(step.kv_caches, passes[0].kv_caches, strict=True)), (
            f"pass {i} got other caches than pass 0: what pass 0 computed is lost. Make them once."
        )
    for cache in passes[0].kv_caches:
        tokens = cache.reshape(-1, *cache.shape[2:])
        filled = ~np.isnan(tokens).any(axis=(1, 2, 3))
        want = length + new - 1
        assert filled[:want].all(), (
            f"slots {np.flatnonzero(~filled[:want]).tolist()} of the cache were never written; every "
            "token that is run leaves its K and V"
        )
        assert not filled[want:].any(), (
            f"the caches hold {int(filled.sum())} tokens, and {length} + {new} - 1 = {want} is "
            "enough: nobody ever attends to the last token made, so it is not run"
        )


@pytest.mark.parametrize(("length", "new"), CASES)
def test_both_produce_identical_tokens(
    lab: ModuleType, model: LlamaForCausalLM, length: int, new: int
) -> None:
    """The cache saves work and changes no result: both loops give the same logits and the same tokens."""
    (without, slow), (cached, fast) = both(lab, model, length, new)
    assert len(without.token_ids) == len(cached.token_ids) == new, (
        f"asked for {new} tokens: got {len(without.token_ids)} without the cache and "
        f"{len(cached.token_ids)} with it. The prompt is not among the new tokens"
    )
    for i, (a, b) in enumerate(zip(slow, fast, strict=False)):
        if not (a.logits and b.logits):
            continue  # a pass too many; another test speaks of it
        assert np.isfinite(b.logits[-1]).all(), (
            f"NaN in the logits of pass {i} with the cache: it attended to a slot that no pass had "
            "written. Either the caches were made anew, or seq_len counts tokens that were never run"
        )
        difference = float(np.abs(a.logits[-1][-1] - b.logits[-1][-1]).max())
        assert difference < 1e-2, (
            f"at pass {i} the logits of the two loops differ by {difference:.3f}. Rounding explains "
            "0.0001 of that: the loops do not give the model the same sequence"
        )
    at = first_apart(without.token_ids, cached.token_ids)
    assert at == new, (
        f"the loops part at new token {at}: {without.token_ids[at]} without the cache, "
        f"{cached.token_ids[at]} with it"
    )


@pytest.mark.parametrize("loop", ["generate_without_cache", "generate_with_cache"])
def test_the_tokens_are_those_of_the_engine(
    lab: ModuleType, model: LlamaForCausalLM, loop: str
) -> None:
    """Both loops make the same tokens from a prompt as mini_vllm's engine does, greedy."""
    prompt, new = prompt_of(10), 24
    params = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True)
    [output] = LLM(kv_cache_memory_bytes=2**20).generate([{"prompt_token_ids": prompt}], params)
    generation, _ = run(lab, loop, model, len(prompt), new)
    for i, token in enumerate(output.outputs[0].token_ids):
        assert generation.token_ids[i : i + 1] == [token], (
            f"{loop} and the engine part at new token {i}: {generation.token_ids[i : i + 1]} and "
            f"[{token}]. Each token is the index of the largest logit of the last row, and each pass "
            "must see all tokens before it"
        )


@pytest.mark.parametrize("loop", ["generate_without_cache", "generate_with_cache"])
def test_only_the_last_row_becomes_logits(
    lab: ModuleType, model: LlamaForCausalLM, loop: str
) -> None:
    """compute_logits is called once per pass, on one row: the other rows predict tokens already known."""
    _, passes = run(lab, loop, model, 5, 4)
    for i, step in enumerate(passes):
        rows = [len(logits) for logits in step.logits]
        assert rows == [1], (
            f"pass {i} made logits of {rows} rows; only hidden[-1:], one row, predicts a new token. "
            "The other rows predict tokens that stand in the sequence already"
        )


@pytest.mark.parametrize("loop", ["generate_without_cache", "generate_with_cache"])
def test_the_counter_counts_what_the_model_ran(
    lab: ModuleType, model: LlamaForCausalLM, loop: str
) -> None:
    """kv_computed holds, for each pass, the number of tokens that went into the model."""
    generation, passes = run(lab, loop, model, 6, 7)
    ran = [len(step.input_ids) for step in passes]
    assert generation.kv_computed == ran, (
        f"the {len(ran)} passes ran {sum(ran)} tokens; kv_computed has {len(generation.kv_computed)} entries "
        f"and a sum of {generation.work}. One entry a pass, the length of its input_ids"
    )


@pytest.mark.parametrize("loop", ["generate_without_cache", "generate_with_cache"])
def test_eos_is_a_token_like_any_other(lab: ModuleType, model: LlamaForCausalLM, loop: str) -> None:
    """A model that predicts EOS at once still gets all of its passes: nothing stops the loop early."""
    watched = AlwaysEos(model)
    generation = getattr(lab, loop)(watched, prompt_of(5), 4)
    assert generation.token_ids == [EOS] * 4, (
        f"the model predicts EOS (id {EOS}) every time, and {loop} returned {generation.token_ids}: there "
        "are always num_new_tokens passes, whatever they predict. Lab 01-05 is about stopping"
    )
    assert len(watched.passes) == 4, f"four new tokens take four passes, not {len(watched.passes)}"


@pytest.mark.parametrize("loop", ["generate_without_cache", "generate_with_cache"])
def test_tokens_and_counts_are_python_integers(
    lab: ModuleType, model: LlamaForCausalLM, loop: str
) -> None:
    """Token ids and counts are Python's int, not numpy's integers, which json.dumps does not take."""
    generation, _ = run(lab, loop, model, 5, 3)
    for name in ("token_ids", "kv_computed"):
        kinds = sorted({type(value).__name__ for value in getattr(generation, name)})
        assert kinds == ["int"], (
            f"{loop} gives {name} of type {', '.join(kinds)}: argmax and shape of numpy give numpy's own "
            "integers, which a server cannot write as JSON. int() makes one of Python's"
        )


@pytest.mark.parametrize("loop", ["generate_without_cache", "generate_with_cache"])
def test_the_callers_prompt_is_left_alone(
    lab: ModuleType, model: LlamaForCausalLM, loop: str
) -> None:
    """The loops append nothing to the caller's prompt, which may be a tuple as well as a list."""
    prompt = prompt_of(5)
    first = getattr(lab, loop)(model, prompt, 3)
    assert prompt == prompt_of(5), (
        f"{loop} appended to the caller's list. `sequence = prompt_ids` is a second name for the same "
        "list; `list(prompt_ids)` is a copy"
    )
    again = getattr(lab, loop)(model, tuple(prompt), 3)
    assert first == again, (
        f"{loop} gave {first.token_ids} for a list and, for the same prompt as a tuple, {again.token_ids}"
    )


@pytest.mark.parametrize(("length", "new"), CASES)
def test_the_formulas_are_what_the_loops_do(
    lab: ModuleType, model: LlamaForCausalLM, length: int, new: int
) -> None:
    """work_without_cache and work_with_cache equal the work that the loops counted."""
    (without, _), (cached, _) = both(lab, model, length, new)
    for name, generation in (("work_without_cache", without), ("work_with_cache", cached)):
        formula = getattr(lab, name)(length, new)
        assert formula == generation.work, (
            f"{name}({length}, {new}) says {formula}, your loop counted {generation.work} tokens in "
            f"{len(generation.kv_computed)} passes: one of the two is wrong"
        )


def test_no_cache_is_quadratic(lab: ModuleType) -> None:
    """work_without_cache is P + (P + 1) + ... + (P + n - 1), a whole number: 95 for P = 5 and n = 10."""
    small = [(length, new) for length in range(1, 8) for new in range(1, 8)]  # odd and even, both
    for length, new in [(5, 10), *small, (100, 100), (3, 1000), (1001, 999)]:
        want = sum(range(length, length + new))
        got = lab.work_without_cache(length, new)
        assert got == want, (
            f"work_without_cache({length}, {new}) is {want}, got {got}: {new} terms, the first "
            f"{length}, the last {length + new - 1}. Where only odd numbers fail, something was halved "
            "too early: of n and n - 1 one is even, of n alone that is not sure"
        )
    big = lab.work_without_cache(10**9, 10**9)
    assert (type(big), big) == (int, 10**18 + 10**9 * (10**9 - 1) // 2), (
        f"for P = n = 10**9 got {big!r}: stay in whole numbers, divide with // and not with /"
    )


def test_cached_is_linear(lab: ModuleType) -> None:
    """work_with_cache is P + n - 1: 14 for P = 5 and n = 10, because the last token made is never run."""
    for length, new in [(5, 10), (1, 1), (1, 2), (7, 3), (100, 100), (3, 1000), (10**9, 10**9)]:
        got = lab.work_with_cache(length, new)
        assert (type(got), got) == (int, length + new - 1), (
            f"work_with_cache({length}, {new}) is {length + new - 1}, got {got}: {length} tokens of "
            f"the prompt, then every new token but the last, {new - 1} of them"
        )


def test_work_ratio_grows_with_length(lab: ModuleType) -> None:
    """For P = 10 the ratio of the two formulas passes 7, 50, 500, 5000 as n grows tenfold, and
    tends to n / 2."""

    def ratio(new: int) -> float:
        return float(lab.work_without_cache(10, new) / lab.work_with_cache(10, new))

    ratios = [ratio(10**k) for k in range(5)]
    assert ratios[0] == 1, (
        f"one new token costs one pass over the prompt either way: ratio 1, got {ratios[0]}"
    )
    for least, got in zip((7, 50, 500, 5000), ratios[1:], strict=True):
        assert least < got < 1.2 * least, (
            f"for n = 1, 10, 100, 1,000 and 10,000 the ratios are {ratios}. Without the cache ten times "
            "the tokens cost a hundred times the work, with it ten times"
        )
    assert 0.499 < ratio(10**6) / 10**6 < 0.501, (
        f"for n much larger than P the ratio is n / 2; yours is {ratio(10**6) / 10**6:.3f} n"
    )
