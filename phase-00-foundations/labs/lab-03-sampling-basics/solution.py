"""Lab 00-03: from logits to a token. The reference solution.

The steps are those of `mini_vllm/sample/ops.py`, which mirrors `vllm/v1/sample/`. Shapes: n rows (one
per request), V tokens in the vocabulary. No function changes the arrays it is given.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

import mini_vllm.sample.sampler
from mini_vllm.sample.metadata import SamplingMetadata
from mini_vllm.sample.ops import gather_logprobs
from mini_vllm.sample.sampler import SamplerOutput

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]

SAMPLING_EPS = 1e-5
"""Below this temperature a row is greedy (`vllm/sampling_params.py:25`)."""


def softmax(logits: FloatArray) -> FloatArray:
    """Probabilities of each row, [n, V] to [n, V]."""
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    probs: FloatArray = weights / weights.sum(axis=1, keepdims=True)
    return probs


def compute_logprobs(logits: FloatArray) -> FloatArray:
    """Logarithms of the probabilities of each row, [n, V] to [n, V]."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    logprobs: FloatArray = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return logprobs


def greedy_sample(logits: FloatArray) -> IntArray:
    """The likeliest token of each row, [n, V] to [n]; of several the lowest id."""
    return logits.argmax(axis=1)


def apply_temperature(logits: FloatArray, temp: FloatArray) -> FloatArray:
    """Divide row i of the [n, V] logits by `temp[i]`, greedy rows by 1."""
    divisor = np.where(temp < SAMPLING_EPS, np.float32(1), temp)
    return logits / divisor[:, None]


def apply_min_p(logits: FloatArray, min_p: FloatArray) -> FloatArray:
    """Mask the tokens less likely than `min_p[i]` times the likeliest of row i."""
    probs = softmax(logits)
    floor = probs.max(axis=1, keepdims=True) * min_p[:, None]
    return np.where(probs < floor, np.float32(-np.inf), logits)


def apply_top_k(logits: FloatArray, k: IntArray) -> FloatArray:
    """Mask the tokens below the k-th largest logit of each row; ties with it stay."""
    ranked = np.sort(logits, axis=1)
    kth = np.take_along_axis(ranked, (logits.shape[1] - k)[:, None], axis=1)
    return np.where(logits < kth, np.float32(-np.inf), logits)


def apply_top_p(logits: FloatArray, p: FloatArray) -> FloatArray:
    """Keep the likeliest tokens of each row that together hold `p[i]`, the one that crosses too."""
    order = np.argsort(logits, axis=1, kind="stable")  # least likely first
    ranked = np.take_along_axis(logits, order, axis=1)
    mass = np.cumsum(softmax(ranked), axis=1, dtype=np.float64).astype(np.float32)
    gone = mass <= np.float32(1) - p[:, None]
    gone[:, -1] = False  # the likeliest always stays
    kept = np.empty_like(logits)
    np.put_along_axis(kept, order, np.where(gone, np.float32(-np.inf), ranked), axis=1)
    return kept


def sampling_probs(
    logits: FloatArray,
    temp: FloatArray,
    min_p: FloatArray | None,
    k: IntArray | None,
    p: FloatArray | None,
) -> FloatArray:
    """The distribution that each row's token is drawn from, [n, V]."""
    logits = apply_temperature(logits, temp)
    if min_p is not None:
        logits = apply_min_p(logits, min_p)
    if k is not None:
        logits = apply_top_k(logits, k)
    if p is not None:
        logits = apply_top_p(logits, p)
    return softmax(logits)


def random_sample(
    probs: FloatArray, generators: Mapping[int, np.random.Generator], rng: np.random.Generator
) -> IntArray:
    """Draw one token per row: divide by exponential noise, take the argmax; [n, V] to [n]."""
    noise = np.empty(probs.shape)
    if len(generators) < len(probs):
        noise = rng.standard_exponential(probs.shape)
    for row, generator in generators.items():
        noise[row] = generator.standard_exponential(probs.shape[1])
    noise = np.maximum(noise, np.finfo(np.float64).tiny)
    return (probs / noise).argmax(axis=1)


# ---- given: your functions in the engine's own sampler -------------------------------------------


class Sampler(mini_vllm.sample.sampler.Sampler):
    """The engine's sampler, on the functions above: `EngineParts(sampler=Sampler)`.

    Penalties, logit bias and the other steps before the draw are inherited.
    """

    def __call__(self, logits: FloatArray, sampling_metadata: SamplingMetadata) -> SamplerOutput:
        raw = logits  # what is reported is the model's own opinion, before any step
        logits = self.apply_logits_processors(logits, sampling_metadata)
        sampled = self.sample(logits, sampling_metadata)
        num_logprobs = sampling_metadata.max_num_logprobs
        if num_logprobs is None:
            return SamplerOutput(sampled)
        logprobs = compute_logprobs(raw)
        return SamplerOutput(sampled, gather_logprobs(logprobs, num_logprobs, sampled))

    def sample(self, logits: FloatArray, sampling_metadata: SamplingMetadata) -> IntArray:
        """[n, V] logits to [n] token ids."""
        metadata = sampling_metadata
        greedy = greedy_sample(logits)
        if metadata.temperature is None:  # every row is greedy
            return greedy
        probs = sampling_probs(
            logits, metadata.temperature, metadata.min_p, metadata.top_k, metadata.top_p
        )
        drawn = random_sample(probs, metadata.generators, self.rng)
        return np.where(metadata.temperature < SAMPLING_EPS, greedy, drawn)
