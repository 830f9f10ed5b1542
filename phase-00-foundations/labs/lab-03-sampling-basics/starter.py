"""Lab 00-03: from logits to a token. Your work: the functions that raise NotImplementedError.

Shapes: n rows (one per request), V tokens in the vocabulary. Logits and probabilities are float32
[n, V]. A token that may not be drawn is **masked** (barred, in the tests' messages): its logit is
-inf, so its probability is 0.

The functions may be called with the same logits twice, so none may change the arrays it is given:
return new ones.
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
    """Turn each row of logits into probabilities: exp(x) over the sum of the row's exp(x).

    Must survive logits of any size. exp() of a float32 above 88.7 is inf, but softmax does not
    change when the same number is taken off every logit of a row: choose one that makes the
    largest exponent 0.

    Args:
        logits: [n, V] float32; -inf is allowed (a masked token), as long as a row has one finite
            logit.

    Returns:
        [n, V] float32, each row sums to 1, masked tokens have exactly 0.
    """
    raise NotImplementedError


def compute_logprobs(logits: FloatArray) -> FloatArray:
    """The natural logarithm of `softmax(logits)`, without computing the softmax.

    log(exp(x) / total) is x - log(total). Taking the logarithm of a probability instead gives -inf
    where it was rounded to 0: a token 200 below the top has log probability -200, but exp(-200) is
    0 in float32.

    Args:
        logits: [n, V] float32, of any size.

    Returns:
        [n, V] float32.
    """
    raise NotImplementedError


def greedy_sample(logits: FloatArray) -> IntArray:
    """The token with the largest logit of each row; where several tie, the lowest id.

    Args:
        logits: [n, V] float32.

    Returns:
        [n] int64 token ids.
    """
    raise NotImplementedError


def apply_temperature(logits: FloatArray, temp: FloatArray) -> FloatArray:
    """Divide the logits of row i by `temp[i]`.

    Greedy rows have temperature 0 and are in the same batch. Whatever is drawn for them is thrown
    away, but it must not divide by zero on the way: leave rows with `temp[i] < SAMPLING_EPS` as
    they are.

    Args:
        logits: [n, V] float32.
        temp: [n] float32, 0 or more.

    Returns:
        [n, V] float32.
    """
    raise NotImplementedError


def apply_min_p(logits: FloatArray, min_p: FloatArray) -> FloatArray:
    """Mask the tokens of row i whose probability is below `min_p[i]` times the row's largest one.

    A token exactly at that floor stays. 0 masks nothing.

    Args:
        logits: [n, V] float32.
        min_p: [n] float32 in [0, 1].

    Returns:
        [n, V] float32, -inf where a token is masked, the logit itself elsewhere.
    """
    raise NotImplementedError


def apply_top_k(logits: FloatArray, k: IntArray) -> FloatArray:
    """Mask the tokens of row i whose logit is below the `k[i]`-th largest of the row.

    Tokens that tie with the k-th stay, so more than k may be left. That is vLLM's rule
    (`vllm/v1/sample/ops/topk_topp_sampler.py:372`).

    Args:
        logits: [n, V] float32.
        k: [n] int64 in 1 to V; V switches it off for that row.

    Returns:
        [n, V] float32, -inf where a token is masked, the logit itself elsewhere.
    """
    raise NotImplementedError


def apply_top_p(logits: FloatArray, p: FloatArray) -> FloatArray:
    """Keep the fewest, likeliest tokens of each row whose probabilities add up to at least `p[i]`.

    The token that takes the sum to p or across it stays. The likeliest token always stays, however
    small p is. Mask all others. Unlike in `apply_top_k`, a tie does not save a token.

    Where the sum meets p to the last bit, rounding decides. vLLM sums from the least likely token
    up and masks a token while the sum, its own probability included, is at most 1 - p
    (`vllm/v1/sample/ops/topk_topp_sampler.py:328`). Adding the many small numbers first also rounds
    less.

    Args:
        logits: [n, V] float32; masked tokens may be among them. Probabilities are those of
            `softmax(logits)`: a share of what earlier steps have left.
        p: [n] float32 in (0, 1]; 1 masks nothing that could be drawn.

    Returns:
        [n, V] float32, -inf where a token is masked, the logit itself elsewhere, in the order of
        the token ids as before.
    """
    raise NotImplementedError


def sampling_probs(
    logits: FloatArray,
    temp: FloatArray,
    min_p: FloatArray | None,
    k: IntArray | None,
    p: FloatArray | None,
) -> FloatArray:
    """The distribution that each row's token is drawn from.

    Apply the steps in vLLM's order (`vllm/v1/sample/sampler.py:238`): temperature, min_p, top_k,
    top_p, then softmax. Each step works on what the one before left, so another order gives
    other tokens.

    Args:
        logits: [n, V] float32.
        temp: [n] float32.
        min_p, k, p: [n] each, as the functions above take them; None where no row of the batch uses
            the step.

    Returns:
        [n, V] float32 probabilities.
    """
    raise NotImplementedError


def random_sample(
    probs: FloatArray, generators: Mapping[int, np.random.Generator], rng: np.random.Generator
) -> IntArray:
    """Draw one token per row: divide its probabilities by exponential noise, take the argmax.

    The recipe, which decides which random numbers are used up:

    1. Where at least one row has no generator of its own, draw [n, V] numbers from `rng` with
       `standard_exponential`, for all rows at once.
    2. For each `row, generator` of `generators` replace that row's noise by V numbers from its own
       generator.
    3. Raise the noise to at least `np.finfo(np.float64).tiny`: numpy can draw an exact 0, and 0 / 0
       would let a masked token win.
    4. The token of a row is the argmax of probs / noise.

    Args:
        probs: [n, V] float32.
        generators: row to the generator of a request with a seed; no entry for rows without one.
        rng: the noise of all other rows.

    Returns:
        [n] int64 token ids.
    """
    raise NotImplementedError


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
