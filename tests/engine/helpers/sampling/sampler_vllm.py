"""vLLM's own sampler for the rows of our tests, its metadata made as its input batch makes it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from mini_vllm.sample.generator import TorchGenerator
from mini_vllm.sample.ops import softmax
from tests.engine.helpers.sampling.sampler_helpers import VOCAB, Row


def vllm_params(row: Row, vocab: int = VOCAB) -> Any:
    """What a row's built-in processors read, as vLLM's parameters."""
    import vllm

    p = row.sampling_params
    names = ("temperature", "top_k", "top_p", "min_p", "logit_bias", "min_tokens")
    real = vllm.SamplingParams(
        **{name: getattr(p, name) for name in names}, stop_token_ids=p.stop_token_ids
    )
    real.update_from_generation_config({}, p.eos_token_id)
    # An id beyond the vocabulary is one that vLLM's scatter cannot take.
    real.all_stop_token_ids.intersection_update(range(vocab))
    return real


@functools.cache
def _config() -> Any:
    import vllm

    return vllm.config.VllmConfig()


def vllm_processors(rows: Sequence[Row], vocab: int = VOCAB) -> list[Any]:
    """Its minimum tokens, bias and minimum probability, told of these rows."""
    import torch
    from vllm.v1.sample.logits_processor import (
        BatchUpdate,
        LogitBiasLogitsProcessor,
        MinPLogitsProcessor,
        MinTokensLogitsProcessor,
    )

    update = BatchUpdate(
        batch_size=len(rows),
        removed=[],
        moved=[],
        added=[
            (i, vllm_params(row, vocab), row.prompt_token_ids, row.output_token_ids)
            for i, row in enumerate(rows)
        ],
    )
    kinds = (MinTokensLogitsProcessor, LogitBiasLogitsProcessor, MinPLogitsProcessor)
    processors = [kind(_config(), torch.device("cpu"), False) for kind in kinds]
    for processor in processors:
        processor.update_state(update)
    return processors


def vllm_sampler(
    rows: Sequence[Row], vocab: int = VOCAB, logprobs_mode: str = "raw_logprobs"
) -> tuple[Any, Any]:
    """vLLM's own sampler, and its metadata for these rows as its input batch would build it.

    A row without a seed gets a generator too, seeded with the row's number.
    """
    import torch
    from vllm.v1.sample.logits_processor import LogitsProcessors
    from vllm.v1.sample.metadata import SamplingMetadata
    from vllm.v1.sample.sampler import Sampler

    ours = [row.sampling_params for row in rows]
    temperature = torch.tensor([p.temperature for p in ours])
    barred = torch.zeros(len(rows), vocab, dtype=torch.bool)
    for i, p in enumerate(ours):
        if p.allowed_token_ids:
            barred[i] = True
            barred[i, p.allowed_token_ids] = False
    ks = [p.top_k if 0 < p.top_k < vocab else vocab for p in ours]
    ps = [p.top_p for p in ours]
    counts = [p.logprobs for p in ours if p.logprobs is not None and not p.logprob_token_ids]
    longest = max(len(row.prompt_token_ids) for row in rows)
    prompts = [
        [*row.prompt_token_ids, *[vocab] * (longest - len(row.prompt_token_ids))] for row in rows
    ]
    penalties = [(p.presence_penalty, p.frequency_penalty, p.repetition_penalty) for p in ours]
    return Sampler(logprobs_mode), SamplingMetadata(  # type: ignore[arg-type]
        temperature=temperature,
        all_greedy=bool((temperature == 0).all()),
        all_random=bool((temperature > 0).all()),
        top_p=None if set(ps) == {1.0} else torch.tensor(ps),
        top_k=None if set(ks) == {vocab} else torch.tensor(ks),
        generators={
            i: torch.Generator().manual_seed(i if p.seed is None else p.seed)
            for i, p in enumerate(ours)
            if p.temperature > 0
        },
        max_num_logprobs=max(counts, default=None),
        no_penalties=set(penalties) == {(0.0, 0.0, 1.0)},
        prompt_token_ids=torch.tensor(prompts),
        frequency_penalties=torch.tensor([p.frequency_penalty for p in ours]),
        presence_penalties=torch.tensor([p.presence_penalty for p in ours]),
        repetition_penalties=torch.tensor([p.repetition_penalty for p in ours]),
        output_token_ids=[row.output_token_ids for row in rows],
        allowed_token_ids_mask=barred,
        bad_words_token_ids={
            i: words for i, p in enumerate(ours) if (words := p.bad_words_token_ids)
        },
        logitsprocs=LogitsProcessors(vllm_processors(rows, vocab)),
        logprob_token_ids={
            i: p.logprob_token_ids for i, p in enumerate(ours) if p.logprob_token_ids
        },
    )


def race_margin(logits: np.ndarray, seed: int, first: int, second: int) -> float:
    """How far apart two tokens are in the race of a row's first draw: 0 is a dead heat.

    Args:
        logits: [V], what the row is drawn from.
    """
    noise = TorchGenerator(seed).standard_exponential(len(logits))
    quotients = softmax(logits[None].astype(np.float64))[0] / noise
    a, b = sorted([float(quotients[first]), float(quotients[second])])
    return 1.0 if b == 0 else (b - a) / b
