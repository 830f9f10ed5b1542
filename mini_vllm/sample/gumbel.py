"""Noise without a state: from a request's seed, a token's position and its id.

Mirrors `vllm/v1/worker/gpu/sample/gumbel.py`, how model runner V2 samples, and `tl.randint` and `tl.rand` of
`triton/language/random.py`, on which it stands: Philox 4x32 with ten rounds (Salmon et al., Parallel
Random Numbers: As Easy as 1, 2, 3, SC 2011). The noise of a token depends on nothing that happened before, so
a draw that is thrown away need not be taken back, and a request may move between rows, workers or steps.

The engine draws as model runner V1 does on a CPU (`generator.py`); this is what V2's kernel draws, so
that one can be held against the other. Left out: noise in float64.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mini_vllm.sample.ops import FloatArray, IntArray

_KEY = (0x9E3779B9, 0xBB67AE85)
_ROUND = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_LOW_32_BITS = np.uint64(0xFFFFFFFF)
_SCALE = np.float32(4.6566127342e-10)
_TINY = np.finfo(np.float32).tiny


def philox(seed: int, offsets: npt.ArrayLike) -> npt.NDArray[np.uint32]:
    """The first word of Philox 4x32-10, one for each offset: `tl.randint(seed, offsets)`.

    Args:
        seed: its low 64 bits are the key.
        offsets: integers of at least 0, any shape; their 64 bits are the counter.
    """
    seed = int(seed)  # a numpy integer would overflow
    counter = np.asarray(offsets).astype(np.uint64)
    c0, c1 = counter & _LOW_32_BITS, counter >> np.uint64(32)
    c2, c3 = np.zeros_like(c0), np.zeros_like(c0)
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF
    for _ in range(10):
        product_0, product_2 = _ROUND[0] * c0, _ROUND[1] * c2
        c0 = (product_2 >> np.uint64(32)) ^ c1 ^ np.uint64(k0)
        c2 = (product_0 >> np.uint64(32)) ^ c3 ^ np.uint64(k1)
        c1, c3 = product_2 & _LOW_32_BITS, product_0 & _LOW_32_BITS
        k0, k1 = k0 + _KEY[0] & 0xFFFFFFFF, k1 + _KEY[1] & 0xFFFFFFFF
    return c0.astype(np.uint32)


def uniform(seed: int, offsets: npt.ArrayLike) -> FloatArray:
    """Numbers from 0 up to, not including, 1: `tl.rand(seed, offsets)`. float32, in steps of 2**-31."""
    words = philox(seed, offsets).view(np.int32)
    halved = np.where(words < 0, -words - 1, words)
    numbers: FloatArray = halved.astype(np.float32) * _SCALE
    return numbers


def gumbel_noise(seed: int, position: int, token_ids: npt.ArrayLike) -> FloatArray:
    """The noise of these tokens, float32, for a request with this seed at this position.

    Args:
        seed: the request's.
        position: of the sequence's last computed token, whose logits are sampled from.
        token_ids: any shape.

    Source: `vllm/v1/worker/gpu/sample/gumbel.py:79 gumbel_block_argmax`.
    """
    gumbel_seed = int(philox(seed, position))
    u = np.maximum(uniform(gumbel_seed, token_ids), _TINY)
    noise: FloatArray = -np.log(-np.log(u))
    return noise


def gumbel_sample(
    logits: FloatArray, temperature: FloatArray, seeds: IntArray, positions: IntArray
) -> IntArray:
    """One token a row: the argmax of logits over temperature, plus noise.

    Args:
        logits: [n, V] float32.
        temperature: [n] float32; a row of 0 is greedy, and gets no noise.
        seeds, positions: [n] int64.

    Returns: [n] int64. Adding Gumbel noise to logits and dividing probabilities by exponential noise are the
    same race: -log of an exponential number is a Gumbel number.
    Source: `vllm/v1/worker/gpu/sample/gumbel.py:194 gumbel_sample`.
    """
    token_ids = np.arange(logits.shape[1])
    sampled = np.empty(len(logits), np.int64)
    for row, (row_logits, temp) in enumerate(zip(logits, temperature, strict=True)):
        if temp != 0:
            noise = gumbel_noise(int(seeds[row]), int(positions[row]), token_ids)
            row_logits = row_logits / temp + noise
        sampled[row] = row_logits.argmax()
    return sampled
