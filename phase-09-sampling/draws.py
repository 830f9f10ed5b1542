"""One row of logits, the knobs, and the draw. Set-up for the pages.

The row is what the shipped Llama says after "Why ". Every stage is the engine's (`mini_vllm/sample/ops.py`).

The pages import this module by its name: start Python in this folder.

    python phase-09-sampling/draws.py            the row, and Gil's two texts
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from mini_vllm import LLM, LLMEngine, SamplingParams
from mini_vllm.sample import ops
from mini_vllm.sample.generator import TorchGenerator
from mini_vllm.sampling_params import BeamSearchParams

HERE = Path(__file__).resolve().parent
PROMPT = "Why "
"""What Gil's test asks."""
Row = npt.NDArray[np.float32]


def _load(pattern: str) -> ModuleType:
    """A module of an earlier phase, by its file."""
    [file] = HERE.parent.glob(pattern)
    spec = importlib.util.spec_from_file_location(f"earlier_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def _engine() -> LLMEngine:
    return LLMEngine()


def letter(token_id: int) -> str:
    """A token of the shipped Llama as text."""
    tokenizer = _engine().tokenizer
    assert tokenizer is not None
    return tokenizer.decode([int(token_id)])


def token(text: str) -> int:
    """The token id of a letter."""
    tokenizer = _engine().tokenizer
    assert tokenizer is not None
    [token_id] = tokenizer.encode(text)[-1:]
    return token_id


@cache
def row(text: str = PROMPT) -> Row:
    """The logits of the last position, [264]."""
    engine = _engine()
    assert engine.tokenizer is not None
    hidden, _ = _load("phase-00-*/napkin.py").run(engine.tokenizer.encode(text), engine)
    logits: Row = np.asarray(engine.model.compute_logits(hidden))[-1].astype(np.float32)
    return logits


# --- the stages, on one row ---

Stage = Callable[[Row], Row]


def temperature(value: float) -> Stage:
    return lambda logits: ops.apply_temperature(logits[None], _one(value), True)[0]


def top_k(k: int) -> Stage:
    return lambda logits: ops.apply_top_k_top_p(logits[None], np.array([k]), None)[0]


def top_p(p: float) -> Stage:
    return lambda logits: ops.apply_top_k_top_p(logits[None], None, _one(p))[0]


def min_p(share: float) -> Stage:
    return lambda logits: ops.apply_min_p(logits[None], _one(share))[0]


def _one(value: float) -> Row:
    return np.array([value], np.float32)


def penalised(
    logits: Row,
    prompt: str = "",
    output: str = "",
    presence: float = 0.0,
    frequency: float = 0.0,
    repetition: float = 1.0,
) -> Row:
    """The row after the penalties, for a request with this prompt and this output."""
    prompt_ids, output_ids = [[token(c) for c in text] for text in (prompt, output)]
    _, prompt_mask = ops.get_token_bin_counts_and_mask([prompt_ids], len(logits))
    counts, _ = ops.get_token_bin_counts_and_mask([output_ids], len(logits))
    changed: Row = ops.apply_penalties(
        logits[None], prompt_mask, counts, _one(presence), _one(frequency), _one(repetition)
    )[0]
    return changed


def push(letters: str, **asked: Any) -> dict[str, float]:
    """How far the penalties move the logits of these letters; the arguments are `penalised`'s."""
    moved = penalised(row(), **asked) - row()
    return {c: round(float(moved[token(c)]), 2) + 0.0 for c in letters.split()}


def after(logits: Row, *stages: Stage) -> Row:
    """The row after these stages, in this order."""
    for stage in stages:
        logits = stage(logits)
    return logits


def likely(logits: Row, most: int = 7) -> dict[str, float]:
    """The likeliest letters and their probabilities; nothing that is barred."""
    probs = ops.softmax(logits[None])[0]
    best = np.argsort(-probs, kind="stable")[:most]
    return {letter(t): round(float(probs[t]), 3) for t in best if probs[t] > 0}


def kept(logits: Row, *stages: Stage) -> str:
    """The letters that can still be drawn, likeliest first."""
    logits = after(logits, *stages)
    order = np.argsort(-logits, kind="stable")
    return " ".join(letter(t) for t in order if np.isfinite(logits[t]))


def count(logits: Row, *stages: Stage) -> int:
    """How many tokens can still be drawn."""
    return int(np.isfinite(after(logits, *stages)).sum())


# --- the draw ---


def noise(seed: int, skip: int = 0) -> Row:
    """The exponential numbers that a request with this seed draws for its next token, after `skip` others."""
    generator = TorchGenerator(seed)
    for _ in range(skip):
        generator.standard_exponential(len(row()))
    return generator.standard_exponential(len(row()))


def race(logits: Row, seed: int = 7) -> list[tuple[str, float, float, float]]:
    """For the likeliest letters: probability, noise, and when each arrives. The earliest wins."""
    probs, drawn = ops.softmax(logits[None])[0], noise(seed)
    return [
        (letter(t), float(probs[t]), float(drawn[t]), float(drawn[t] / probs[t]))
        for t in np.argsort(-probs, kind="stable")[:7]
    ]


def show_race(logits: Row, seed: int = 7) -> None:
    print("letter   p     noise   noise / p")
    for name, p, drawn, arrives in race(logits, seed):
        print(f"{name!r:6} {p:.3f}   {drawn:5.3f}   {arrives:6.2f}")


def by_quotient(logits: Row, seed: int) -> str:
    """The winner, V1's way: the largest p / noise."""
    return letter(int((ops.softmax(logits[None])[0] / noise(seed)).argmax()))


def shares(logits: Row, letters: str, draws: int = 100_000) -> list[float]:
    """How often each letter wins, in so many races with one stream."""
    probs = ops.softmax(logits[None])
    generator, drawn = TorchGenerator(0), []
    for start in range(0, draws, 1000):
        some = np.broadcast_to(probs, (min(1000, draws - start), probs.shape[1]))
        drawn.append(ops.random_sample(some, {}, generator))
    counts = np.bincount(np.concatenate(drawn), minlength=probs.shape[1])
    return [round(float(counts[token(c)] / draws), 3) for c in letters]


# --- texts ---


def gil(seed: int = 7, beside: Sequence[dict[str, Any]] = (), **config: Any) -> str:
    """Gil's text from `mini_vllm`: temperature 1, 40 tokens; with others in the same batch."""
    llm = LLM(**config)
    params = [SamplingParams(temperature=1.0, seed=seed, max_tokens=40)]
    params += [SamplingParams(max_tokens=40, **other) for other in beside]
    prompts = [PROMPT] + ["What is a block?"] * len(beside)
    return llm.generate(prompts, params)[0].outputs[0].text


def children(n: int, prompt: str | list[int], seed: int | None = None) -> list[tuple[str, int]]:
    """The n texts of one request, 12 tokens each, and how many tokens the request found cached."""
    llm = LLM()
    params = SamplingParams(n=n, temperature=1.0, seed=seed, max_tokens=12)
    given: Any = prompt if isinstance(prompt, str) else {"prompt_token_ids": prompt}
    [output] = llm.generate([given], params)
    return [(child.text, output.num_cached_tokens or 0) for child in output.outputs]


def greedy(max_tokens: int = 20) -> tuple[str, float]:
    """The greedy text, and the sum of its logprobs."""
    params = SamplingParams(temperature=0, max_tokens=max_tokens, logprobs=0)
    [answer] = LLM().generate([PROMPT], params)[0].outputs
    return PROMPT + answer.text, round(float(answer.cumulative_logprob or 0), 2)


def beams(width: int, max_tokens: int = 20) -> list[tuple[str, float]]:
    """The best beams and the sums of their logprobs."""
    [found] = LLM().beam_search([PROMPT], BeamSearchParams(beam_width=width, max_tokens=max_tokens))
    return [
        ((beam.text or "").removeprefix("<bos>"), round(beam.cum_logprob, 2))
        for beam in found.sequences
    ]


def cached_share(n: int, prompt_tokens: int, block: int = 16) -> float:
    """The share of n requests' prompt tokens that prefix caching spares, if all but the first hit."""
    return (n - 1) / n * block * ((prompt_tokens - 1) // block) / prompt_tokens


def first_logprobs(mode: str, **params: Any) -> dict[str, float]:
    """What the engine reports of Gil's first letter: the five likeliest."""
    llm = LLM(logprobs_mode=mode)
    [output] = llm.generate([PROMPT], SamplingParams(logprobs=5, max_tokens=1, **params))
    reported = output.outputs[0].logprobs
    assert reported
    named = (
        (letter(t), round(float(entry.logprob), 2))
        for t, entry in reported[0].items()
        if np.isfinite(entry.logprob)
    )
    return dict(sorted(named, key=lambda pair: -pair[1])[:5])


def in_columns(rows: Iterable[tuple[object, ...]]) -> None:
    """Print rows with their columns aligned."""
    table = [[str(cell) for cell in line] for line in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for line in table:
        print("   ".join(f"{c:{w}}" for c, w in zip(line, widths, strict=True)).rstrip())


if __name__ == "__main__":
    print(likely(row()))
    print(gil(), "|", gil(8))
