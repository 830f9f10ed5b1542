"""Speculation and what is wrong without one of its parts: set-up for the deep dive.

Each function runs the guide's text with one part left out or done wrong, and says what came of it.

    python phase-08-speculative-decoding/broken_spec.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import runs
from numpy.typing import NDArray

from mini_vllm.core.request import Request
from mini_vllm.core.sched.scheduler import Scheduler
from mini_vllm.sample import rejection_sampler as judge
from mini_vllm.spec_decode.metadata import SpecDecodeMetadata


def first_difference(found: list[int]) -> int | None:
    """The first token that is not the plain text's; None: they are equal."""
    right = runs.plain().token_ids
    pairs = zip(found, right, strict=False)
    return next((i for i, (a, b) in enumerate(pairs, 1) if a != b), None)


# --- 2: the scheduler ---


def not_taken_back() -> str:
    """Rejected tokens count as computed."""

    def only_count(self: Scheduler, request: Request, drafts: int, accepted: int) -> None:
        self.spec_decoding_stats = None

    with patch.object(Scheduler, "_take_back_rejected", only_count):
        engine = runs.new_engine(runs.NGRAM)
        engine.add_request("eve", runs.PROMPT, runs.GREEDY)
        outputs: list[Any] = []
        for _ in range(300):
            outputs = engine.step() or outputs
        request = engine.engine_core.scheduler.requests["eve"]
        return (
            f"{request.num_tokens} tokens, {request.num_computed_tokens} computed, after 300 steps"
        )


# --- 3: the rows ---


def judged_one_row_late() -> int | None:
    """Each draft is judged by the row of the draft itself. Returns the first wrong token."""
    build = SpecDecodeMetadata.build

    def late(*arguments: Any) -> SpecDecodeMetadata:
        metadata = build(*arguments)
        metadata.target_logits_indices += 1
        return metadata

    with patch.object(SpecDecodeMetadata, "build", late):
        return first_difference(runs.run(runs.NGRAM, max_num_seqs=1).token_ids)


def bonus_from_the_first_row() -> int | None:
    """The token after accepted drafts comes from the first of a request's rows."""
    build = SpecDecodeMetadata.build

    def first(*arguments: Any) -> SpecDecodeMetadata:
        metadata = build(*arguments)
        metadata.bonus_logits_indices -= np.array(metadata.num_draft_tokens)
        return metadata

    with patch.object(SpecDecodeMetadata, "build", first):
        return first_difference(runs.run(runs.NGRAM).token_ids)


# --- 4: the rejection sampler ---


def drawn(number: int = 100_000) -> list[float]:
    """How often mat, sofa and roof come, when the draft is sofa."""
    p = np.array([0.5, 0.3, 0.2], np.float32)
    rng = np.random.default_rng(8)
    one_each, ones = [1] * number, np.ones(number, np.int64)
    tokens = judge.rejection_sample(
        draft_token_ids=ones,
        num_draft_tokens=one_each,
        draft_probs=None,
        target_logits=np.tile(np.log(p), (number, 1)),
        bonus_token_ids=0 * ones,
        temperature=ones.astype(np.float32),
        uniform_probs=judge.generate_uniform_probs(one_each, {}, rng),
        inv_q=judge.generate_inv_q(one_each, len(p), {}, rng),
    )[:, 0]
    return [round(float((tokens == token).mean()), 2) for token in range(len(p))]


def not_struck_out() -> list[float]:
    """After a rejection a token is drawn from p as it is. Returns how often each comes."""

    def from_p(
        draft_token_ids: NDArray[Any], draft_probs: None, target_probs: NDArray[Any], inv_q: Any
    ) -> Any:
        return (target_probs * inv_q).argmax(axis=-1)

    with patch.object(judge, "sample_recovered_tokens", from_p):
        return drawn()


if __name__ == "__main__":
    broken: Callable[[], object]
    for broken in (
        not_taken_back,
        judged_one_row_late,
        bonus_from_the_first_row,
        drawn,
        not_struck_out,
    ):
        print(broken.__name__, broken())
