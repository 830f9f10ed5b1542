"""The sampler's single steps, each a small function on arrays.

Mirrors `vllm/v1/sample/ops/` (top-k, top-p, penalties, logprobs), the static methods of
`vllm/v1/sample/sampler.py` and the arithmetic of `vllm/v1/sample/logits_processor/builtin.py`.
`sampler.py` puts them in order and hands them on under its own name. Left out: the Triton,
FlashInfer, ROCm and XPU variants of top-k and top-p.

Every function returns a new array, or its input untouched where there is nothing to do. Upstream
may write into the logits it is given. Shapes below: n rows, V tokens in the vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mini_vllm.sample.generator import TorchGenerator, exponential_from_bits
from mini_vllm.sampling_params import SAMPLING_EPS

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

NEG_INF = np.float32(-np.inf)


def mask_logits(values: FloatArray, mask: BoolArray) -> FloatArray:
    """A copy of `values` with -inf where `mask` is True; both [n, V]."""
    masked = values.copy()
    np.putmask(masked, mask, NEG_INF)
    return masked


def softmax(logits: FloatArray) -> FloatArray:
    """Probabilities of each row: [n, V] float32 to [n, V] float32.

    A row of nothing but -inf gives NaN, as in torch, and then token 0 is drawn.
    """
    with np.errstate(invalid="ignore"):
        probs: FloatArray = np.exp(logits - logits.max(axis=-1, keepdims=True))
        probs /= probs.sum(axis=-1, keepdims=True)
    return probs


def compute_logprobs(logits: FloatArray) -> FloatArray:
    """Log-softmax of each row, [n, V] float32
    (`vllm/v1/sample/sampler.py:300 Sampler.compute_logprobs`)."""
    shifted: FloatArray = logits - logits.max(axis=-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return shifted


class LogprobsLists(NamedTuple):
    """Log probabilities of n positions (`vllm/v1/outputs.py:26 LogprobsLists`).

    Column 0 is the token drawn (or the prompt's own token). The others are the likeliest tokens,
    best first, so a token drawn from among them stands there twice.
    """

    logprob_token_ids: npt.NDArray[np.int32]
    """[n, k + 1]"""
    logprobs: FloatArray
    """[n, k + 1]"""
    sampled_token_ranks: IntArray
    """[n], 1 is the likeliest; tokens that tie share the worst rank among them."""

    def first(self, num_positions: int) -> LogprobsLists:
        """Those of the first positions (`vllm/v1/outputs.py:39 LogprobsLists.slice_request`)."""
        if num_positions >= len(self.logprobs):
            return self
        n = num_positions
        return LogprobsLists(
            self.logprob_token_ids[:n], self.logprobs[:n], self.sampled_token_ranks[:n]
        )


def gather_logprobs(
    logprobs: FloatArray, num_logprobs: int, token_ids: npt.NDArray[np.integer]
) -> LogprobsLists:
    """Pick what the output needs from [n, V] log probabilities
    (`vllm/v1/sample/sampler.py:304 Sampler.gather_logprobs`).

    Args:
        logprobs: [n, V] float32.
        num_logprobs: k, the likeliest tokens to return per row, 0 to V.
        token_ids: [n], the token whose own log probability and rank to return.
    """
    own_ids = token_ids[:, None]
    own = np.take_along_axis(logprobs, own_ids, axis=-1)
    ranks = np.count_nonzero(logprobs >= own, axis=-1)
    vocab_size = logprobs.shape[1]
    if 0 < num_logprobs < vocab_size:
        top = np.argpartition(logprobs, vocab_size - num_logprobs, axis=-1)[:, -num_logprobs:]
        top.sort(axis=-1)  # ties come out lowest id first
    else:
        top = np.broadcast_to(np.arange(num_logprobs), (len(logprobs), num_logprobs))
    values = np.take_along_axis(logprobs, top, axis=-1)
    best_first = np.argsort(-values, axis=-1, kind="stable")
    top = np.take_along_axis(top, best_first, axis=-1)
    values = np.take_along_axis(values, best_first, axis=-1)
    ids = np.concatenate((own_ids, top), axis=1).astype(np.int32)
    return LogprobsLists(ids, np.concatenate((own, values), axis=1), ranks)


def gather_specific_token_logprobs(
    logprobs: FloatArray, logprob_token_ids: Mapping[int, Sequence[int]], sampled: IntArray
) -> LogprobsLists:
    """What a row asks for by token id, beside the token drawn
    (`vllm/v1/sample/sampler.py:146 Sampler.gather_specific_token_logprobs`).

    Args:
        logprobs: [n, V] float32.
        logprob_token_ids: row to the token ids that it asks for; rows without get the drawn token alone.
        sampled: [n].

    Shorter rows are filled up with token 0 and -inf. The ranks are those of the drawn tokens.
    """
    n, width = len(logprobs), 1 + max(map(len, logprob_token_ids.values()))
    token_ids, valid = np.zeros((n, width), np.int64), np.zeros((n, width), np.bool_)
    token_ids[:, 0], valid[:, 0] = sampled, True
    for row, wanted in logprob_token_ids.items():
        token_ids[row, 1 : len(wanted) + 1] = wanted
        valid[row, 1 : len(wanted) + 1] = True
    gathered = mask_logits(np.take_along_axis(logprobs, token_ids, axis=1), ~valid)
    ranks = np.count_nonzero(logprobs >= gathered[:, :1], axis=1)
    return LogprobsLists(token_ids.astype(np.int32), gathered, ranks)


def apply_bad_words(
    logits: FloatArray,
    bad_words_token_ids: Mapping[int, Sequence[Sequence[int]]],
    past_tokens_ids: Mapping[int, Sequence[int]],
) -> FloatArray:
    """Bar the last token of each bad word whose other tokens the row's output ends with.

    Args:
        logits: [n, V].
        bad_words_token_ids: row to its words, each a list of at least one token id.
        past_tokens_ids: row to the tokens generated so far.

    Source: `vllm/v1/sample/ops/bad_words.py:30 apply_bad_words`.
    """
    logits = logits.copy()
    for row, words in bad_words_token_ids.items():
        past = past_tokens_ids[row]
        for *begun, last in words:
            if len(begun) <= len(past) and list(past[len(past) - len(begun) :]) == begun:
                logits[row, last] = NEG_INF
    return logits


def apply_logit_bias(
    logits: FloatArray, rows: IntArray, token_ids: IntArray, biases: FloatArray
) -> FloatArray:
    """Add `biases[i]` to `logits[rows[i], token_ids[i]]`; each pair stands at most once.

    Source: `vllm/v1/sample/logits_processor/builtin.py:161 LogitBiasLogitsProcessor.apply`.
    """
    logits = logits.copy()
    logits[rows, token_ids] += biases
    return logits


def apply_min_tokens(logits: FloatArray, rows: IntArray, stop_token_ids: IntArray) -> FloatArray:
    """Bar token `stop_token_ids[i]` in row `rows[i]`, for rows that are too short to stop.

    Source: `vllm/v1/sample/logits_processor/builtin.py:234 MinTokensLogitsProcessor.apply`.
    """
    logits = logits.copy()
    logits[rows, stop_token_ids] = NEG_INF
    return logits


def get_token_bin_counts_and_mask(
    tokens: Sequence[Sequence[int]], vocab_size: int
) -> tuple[FloatArray, BoolArray]:
    """How often each token occurs in each of n lists
    (`vllm/model_executor/layers/utils.py:34 get_token_bin_counts_and_mask`).

    Returns:
        counts [n, V] float32 (what they are multiplied with) and `counts > 0`, [n, V] bool.

    Raises:
        ValueError: a token id outside 0 to `vocab_size - 1`.
    """
    flat = np.fromiter(chain.from_iterable(tokens), np.int64)
    if flat.size and not 0 <= flat.min() <= flat.max() < vocab_size:
        raise ValueError(
            f"token ids must be in 0 to {vocab_size - 1}, got {flat.min()} to {flat.max()}."
        )
    # One count over all rows: row i's token t is bin i * V + t.
    flat += np.repeat(np.arange(len(tokens)) * vocab_size, [len(ids) for ids in tokens])
    counts = np.bincount(flat, minlength=len(tokens) * vocab_size)
    counts = counts.reshape(len(tokens), vocab_size)
    return counts.astype(np.float32), counts > 0


def apply_penalties(
    logits: FloatArray,
    prompt_mask: BoolArray,
    output_bin_counts: FloatArray,
    presence_penalties: FloatArray,
    frequency_penalties: FloatArray,
    repetition_penalties: FloatArray,
) -> FloatArray:
    """Make tokens that were there before less (or more) likely.

    Args:
        logits: [n, V] float32.
        prompt_mask: [n, V], the tokens that stand in the prompt; only repetition looks at it.
        output_bin_counts: [n, V], occurrences in the output so far.
        presence_penalties, frequency_penalties, repetition_penalties: [n] float32.

    A logit is scaled towards less likely, so positive ones are divided and negative ones
    multiplied by the repetition penalty.
    Source: `vllm/model_executor/layers/utils.py:51 apply_penalties`,
    `vllm/_custom_ops.py:360 apply_repetition_penalties_torch`.
    """
    output_mask = output_bin_counts > 0
    penalty = np.where(prompt_mask | output_mask, repetition_penalties[:, None], np.float32(1))
    # Times the reciprocal, not divided: the same rounding as at the pin. A penalty may be so small
    # that it is 0 in float32.
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        logits = logits * np.where(logits > 0, np.float32(1) / penalty, penalty)
    logits -= frequency_penalties[:, None] * output_bin_counts
    logits -= presence_penalties[:, None] * output_mask
    return logits


def apply_temperature(logits: FloatArray, temp: FloatArray, all_random: bool) -> FloatArray:
    """Divide row i of the [n, V] logits by `temp[i]`
    (`vllm/v1/sample/sampler.py:223 Sampler.apply_temperature`).

    Greedy rows have temperature 0. Unless the batch is `all_random` they are divided by 1: their
    draw is thrown away, but must not divide by zero on the way.
    """
    if not all_random:
        temp = np.where(temp < SAMPLING_EPS, np.float32(1), temp)
    return logits / temp[:, None]


def apply_min_p(logits: FloatArray, min_p: FloatArray) -> FloatArray:
    """Bar tokens less likely than `min_p[i]` times row i's likeliest; [n, V], [n].

    Source: `vllm/v1/sample/logits_processor/builtin.py:101 MinPLogitsProcessor.apply`.
    """
    probs = softmax(logits)
    return mask_logits(logits, probs < probs.max(axis=-1, keepdims=True) * min_p[:, None])


def apply_top_k_only(logits: FloatArray, k: IntArray) -> FloatArray:
    """Bar tokens below each row's k-th largest logit; [n, V], [n]; k = V is off.

    Tokens that tie with the k-th stay, so more than k may be left.
    Source: `vllm/v1/sample/ops/topk_topp_sampler.py:372 apply_top_k_only`.
    """
    vocab_size = logits.shape[1]
    off = k >= vocab_size
    k = np.where(off, 1, k)
    max_k = int(k.max())
    # A partition finds the few largest without sorting the vocabulary.
    top = np.sort(np.partition(logits, vocab_size - max_k, axis=-1)[:, -max_k:], axis=-1)
    kth = np.take_along_axis(top, (max_k - k)[:, None], axis=-1)
    kth[off] = NEG_INF
    return mask_logits(logits, logits < kth)


def apply_top_k_top_p(logits: FloatArray, k: IntArray | None, p: FloatArray | None) -> FloatArray:
    """Keep the k likeliest tokens, and of those the likeliest that together hold p.

    Args:
        logits: [n, V] float32.
        k: [n], 1 to V (V is off), or None where no row uses it.
        p: [n], in (0, 1] (1 is off), or None where no row uses it. It is a share of what top-k
            left over, not of the whole vocabulary.

    Summed from the least likely token up, a token goes while the sum so far, its own probability
    included, is at most 1 - p (in float32). So the token that crosses the line stays, a sum that
    meets it exactly goes, and the likeliest token always stays. Of tokens that tie across
    the line, those with the lower ids go; at the pin, whichever `torch.sort` puts first.
    Source: `vllm/v1/sample/ops/topk_topp_sampler.py:328 apply_top_k_top_p_pytorch`.
    """
    if p is None:
        return logits if k is None else apply_top_k_only(logits, k)
    vocab_size = logits.shape[1]
    ranked = np.sort(logits, axis=-1)
    if k is not None:
        ranked = mask_logits(
            ranked, ranked < np.take_along_axis(ranked, (vocab_size - k)[:, None], 1)
        )
    # Summed in float64 and compared in float32, as torch does on a CPU.
    mass = np.cumsum(softmax(ranked), axis=-1, dtype=np.float64).astype(np.float32)
    gone = np.count_nonzero(mass <= np.float32(1) - p[:, None], axis=-1)
    gone = np.minimum(gone, vocab_size - 1)[:, None]
    last_in = np.take_along_axis(ranked, gone, axis=-1)
    kept = mask_logits(logits, logits < last_in)

    first_out = np.take_along_axis(ranked, np.maximum(gone - 1, 0), axis=-1)
    tied = np.flatnonzero((first_out == last_in) & (gone > 0))
    if tied.size:
        # A value cannot tell these apart, so go by place in the order. Rare, and a stable
        # argsort costs many times the sort above.
        order = np.argsort(logits[tied], axis=-1, kind="stable")
        out = np.empty(order.shape, np.bool_)
        np.put_along_axis(out, order, np.arange(vocab_size) < gone[tied], axis=-1)
        kept[tied] = mask_logits(logits[tied], out)
    return kept


def random_sample(
    probs: FloatArray, generators: Mapping[int, TorchGenerator], rng: TorchGenerator
) -> IntArray:
    """Draw one token per row: divide by exponential noise, take the argmax.

    Args:
        probs: [n, V]; rows need not sum to 1.
        generators: row to the generator of that request. Each gives one vector of V numbers, so a
            request's stream does not depend on what else is in the batch.
        rng: the noise of all other rows.

    The least of independent exponentials with rates p_t is that of token t with probability p_t,
    and an exponential with rate p is one with rate 1 divided by p.
    Source: `vllm/v1/sample/ops/topk_topp_sampler.py:395 random_sample`.
    """
    n, vocab_size = probs.shape
    chunk = max(1, _NUMBERS_AT_A_TIME // vocab_size)
    winners = np.empty(n, np.int64)
    for start in range(0, n, chunk):
        some = probs[start : start + chunk]
        if len(generators) < n:
            draws = rng.draw_53_bits(some.size).reshape(some.shape)
        else:
            draws = np.empty(some.shape, np.int64)
        for i in range(len(some)) if generators else ():
            generator = generators.get(start + i)
            if generator is not None:
                draws[i] = generator.draw_53_bits(vocab_size)
        winners[start : start + chunk] = race(some, draws)
    return winners


_NUMBERS_AT_A_TIME = 1 << 15
"""Rows are drawn for together while their noise stays in a core's cache."""


def race(probs: FloatArray, draws: IntArray) -> IntArray:
    """The argmax of each row of `probs / exponential_from_bits(draws)`, the first among equals; [n, V].

    A logarithm for every token of the vocabulary would cost more than all the rest. But -log(1 - u) is at
    least u, so p / u bounds the quotient from above, and only the few tokens whose bound reaches the quotient
    of the best one need theirs.
    """
    rows = np.arange(len(probs))
    with np.errstate(divide="ignore", invalid="ignore"):
        bounds = probs / draws.astype(np.float32)
    best = bounds.argmax(axis=-1)
    winners: IntArray = best.copy()
    reached = _quotients(probs[rows, best], draws[rows, best])
    # Two roundings to float32 on either side are far less than 1e-6.
    line = reached * np.float32((1 - 1e-6) * 2.0**-53)
    row_ids, tokens = np.divmod(np.flatnonzero(bounds >= line[:, None]), probs.shape[1])
    quotients = _quotients(probs[row_ids, tokens], draws[row_ids, tokens])
    order = np.lexsort(
        (-tokens, quotients, row_ids)
    )  # a row's largest last, of equals the first token
    winners[row_ids[order]] = tokens[order]
    for row in np.flatnonzero(~np.isfinite(bounds[rows, best])):  # a draw of 0, or a row of NaN
        winners[row] = _quotients(probs[row], draws[row]).argmax()
    return winners


def _quotients(probs: FloatArray, draws: IntArray) -> FloatArray:
    """`probs` over their noise. Noise of exactly 0 is raised: 0 / 0 would let a barred token win."""
    noise = np.maximum(exponential_from_bits(draws), np.finfo(np.float32).tiny)
    quotients: FloatArray = np.divide(probs, noise, dtype=np.float32)
    return quotients
