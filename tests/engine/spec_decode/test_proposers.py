"""What a drafter's passes take: the step's tokens without the rejected ones, and each request's new one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mini_vllm.attention import AttentionMetadata
from mini_vllm.config.engine import EngineConfig
from mini_vllm.sample.metadata import SamplingMetadata
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.spec_decode.draft_model import DraftModelProposer
from mini_vllm.spec_decode.eagle import EagleProposer
from mini_vllm.spec_decode.llm_base_proposer import SpecDecodeBaseProposer
from mini_vllm.worker.gpu_input_batch import CachedRequestState
from tests.engine.helpers.engine.drafters import noisy_model, random_head, speculative_config
from tests.engine.helpers.engine.engine_helpers import random_model

BLOCK_SIZE = 4
TABLE = np.array([[3, 5, 0], [7, 2, 4]], np.int32)
"""Two requests: one of 6 tokens, 3 of them in this step; one of 9, with 4, the last 2 rejected drafts."""


def proposer(kind: str, k: int = 3) -> SpecDecodeBaseProposer:
    config = EngineConfig(
        block_size=BLOCK_SIZE, num_gpu_blocks=20, max_model_len=64,
        speculative_config=speculative_config(kind, k),
    )  # fmt: skip
    target = random_model()
    if kind == "eagle":
        made: Any = EagleProposer(config, target, random_head("eagle", target))
    else:
        made = DraftModelProposer(config, target, noisy_model(0.02))
    layers, shape = made.model.layers, (20, BLOCK_SIZE, 2, 2, 8)
    made.kv_caches = [np.zeros(shape, np.float32) for _ in layers]
    return made


def step() -> tuple[np.ndarray, np.ndarray, AttentionMetadata]:
    positions = np.array([3, 4, 5, 5, 6, 7, 8])
    requests = np.array([0, 0, 0, 1, 1, 1, 1])
    slots = TABLE[requests, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
    metadata = AttentionMetadata(
        np.array([0, 3, 7], np.int32), np.array([6, 9], np.int32), TABLE, slots, BLOCK_SIZE
    )
    return np.array([13, 14, 15, 25, 26, 27, 28]), positions, metadata


def greedy_row() -> SamplingMetadata:
    state = CachedRequestState("1", [1], SamplingParams(temperature=0))
    return SamplingMetadata.build([state], 64)


REJECTED = np.array([0, 2])
NEXT = np.array([16, 29])


def test_an_eagle_head_takes_each_state_with_the_token_after_it() -> None:
    """The rejected rows go; the tokens move one place; positions, slots and states stay."""
    eagle = proposer("eagle")
    token_ids, positions, metadata = step()
    states = np.arange(7)[:, None].astype(np.float32)
    inputs = eagle.prepare_inputs(token_ids, positions, states, metadata, REJECTED)
    inputs = eagle.set_inputs_first_pass(inputs, NEXT)
    assert inputs.input_ids.tolist() == [14, 15, 16, 26, 29]
    assert inputs.positions.tolist() == [3, 4, 5, 5, 6]
    assert inputs.hidden_states is not None
    assert inputs.hidden_states[:, 0].tolist() == [0, 1, 2, 3, 4]
    assert inputs.attn_metadata.query_start_loc.tolist() == [0, 3, 5]
    assert inputs.attn_metadata.seq_lens.tolist() == [6, 7]
    assert inputs.attn_metadata.slot_mapping.tolist() == [15, 20, 21, 9, 10]
    assert inputs.last_indices.tolist() == [2, 4]


def test_a_draft_model_takes_one_token_more() -> None:
    """Tokens stand where the model has them, and each request's new one behind them, in the next slot."""
    draft_model = proposer("noisy")
    token_ids, positions, metadata = step()
    inputs = draft_model.prepare_inputs(token_ids, positions, None, metadata, REJECTED)
    inputs = draft_model.set_inputs_first_pass(inputs, NEXT)
    assert inputs.input_ids.tolist() == [13, 14, 15, 16, 25, 26, 29]
    assert inputs.positions.tolist() == [3, 4, 5, 6, 5, 6, 7]
    assert inputs.attn_metadata.query_start_loc.tolist() == [0, 4, 7]
    assert inputs.attn_metadata.seq_lens.tolist() == [7, 8]
    assert inputs.attn_metadata.slot_mapping.tolist() == [15, 20, 21, 22, 9, 10, 11]
    assert inputs.last_indices.tolist() == [3, 6]


@pytest.mark.parametrize("kind", ["noisy", "eagle"])
def test_passes(kind: str) -> None:
    """The first takes all tokens; k - 1 more take one token of each request that drafts, a place further."""
    drafter = proposer(kind, k=3)
    token_ids, positions, metadata = step()
    passes: list[Any] = []
    run = drafter._run

    def seen(inputs: Any) -> Any:
        passes.append(inputs)
        return run(inputs)

    drafter._run = seen  # type: ignore[method-assign]
    states = np.ones((7, 32), np.float32)
    drafting = np.array([1])  # the first is in the middle of its prompt
    drafts = drafter.propose(
        token_ids, positions, states, NEXT, REJECTED, drafting, metadata, greedy_row()
    )
    assert drafts.shape == (1, 3)
    assert drafter.take_last_draft_probs() is None, "greedy drafts count as certain"
    last = passes[0].positions[-1]
    assert [p.positions.tolist() for p in passes[1:]] == [[last + 1], [last + 2]]
    assert [p.input_ids.tolist() for p in passes[1:]] == [[drafts[0, 0]], [drafts[0, 1]]]
    assert [p.attn_metadata.seq_lens.tolist() for p in passes[1:]] == [[last + 2], [last + 3]]
    expected = [TABLE[1, (last + i) // 4] * 4 + (last + i) % 4 for i in (1, 2)]
    assert [p.attn_metadata.slot_mapping.tolist() for p in passes[1:]] == [[s] for s in expected]


def test_nobody_drafts_for_a_step_of_prompts() -> None:
    """The first pass runs alone, for the drafter's KV cache; there are no drafts."""
    drafter = proposer("noisy")
    token_ids, positions, metadata = step()
    drafts = drafter.propose(
        token_ids,
        positions,
        None,
        NEXT,
        np.zeros(2, np.int64),
        np.zeros(0, np.int64),
        metadata,
        None,
    )
    assert drafts.shape == (0, 3)
    assert all(cache[3, 3].any() for cache in drafter.kv_caches), "position 3 is in slot 15"


def test_further_passes_say_what_one_pass_over_the_whole_text_says() -> None:
    """Chained drafts equal those of the draft model run over text and drafts anew."""
    drafter = proposer("noisy")
    text = np.array([13, 14, 15, 16, 17, 18])
    metadata = AttentionMetadata(
        np.array([0, 6], np.int32), np.array([6], np.int32), TABLE[1:],
        TABLE[1, np.arange(6) // 4] * 4 + np.arange(6) % 4, BLOCK_SIZE,
    )  # fmt: skip
    zero, drafting = np.zeros(1, np.int64), np.zeros(1, np.int64)
    (drafts,) = drafter.propose(
        text, np.arange(6), None, np.array([19]), zero, drafting, metadata, greedy_row()
    )
    whole = [*text.tolist(), 19, *drafts.tolist()]
    fresh = proposer("noisy")
    for i in range(3):
        tokens = np.array(whole[: 7 + i])
        places = np.arange(len(tokens))
        md = AttentionMetadata(
            np.array([0, len(tokens)], np.int32), np.array([len(tokens)], np.int32), TABLE[1:],
            TABLE[1, places // 4] * 4 + places % 4, BLOCK_SIZE,
        )  # fmt: skip
        hidden = fresh.model.forward(tokens, places, fresh.kv_caches, md)
        assert fresh.model.compute_logits(hidden[-1:]).argmax() == drafts[i]
