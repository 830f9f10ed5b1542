"""Cascade attention: a prefix that all requests share is read once, and merged with each one's own rest.

vLLM: `cascade_attention` and `use_cascade_attention` in vllm/v1/attention/backends/flash_attn.py. At the pin
FLASH_ATTN alone has it, and it is off unless somebody asks for it (`disable_cascade_attn` is True).

>>> round(max(difference(seed) for seed in range(20)), 12)
0.0
>>> f"{bytes_read(16, 4096, 200) / bytes_read(16, 4096, 200, cascade=True):.1f}"
'9.4'
>>> for requests in (7, 8, 13, 14, 256):
...     print(requests, [pays(requests, prefix) for prefix in (255, 256, 4096)])
7 [False, False, False]
8 [False, False, False]
13 [False, False, False]
14 [False, True, True]
256 [False, True, True]
>>> {sms: next(n for n in range(1, 999) if pays(n, 4096, sms)) for sms in (58, 108, 132, 148)}
{58: 8, 108: 14, 132: 17, 148: 19}
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
HEADS, KV_HEADS, HEAD_SIZE = 32, 8, 128
"""Llama-3-8B, which the examples are about."""
A100_SMS = 108


def attend(q: Array, k: Array, v: Array) -> tuple[Array, Array]:
    """Attention without a mask, and the log of each row's denominator.

    q: [rows, d], k and v: [tokens, d]. Returns [rows, d] and [rows].
    """
    scores = q @ k.T / np.sqrt(q.shape[1])
    top = scores.max(axis=1, keepdims=True)
    exps = np.exp(scores - top)
    total = exps.sum(axis=1, keepdims=True)
    return np.asarray(exps @ v / total), np.asarray(np.log(total[:, 0]) + top[:, 0])


def merge(a: tuple[Array, Array], b: tuple[Array, Array]) -> Array:
    """Two finished parts with their logs: each counts as much as its denominator."""
    (out_a, log_a), (out_b, log_b) = a, b
    share = 1 / (1 + np.exp(log_b - log_a))[:, None]
    return np.asarray(share * out_a + (1 - share) * out_b)


def cascade(
    q: Array, prefix_k: Array, prefix_v: Array, suffix_k: list[Array], suffix_v: list[Array]
) -> Array:
    """One decode token of each request: the queries of all read the prefix together, then each its own rest.

    q: [requests, d]; prefix_k and prefix_v: [tokens, d]; of each request suffix_k and suffix_v: [tokens, d].
    """
    together, log = attend(q, prefix_k, prefix_v)
    rows = []
    for i, (k, v) in enumerate(zip(suffix_k, suffix_v, strict=True)):
        one = slice(i, i + 1)
        rows.append(merge((together[one], log[one]), attend(q[one], k, v)))
    return np.concatenate(rows)


def difference(seed: int, requests: int = 16, prefix: int = 256) -> float:
    """The largest difference to attention over prefix and rest in one piece, in float64."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 50, requests)
    q = rng.standard_normal((requests, 32))
    shared = rng.standard_normal((2, prefix, 32))
    rest = [rng.standard_normal((2, length, 32)) for length in lengths]
    got = cascade(q, *shared, [k for k, _ in rest], [v for _, v in rest])
    whole = [np.concatenate([shared, own], axis=1) for own in rest]
    want = np.concatenate([attend(q[i : i + 1], *kv)[0] for i, kv in enumerate(whole)])
    return float(np.abs(got - want).max())


def bytes_read(requests: int, prefix: int, rest: int, *, cascade: bool = False) -> int:
    """Bytes of keys and values that a decode step has to read in one layer, in 16-bit numbers.

    A kernel that looks at each request alone reads the prefix for each. A cache on the chip may catch some of
    that; these are the bytes that the kernel asks for.
    """
    tokens = requests * rest + prefix * (1 if cascade else requests)
    return tokens * 2 * KV_HEADS * HEAD_SIZE * 2


def pays(
    requests: int,
    prefix: int,
    num_sms: int = A100_SMS,
    heads: int = HEADS,
    kv_heads: int = KV_HEADS,
    *,
    decode_only: bool = True,
) -> bool:
    """Whether vLLM would take the cascade, by its own rule, on a GPU with `num_sms` multiprocessors.

    For a model with full attention and no ALiBi. A prefix below 256 tokens or fewer than 8 requests are never
    worth it. With prompts in the batch, or without GQA, it always is. Otherwise two guesses of time are
    compared, in units of one tile of 128 keys for one program: in the cascade a program has to walk the whole
    prefix, for one head and 128 rows; without, the tiles of all requests are spread over the GPU.
    """
    if prefix < 256 or requests < 8:
        return False
    group = heads // kv_heads
    if not decode_only or group == 1:
        return True
    tiles = _ceil(prefix, 128)
    with_cascade = _ceil(heads * _ceil(requests, 128), num_sms) * tiles
    without = _ceil(requests * kv_heads * _ceil(group, 128) * tiles, num_sms)
    return with_cascade < without


def _ceil(a: int, b: int) -> int:
    return -(-a // b)
