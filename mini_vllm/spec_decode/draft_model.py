"""Drafts by a smaller model of the same vocabulary.

Mirrors `vllm/v1/spec_decode/draft_model.py:17 DraftModelProposer`. The draft model reads the same tokens as
the model, at the same positions. So its first pass has one token a request more than the model's: the new
one, for which `max_num_scheduled_tokens` keeps room.
"""

from __future__ import annotations

import numpy as np

from mini_vllm.attention import AttentionMetadata
from mini_vllm.config.engine import ResolvedConfig
from mini_vllm.models.interfaces_base import ModelForTextGeneration
from mini_vllm.sample.ops import FloatArray
from mini_vllm.spec_decode.llm_base_proposer import DraftInputs, Ints, SpecDecodeBaseProposer


class DraftModelProposer(SpecDecodeBaseProposer):
    """Drafts by running a draft model k times a step.

    Args:
        config: `speculative_config` has the method `draft_model`.
        target: the model whose tokens are drafted.
        model: the draft model.

    Raises ValueError for a draft model of another vocabulary size, or with windows.
    """

    pass_hidden_states_to_model = False

    def __init__(
        self, config: ResolvedConfig, target: ModelForTextGeneration, model: ModelForTextGeneration
    ) -> None:
        ours, theirs = target.config.vocab_size, model.config.vocab_size
        if ours != theirs:
            raise ValueError(
                f"speculative_config: the draft model must have the model's vocabulary, got {theirs} tokens "
                f"for {ours}"
            )
        if any(window is not None for window in model.config.sliding_windows):
            raise ValueError(
                f"speculative_config: the draft model is a {model.config.architecture} that attends to a "
                "sliding window, and the miniature drafts with full attention only"
            )
        super().__init__(config, model, model.config.max_model_len)

    def set_inputs_first_pass(self, inputs: DraftInputs, next_token_ids: Ints) -> DraftInputs:
        """The step's tokens, and behind each request's the next: [2, 3] tokens become [3, 4]."""
        md = inputs.attn_metadata
        query_start_loc = md.query_start_loc
        ends = query_start_loc[1:]
        input_ids = np.insert(inputs.input_ids, ends, next_token_ids)
        positions = np.insert(inputs.positions, ends, md.seq_lens)
        new_slots = self._slots(md.block_table, np.arange(len(ends)), md.seq_lens)
        attn_metadata = AttentionMetadata(
            query_start_loc=(query_start_loc + np.arange(len(ends) + 1)).astype(np.int32),
            seq_lens=md.seq_lens + 1,
            block_table=md.block_table,
            slot_mapping=np.insert(md.slot_mapping, ends, new_slots),
            block_size=md.block_size,
        )
        last_indices = attn_metadata.query_start_loc[1:] - 1
        return DraftInputs(input_ids, positions, None, attn_metadata, last_indices)

    def _run(self, inputs: DraftInputs) -> tuple[FloatArray, FloatArray]:
        hidden_states = self.model.forward(
            inputs.input_ids, inputs.positions, self.kv_caches, inputs.attn_metadata
        )
        return hidden_states, hidden_states
