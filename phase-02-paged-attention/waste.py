"""What contiguous memory wastes, and what blocks waste: the figures of the guide's first half.

`FIGURE_2` is read off figure 2 of Kwon et al., 2023 (https://arxiv.org/abs/2309.06180): how the
memory of the KV cache was used, on average, while the experiment of its section 6.2 ran. The three
first columns are one system, Orca, with three rules for how many places a request is given.
"""

from __future__ import annotations

FIGURE_2 = {
    "Orca (Max)": {"tokens": 20.4, "reserved": 13.3, "internal": 57.3, "external": 8.9},
    "Orca (Pow2)": {"tokens": 26.8, "reserved": 17.9, "internal": 13.6, "external": 41.6},
    "Orca (Oracle)": {"tokens": 38.2, "reserved": 25.2, "internal": 0.0, "external": 36.6},
    "vLLM": {"tokens": 96.3},
}
"""Percent. The paper prints no figures for the parts of vLLM's remainder."""

STRIP = {"Eve": 8, "Gil": 8, "Noor": 12, "Cy": 8}
"""Guests side by side on a strip of 36 places, and how many each was given."""
GONE = ("Eve", "Noor")


def gaps() -> list[int]:
    """The free runs on the strip when `GONE` have left, as long as they are."""
    return [places for name, places in STRIP.items() if name in GONE]


def blocks(tokens: int, block_size: int) -> int:
    """Blocks for so many tokens."""
    return -(-tokens // block_size)


def filled(tokens: int, block_size: int) -> float:
    """The share of a request's places that hold a token."""
    return tokens / (blocks(tokens, block_size) * block_size)


def kv_bytes(layers: int, kv_heads: int, head_dim: int, bytes_a_number: int = 2) -> int:
    """Bytes that one token takes in the cache: a key and a value in each layer, for each KV head."""
    return 2 * layers * kv_heads * head_dim * bytes_a_number
