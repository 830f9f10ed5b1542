"""Texts that the shipped Llama writes with drafts, step by step: what the pages of this phase run.

The pages import this module by its name: start Python in this folder.

    python phase-08-speculative-decoding/runs.py            the guide's text, by who found each letter
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import mini_vllm
from mini_vllm import EngineConfig, LLMEngine, SamplingParams
from mini_vllm.config.speculative import SpeculativeConfig
from mini_vllm.engine.parts import EngineParts
from mini_vllm.engine.step_record import StepRecord
from mini_vllm.spec_decode.ngram_proposer import NgramProposer

PROMPT = "The KV cache"
NGRAM: dict[str, Any] = {
    "method": "ngram",
    "num_speculative_tokens": 3,
    "prompt_lookup_max": 5,
    "prompt_lookup_min": 2,
}

CHECKPOINTS = Path(mini_vllm.__file__).parent / "checkpoints"
EAGLE: dict[str, Any] = {
    "method": "eagle",
    "model": CHECKPOINTS / "tiny-llama-eagle",
    "num_speculative_tokens": 3,
}
DRAFT_MODEL: dict[str, Any] = EAGLE | {
    "method": "draft_model",
    "model": CHECKPOINTS / "tiny-llama-draft",
}


@dataclass(frozen=True)
class Step:
    """One request in one step.

    Attributes:
        scheduled: tokens that were computed.
        drafts: of these, the speculative ones.
        tokens: what the request got.
        computed: `num_computed_tokens` after the step.
        blocks: that the request holds after the step.
    """

    scheduled: int
    drafts: tuple[int, ...]
    tokens: tuple[int, ...]
    computed: int
    blocks: int

    @property
    def accepted(self) -> int:
        return len(self.tokens) - 1 if self.drafts else 0


@dataclass
class Run:
    """A request, from its prompt to its end, and the counters of its drafts."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    per_position: list[int] = field(default_factory=list)

    def count(self, record: StepRecord, engine: LLMEngine) -> None:
        """Take in a step."""
        stats = record.scheduler_stats.spec_decoding_stats
        if stats is not None:
            self.drafts += stats.num_drafts
            self.draft_tokens += stats.num_draft_tokens
            self.accepted_tokens += stats.num_accepted_tokens
            old = self.per_position or [0] * len(stats.num_accepted_tokens_per_pos)
            self.per_position = [
                a + b for a, b in zip(old, stats.num_accepted_tokens_per_pos, strict=True)
            ]
        core = engine.engine_core
        for req_id, scheduled in record.scheduler_output.num_scheduled_tokens.items():
            request = core.scheduler.requests.get(req_id)
            output = record.model_runner_output
            self.steps.append(
                Step(
                    scheduled,
                    tuple(record.scheduler_output.scheduled_spec_decode_tokens.get(req_id, ())),
                    tuple(output.sampled_token_ids[output.req_id_to_index[req_id]]),
                    request.num_computed_tokens if request else -1,
                    len(core.kv_cache_manager.get_block_ids(req_id)[0]) if request else 0,
                )
            )

    @property
    def mean_acceptance_length(self) -> float:
        return 1 + self.accepted_tokens / self.drafts


GREEDY = SamplingParams(temperature=0, max_tokens=256)


def new_engine(
    speculative_config: dict[str, Any] | None, parts: EngineParts | None = None, **settings: Any
) -> LLMEngine:
    """An engine with the shipped Llama."""
    config = EngineConfig(speculative_config=speculative_config, **settings)
    return LLMEngine(config=config, parts=parts or EngineParts())


def run(
    speculative_config: dict[str, Any] | None,
    prompt: str = PROMPT,
    sampling: SamplingParams | None = None,
    parts: EngineParts | None = None,
    **settings: Any,
) -> Run:
    """One request on an engine of its own, greedy unless `sampling` says otherwise."""
    engine = new_engine(speculative_config, parts, **settings)
    result = Run()
    engine.engine_core.step_observers.append(lambda record: result.count(record, engine))
    engine.add_request("eve", prompt, sampling or GREEDY)
    while engine.has_unfinished_requests():
        for output in engine.step():
            result.text = output.outputs[0].text
            result.token_ids = list(output.outputs[0].token_ids)
    return result


@functools.cache
def plain() -> Run:
    """The guide's text without drafts."""
    return run(None)


@functools.cache
def ngram() -> Run:
    """The guide's text with n-gram lookup."""
    return run(NGRAM)


@functools.cache
def head() -> Run:
    """The guide's text with the EAGLE head."""
    return run(EAGLE)


@functools.cache
def small() -> Run:
    """The guide's text with the draft model."""
    return run(DRAFT_MODEL)


def differing(made: Run) -> int:
    """How many tokens are not those of the text without drafts."""
    pairs = itertools.zip_longest(made.token_ids, plain().token_ids)
    return sum(a != b for a, b in pairs)


def show_steps(made: Run, first: int, last: int) -> None:
    """Print steps `first` to `last`: what was drafted and what came of it."""
    decode = LLMEngine().tokenizer.decode  # type: ignore[union-attr]
    print("step   computed   drafts   in the step   tokens   computed then   blocks")
    for number in range(first, last + 1):
        step, before = made.steps[number - 1], made.steps[number - 2].computed
        drafts = repr(decode(list(step.drafts))) if step.drafts else "."
        tokens = repr(decode(list(step.tokens)))
        print(
            f"{number:4} {before:10}   {drafts:6}   {step.scheduled:11}   {tokens:6}"
            f" {step.computed:15} {step.blocks:8}"
        )


def show_meters(made: Run) -> None:
    """Print the counters of a run, and the rates that vLLM's log has."""
    print(f"{len(made.token_ids)} tokens in {len(made.steps)} steps")
    print(
        f"drafts {made.drafts}, draft tokens {made.draft_tokens}, accepted tokens "
        f"{made.accepted_tokens}, by position {made.per_position}"
    )
    rates = ", ".join(f"{accepted / made.drafts:.3f}" for accepted in made.per_position)
    print(f"Mean acceptance length: {made.mean_acceptance_length:.2f}")
    print(f"Per-position acceptance rate: {rates}")
    print(f"Avg Draft acceptance rate: {100 * made.accepted_tokens / made.draft_tokens:.1f}%")


def lookup(text: list[int], most: int, least: int, k: int = 3) -> list[int]:
    """What n-gram lookup drafts after a text of these tokens."""
    spec = SpeculativeConfig(
        method="ngram", num_speculative_tokens=k, prompt_lookup_max=most, prompt_lookup_min=least
    )
    config = EngineConfig(speculative_config=spec, max_model_len=4096)
    return NgramProposer(config).propose_for(np.array(text, np.int32))


if __name__ == "__main__":
    for made in (plain(), ngram(), head()):
        print(len(made.steps), "steps", made.drafts, made.draft_tokens, made.accepted_tokens)
        print(made.text)
