"""Sampled runs: what each prompt asks of the sampler, and how close two tokens came to each other.

Every request has a seed, since vLLM's CPU build honours seeds only where all rows of a batch have one, and
no prompt comes in chunks, since a seeded one would end that build's engine (docs/FOUND_IN_VLLM.md, 3 and 13).
Log probabilities are the processed ones: of the distribution that a token is drawn from.

A token is the winner of a race: of all tokens the one with the largest p / q, where p is its probability and
q its noise, the next number of the request's own stream. So where two engines draw different tokens, both
probabilities and both noises tell whether rounding alone can have decided.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

from course.parity.tokens_run import Completion

SAMPLED_TOP = 20
"""How many of the likeliest tokens come back with each position of a sampled run."""
NEAR_TIE = 1e-4
"""Two quotients closer than this, relative to each other, are a near tie."""
SETTINGS: dict[str, Any] = {
    "enable_chunked_prefill": False,
    "max_model_len": 512,
    "max_num_batched_tokens": 512,
    "logprobs_mode": "processed_logprobs",
}


def make_knobs(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Random parameters, one a prompt: a temperature and a seed, and most of the others now and then."""
    rng = random.Random(seed)
    ranges: dict[str, tuple[float, float]] = {
        "top_p": (0.5, 1.0),
        "min_p": (0.005, 0.2),
        "repetition_penalty": (0.9, 1.5),
        "presence_penalty": (-1.0, 1.5),
        "frequency_penalty": (-0.3, 1.0),
    }
    many = []
    for _ in range(count):
        knobs: dict[str, Any] = {"temperature": rng.uniform(0.3, 1.5), "seed": rng.randrange(2**40)}
        if rng.random() < 0.4:
            knobs["top_k"] = rng.randint(1, 60)
        for name, (low, high) in ranges.items():
            if rng.random() < 0.35:
                knobs[name] = rng.uniform(low, high)
        many.append(knobs)
    return many


class Race:
    """The races of one request.

    Args:
        seed: the request's.
        vocab_size: tokens that race for each position, and numbers that a position takes.
    """

    def __init__(self, seed: int, vocab_size: int) -> None:
        from mini_vllm.sample.generator import TorchGenerator

        self._generator, self._vocab_size = TorchGenerator(seed), vocab_size
        self._noise: list[Any] = []

    def noise(self, position: int) -> Any:
        """[vocab_size], what the tokens at a position are divided by."""
        while len(self._noise) <= position:
            self._noise.append(self._generator.standard_exponential(self._vocab_size))
        return self._noise[position]

    def near_ties(self, completion: Completion, only: int | None = None) -> Iterator[str]:
        """The positions where the two best of the likeliest tokens were as good as equal."""
        for position, top in enumerate(completion.top):
            if only not in (None, position):
                continue
            noise = self.noise(position)
            keys = sorted(
                (
                    (logprob - math.log(max(noise[token], 1e-38)), token)
                    for token, logprob in top.items()
                    if logprob > -math.inf
                ),
                reverse=True,
            )
            if len(keys) > 1 and keys[0][0] - keys[1][0] < NEAR_TIE:
                (high, first), (low, second) = keys[:2]
                yield (
                    f"output token {position}: {first} and {second} finish {high - low:.1e} apart"
                )

    def describe(
        self, ours: Completion, theirs: Completion, position: int, mine: int, other: int
    ) -> str:
        """What both engines drew from, and how far apart the two tokens were in each."""
        noise = self.noise(position)
        parts = [f"noise {{{mine}: {noise[mine]:.6g}, {other}: {noise[other]:.6g}}}"]
        margins = []
        for name, completion in (("mini_vllm", ours), ("vLLM", theirs)):
            top = completion.top[position]
            shown = [
                f"{token}: {math.exp(top[token]):.6g}"
                if token in top
                else f"{token}: below the {SAMPLED_TOP} likeliest"
                for token in (mine, other)
            ]
            best = ", ".join(f"{t}: {math.exp(p):.4f}" for t, p in list(top.items())[:5])
            text = f"{name} drew from {{{', '.join(shown)}}}, of {{{best}, …}}"
            if mine in top and other in top and min(top[mine], top[other]) > -math.inf:
                a, b = (top[token] - math.log(max(noise[token], 1e-38)) for token in (mine, other))
                margins.append(abs(a - b))
                text += f", quotients {abs(a - b):.1e} apart"
            parts.append(text)
        tie = len(margins) == 2 and min(margins) < NEAR_TIE
        return f"{'a near tie' if tie else 'no near tie'}; " + "; ".join(parts)
