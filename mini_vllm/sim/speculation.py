"""Speculative decoding in a simulated run: how many drafts are accepted, and what drafting takes.

There is no text, so nothing is guessed and nothing compared. Drafts are accepted by given rates, as vLLM does
it where `rejection_sample_method` is `synthetic`. The scheduler is told of drafts as the engine core tells it
(`vllm/v1/engine/core.py:463 in EngineCore.post_step`), so rows, slots and blocks are the real ones.

A verified draft is a row of the step like any other, and the step's cost prices it. Drafting is priced here:
a pass of the drafter over all rows of the step, from which it takes the first draft, and for each further
draft a pass over one row a request. N-grams have no passes. Their price is that rows are verified, and that
asynchronous scheduling is off (`vllm/config/vllm.py:947 in VllmConfig.__post_init__`).

Left out: the CPU's time for looking n-grams up, and the room that a drafter's weights and KV take away.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from mini_vllm.config.speculative import SpeculativeConfig
from mini_vllm.core.stats import SpecDecodingStats
from mini_vllm.sim.cost import StepCost, StepWork


def unconditional_to_conditional_rates(rates: Sequence[float]) -> list[float]:
    """For each position, the share of the drafts accepted so far whose token is accepted there, too; 0 after
    a rate of 0 (`vllm/v1/spec_decode/utils.py:599 unconditional_to_conditional_rates`)."""
    before = [1.0, *rates[:-1]]
    return [rate / last if last > 0 else 0.0 for rate, last in zip(rates, before, strict=True)]


class Speculation:
    """Drafts for `Simulator`, and the record of what became of them.

    A subclass may decide otherwise what is accepted (`accept`), and how much is drafted (`num_draft_tokens`).

    Args:
        config: with `rejection_sample_method` synthetic.
        drafter: what one pass of the drafter costs, on the same device as the model; None: nothing.
        seed: of the draws.

    Raises ValueError for another `rejection_sample_method`.
    """

    def __init__(
        self, config: SpeculativeConfig, drafter: StepCost | None = None, seed: int = 0
    ) -> None:
        if config.synthetic_acceptance_rates is None:
            raise ValueError(
                "speculative_config: a simulated run has no text to compare drafts with; it needs "
                "rejection_sample_method 'synthetic' with synthetic_acceptance_rates or "
                f"synthetic_acceptance_length, got {config.rejection_sample_method!r}"
            )
        self.config = config
        self.drafter = drafter
        self.stats = SpecDecodingStats(config.num_spec_tokens)
        self._rates = unconditional_to_conditional_rates(config.synthetic_acceptance_rates)
        self._uniform = random.Random(f"drafts {seed}").random

    def num_draft_tokens(self, scheduler: Any) -> int:
        """Drafts a request for the next step, 0 to `num_speculative_tokens`; asked with each plan, while
        the scheduler stands as `schedule()` left it. With asynchronous scheduling the plan has room for all,
        and it is not asked."""
        return self.config.num_spec_tokens

    def accept(self, request_id: str, num_draft_tokens: int) -> int:
        """How many of a request's drafts are accepted: the first rejection ends it."""
        for position, rate in enumerate(self._rates[:num_draft_tokens]):
            if self._uniform() >= rate:
                return position
        return min(num_draft_tokens, len(self._rates))

    def judge(self, request_id: str, num_draft_tokens: int) -> int:
        """`accept`, counted as vLLM counts it: a request without drafts is no draft."""
        if not num_draft_tokens:
            return 0
        accepted = self.accept(request_id, num_draft_tokens)
        self.stats.observe_draft(num_draft_tokens, accepted)
        return accepted

    def drafting(self, work: StepWork, num_draft_tokens: int) -> float:
        """Seconds of the device for so many drafts a request, after a step with this work."""
        if self.drafter is None or not num_draft_tokens or not work.num_tokens:
            return 0.0
        extra = work.num_reqs * self.config.max_num_new_slots_for_drafting
        first = work._replace(num_tokens=work.num_tokens + extra)
        later = work._replace(
            prompt_steps=0, num_tokens=work.num_reqs, attention_pairs=work.kv_tokens
        )
        device = self.drafter.device
        return device(first) + (num_draft_tokens - 1) * device(later)

    def result(self) -> dict[str, Any]:
        """The figures, under the keys of `vllm bench serve`; rates are 0 where nothing was drafted."""
        stats = self.stats
        drafts, drafted = max(stats.num_drafts, 1), max(stats.num_draft_tokens, 1)
        return {
            "spec_decode_acceptance_rate": 100 * stats.num_accepted_tokens / drafted,
            "spec_decode_acceptance_length": 1 + stats.num_accepted_tokens / drafts,
            "spec_decode_num_drafts": stats.num_drafts,
            "spec_decode_draft_tokens": stats.num_draft_tokens,
            "spec_decode_accepted_tokens": stats.num_accepted_tokens,
            "spec_decode_per_position_acceptance_rates": [
                count / drafts for count in stats.num_accepted_tokens_per_pos
            ],
        }
