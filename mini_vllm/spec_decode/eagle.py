"""Drafts by an EAGLE head: one layer that reads what the model thought of a token, and the token after it.

Mirrors `vllm/v1/spec_decode/eagle.py:10 EagleProposer`. The head's first pass has as many tokens as the
model's: each of the model's hidden states, at its position, with the token that came after it. The further
passes have no states of the model's for their tokens, and read the head's own.

An EAGLE-3 head reads the states of three layers instead of the last one's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from mini_vllm.config.engine import ResolvedConfig
from mini_vllm.models.interfaces_base import ModelForTextGeneration
from mini_vllm.sample.ops import FloatArray
from mini_vllm.spec_decode.llm_base_proposer import DraftInputs, Ints, SpecDecodeBaseProposer


class EagleProposer(SpecDecodeBaseProposer):
    """Drafts by running a head k times a step.

    Args:
        config: `speculative_config` has the method `eagle` or `eagle3`.
        target: the model whose tokens are drafted.
        model: the head.

    Attributes:
        use_aux_hidden_state: the head is an EAGLE-3's, and reads what the target's
            `aux_hidden_state_layers` take in.
    """

    pass_hidden_states_to_model = True

    def __init__(self, config: ResolvedConfig, target: ModelForTextGeneration, model: Any) -> None:
        super().__init__(config, model, model.config.max_model_len)
        assert config.speculation is not None
        self.use_aux_hidden_state = config.speculation.method == "eagle3"

    def combine_hidden_states(self, aux_hidden_states: list[FloatArray]) -> FloatArray:
        """One state a token of the several that an EAGLE-3 head reads."""
        states = np.concatenate(aux_hidden_states, axis=-1)
        combined: FloatArray = self.model.combine_hidden_states(states)
        return combined

    def set_inputs_first_pass(self, inputs: DraftInputs, next_token_ids: Ints) -> DraftInputs:
        """The tokens one place on, [a1, b1, b2] with next tokens a2, b3 to [a2, b2, b3], where their
        states stand."""
        input_ids = np.roll(inputs.input_ids, -1)
        input_ids[inputs.last_indices] = next_token_ids
        return replace(inputs, input_ids=input_ids)

    def _run(self, inputs: DraftInputs) -> tuple[FloatArray, FloatArray]:
        last_hidden_states, hidden_states = self.model.forward(
            inputs.input_ids,
            inputs.positions,
            self.kv_caches,
            inputs.attn_metadata,
            inputs.hidden_states,
        )
        return last_hidden_states, hidden_states
