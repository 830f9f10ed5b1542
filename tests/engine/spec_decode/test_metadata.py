"""Which rows of logits are whose: `SpecDecodeMetadata`."""

from __future__ import annotations

import numpy as np

from mini_vllm.spec_decode.metadata import SpecDecodeMetadata


def test_rows_of_drafts_and_bonus_rows() -> None:
    """Five requests with 3, 0, 2, 0 and 1 drafts, three of them in the middle of longer chunks."""
    metadata = SpecDecodeMetadata.build(
        np.array([3, 0, 2, 0, 1]), np.array([4, 104, 107, 207, 209]), np.arange(1000, 1209)
    )
    assert metadata.max_spec_len == 3
    assert metadata.num_draft_tokens == [3, 0, 2, 0, 1]
    assert metadata.cu_num_draft_tokens.tolist() == [3, 3, 5, 5, 6]
    assert metadata.cu_num_sampled_tokens.tolist() == [4, 5, 8, 9, 11]
    assert metadata.logits_indices.tolist() == [0, 1, 2, 3, 103, 104, 105, 106, 206, 207, 208]
    assert metadata.target_logits_indices.tolist() == [0, 1, 2, 5, 6, 9]
    assert metadata.bonus_logits_indices.tolist() == [3, 4, 7, 8, 10]
    assert metadata.draft_token_ids.tolist() == [1001, 1002, 1003, 1105, 1106, 1208]


def test_each_draft_is_judged_after_the_token_before_it() -> None:
    """On random steps: a request's rows are its last k + 1 tokens, and draft i follows row i."""
    rng = np.random.default_rng(80)
    for _ in range(50):
        n = int(rng.integers(1, 9))
        drafts = rng.integers(0, 5, n)
        scheduled = drafts + rng.integers(1, 6, n)
        ends = np.cumsum(scheduled)
        input_ids = rng.integers(0, 1000, ends[-1])
        metadata = SpecDecodeMetadata.build(drafts, ends, input_ids)
        rows = [list(range(end - k - 1, end)) for end, k in zip(ends, drafts, strict=True)]
        assert metadata.logits_indices.tolist() == [row for part in rows for row in part]
        assert metadata.logits_indices[metadata.bonus_logits_indices].tolist() == [
            part[-1] for part in rows
        ]
        judged = metadata.logits_indices[metadata.target_logits_indices]
        assert judged.tolist() == [row for part in rows for row in part[:-1]]
        assert metadata.draft_token_ids.tolist() == input_ids[judged + 1].tolist()


def test_no_drafts_at_all() -> None:
    """Every request's last token gives its bonus row."""
    metadata = SpecDecodeMetadata.build(np.zeros(2, int), np.array([3, 4]), np.arange(4))
    assert metadata.max_spec_len == 0
    assert metadata.draft_token_ids.tolist() == []
    assert metadata.bonus_logits_indices.tolist() == [0, 1]
    assert metadata.logits_indices.tolist() == [2, 3]
