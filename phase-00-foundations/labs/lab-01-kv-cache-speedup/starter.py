"""Lab 00-01: generation with and without a KV cache. Your work: the four functions at the end.

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


# -- Given: the plumbing. Nothing to do here.


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


# -- Your work.


def generate_without_cache(
    model: LlamaForCausalLM, prompt_ids: Sequence[int], num_new_tokens: int
) -> Generation:
    """Greedy generation that forgets everything between two tokens.

    Each pass begins with empty caches and runs the whole sequence so far, positions 0 to its end. The
    most likely next token, `argmax` of the last row's logits, joins the sequence. Nothing stops the
    loop early: there are always `num_new_tokens` passes.

        Record in `kv_computed`, for each pass, how many tokens it was given.

    Args:
        model: the model; call its `forward` and `compute_logits`.
        prompt_ids: token ids, at least one. Leave the caller's list as it is.
        num_new_tokens: at least 1.

    Returns:
        The new tokens and the cost of each pass.
    """
    raise NotImplementedError


def generate_with_cache(
    model: LlamaForCausalLM, prompt_ids: Sequence[int], num_new_tokens: int
) -> Generation:
    """Generates the same tokens, with one set of caches kept from pass to pass.

    The first pass runs the prompt. Every later pass runs one token: the newest, which has no K and V
    yet. Four things must fit together in each pass:

    - `input_ids`: the tokens without K and V;
    - `positions`: their places in the sequence, which start at 0 only for the prompt;
    - the caches: made once, with room for every token that is ever run;
    - `attention_metadata`: how many tokens are new, and how many the caches hold after the pass.

        Record the cost of each pass in `kv_computed`, as above. The last token made is never run.

    Args and returns are those of `generate_without_cache`.
    """
    raise NotImplementedError


def work_without_cache(prompt_len: int, num_new_tokens: int) -> int:
    """How many K/V computations `generate_without_cache` makes, without running it.

    The passes cost P, P + 1, P + 2, ... for a prompt of P tokens. Find the last term of that sum before
    you add it up: the last token made is never run. Give a closed form in whole numbers, no loop.

    Args:
        prompt_len: P, at least 1.
        num_new_tokens: n, at least 1.
    """
    raise NotImplementedError


def work_with_cache(prompt_len: int, num_new_tokens: int) -> int:
    """How many K/V computations `generate_with_cache` makes, without running it.

    Arguments as for `work_without_cache`.
    """
    raise NotImplementedError
