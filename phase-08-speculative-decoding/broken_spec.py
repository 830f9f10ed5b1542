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

from mini_vllm import SamplingParams
from mini_vllm.core.request import Request
from mini_vllm.core.sched.output import DraftTokenIds, SchedulerOutput
from mini_vllm.core.sched.scheduler import Scheduler
from mini_vllm.engine.core import EngineCore
from mini_vllm.sample import rejection_sampler as judge
from mini_vllm.spec_decode.eagle import EagleProposer
from mini_vllm.spec_decode.llm_base_proposer import DraftInputs
from mini_vllm.spec_decode.metadata import SpecDecodeMetadata


def first_difference(found: list[int]) -> int | None:
    """The first token that is not the plain text's; None: they are equal."""
    right = runs.plain().token_ids
    pairs = zip(found, right, strict=False)
    return next((i for i, (a, b) in enumerate(pairs, 1) if a != b), None)


# --- 1: the order of a step ---


def handed_over_late() -> int:
    """The scheduler gets the drafts of the step before. Returns how many of the head's are accepted."""
    waiting: list[DraftTokenIds] = []

    def late(self: EngineCore, scheduler_output: SchedulerOutput) -> None:
        made = self.model_runner.take_draft_token_ids()
        assert made is not None
        waiting.append(made)
        if len(waiting) > 1:
            self.scheduler.update_draft_token_ids(waiting.pop(0))

    with patch.object(EngineCore, "_update_drafts", late):
        return runs.run(runs.EAGLE).accepted_tokens


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


# --- 5: the drafter ---


def token_of_its_own_state() -> int:
    """The head gets each hidden state with its own token, and not with the next. Returns how many drafts are
    accepted."""

    def as_they_are(
        self: EagleProposer, inputs: DraftInputs, next_token_ids: NDArray[Any]
    ) -> DraftInputs:
        return inputs

    with patch.object(EagleProposer, "set_inputs_first_pass", as_they_are):
        return runs.run(runs.EAGLE).accepted_tokens


# --- 6: the counters ---


def counted_and_kept(max_tokens: int) -> str:
    """What the counters say of a text that is cut, and what came."""
    made = runs.run(runs.EAGLE, sampling=SamplingParams(temperature=0, max_tokens=max_tokens))
    steps, accepted, kept = len(made.steps), made.accepted_tokens, len(made.token_ids)
    return f"{steps} steps + {accepted} accepted = {steps + accepted}, for {kept} tokens"


if __name__ == "__main__":
    broken: Callable[[], object]
    for broken in (
        handed_over_late,
        not_taken_back,
        judged_one_row_late,
        bonus_from_the_first_row,
        drawn,
        not_struck_out,
        token_of_its_own_state,
    ):
        print(broken.__name__, broken())
    print(counted_and_kept(40))
