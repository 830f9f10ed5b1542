"""Lab 00-01: generation with and without a KV cache.

The model is the real one, `mini_vllm.models.llama.LlamaForCausalLM`. One call,

    hidden = model.forward(input_ids, positions, kv_caches, attn_metadata)

takes consecutive tokens of a sequence: their ids and their positions, two numpy arrays of integers
of the same length. For each token, in each layer, it computes K and V, writes them into
`kv_caches`, and lets the token attend to every position of the sequence up to its own: the new
ones and those that earlier calls left in the same caches. It returns one row of hidden states per
token you passed, in order. Only the last row predicts the next token:

    logits = model.compute_logits(hidden[-1:])          # float32 [1, vocab_size]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mini_vllm.attention import AttentionMetadata
from mini_vllm.models.llama import LlamaForCausalLM

BLOCK_SIZE = 16
"""Tokens in a KV block (`vllm/config/cache.py:45`)."""


# -- Given: the plumbing.


@dataclass
class Generation:
    """What a loop made, and what it cost.

    Attributes:
        token_ids: the new tokens, without the prompt.
                kv_computed: for each forward pass, the number of tokens whose K and V it computed.
    """

    token_ids: list[int] = field(default_factory=list)
    kv_computed: list[int] = field(default_factory=list)

    @property
    def work(self) -> int:
        """Tokens whose K and V were computed, over all passes."""
        return sum(self.kv_computed)


def new_kv_caches(model: LlamaForCausalLM, num_tokens: int) -> list[npt.NDArray[np.float32]]:
    """One empty cache per layer, with room for the K and V of `num_tokens` tokens.

    Every slot holds NaN until a forward pass writes it. Attention to a slot that no pass wrote gives
    NaN logits, so a mistake cannot pass for a plausible text.
    """
    config = model.config
    shape = model.attention.get_kv_cache_shape(
        -(-num_tokens // BLOCK_SIZE), BLOCK_SIZE, config.num_key_value_heads, config.head_dim
    )
    return [np.full(shape, np.nan, np.float32) for _ in range(config.num_hidden_layers)]


def attention_metadata(num_new: int, seq_len: int) -> AttentionMetadata:
    """What attention must know about a pass over the last `num_new` tokens of one sequence.

    Their K and V go into slots `seq_len - num_new` to `seq_len - 1` of the caches, and each of them
    attends to every slot up to its own. A slot is a place for one token: slot 37 is place 5 of block 2.
    Block 0 holds the first 16 tokens of the sequence, block 1 the next 16, and so on.

    Args:
        num_new: tokens in this pass, at least 1.
        seq_len: tokens of the sequence that the caches hold after this pass, those `num_new`
            included.

    Returns:
        A fresh object. Make a new one for every pass.
    """
    num_blocks = -(-seq_len // BLOCK_SIZE)
    return AttentionMetadata(
        query_start_loc=np.array([0, num_new], np.int32),
        seq_lens=np.array([seq_len], np.int32),
        block_table=np.arange(num_blocks, dtype=np.int32)[None, :],
        slot_mapping=np.arange(seq_len - num_new, seq_len, dtype=np.int64),
        block_size=BLOCK_SIZE,
    )


# -- The solution.


def generate_without_cache(
    model: LlamaForCausalLM, prompt_ids: Sequence[int], num_new_tokens: int
) -> Generation:
    """Greedy generation that runs the whole sequence again for every token."""
    sequence = list(prompt_ids)
    generation = Generation()
    for _ in range(num_new_tokens):
        length = len(sequence)
        hidden = model.forward(
            np.array(sequence),
            np.arange(length),
            new_kv_caches(model, length),
            attention_metadata(length, length),
        )
        token = int(model.compute_logits(hidden[-1:])[0].argmax())
        generation.kv_computed.append(length)
        generation.token_ids.append(token)
        sequence.append(token)
    return generation


def generate_with_cache(
    model: LlamaForCausalLM, prompt_ids: Sequence[int], num_new_tokens: int
) -> Generation:
    """The same tokens; after the prompt, each pass runs only the newest token."""
    generation = Generation()
    kv_caches = new_kv_caches(model, len(prompt_ids) + num_new_tokens - 1)
    new_ids = list(prompt_ids)
    length = 0
    for _ in range(num_new_tokens):
        positions = np.arange(length, length + len(new_ids))
        length += len(new_ids)
        hidden = model.forward(
            np.array(new_ids), positions, kv_caches, attention_metadata(len(new_ids), length)
        )
        token = int(model.compute_logits(hidden[-1:])[0].argmax())
        generation.kv_computed.append(len(new_ids))
        generation.token_ids.append(token)
        new_ids = [token]
    return generation


def work_without_cache(prompt_len: int, num_new_tokens: int) -> int:
    """P + (P + 1) + ... + (P + n - 1)."""
    return num_new_tokens * prompt_len + num_new_tokens * (num_new_tokens - 1) // 2


def work_with_cache(prompt_len: int, num_new_tokens: int) -> int:
    """The prompt once, then every new token but the last."""
    return prompt_len + num_new_tokens - 1
